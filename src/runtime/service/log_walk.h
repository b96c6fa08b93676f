// Walks through the log of a job, window by window: a page of a long log costs its own commits, and
// a search or a fold of the whole log never holds more than one window in memory.
//
// Within a window the hash chain is verified, from the hash of the event before it.
// Windows are opened and visited on a reader thread, one after the other; between two of them the
// reader serves other work. Threads: the loop's, except `open_window` and visitors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <stop_token>
#include <vector>

#include "async/alive.h"
#include "async/executor.h"
#include "async/loop.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/ids.h"
#include "log/event.h"
#include "log/seal.h"
#include "store/store.h"

namespace ae::runtime {

// An opened window.
struct LogPart {
  store::JobRow row;
  std::vector<Event> events;  // of whole commits, in order; perhaps more than were requested
  Hash preceding;             // hash of the event before the first one; of an empty part at the end
                              // of the log: the hash of the last event
  std::optional<store::Checkpoint> checkpoint;  // if it was requested
};

// `cut_above`: an array or an object that is stored apart from its event and has more bytes of text
// is checked, but not parsed, and reads as {"$cut": bytes}; 0 = none. Fails with log_corrupt,
// needs_version.
Result<LogPart> open_window(const JobId& job, store::LogWindow window, const ValueLookup& lookup,
                            std::size_t cut_above = 0);

// The events that one window reads.
inline constexpr std::uint64_t kPartEvents = 500;

// What a walk reads from. Borrows the store and the executor. `owner`: after its end both may be
// destroyed, and the walk ends without an answer.
struct LogSource {
  store::Store& store;
  async::Executor& executor;
  ValueLookup lookup = {};         // called on reader threads, by one at a time
  std::stop_token abandoned = {};  // the walk ends early
  std::optional<async::Alive::Watch> owner = {};
  std::size_t cut_above = 0;  // as for open_window

  bool has_ended() const { return owner && !*owner; }
};

// Reads parts in the direction of `from`, which names where to begin, until `visit` returns false
// or no event is left. The answer is the row as of the last part. `visit` is called on reader
// threads: it owns what it uses; `done` is called after the last visit.
// Fails with not_found, unavailable (also interrupted), log_corrupt, needs_version.
using VisitPart = std::move_only_function<bool(LogPart&)>;
void walk_log(LogSource source, const JobId& job, store::WindowRequest from, VisitPart visit,
              async::Done<Result<store::JobRow>> done);

// The events with these seqs, ascending; a seq beyond the end of the log is passed over.
// Fails as walk_log.
void read_events(LogSource source, const JobId& job, std::vector<std::uint64_t> seqs,
                 async::Done<Result<std::vector<Event>>> done);

}  // namespace ae::runtime
