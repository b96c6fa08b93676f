// Prune: jobs that ended long ago are deleted whole, a few at a time, each perhaps after its log was put into an archive.
//
// Jobs are found in the order of their creation, from their rows alone; a log is read only to be archived. Each transaction
// deletes at most kPruneJobsMax jobs and about kPruneEventsMax events, and writes an entry of the audit log; between two of
// them others write. What was asked can be asked again at any time: what is deleted is gone, what is archived is compared.
// A job that was written to meanwhile is looked at anew. A fork needs nothing of its origin.
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

inline constexpr std::uint64_t kPruneEventsMax = 8192;        // of one transaction
inline constexpr std::size_t kPruneArchiveBytes = 16u << 20;  // about, of the files made for it
inline constexpr std::size_t kPruneLeftMax = 100;             // jobs that are named

// A place where files stay.
class Archive {
 public:
  struct File {
    std::string name, bytes;
  };
  virtual ~Archive() = default;
  // Durable, under their names, when it answers. One that is there with these bytes is fine. Fails with already_exists (it
  // has others) · unavailable.
  virtual void put_files(std::vector<File> files, async::Done<Status> done) = 0;
};

struct PruneRequest {
  Duration older_than{};              // since the last event, by the store's clock
  std::vector<std::string> statuses;  // of completed failed cancelled; empty = all three
  std::string agent;                  // "" = any
  std::vector<std::pair<std::string, std::string>> labels;
  std::shared_ptr<Archive> archive;  // nullptr: none
  bool dry_run = false;
  std::string by;
  std::uint64_t after = 0;     // where the last answer ended
  std::size_t jobs_max = 512;  // after so many it answers, and says whether there are more
};

struct PruneResult {
  std::uint64_t jobs = 0, events = 0;
  std::optional<Instant> oldest, newest;  // when the first and the last of them ended
  std::optional<std::uint64_t> next;      // `after` of the next request; nullopt = that was all
  Instant before;                         // what ended since stays
  // Left as they are, because their logs could not be read to be archived; at most kPruneLeftMax are named.
  std::vector<std::pair<JobId, Error>> left;
  std::uint64_t left_jobs = 0;
};

// The files of a job in an archive: `<id>.json`, its events as `aetheris events ID --json` prints them, which is what proves
// the chain; and `<id>.signed_head`, if its head was signed. Fails with log_corrupt · needs_version.
Result<std::vector<Archive::File>> archive_of(const JobId& job, const store::LoadedJob& loaded);

// `on_deleted`: called for each job once it is deleted. Fails with already_exists, unavailable (the archive) · unavailable ·
// unknown_outcome; what was deleted before that is gone.
void prune(store::Store& store, PruneRequest request, std::function<void(const JobId&)> on_deleted,
           async::Done<Result<PruneResult>> done);

}  // namespace ae::runtime
