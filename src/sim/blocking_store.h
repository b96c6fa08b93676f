// BlockingStore: makes a store with its own threads usable in the simulation's single thread.
//
// Each call blocks until it is answered, so that real timing has no influence; then the answer is
// posted to the simulated loop, as a memory store would do. For the real SQLite driver. Threads:
// the simulation's.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "async/loop.h"
#include "store/store.h"

namespace ae::sim {

// Collects the answers of the store's threads.
class Mailbox : public async::Loop {
 public:
  void post(async::Task task) override {
    const std::scoped_lock lock(mutex_);
    tasks_.push_back(std::move(task));
    arrived_.notify_one();
  }
  // Stores use no timers.
  async::TimerId after(Duration, async::Task task) override {
    post(std::move(task));
    return 0;
  }
  void cancel(async::TimerId) override {}
  void run_one() {
    std::unique_lock lock(mutex_);
    arrived_.wait(lock, [this] { return !tasks_.empty(); });
    async::Task task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    task();
  }

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<async::Task> tasks_;  // protected by mutex_
};

class BlockingStore final : public store::Store {
 public:
  // Borrows both; `inner` answers into `mailbox`.
  BlockingStore(async::Loop& loop, Mailbox& mailbox, std::unique_ptr<store::Store> inner)
      : loop_(loop), mailbox_(mailbox), inner_(std::move(inner)) {}

  void commit(store::Batch batch, async::Done<Result<store::CommitResult>> done) override {
    await<store::CommitResult>(std::move(done),
                               [&](auto d) { inner_->commit(std::move(batch), std::move(d)); });
  }
  void put_inbox(JobId job, store::InboxEntry entry, async::Done<Result<void>> done) override {
    await<void>(std::move(done),
                [&](auto d) { inner_->put_inbox(std::move(job), std::move(entry), std::move(d)); });
  }
  void claim(store::ClaimRequest request,
             async::Done<Result<std::vector<store::Lease>>> done) override {
    await<std::vector<store::Lease>>(
        std::move(done), [&](auto d) { inner_->claim(std::move(request), std::move(d)); });
  }
  void claim_job(JobId job, store::ClaimRequest request,
                 async::Done<Result<std::optional<store::Lease>>> done) override {
    await<std::optional<store::Lease>>(std::move(done), [&](auto d) {
      inner_->claim_job(std::move(job), std::move(request), std::move(d));
    });
  }
  void heartbeat(std::vector<std::pair<JobId, store::Fence>> held, Duration lease,
                 async::Done<Result<std::vector<std::optional<Instant>>>> done) override {
    await<std::vector<std::optional<Instant>>>(
        std::move(done), [&](auto d) { inner_->heartbeat(std::move(held), lease, std::move(d)); });
  }
  void list_due(std::size_t limit, async::Done<Result<std::vector<JobId>>> done) override {
    await<std::vector<JobId>>(std::move(done),
                              [&](auto d) { inner_->list_due(limit, std::move(d)); });
  }
  void next_due(async::Done<Result<std::optional<Instant>>> done) override {
    await<std::optional<Instant>>(std::move(done), [&](auto d) { inner_->next_due(std::move(d)); });
  }
  void load(JobId job, std::uint64_t from_seq,
            async::Done<Result<store::LoadedJob>> done) override {
    await<store::LoadedJob>(std::move(done),
                            [&](auto d) { inner_->load(std::move(job), from_seq, std::move(d)); });
  }
  void query(store::Filter filter, async::Done<Result<std::vector<store::JobRow>>> done) override {
    await<std::vector<store::JobRow>>(
        std::move(done), [&](auto d) { inner_->query(std::move(filter), std::move(d)); });
  }
  void list_ended(store::EndedFilter filter, async::Done<Result<store::EndedPage>> done) override {
    await<store::EndedPage>(std::move(done),
                            [&](auto d) { inner_->list_ended(std::move(filter), std::move(d)); });
  }
  void prune(store::Pruning pruning, async::Done<Result<bool>> done) override {
    await<bool>(std::move(done), [&](auto d) { inner_->prune(std::move(pruning), std::move(d)); });
  }
  void redact(store::Redaction redaction, async::Done<Result<void>> done) override {
    await<void>(std::move(done),
                [&](auto d) { inner_->redact(std::move(redaction), std::move(d)); });
  }
  void erase_dropped_values(async::Done<Result<std::vector<store::ResidualCopy>>> done) override {
    await<std::vector<store::ResidualCopy>>(
        std::move(done), [&](auto d) { inner_->erase_dropped_values(std::move(d)); });
  }
  void append_audit_entry(store::AuditEntry entry, async::Done<Result<void>> done) override {
    await<void>(std::move(done),
                [&](auto d) { inner_->append_audit_entry(std::move(entry), std::move(d)); });
  }
  void read_audit_log(std::uint64_t after, async::Done<Result<store::AuditLog>> done) override {
    await<store::AuditLog>(std::move(done),
                           [&](auto d) { inner_->read_audit_log(after, std::move(d)); });
  }
  void count_jobs(async::Done<Result<store::JobStats>> done) override {
    await<store::JobStats>(std::move(done), [&](auto d) { inner_->count_jobs(std::move(d)); });
  }
  Instant now() override { return inner_->now(); }
  bool owned() const override { return inner_->owned(); }
  std::optional<Instant> opened_at() const override { return inner_->opened_at(); }

 private:
  template <class T, class Start>
  void await(async::Done<Result<T>> done, Start start) {
    std::optional<Result<T>> answer;
    start([&answer](Result<T> value) { answer.emplace(std::move(value)); });
    while (!answer) mailbox_.run_one();
    loop_.post([done = std::move(done), answer = std::move(*answer)]() mutable {
      done(std::move(answer));
    });
  }

  async::Loop& loop_;
  Mailbox& mailbox_;
  std::unique_ptr<store::Store> inner_;
};

}  // namespace ae::sim
