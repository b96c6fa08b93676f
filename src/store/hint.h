// Hint: a notification from another process that shares the store.
//
// Threads: a value.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"

namespace ae::store {

// A notification from another process. Hints are best effort: they can be lost and guarantee
// nothing.
struct Hint {
  std::vector<JobId> idle;        // jobs that ended or wait; empty = another kind of hint
  std::optional<JobId> inbox_of;  // job with a new inbox entry; nullopt = a job may be claimable
  struct Needs {
    std::string agent;
    std::vector<std::string> capabilities;
  };
  std::optional<Needs> needs;  // what the claimable job requires; nullopt = unknown
};

}  // namespace ae::store
