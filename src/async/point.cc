// The one variable behind AE_POINT.
#include "async/point.h"

namespace ae::async {

PointHandler* point_handler = nullptr;

}  // namespace ae::async
