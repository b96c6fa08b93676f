// StepsRead: what the routes about the steps of a job read. Only for the .cc files of this module.
#pragma once

#include "api/request_context.h"

namespace ae::api {

struct Api::StepsRead {
  runtime::Runtime::JobSnapshot snapshot;  // without events
  runtime::History::IndexPtr index;
  ReadLimiter::Slot slot;
};

}  // namespace ae::api
