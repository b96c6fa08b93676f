// The journal of the simulated world: what arrived for each idempotency key, the resources that
// calls change, and the checks of verifiers.
//
// The rules compare it with the logs of the jobs.
// Threads: values.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "json/value.h"
#include "log/field_names.h"
#include "sim/tool_kinds.h"
#include "tools/verifier.h"

namespace ae::sim {

struct Arrival {
  JobId job;
  InvocationId invocation;
  std::uint32_t try_no = 1;
  std::string arguments_hash;
  bool effect = false;   // it took effect
  bool refused = false;  // it was answered that it had no effect
  Value answer;          // the answer to a probe or of a model
  Value inputs;          // the users' answers that it carried; null = none
  Value messages;        // of a request to a model
};

struct KeyRecord {  // of an idempotency key
  JobId job;
  EffectClass effect_class{};
  std::string tool;
  std::uint64_t sends = 0, in_transit = 0, effects = 0;
  std::set<std::string> external_keys;
  std::vector<Arrival> arrivals;
  Value result;         // of its first effect
  bool broken = false;  // the result was unusable for the caller
  // The key of the call that this one undoes; "" = none.
  std::string_view undoes() const { return result["args"].text(field::of); }
};

// A resource that calls and others change: an increasing version number.
struct Resource {
  struct AppliedChange {  // by a call
    std::uint64_t version = 0;
    JobId job;
    InvocationId invocation;
    std::uint32_t try_no = 0;
  };
  std::uint64_t version = 0, foreign_changes = 0;  // changes not made by a call
  std::vector<AppliedChange> applied_changes;
};

struct VerifierCheck {  // of a verifier
  JobId job;
  std::string resource, expected;  // as recorded
  std::string actual_version;      // the actual version
  CheckVerdict reported_verdict{};
  CheckVerdict actual_verdict() const {
    return reported_verdict == CheckVerdict::unreachable ? reported_verdict
           : expected == actual_version                  ? CheckVerdict::match
                                                         : CheckVerdict::mismatch;
  }
};

}  // namespace ae::sim
