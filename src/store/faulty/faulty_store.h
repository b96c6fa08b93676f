// FaultyStore: wraps a store and injects faults: failures before or after the work, delays, and
// crashes of the caller.
//
// A script chooses the fault of each call by its number; the same script gives the same faults.
// Used by the conformance suite (fail the first call, then the second, …) and by the simulator.
// Threads: the loop's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "async/loop.h"
#include "store/store.h"

namespace ae::store {

enum class Method : std::uint8_t {
  commit,
  put_inbox,
  claim,
  claim_job,
  heartbeat,
  redact,
  prune,
  append_audit_entry,
  list_due,
  next_due,
  load,
  query,
  list_ended,
  read_audit_log,
  count_jobs,
  erase_dropped_values,
};
inline constexpr std::size_t kMethods = static_cast<std::size_t>(Method::erase_dropped_values) + 1;
inline bool is_read(Method method) { return method >= Method::list_due; }

// What happens to one call.
enum class Fault : std::uint8_t {
  none,
  fail_before,   // `unavailable`; the inner store is not called
  fail_after,    // it is done, then a write answers `unknown_outcome`, a read `unavailable`
  delay,         // the inner store is called later (later calls overtake it)
  delay_answer,  // it is done, the answer comes later
  crash_before,  // the caller crashes; the inner store is not called; no more answers
  crash_after,   // it is done, then the caller crashes
};

std::string_view to_text(Method method);
std::string_view to_text(Fault fault);

struct Call {
  std::uint64_t number = 0;            // from 1, over all methods
  std::uint64_t number_of_method = 0;  // from 1, of this method
  Method method{};
  std::uint64_t from_seq = 0;  // of a load
};

using FaultScript = std::function<Fault(const Call&)>;

// One fault, at the n-th call, or at the n-th call of a method.
FaultScript inject_at(std::uint64_t number, Fault fault);
FaultScript inject_at(Method method, std::uint64_t number_of_method, Fault fault);

struct FaultRates {  // per 1,000 calls; the rest succeed
  std::uint32_t fail_before = 0, fail_after = 0, delay = 0, delay_answer = 0;
};
FaultScript random_faults(async::RandomSource& random, FaultRates rates);  // borrows

class FaultyStore final : public Store {
 public:
  struct Options {
    FaultScript script;
    Duration delay{100'000};
    std::function<void()> on_crash;  // called once; afterwards no call is answered
  };

  FaultyStore(async::Loop& loop, Store& inner, Options options);  // borrows both
  ~FaultyStore() override;

  std::uint64_t calls() const;  // so far
  bool crashed() const;

  void commit(Batch batch, async::Done<Result<CommitResult>> done) override;
  void put_inbox(JobId job, InboxEntry entry, async::Done<Result<void>> done) override;
  void claim(ClaimRequest request, async::Done<Result<std::vector<Lease>>> done) override;
  void claim_job(JobId job, ClaimRequest request,
                 async::Done<Result<std::optional<Lease>>> done) override;
  void heartbeat(std::vector<std::pair<JobId, Fence>> held, Duration lease,
                 async::Done<Result<std::vector<std::optional<Instant>>>> done) override;
  void list_due(std::size_t limit, async::Done<Result<std::vector<JobId>>> done) override;
  void next_due(async::Done<Result<std::optional<Instant>>> done) override;
  void load(JobId job, std::uint64_t from_seq, async::Done<Result<LoadedJob>> done) override;
  void query(Filter filter, async::Done<Result<std::vector<JobRow>>> done) override;
  void list_ended(EndedFilter filter, async::Done<Result<EndedPage>> done) override;
  void prune(Pruning pruning, async::Done<Result<bool>> done) override;
  void redact(Redaction redaction, async::Done<Result<void>> done) override;
  void erase_dropped_values(async::Done<Result<std::vector<ResidualCopy>>> done) override;
  void append_audit_entry(AuditEntry entry, async::Done<Result<void>> done) override;
  void read_audit_log(std::uint64_t after, async::Done<Result<AuditLog>> done) override;
  void count_jobs(async::Done<Result<JobStats>> done) override;
  void announce(std::string worker, std::string announcement, Duration ttl) override;
  void on_hint(std::function<void(const Hint&)> callback) override;
  void hint(const Hint& hint);  // simulates a hint of another process
  Instant now() override;
  Instant latest_now() override;
  // Simulates a clock on another machine: latest_now() is later than now() by this.
  void set_clock_uncertainty(Duration by);
  bool owned() const override;
  std::optional<Instant> opened_at() const override;

 private:
  struct State;
  template <class T, class Start>
  void call(Method method, async::Done<Result<T>> done, Start start, std::uint64_t from_seq = 0);

  std::function<void(const Hint&)> hint_callback_;
  std::shared_ptr<State> state_;  // shared with pending answers
};

}  // namespace ae::store
