// Confirmation: verifies, after a recovery, that the job's external changes are
// as it left them (SPEC §8).
//
//   a tool commits → state_changed for each of its `changes`    State::changes keeps the last per
//                                                               resource
//   another attempt runs the job → State::to_confirm            `decide` lists them in
//                                                               Decision::confirm first
//   verifiers check → DecisionContext::confirmations            the runtime passes their results
//   decide → confirmation_checked, decision_recorded{confirmation}; the job continues, fails, or
//            for an operator
//
// A crash between any two of these leaves nothing behind: the next attempt checks again.
// Threads: pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "engine/state/state.h"
#include "log/event.h"

namespace ae::engine {

// Resources that are verified in one batch.
inline constexpr std::size_t kConfirmBatchMax = 256;

// The reason of a park in which no check found a mismatch: resuming the job repeats the checks.
inline constexpr std::string_view kVerifierUnreachable = "verifier_unreachable";

// The error of a call whose changes cannot be read; the end of the node has the details.
inline constexpr std::string_view kChangesUnread =
    "the call succeeded, but what it changed cannot be read";

std::string resource_key(std::string_view type, std::string_view id);
// The root `.change` of a verifier's expressions: {type, id, op, version, etag,
// ref}; null = not recorded.
Value change_value(const Change& change);
// The tool whose plan entry names a verifier for this change; nullptr = none.
const ToolPolicy* verifier_of(const State& state, const Change& change);

// The state_changed events of a call of `step` with this `result`. Fails with tool_output_invalid:
// the named entry of `changes` cannot be read. REQUIRES: the step has a call.
struct ExtractedChanges {
  std::vector<StateChanged> events;
  Status status;  // or the error of the first unreadable entry
};
ExtractedChanges changes_of(const State& state, const Step& step, const Value& result,
                            Work* work = nullptr);

// Each resource with its last change and its newest verification, by type and id: for a job's page.
// `verdict` is null before the first verification.
std::vector<Value> changes_view(const State& state);

}  // namespace ae::engine
