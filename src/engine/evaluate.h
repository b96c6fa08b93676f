// evaluate: what the expressions of a plan give at a point of a job's history.
//
// Expressions read only what cannot change any more (SPEC §9), so that the same question has the same answer when it
// is asked by `decide`, by a proof years later, or by somebody who looks back in time. Threads: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/error.h"
#include "engine/state.h"

namespace ae::engine {

// All fail with expression_failed; arguments also with input_invalid, where the tool's args_schema refuses them. They
// add to `work`, if there is any.

// What entry `index` of the tool's `changes` says of a call that gave `result`. REQUIRES: there is such an entry, and a call.
Result<Value> change_of(const State& state, const Step& step, std::size_t index,
                        const Value& result, Work* work = nullptr);
// Is a condition met that gave this? null and false are not.
bool is_met(const Value& value);
// Is the node's `when` met? REQUIRES: it has one.
Result<bool> when_of(const State& state, const Node& node, Work* work = nullptr);
// The value a map goes over: an array within the limits.
Result<Value> over_of(const State& state, const Node& node, Work* work = nullptr);
// The arguments of a tool node's call, or of the call that a map makes for an item of its recorded value.
// REQUIRES: with an item, the map is under way.
Result<Value> arguments_of(const State& state, const Node& node, std::uint32_t item = kNoItem,
                           Work* work = nullptr);
// The arguments of a probe or a compensation of the call of `about`. REQUIRES: its tool names one, it has a call.
Result<Value> side_arguments_of(const State& state, const Step& about, Role role,
                                Work* work = nullptr);
// What a probe's answer says of the call of `about`: null = it did not happen, else its result.
Result<Value> happened_of(const State& state, const Step& about, const Value& answer,
                          Work* work = nullptr);
// What a loop says first: the messages [system?, user], or those of a node of kind llm. REQUIRES: the node has turns.
Result<Value> opening_of(const State& state, const Node& node, Work* work = nullptr);
// The arguments of the call of a step, whichever it is; of a turn of a loop, as they are recorded. REQUIRES: a loop that it
// belongs to is under way, and this is its newest turn.
Result<Value> arguments_of(const State& state, const Step& step, Work* work = nullptr);
// The correlation key of a signal's or webhook's wait. REQUIRES: the node names one.
Result<std::string> wait_key_of(const State& state, const Node& node, Work* work = nullptr);
// The channel of a message wait.
Result<std::string> channel_of(const State& state, const Node& node, Work* work = nullptr);
// When a timer is due, if it is opened at `now`.
Result<Instant> due_of(const State& state, const Node& node, Instant now, Work* work = nullptr);
// The result of a job whose nodes are all done.
Result<Value> output_of(const State& state, Work* work = nullptr);

// What of a node could not be evaluated, in the words of an agents file.
struct FailedField {
  std::string field;        // when, args.id, wait.key, map, prompt, output.x
  std::string expression;   // without `${ }`; "" = the field holds several, or none
  bool gives_null = false;  // it is null where a text is needed
};
// Of a step that failed with `code`: evaluates its expressions again. nullopt: they do not fail so.
std::optional<FailedField> failed_field_of(const State& state, const Step& step,
                                           std::string_view code);
std::optional<FailedField> failed_output_of(const State& state);
// The expression of a string that is exactly one `${ }`; else "".
std::string sole_expression(const Value& source);

}  // namespace ae::engine
