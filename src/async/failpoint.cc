// The one variable behind AE_FAILPOINT.
#include "async/failpoint.h"

namespace ae::async {

FailpointHandler* failpoint_handler = nullptr;

}  // namespace ae::async
