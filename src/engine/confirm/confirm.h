// Confirmation: is what the job changed outside still as the job left it (SPEC §8)?
//
//   tool commits → state_changed for each of its `changes`       the last one of each resource stands in State::changes
//   an attempt takes the job over → State::to_confirm             decide names them (Decision::confirm), before any new
//   verifiers look → DecisionContext::confirmations                         command; the runtime asks; what was seen comes back
//   decide → confirmation_checked, decision_recorded{confirmation}, and what follows: on, the end, or a person
//
// A crash between any two of these leaves nothing behind: the next attempt asks anew. Threads: pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "engine/state/state.h"
#include "log/event.h"

namespace ae::engine {

// Resources that are confirmed together; the next ones after these.
inline constexpr std::size_t kConfirmBatchMax = 256;

// The reason of a park in which nothing was seen that is not as it was: it is looked again when the job is resumed.
inline constexpr std::string_view kVerifierUnreachable = "verifier_unreachable";

// What is said of a call whose changes cannot be read; the node's end says which.
inline constexpr std::string_view kChangesUnread =
    "the call succeeded, but what it changed cannot be read";

std::string resource_key(std::string_view type, std::string_view id);
// The root `.change` of a verifier's expressions: {type, id, op, version, etag, ref}; what was not recorded is null.
Value change_value(const Change& change);
// Does the plan say who looks at it?
const ToolPolicy* verifier_of(const State& state, const Change& change);

// The state_changed events of a call of `step` that gave `result`. Fails with tool_output_invalid, naming the entry: what
// it says of its changes cannot be read. REQUIRES: the step has a call.
struct ExtractedChanges {
  std::vector<StateChanged> events;
  Status whole;  // or what is wrong with the first entry that gives none
};
ExtractedChanges changes_of(const State& state, const Step& step, const Value& result,
                            Work* work = nullptr);

// Each resource with its last change and what was last seen of it, by type and id: for a job's page. `verdict` is null
// before anybody looked.
std::vector<Value> changes_view(const State& state);

}  // namespace ae::engine
