// code: the requests of a code node. A function of a worker, its *routine*, makes them; the log holds
// each with its outcome, and a new routine is given the outcomes again.
//
// A routine receives one outcome at a time, in the order of delivery, and settles before the next
// one: it has no more code to run. What it does in between is an advance: ends of its functions,
// recorded values, ends of scopes, new requests. The order of delivery is in the log:
//
//   - The success of a function of the worker is delivered before it is durable. Its
//     tool_invocation_finished has `delivered`, its position in that order, unless it is the number
//     of outcomes before it in the log. So is the result of a scope (node_finished).
//   - Every other outcome is delivered after its commit. In a record, the outcomes with a position
//     have it, and the others fill the free positions in log order.
//   - A node_started has `delivered`, how many outcomes the routine had been given when it made the
//     request, unless it is the number of outcomes before it in the log.
//
// An outcome takes its place in the log order with the tool_invocation_finished of a success, else
// with the node_finished of its request.
//
// A position names a request within its code, permanently:
//
//   { scope "/" } name [ "@" key ] [ "~" 16 hex digits ] [ "#" n ]       at most 512 bytes, n from 2
//
// A scope whose result is recorded is never run again: its result is given to a later routine, and
// what happened inside is only counted. So is a turn of a loop, a scope at the position of the loop,
// "/" and its number; of a loop only the last turn that ended counts. What is inside of them leaves
// the state (State::steps), unless it may have to be undone or is unknown.
//
// formal/routine.pml models the order; docs/decisions/0100-code-agents.md states why it suffices.
// Threads: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/error.h"
#include "base/hash.h"
#include "base/ids.h"
#include "engine/state/state.h"
#include "json/value.h"
#include "log/event.h"

namespace ae::engine {

inline constexpr std::size_t kPositionMax = 512;         // bytes
inline constexpr std::size_t kScopesMax = 16;            // nested
inline constexpr std::size_t kOpenRequestsMax = 10'000;  // of one code node
inline constexpr std::size_t kEmittedMax = 256u << 10;   // bytes of one emitted value

bool is_position(std::string_view text);
// The name of a request, a scope, an emitted value or a patch: 1 to 64 letters, digits, '_', '.',
// ':' and '-'.
bool is_request_name(std::string_view text);
// Has the code made a request there, of any kind?
bool has_request_at(const State& state, const Step& code, std::string_view position);
// Has one of the scopes around this position ended?
bool is_in_ended_scope(const State& state, const Step& code, std::string_view position);
// Is this so for one of the scopes around the position, which are named from the outermost?
template <class Is>
bool any_scope_around(std::string_view position, Is is) {
  for (std::size_t slash = position.find('/'); slash != position.npos;
       slash = position.find('/', slash + 1)) {
    if (is(position.substr(0, slash))) return true;
  }
  return false;
}
// Is `position` inside of the scope at `scope`?
bool is_inside(std::string_view position, std::string_view scope);

// A turn of a loop: { position of the loop "/" } number
struct TurnPosition {
  std::string_view loop;
  std::uint64_t number = 0;
};
// nullopt: it is no position of a turn.
std::optional<TurnPosition> turn_at(std::string_view position);

// The steps of the requests of this code node that are inside of a scope. `Inside`: gets each step.
template <class Inside>
void for_each_inside(const State& state, const Step& scope, Inside inside) {
  for (std::uint32_t i = state.index_of(scope) + 1; i < state.steps.size(); ++i) {
    const Step& step = state.steps[i];
    if (step.request && step.node == scope.node &&
        is_inside(step.request->position, scope.request->position)) {
      inside(i);
    }
  }
}

// What a routine did between two deliveries, except ends of functions and new requests (Routine):
// recorded values, scopes, emitted values, in their order. Recorded in one commit with the ends of
// functions of the same advance.
struct Advance {
  struct NewValue {
    std::string name;  // time:{scope/}n, uuid:{scope/}n, random (the seed), patch:ID
    Value value;
  };
  struct ScopeBegun {
    std::string position;
    std::uint64_t delivered = 0;
    bool is_turn = false;
  };
  struct ScopeEnded {
    std::string position;
    Value result;
    Boxed<Failure> failure;
    std::uint64_t delivered = 0;  // the position of this result
  };
  struct Emitted {
    std::string scope, name;
    Value value;
    bool is_published = false;
  };
  using Item = std::variant<NewValue, ScopeBegun, ScopeEnded, Emitted>;
  std::vector<Item> items;
};
// May code record this value under this name: time:{scope/}n, an object; uuid:{scope/}n and random,
// texts; patch:ID, a boolean?
bool is_code_value(std::string_view name, const Value& value);
// The position of such a value, whose scopes are those around it: what follows the ":".
std::string_view scope_of_value(std::string_view name);
// The events of an advance, which `apply` accepts. Fails with payload_too_large, input_invalid:
// nothing of it is to be written. REQUIRES: the code runs, in a running job that does not end.
Result<std::vector<EventBody>> record_advance(const State& state, const Step& code,
                                              const Advance& advance);

// The outcome of a request, as a routine is given it.
struct Delivery {
  std::string position;
  NodeKind kind = NodeKind::tool;
  Value result;
  Boxed<Failure> failure;                    // it failed
  bool timed_out = false, rejected = false;  // of a wait
  bool erased = false;                       // `result` is no longer in the log
  // Not 0: no outcome, but so many inside of scopes that have ended. They are counted, not given.
  std::uint64_t passed_over = 0;
};
// REQUIRES: the request has an outcome.
Delivery delivery_of(const State& state, const Step& request);

// What a new routine makes again: one recorded request.
struct RecordedRequest {
  std::string position;
  NodeKind kind = NodeKind::tool;
  std::string tool;                    // of a call
  std::optional<Hash> arguments_hash;  // of a call; nullopt: it was refused, or is not recorded yet
  WaitType wait = WaitType::signal;    // of a wait
  std::uint64_t delivered = 0;
};

// What a new routine is given: all that is recorded, without what is inside of ended scopes, and of
// each loop without the turns before the last one that ended.
struct CodeRecord {
  std::vector<RecordedRequest> requests;  // in the order of their starts; ends of loops first
  std::vector<Delivery> deliveries;       // in the order of delivery
  std::map<std::string, Value> values;    // as CodeProgress::values
  std::map<std::string, std::uint64_t> emitted;

  // How many outcomes it counts.
  std::uint64_t outcomes() const;
};
// REQUIRES: `code` is the step of a running code node.
CodeRecord record_of(const State& state, const Step& code);

}  // namespace ae::engine
