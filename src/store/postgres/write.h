// Write: one call of the Store as the Writer performs it: its reads, its decision, its answer.
//
// The classes of the calls are in writes.h.
// Threads: created and answered on the loop's thread, applied on the writer's.
#pragma once

#include <cstddef>
#include <optional>
#include <utility>

#include "async/loop.h"
#include "base/error.h"
#include "base/time.h"
#include "store/answers.h"
#include "store/postgres/plain_commits.h"
#include "store/postgres/transaction.h"

namespace ae::store::postgres {

// A write. `declare_reads`, both `decide` and `run_standalone` may be called again after a
// rollback.
class Write {
 public:
  virtual ~Write() = default;
  virtual std::size_t bytes() const { return 0; }
  virtual void declare_reads(Transaction& transaction) const = 0;
  virtual void decide(Transaction& transaction) = 0;
  // The batch of a commit; nullptr: another write. For a plain one (PlainCommits::is_plain),
  // `decide_plain` may be called instead of `declare_reads` and `decide`.
  virtual const Batch* batch() const { return nullptr; }
  virtual void decide_plain(PlainCommits&, std::int64_t) {}
  // True for a write with its own transaction, which run_standalone runs completely.
  virtual bool is_standalone() const { return false; }
  virtual Pg<void> run_standalone(Connection&) { return {}; }
  // What it wrote, to be remembered by the rollback guard; nullopt: nothing.
  virtual std::optional<HighWaterMark> high_water_mark() const { return std::nullopt; }
  // The transaction is durable: hit failpoints, free memory.
  virtual void committed() = 0;
  // Replaces the answer by an error: nothing happened, or the outcome is unknown.
  virtual void fail(const Error& error) = 0;
  virtual void answer() = 0;
};

template <class T>
class WriteWithResult : public store::WriteWithResult<Write, T> {
 public:
  // `at`: replaces the database's time in tests.
  WriteWithResult(std::optional<Instant> at, async::Done<Result<T>> done)
      : store::WriteWithResult<Write, T>(std::move(done)), at_(at) {}

 protected:
  Instant time(const Transaction& transaction) const { return at_.value_or(transaction.now()); }
  const std::optional<Instant>& at() const { return at_; }

 private:
  const std::optional<Instant> at_;
};

}  // namespace ae::store::postgres
