// Loads: what a store returns of one job, and where a load begins.
//
// A load returns whole commits, sealed as they were written: all from one event on, or a window of
// them whose size does not depend on the length of the log.
// Limits: kWindowEventsMax events and kWindowBytesMax of commits in a window.
// Threads: values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/hash.h"
#include "log/seal.h"
#include "store/rows.h"

namespace ae::store {

struct LoadedJob {
  JobRow row;
  // Sealed bytes in order, starting with the commit that contains `from_seq`.
  std::vector<std::string> commits;
  std::vector<Blob> blobs;         // every blob that these commits reference, each once
  std::vector<EffectRow> effects;  // by invocation and try
  std::vector<LedgerRow> ledger;   // by invocation and try
  std::vector<InboxEntry> inbox;   // not consumed yet, in order
  std::optional<std::string> signed_head;
  std::optional<Checkpoint> checkpoint;  // of loads from 1 or from the checkpoint
  // Of loads from 1, from the job's row; nullopt: the store has no such column.
  std::optional<Hash> request_hash;
  std::optional<std::uint64_t> commit_count;
};

// A `from_seq`: the checkpoint and the commits after it; without a checkpoint the same as 1.
inline constexpr std::uint64_t kFromCheckpoint = 0;
// A `from_seq`: the row, and the first commit with its blobs. The cost does not depend on the
// length of the log.
inline constexpr std::uint64_t kFirstCommit = UINT64_MAX;
// A `from_seq` after the end of every log: the row and the side records, and no commit.
inline constexpr std::uint64_t kNoCommits = INT64_MAX;

// The end of a log, as the `seq` of a window before it.
inline constexpr std::uint64_t kLogEnd = UINT64_MAX;
// A part of a job's log: at most `events_max` events after an event, or before one.
struct WindowRequest {
  enum class Direction : std::uint8_t { after, before };
  Direction direction = Direction::after;
  std::uint64_t seq = 0;
  std::uint64_t events_max = 500;  // REQUIRES: 1 to kWindowEventsMax
  bool reads_checkpoint = false;
};
inline constexpr std::uint64_t kWindowEventsMax = 10'000;
struct LogWindow {
  JobRow row;
  // The commits that contain these events, whole, in order: their first and last events can be
  // outside of the requested ones. Fewer than requested if they exceed kWindowBytesMax, at least
  // one; none if there is no such event.
  std::vector<std::string> commits;
  std::vector<Blob> blobs;  // every blob that these commits reference, each once
  // The commit before the first one, whose hash `commits` continue; nullopt: they begin at event 1,
  // or there are none.
  std::optional<std::string> preceding;
  std::optional<Checkpoint> checkpoint;  // if requested
};
inline constexpr std::size_t kWindowBytesMax = 4u << 20;  // of the commits of a window

}  // namespace ae::store
