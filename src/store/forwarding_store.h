// ForwardingStore: a store that passes every call to the store that it wraps.
//
// A wrapper derives from ForwardingStore<Wrapper> and declares one function template, `forward`: all
// operations with an answer go through it. Without it, they are passed on unchanged. A wrapper may
// also override single operations.
// Threads: as the wrapped store.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "async/loop.h"
#include "store/store.h"

namespace ae::store {

// The operations with an answer: first those that write.
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
constexpr bool is_read(Method method) { return method >= Method::list_due; }

// As /metrics and the failpoints of the simulation name it.
constexpr std::string_view to_text(Method method) {
  constexpr std::string_view kText[] = {
      "commit", "put_inbox", "claim", "claim_job", "heartbeat", "redact",    "prune",  "record",
      "due",    "next_due",  "load",  "query",     "ended",     "audit_log", "census", "wipe"};
  static_assert(std::size(kText) == kMethods);
  return kText[static_cast<std::size_t>(method)];
}

template <class Wrapper>
class ForwardingStore : public Store {
 public:
  explicit ForwardingStore(Store* inner) : inner_(inner) {}  // borrows

  void commit(Batch batch, async::Done<Result<CommitResult>> done) override {
    wrapper().forward(Method::commit, std::move(done),
                      [batch = std::move(batch)](Store& inner, auto d) mutable {
                        inner.commit(std::move(batch), std::move(d));
                      });
  }
  void put_inbox(JobId job, InboxEntry entry, async::Done<Result<void>> done) override {
    wrapper().forward(
        Method::put_inbox, std::move(done),
        [job = std::move(job), entry = std::move(entry)](Store& inner, auto d) mutable {
          inner.put_inbox(std::move(job), std::move(entry), std::move(d));
        });
  }
  void claim(ClaimRequest request, async::Done<Result<std::vector<Lease>>> done) override {
    wrapper().forward(Method::claim, std::move(done),
                      [request = std::move(request)](Store& inner, auto d) mutable {
                        inner.claim(std::move(request), std::move(d));
                      });
  }
  void claim_job(JobId job, ClaimRequest request,
                 async::Done<Result<std::optional<Lease>>> done) override {
    wrapper().forward(
        Method::claim_job, std::move(done),
        [job = std::move(job), request = std::move(request)](Store& inner, auto d) mutable {
          inner.claim_job(std::move(job), std::move(request), std::move(d));
        });
  }
  void heartbeat(std::vector<std::pair<JobId, Fence>> held, Duration lease,
                 async::Done<Result<std::vector<std::optional<Instant>>>> done) override {
    wrapper().forward(Method::heartbeat, std::move(done),
                      [held = std::move(held), lease](Store& inner, auto d) mutable {
                        inner.heartbeat(std::move(held), lease, std::move(d));
                      });
  }
  void list_due(std::size_t limit, async::Done<Result<std::vector<JobId>>> done) override {
    wrapper().forward(Method::list_due, std::move(done),
                      [limit](Store& inner, auto d) { inner.list_due(limit, std::move(d)); });
  }
  void next_due(async::Done<Result<std::optional<Instant>>> done) override {
    wrapper().forward(Method::next_due, std::move(done),
                      [](Store& inner, auto d) { inner.next_due(std::move(d)); });
  }
  void load(JobId job, std::uint64_t from_seq, async::Done<Result<LoadedJob>> done) override {
    wrapper().forward(Method::load, std::move(done),
                      [job = std::move(job), from_seq](Store& inner, auto d) mutable {
                        inner.load(std::move(job), from_seq, std::move(d));
                      });
  }
  void query(Filter filter, async::Done<Result<std::vector<JobRow>>> done) override {
    wrapper().forward(Method::query, std::move(done),
                      [filter = std::move(filter)](Store& inner, auto d) mutable {
                        inner.query(std::move(filter), std::move(d));
                      });
  }
  void list_ended(EndedFilter filter, async::Done<Result<EndedPage>> done) override {
    wrapper().forward(Method::list_ended, std::move(done),
                      [filter = std::move(filter)](Store& inner, auto d) mutable {
                        inner.list_ended(std::move(filter), std::move(d));
                      });
  }
  void redact(Redaction redaction, async::Done<Result<void>> done) override {
    wrapper().forward(Method::redact, std::move(done),
                      [redaction = std::move(redaction)](Store& inner, auto d) mutable {
                        inner.redact(std::move(redaction), std::move(d));
                      });
  }
  void erase_dropped_values(async::Done<Result<std::vector<ResidualCopy>>> done) override {
    wrapper().forward(Method::erase_dropped_values, std::move(done),
                      [](Store& inner, auto d) { inner.erase_dropped_values(std::move(d)); });
  }
  void prune(Pruning pruning, async::Done<Result<bool>> done) override {
    wrapper().forward(Method::prune, std::move(done),
                      [pruning = std::move(pruning)](Store& inner, auto d) mutable {
                        inner.prune(std::move(pruning), std::move(d));
                      });
  }
  void append_audit_entry(AuditEntry entry, async::Done<Result<void>> done) override {
    wrapper().forward(Method::append_audit_entry, std::move(done),
                      [entry = std::move(entry)](Store& inner, auto d) mutable {
                        inner.append_audit_entry(std::move(entry), std::move(d));
                      });
  }
  void read_audit_log(std::uint64_t after, async::Done<Result<AuditLog>> done) override {
    wrapper().forward(Method::read_audit_log, std::move(done),
                      [after](Store& inner, auto d) { inner.read_audit_log(after, std::move(d)); });
  }
  void count_jobs(async::Done<Result<JobStats>> done) override {
    wrapper().forward(Method::count_jobs, std::move(done),
                      [](Store& inner, auto d) { inner.count_jobs(std::move(d)); });
  }
  void announce(std::string worker, std::string announcement, Duration ttl) override {
    inner_->announce(std::move(worker), std::move(announcement), ttl);
  }
  void on_hint(std::function<void(const Hint&)> callback) override {
    inner_->on_hint(std::move(callback));
  }
  Instant now() override { return inner_->now(); }
  Instant latest_now() override { return inner_->latest_now(); }
  bool owned() const override { return inner_->owned(); }
  std::optional<Instant> opened_at() const override { return inner_->opened_at(); }

 protected:
  Store& inner() const { return *inner_; }
  void wrap(Store* inner) { inner_ = inner; }  // borrows

  // `start(store, done)` makes the call at a store. It can be moved, and is called at most once.
  template <class T, class Start>
  void forward(Method, async::Done<Result<T>> done, Start start) {
    start(*inner_, std::move(done));
  }

 private:
  Wrapper& wrapper() { return static_cast<Wrapper&>(*this); }

  Store* inner_;
};

}  // namespace ae::store
