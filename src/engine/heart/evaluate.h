// evaluate: the values of a plan's expressions at a point of a job's history.
//
// Expressions read only values that cannot change any more (SPEC §9). So an evaluation has the
// same result for `decide`, for a verification years later, and for a view of an earlier state.
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "engine/state/state.h"

namespace ae::engine {

// All of them fail with expression_failed; arguments also with input_invalid, if the tool's
// args_schema rejects them. They add to `work` unless it is nullptr.

// Entry `index` of the tool's `changes`, for a call with this `result`. REQUIRES: the
// entry and the call exist.
Result<Value> change_of(const State& state, const Step& step, std::size_t index,
                        const Value& result, Work* work = nullptr);
// Does this value meet a condition? null and false do not.
bool is_met(const Value& value);
// Is the node's `when` met? REQUIRES: it has one.
Result<bool> when_of(const State& state, const Node& node, Work* work = nullptr);
// The value that a map iterates over: an array within the limits.
Result<Value> over_of(const State& state, const Node& node, Work* work = nullptr);
// The arguments of a tool node's call, or of a map's call for an item of its recorded value.
// REQUIRES: with an item, the map is running.
Result<Value> arguments_of(const State& state, const Node& node, std::uint32_t item = kNoItem,
                           Work* work = nullptr);
// The arguments of a probe or compensation of the call of `about`. REQUIRES: its tool
// names one, and it has a call.
Result<Value> side_arguments_of(const State& state, const Step& about, Role role,
                                Work* work = nullptr);
// The outcome of the call of `about` according to the probe's answer: null = not
// happened, else its result.
Result<Value> probe_result_of(const State& state, const Step& about, const Value& answer,
                              Work* work = nullptr);
// The first messages of a loop: [system?, user], or those of a node of kind llm.
// REQUIRES: the node has turns.
Result<Value> opening_messages_of(const State& state, const Node& node, Work* work = nullptr);
// The arguments of the call of any step; for a turn of a loop, as they are recorded. REQUIRES: its
// loop, if any, is running, and this is the newest turn.
Result<Value> arguments_of(const State& state, const Step& step, Work* work = nullptr);
// The correlation key of a signal's or webhook's wait. REQUIRES: the node names one.
Result<std::string> wait_key_of(const State& state, const Node& node, Work* work = nullptr);
// The channel of a message wait.
Result<std::string> channel_of(const State& state, const Node& node, Work* work = nullptr);
// When a timer is due that is opened at `now`.
Result<Instant> due_of(const State& state, const Node& node, Instant now, Work* work = nullptr);
// The result of a job whose nodes are all done.
Result<Value> output_of(const State& state, Work* work = nullptr);

// The field of a node that could not be evaluated, as in an agents file.
struct FailedField {
  std::string field;        // when, args.id, wait.key, map, prompt, output.x
  std::string expression;   // without `${ }`; "" = the field holds several, or none
  bool gives_null = false;  // it is null where a string is required
};
// For a step that failed with `code`: evaluates its expressions again. nullopt: none fails with it.
std::optional<FailedField> failed_field_of(const State& state, const Step& step,
                                           std::string_view code);
std::optional<FailedField> failed_output_of(const State& state);
// The expression of a string that is exactly one `${ }`; else "".
std::string sole_expression(const Value& source);

}  // namespace ae::engine
