// prune: deletes jobs that ended long ago, a few at a time, optionally after archiving their logs.
//
// Jobs are selected by their rows alone, in creation order; a log is read only to be archived. Each
// transaction deletes at most kPruneJobsMax jobs and about kPruneEventsMax events and writes an
// audit log entry; other writers proceed between transactions. A request can be repeated at any
// time: deleted jobs are gone, archived files are compared. A job that was written to meanwhile is
// checked again. A fork needs nothing of its origin.
// Threads: the loop's. See docs/decisions/0042-retention.md.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "async/loop.h"
#include "base/error.h"
#include "base/ids.h"
#include "base/time.h"
#include "store/store.h"

namespace ae::runtime {

inline constexpr std::uint64_t kPruneEventsMax = 8192;  // per transaction
// Approximate bytes of archive files per transaction
inline constexpr std::size_t kPruneArchiveBytes = 16u << 20;
inline constexpr std::size_t kPruneSkippedMax = 100;  // jobs listed by name

// Destination of archive files.
class Archive {
 public:
  struct File {
    std::string name, bytes;
  };
  virtual ~Archive() = default;
  // Calls `done` once the files are durable under their names. An existing file with the same bytes
  // is accepted. Fails with already_exists (a file with other bytes) · unavailable.
  virtual void put_files(std::vector<File> files, async::Done<Status> done) = 0;
};

struct PruneRequest {
  Duration older_than{};              // since the last event, by the store's clock
  std::vector<std::string> statuses;  // subset of completed, failed, cancelled; empty = all three
  std::string agent;                  // "" = any
  std::vector<std::pair<std::string, std::string>> labels;
  std::shared_ptr<Archive> archive;  // nullptr: no archive
  bool dry_run = false;
  std::string by;
  std::uint64_t after = 0;     // `PruneResult::next` of the previous request
  std::size_t jobs_max = 512;  // after this many, returns and reports whether there are more
};

struct PruneResult {
  std::uint64_t jobs = 0, events = 0;
  std::optional<Instant> oldest, newest;  // first and last end time of the jobs
  std::optional<std::uint64_t> next;      // `after` of the next request; nullopt = none left
  Instant before;                         // jobs that ended later are kept
  // Not deleted, because their logs could not be read for the archive; at most kPruneSkippedMax are
  // listed.
  std::vector<std::pair<JobId, Error>> skipped;
  std::uint64_t skipped_jobs = 0;
};

// The archive files of a job: `<id>.json`, its events as `aetheris events ID --json` prints them,
// which is enough to verify the chain; and `<id>.signed_head`, if its head was signed. Fails with
// log_corrupt · needs_version.
Result<std::vector<Archive::File>> archive_of(const JobId& job, const store::LoadedJob& loaded);

// `on_deleted`: called for each job after it is deleted. Fails with already_exists, unavailable
// (the archive) · unavailable · unknown_outcome; jobs deleted before the failure stay deleted.
void prune(store::Store& store, PruneRequest request, std::function<void(const JobId&)> on_deleted,
           async::Done<Result<PruneResult>> done);

}  // namespace ae::runtime
