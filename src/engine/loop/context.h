// context: which part of a conversation the requests of a loop contain, so that it fits into the
// context of its model (decision 0107).
//
//   the system prompt │ a summary │ the message of the exchange of turn `from` │ turn `from` and
//   later ones │ the next message
//
// Before each turn its request is estimated: the input and output tokens that the last answer
// reported, and a third of the bytes of what was added since; without a complete report, the
// estimate of the last request and a third of the bytes of everything since. Above 80 % of the
// limit the oldest exchanges are left out, then the oldest turns of the newest exchange, until half
// of the limit is left. The newest turn always stays, so each result stays with its call.
//
// The first turn that is kept is recorded in the arguments of the turn before which that happens,
// with the summary. All later requests depend on this record, not on the estimate. Stored: these
// members of the arguments of a turn,
//   "from"?: the first turn that is kept, "summary"?: text
// and the arguments of the call that summarizes, whose path is that of the turn, and `/summary`:
//   {"model", "temperature"?, "max_tokens"?, "conversation", "said", "summarizes": as "from"}.
// `conversation` and `said` then begin again, with the messages of this request.
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/loop/turn_messages.h"
#include "engine/state/state.h"
#include "json/value.h"

namespace ae::engine {

// What a decision records in the arguments of a turn, besides what follows from earlier events.
struct TurnExtras {
  Value notice;            // null = none
  std::uint32_t from = 0;  // 0: as in the turn before
  std::string summary;     // "" = none
};
TurnExtras extras_of(const Value& arguments);
// The turn with this recorded number; 0: it is none.
inline std::uint32_t turn_at(std::int64_t number) {
  const bool valid = number > 0 && number < std::int64_t{kNoTurn};
  return valid ? static_cast<std::uint32_t>(number) : 0;
}

// All of these: REQUIRES: `loop` is the step of a running loop.

// The estimated tokens of the request of this turn with everything that the turn before it had.
// REQUIRES: it is the next turn, or the newest one. `opening`: the messages that it begins with.
std::uint64_t context_tokens_of(const State& state, const Step& loop, std::uint32_t turn,
                                const Value& opening, const Value& notice);
// The estimated tokens of a request with these messages.
std::uint64_t request_tokens_of(const State& state, const Step& loop,
                                const std::vector<Value>& messages);

// What the policy does before a turn.
struct ContextAction {
  std::uint32_t from = 0;   // 0: nothing
  std::string summary;      // "" = none
  bool summarizes = false;  // the summary is requested first
};
// Fails with context_exceeded: the newest exchange alone exceeds the limit.
Result<ContextAction> context_action_of(const State& state, const Step& loop, std::uint32_t turn,
                                        const Value& opening, const Value& notice);

// Is this possible in the arguments of this turn, which is the next or the newest one?
bool may_begin_at(const State& state, const Step& loop, std::uint32_t turn,
                  const TurnExtras& extras);
// Is its summary the answer of the call that was made for it, as far as both are not erased? An
// imported turn has no such call.
bool is_given_summary(const State& state, const Step& loop, const TurnExtras& extras);
// May a summary be requested before the next turn?
bool may_summarize(const State& state, const Step& loop);
// What the requests begin with if turns before `from` are left out. REQUIRES: may_begin_at.
ContextStart context_start_of(const State& state, const Step& loop, std::uint32_t from,
                              std::string summary);
// The messages of the request of a turn. `start`: what it begins with.
std::vector<Value> request_messages_of(const State& state, const Step& loop, std::uint32_t turn,
                                       const ContextStart& start, const Value& opening,
                                       const Value& notice);
// The same, for a declared turn.
std::vector<Value> sent_messages_of(const State& state, const Step& loop, std::uint32_t turn);
// The arguments of the call that summarizes what is left out before the turn `from`, and its
// messages.
Value summary_arguments_of(const State& state, const Step& loop, std::uint32_t turn,
                           std::uint32_t from);
std::vector<Value> summary_messages_of(const State& state, const Step& loop, std::uint32_t turn,
                                       std::uint32_t from);
// The message with a summary.
Value summary_message(const std::string& summary);

}  // namespace ae::engine
