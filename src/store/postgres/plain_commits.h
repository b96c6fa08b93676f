// PlainCommits: commits that only append to the log of a leased job, as one statement outside of a
// transaction. The statement checks each fence and the end of each log where it writes them and
// reads nothing before. If one of them does not match, nothing is written: a Transaction decides
// the same writes and names the reason.
// Threads: the writer's thread.
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "store/postgres/connection.h"
#include "store/postgres/rollback_guard.h"
#include "store/store.h"

namespace ae::store::postgres {

// The row of `heads` of a leased job, as this process wrote or read it last. While its own lease is
// valid no other process changes `row`.
struct WrittenRow {
  std::int64_t number = 0;  // of the job
  Fence fence;
  RowState row;
};
bool is_same(const RowState& a, const RowState& b);
using WrittenRows = std::unordered_map<JobId, WrittenRow>;

class PlainCommits {
 public:
  // True if the batch has events and the fence of `written`, reads nothing, and writes no other
  // record: the job keeps its row and its lease.
  static bool is_plain(const Batch& batch, const WrittenRow& written);

  // REQUIRES: is_plain, and no other batch of the job. The batch is borrowed.
  void add(const Batch& batch, std::int64_t job_number) {
    commits_.push_back({job_number, &batch});
  }
  bool empty() const { return commits_.empty(); }
  std::size_t size() const { return commits_.size(); }

  // Writes all, and returns the database's time. nullopt: nothing was written, because a row did
  // not match. After another error nothing was written either, except after unknown_outcome.
  Pg<std::optional<Instant>> write(Connection& connection);
  // One of the written job rows. REQUIRES: !empty
  HighWaterMark high_water_mark() const;

 private:
  struct Commit {
    std::int64_t job;
    const Batch* batch;
  };
  std::vector<Commit> commits_;
};

}  // namespace ae::store::postgres
