// summaries: which recorded values repeat the messages of a conversation, because a model
// summarized them.
//
// A summary repeats the messages that it was made of, and each later summary of the same loop was
// made of the one before it. Its text is the answer of its call, and is in the arguments of the turn
// that uses it (context.h).
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <utility>

#include "engine/state/state.h"
#include "log/event.h"

namespace ae::engine {

// By event and field, as in Event::salts: the values with the summaries that were made of the values
// of these events, directly or by earlier summaries. REQUIRES: `all` is the fold of all events, with
// State::keeps_folded; `events` begin with the first one.
std::set<std::pair<std::uint64_t, std::string>> summaries_of(const State& all,
                                                             std::span<const Event> events,
                                                             const std::set<std::uint64_t>& seqs);
// Has the log a call that summarizes?
bool has_summaries(std::span<const Event> events);

}  // namespace ae::engine
