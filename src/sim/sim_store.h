// SimStore: the store as one process uses it. The process may die before and after every call; a
// dead process makes no calls and gets no answers, a paused one gets them later. Threads: one.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/report.h"
#include "sim/sim_loop.h"
#include "store/store.h"

namespace ae::sim {

class SimStore final : public store::Store {
 public:
  struct Host {
    store::Store* inner;  // borrowed
    // Called at each boundary, where the process may die; false if it has died.
    std::function<bool(SimProcess&, std::string_view where)> at_boundary;
    std::set<AttemptId>* stale_attempts;  // attempts that got stale_attempt or lost their lease
    Report* report;
    Duration latency;  // of every answer
    bool owned;
  };
  SimStore(Host host, std::shared_ptr<SimProcess> process)
      : host_(std::move(host)), process_(std::move(process)) {}

  void commit(store::Batch batch, async::Done<Result<store::CommitResult>> done) override {
    const auto* held = std::get_if<store::Batch::Leased>(&batch.authority);
    const AttemptId attempt = held ? held->fence.attempt : AttemptId();
    if (held && host_.stale_attempts->contains(attempt) && !process_->dead) {
      host_.report->violate("F4 who was told that the job is lost writes nothing more", batch.job,
                            attempt.text);
    }
    call<store::CommitResult>(
        {"commit", "commit.answer"},
        [this, attempt, done = std::move(done)](Result<store::CommitResult> answer) mutable {
          if (!answer && answer.error().code == Code::stale_attempt && !attempt.empty()) {
            host_.stale_attempts->insert(attempt);
          }
          done(std::move(answer));
        },
        [&](auto d) { host_.inner->commit(std::move(batch), std::move(d)); });
  }
  void put_inbox(JobId job, store::InboxEntry entry, async::Done<Result<void>> done) override {
    call<void>({"put_inbox", "put_inbox.answer"}, std::move(done), [&](auto d) {
      host_.inner->put_inbox(std::move(job), std::move(entry), std::move(d));
    });
  }
  void claim(store::ClaimRequest request,
             async::Done<Result<std::vector<store::Lease>>> done) override {
    call<std::vector<store::Lease>>({"claim", "claim.answer"}, std::move(done), [&](auto d) {
      host_.inner->claim(std::move(request), std::move(d));
    });
  }
  void claim_job(JobId job, store::ClaimRequest request,
                 async::Done<Result<std::optional<store::Lease>>> done) override {
    call<std::optional<store::Lease>>(
        {"claim_job", "claim_job.answer"}, std::move(done),
        [&](auto d) { host_.inner->claim_job(std::move(job), std::move(request), std::move(d)); });
  }
  void heartbeat(std::vector<std::pair<JobId, store::Fence>> held, Duration lease,
                 async::Done<Result<std::vector<std::optional<Instant>>>> done) override {
    auto requested = held;
    call<std::vector<std::optional<Instant>>>(
        {"heartbeat", "heartbeat.answer"},
        [this, requested = std::move(requested),
         done = std::move(done)](Result<std::vector<std::optional<Instant>>> until) mutable {
          for (std::size_t i = 0; until && !host_.owned && i < requested.size(); ++i) {
            if (!(*until)[i]) host_.stale_attempts->insert(requested[i].second.attempt);
          }
          done(std::move(until));
        },
        [&](auto d) { host_.inner->heartbeat(std::move(held), lease, std::move(d)); });
  }
  void list_due(std::size_t limit, async::Done<Result<std::vector<JobId>>> done) override {
    call<std::vector<JobId>>({"due", "due.answer"}, std::move(done),
                             [&](auto d) { host_.inner->list_due(limit, std::move(d)); });
  }
  void next_due(async::Done<Result<std::optional<Instant>>> done) override {
    call<std::optional<Instant>>({"next_due", "next_due.answer"}, std::move(done),
                                 [&](auto d) { host_.inner->next_due(std::move(d)); });
  }
  void load(JobId job, std::uint64_t from_seq,
            async::Done<Result<store::LoadedJob>> done) override {
    call<store::LoadedJob>({"load", "load.answer"}, std::move(done), [&](auto d) {
      host_.inner->load(std::move(job), from_seq, std::move(d));
    });
  }
  void query(store::Filter filter, async::Done<Result<std::vector<store::JobRow>>> done) override {
    call<std::vector<store::JobRow>>({"query", "query.answer"}, std::move(done), [&](auto d) {
      host_.inner->query(std::move(filter), std::move(d));
    });
  }
  void list_ended(store::EndedFilter filter, async::Done<Result<store::EndedPage>> done) override {
    call<store::EndedPage>({"ended", "ended.answer"}, std::move(done), [&](auto d) {
      host_.inner->list_ended(std::move(filter), std::move(d));
    });
  }
  void prune(store::Pruning pruning, async::Done<Result<bool>> done) override {
    call<bool>({"prune", "prune.answer"}, std::move(done),
               [&](auto d) { host_.inner->prune(std::move(pruning), std::move(d)); });
  }
  void redact(store::Redaction redaction, async::Done<Result<void>> done) override {
    call<void>({"redact", "redact.answer"}, std::move(done),
               [&](auto d) { host_.inner->redact(std::move(redaction), std::move(d)); });
  }
  void erase_dropped_values(async::Done<Result<std::vector<store::ResidualCopy>>> done) override {
    call<std::vector<store::ResidualCopy>>({"wipe", "wipe.answer"}, std::move(done), [&](auto d) {
      host_.inner->erase_dropped_values(std::move(d));
    });
  }
  void append_audit_entry(store::AuditEntry entry, async::Done<Result<void>> done) override {
    call<void>({"record", "record.answer"}, std::move(done),
               [&](auto d) { host_.inner->append_audit_entry(std::move(entry), std::move(d)); });
  }
  void read_audit_log(std::uint64_t after, async::Done<Result<store::AuditLog>> done) override {
    call<store::AuditLog>({"audit_log", "audit_log.answer"}, std::move(done),
                          [&](auto d) { host_.inner->read_audit_log(after, std::move(d)); });
  }
  void count_jobs(async::Done<Result<store::JobStats>> done) override {
    call<store::JobStats>({"census", "census.answer"}, std::move(done),
                          [&](auto d) { host_.inner->count_jobs(std::move(d)); });
  }
  Instant now() override { return host_.inner->now(); }
  bool owned() const override { return host_.owned; }
  std::optional<Instant> opened_at() const override { return host_.inner->opened_at(); }

 private:
  struct Where {  // the moments before a call and at its answer
    std::string_view call, answer;
  };
  template <class T, class Start>
  void call(Where where, async::Done<Result<T>> done, Start start) {
    if (process_->dead || !host_.at_boundary(*process_, where.call)) return;
    start(async::Done<Result<T>>([this, process = process_, answer_of = where.answer,
                                  done = std::move(done)](Result<T> answer) mutable {
      if (process->dead || !host_.at_boundary(*process, answer_of)) return;
      process->after(host_.latency,
                     [process, done = std::move(done), answer = std::move(answer)]() mutable {
                       done(std::move(answer));
                     });
    }));
  }

  Host host_;
  std::shared_ptr<SimProcess> process_;
};

}  // namespace ae::sim
