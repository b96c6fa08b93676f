// Views: the bodies of the routes that look at one job. They only put engine's views and the store's rows together.
//
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "core/error.h"
#include "core/sign.h"
#include "core/value.h"
#include "runtime/runtime.h"

namespace ae::api {

// `now`, by the store's clock: a person's wait whose time has passed is `expired` then, though nobody has noted it yet, and
// nothing answers it any more.
Value job_body(const runtime::Runtime::Read& read, Instant now);
Value trace_body(const runtime::Runtime::Read& read);
// Fails with log_corrupt. REQUIRES: 1 <= seq <= the last.
Result<Value> replay_body(const runtime::Runtime::Read& read, std::uint64_t seq);
// Says what is wrong, instead of failing. `keys`: whose signatures count.
Value verify_body(const JobId& job, const store::Loaded& loaded,
                  const std::vector<PublicKey>& keys = {});

}  // namespace ae::api
