// Walks through the log of a job, window by window: a page of a long log costs its own commits, and
// a search or a fold of the whole log never holds more than one window in memory.
//
// Within a window the hash chain is verified, from the hash of the event before it.
// Threads: the loop's. Between two windows the loop handles other work.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

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

// Fails with log_corrupt, needs_version.
Result<LogPart> open_window(const JobId& job, store::LogWindow window, const ValueLookup& lookup);

// The events that one window reads.
inline constexpr std::uint64_t kPartEvents = 500;

// Reads parts in the direction of `from`, which names where to begin, until `visit` returns false
// or no event is left. The answer is the row as of the last part. Borrows the store.
// Fails with not_found, unavailable, log_corrupt, needs_version.
using VisitPart = std::function<bool(LogPart&)>;
void walk_log(store::Store& store, const JobId& job, store::WindowRequest from,
              const ValueLookup& lookup, VisitPart visit, async::Done<Result<store::JobRow>> done);

// The events with these seqs, ascending; a seq beyond the end of the log is passed over.
// Fails as walk_log.
void read_events(store::Store& store, const JobId& job, std::vector<std::uint64_t> seqs,
                 const ValueLookup& lookup, async::Done<Result<std::vector<Event>>> done);

}  // namespace ae::runtime
