// LogWriter: builds the commit that extends the log of a job: seals its events, sets the row and
// signs the new end of the log. One for each commit.
//
// Threads: the loop's.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "async/alive.h"
#include "async/loop.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/ids.h"
#include "base/time.h"
#include "log/seal.h"
#include "runtime/world.h"
#include "store/store.h"

namespace ae::runtime {

// The end of a log; seq 0: the log is empty.
struct LogEnd {
  std::uint64_t seq = 0;
  Hash head;  // hash of the last event
};

// Signs the end of the job's log in a commit after which no worker holds the job. Does nothing if
// this process has no key.
void sign_head(const World& world, const LogEnd& end, Instant now, store::Batch& batch);

class LogWriter {
 public:
  // Draws the ids and salts of the events. `at`: time of the events. `attempt`: nullopt = no
  // attempt writes them.
  LogWriter(const World& world, JobId job, const LogEnd& end, Instant at,
            std::optional<AttemptId> attempt);

  LogWriter(const LogWriter&) = delete;
  LogWriter& operator=(const LogWriter&) = delete;

  // The end of the log after these events, for an event that refers to them. Fails as `append`.
  Result<LogEnd> end_after(const std::vector<Event>& events) const;
  // Adds the events and the row after them to the batch; returns the events as a reader will see
  // them. `known`: log/seal.h. Fails as log/seal.h: seal.
  Result<std::vector<Event>> append(std::vector<Event> events, store::RowState row,
                                    store::Batch& batch);
  Result<std::vector<Event>> append(std::vector<EventBody> bodies, store::RowState row,
                                    store::Batch& batch, const KnownText& known = {});
  const LogEnd& end() const { return end_; }  // includes the appended events

 private:
  Result<std::vector<Event>> put(Result<SealedBatch> sealed, store::RowState row,
                                 store::Batch& batch);

  const JobId job_;
  LogEnd end_;
  SealInput sealing_;  // refers to job_
};

// Commits and retries while the outcome is unknown: the same bytes sent again change nothing if
// they are already committed. `alive` ends the retries. Fails as Store::commit.
void commit_until_known(const World& world, async::Alive::Watch alive,
                        std::shared_ptr<const store::Batch> batch,
                        async::Done<Result<store::CommitResult>> done, int tries = 0);

}  // namespace ae::runtime
