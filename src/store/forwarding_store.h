// ForwardingStore: a store that passes each call to another one. A derived class changes all calls
// in one function (it measures, delays, fails or blocks them), and overrides only those that it
// treats differently.
//
// Threads: as the derived class.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "store/store.h"

namespace ae::store {

// The methods that answer later: first those that may write.
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
  load_window,
  read_inbox_entry,
  query,
  list_ended,
  read_audit_log,
  count_jobs,
  count_matching,
  erase_dropped_values,
};
inline constexpr std::size_t kMethods = static_cast<std::size_t>(Method::erase_dropped_values) + 1;
inline bool is_read(Method method) { return method >= Method::list_due; }
// The name in metrics and failpoints.
std::string_view to_text(Method method);

struct MethodCall {
  Method method{};
  std::uint64_t from_seq = 0;  // of a load; WindowRequest::seq
  bool is_leased = false;      // a commit of the holder of a lease
};

// Derived has `Store& inner()`, and may replace `call`. If these are private, Derived declares this
// class a friend.
template <class Derived>
class ForwardingStore : public Store {
 public:
  void commit(Batch batch, async::Done<Result<CommitResult>> done) override {
    const MethodCall method_call{
        .method = Method::commit,
        .is_leased = std::holds_alternative<Batch::Leased>(batch.authority)};
    forward(method_call, &Store::commit, std::move(done), std::move(batch));
  }
  void put_inbox(JobId job, InboxEntry entry, async::Done<Result<void>> done) override {
    forward({Method::put_inbox}, &Store::put_inbox, std::move(done), std::move(job),
            std::move(entry));
  }
  void claim(ClaimRequest request, async::Done<Result<std::vector<Lease>>> done) override {
    forward({Method::claim}, &Store::claim, std::move(done), std::move(request));
  }
  void claim_job(JobId job, ClaimRequest request,
                 async::Done<Result<std::optional<Lease>>> done) override {
    forward({Method::claim_job}, &Store::claim_job, std::move(done), std::move(job),
            std::move(request));
  }
  void heartbeat(std::vector<std::pair<JobId, Fence>> held, Duration lease,
                 async::Done<Result<std::vector<std::optional<Instant>>>> done) override {
    forward({Method::heartbeat}, &Store::heartbeat, std::move(done), std::move(held), lease);
  }
  void list_due(std::size_t limit, async::Done<Result<std::vector<JobId>>> done) override {
    forward({Method::list_due}, &Store::list_due, std::move(done), limit);
  }
  void next_due(async::Done<Result<std::optional<Instant>>> done) override {
    forward({Method::next_due}, &Store::next_due, std::move(done));
  }
  void load(JobId job, std::uint64_t from_seq, async::Done<Result<LoadedJob>> done) override {
    forward({Method::load, from_seq}, &Store::load, std::move(done), std::move(job), from_seq);
  }
  void load_window(JobId job, WindowRequest window, async::Done<Result<LogWindow>> done) override {
    forward({Method::load_window, window.seq}, &Store::load_window, std::move(done), std::move(job),
            window);
  }
  void read_inbox_entry(JobId job, std::string id,
                        async::Done<Result<InboxEntryState>> done) override {
    forward({Method::read_inbox_entry}, &Store::read_inbox_entry, std::move(done), std::move(job),
            std::move(id));
  }
  void query(Filter filter, async::Done<Result<std::vector<JobRow>>> done) override {
    forward({Method::query}, &Store::query, std::move(done), std::move(filter));
  }
  void list_ended(EndedFilter filter, async::Done<Result<EndedPage>> done) override {
    forward({Method::list_ended}, &Store::list_ended, std::move(done), std::move(filter));
  }
  void redact(Redaction redaction, async::Done<Result<void>> done) override {
    forward({Method::redact}, &Store::redact, std::move(done), std::move(redaction));
  }
  void erase_dropped_values(async::Done<Result<std::vector<ResidualCopy>>> done) override {
    forward({Method::erase_dropped_values}, &Store::erase_dropped_values, std::move(done));
  }
  void prune(Pruning pruning, async::Done<Result<bool>> done) override {
    forward({Method::prune}, &Store::prune, std::move(done), std::move(pruning));
  }
  void append_audit_entry(AuditEntry entry, async::Done<Result<void>> done) override {
    forward({Method::append_audit_entry}, &Store::append_audit_entry, std::move(done),
            std::move(entry));
  }
  void read_audit_log(std::uint64_t after, async::Done<Result<AuditLog>> done) override {
    forward({Method::read_audit_log}, &Store::read_audit_log, std::move(done), after);
  }
  void count_jobs(async::Done<Result<JobStats>> done) override {
    forward({Method::count_jobs}, &Store::count_jobs, std::move(done));
  }
  void count_matching(CountFilter filter, async::Done<Result<JobCounts>> done) override {
    forward({Method::count_matching}, &Store::count_matching, std::move(done), std::move(filter));
  }
  void announce(std::string worker, std::string announcement, Duration ttl) override {
    self().inner().announce(std::move(worker), std::move(announcement), ttl);
  }
  void on_hint(std::function<void(const Hint&)> callback) override {
    self().inner().on_hint(std::move(callback));
  }
  Instant now() override { return self().inner().now(); }
  Instant latest_now() override { return self().inner().latest_now(); }
  bool owned() const override { return self().inner().owned(); }
  std::optional<Instant> opened_at() const override { return self().inner().opened_at(); }

 protected:
  // `start(inner, done)` makes the call; it is called once at most.
  template <class T, class Start>
  void call(MethodCall, async::Done<Result<T>> done, Start start) {
    start(self().inner(), std::move(done));
  }

 private:
  template <class T, class... Args>
  void forward(MethodCall method_call, auto method, async::Done<Result<T>> done, Args... args) {
    self().call(method_call, std::move(done),
                [method, ... args = std::move(args)](Store& inner,
                                                     async::Done<Result<T>> on_answer) mutable {
                  (inner.*method)(std::move(args)..., std::move(on_answer));
                });
  }
  Derived& self() { return static_cast<Derived&>(*this); }
  const Derived& self() const { return static_cast<const Derived&>(*this); }
};

}  // namespace ae::store
