// The Store calls as writes of the Writer: one small class per call.
//
// Threads: created and answered on the loop's thread, applied on the writer's.
#pragma once

#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "async/loop.h"
#include "store/batch_failpoints.h"
#include "store/postgres/transaction.h"
#include "store/postgres/write.h"
#include "store/rules.h"
#include "store/store.h"

namespace ae::store::postgres {

class CommitWrite final : public WriteWithResult<CommitResult> {
 public:
  CommitWrite(Batch batch, std::optional<Instant> at, async::Done<Result<CommitResult>> done)
      : WriteWithResult(at, std::move(done)), batch_(std::move(batch)) {}
  std::size_t bytes() const override { return written_bytes(batch_); }
  void declare_reads(Transaction& transaction) const override { transaction.declare_reads(batch_); }
  void decide(Transaction& transaction) override;
  const Batch* batch() const override { return &batch_; }
  void decide_plain(PlainCommits& commits, std::int64_t job_number) override;
  void committed() override;

 private:
  bool is_refused();

  Batch batch_;
  std::optional<BatchFailpoints> failpoints_;  // since the first decision
  std::optional<Error> refusal_;               // by the failpoint before the write
  bool written_ = false;
};

class InboxWrite final : public WriteWithResult<void> {
 public:
  InboxWrite(JobId job, InboxEntry entry, std::optional<Instant> at, async::Done<Result<void>> done)
      : WriteWithResult(at, std::move(done)), job_(std::move(job)), entry_(std::move(entry)) {}
  std::size_t bytes() const override { return entry_.request.size(); }
  void declare_reads(Transaction& transaction) const override {
    transaction.declare_inbox_read(job_);
    if (entry_.sender) transaction.declare_reads(entry_.sender->job);
  }
  void decide(Transaction& transaction) override {
    set_result(transaction.put_inbox(job_, entry_));
  }
  void committed() override;

 private:
  const JobId job_;
  const InboxEntry entry_;
};

class ClaimWrite final : public WriteWithResult<std::vector<Lease>> {
 public:
  ClaimWrite(ClaimRequest request, std::optional<Instant> at,
             async::Done<Result<std::vector<Lease>>> done)
      : WriteWithResult(at, std::move(done)), request_(std::move(request)) {}
  void declare_reads(Transaction&) const override {}
  void decide(Transaction&) override {}
  bool is_standalone() const override { return true; }
  Pg<void> run_standalone(Connection& connection) override;
  void committed() override;

 private:
  const ClaimRequest request_;
};

class ClaimJobWrite final : public WriteWithResult<std::optional<Lease>> {
 public:
  ClaimJobWrite(JobId job, ClaimRequest request, std::optional<Instant> at,
                async::Done<Result<std::optional<Lease>>> done)
      : WriteWithResult(at, std::move(done)), job_(std::move(job)), request_(std::move(request)) {}
  void declare_reads(Transaction& transaction) const override;
  void decide(Transaction& transaction) override {
    set_result(transaction.claim_job(job_, request_, time(transaction)));
  }
  void committed() override;

 private:
  const JobId job_;
  const ClaimRequest request_;
};

// Ends the acceptance of a loss: every unfinished job is parked.
class FinishAcceptingWrite final : public WriteWithResult<void> {
 public:
  explicit FinishAcceptingWrite(async::Done<Result<void>> done)
      : WriteWithResult({}, std::move(done)) {}
  void declare_reads(Transaction&) const override {}
  void decide(Transaction&) override {}
  bool is_standalone() const override { return true; }
  Pg<void> run_standalone(Connection& connection) override {
    AE_TRY(finish_accepting(connection));
    set_result({});
    return {};
  }
  void committed() override {}
};

class HeartbeatWrite final : public WriteWithResult<std::vector<std::optional<Instant>>> {
 public:
  HeartbeatWrite(std::vector<std::pair<JobId, Fence>> held, Duration lease,
                 std::optional<Instant> at,
                 async::Done<Result<std::vector<std::optional<Instant>>>> done)
      : WriteWithResult(at, std::move(done)), held_{std::move(held), lease} {}
  void declare_reads(Transaction& transaction) const override;
  void decide(Transaction& transaction) override;
  void committed() override { override_with_error(std::move(error_after_)); }

 private:
  const Transaction::HeartbeatRequest held_;
  std::optional<Error> error_after_;
};

class RedactWrite final : public WriteWithResult<void> {
 public:
  RedactWrite(Redaction redaction, async::Done<Result<void>> done)
      : WriteWithResult(std::nullopt, std::move(done)), redaction_(std::move(redaction)) {}
  void declare_reads(Transaction&) const override {}
  void decide(Transaction&) override {}
  bool is_standalone() const override { return true; }
  Pg<void> run_standalone(Connection& connection) override;
  void committed() override {}

 private:
  const Redaction redaction_;
};

class PruneWrite final : public WriteWithResult<bool> {
 public:
  PruneWrite(Pruning pruning, async::Done<Result<bool>> done)
      : WriteWithResult(std::nullopt, std::move(done)), pruning_(std::move(pruning)) {}
  void declare_reads(Transaction&) const override {}
  void decide(Transaction&) override {}
  bool is_standalone() const override { return true; }
  Pg<void> run_standalone(Connection& connection) override;
  std::optional<HighWaterMark> high_water_mark() const override;
  void committed() override;

 private:
  const Pruning pruning_;
  std::optional<AuditHead> audit_head_;
  std::optional<Error> error_after_;
};

class AuditWrite final : public WriteWithResult<void> {
 public:
  AuditWrite(AuditEntry entry, async::Done<Result<void>> done)
      : WriteWithResult(std::nullopt, std::move(done)), entry_(std::move(entry)) {}
  void declare_reads(Transaction& transaction) const override { transaction.declare_audit_read(); }
  void decide(Transaction& transaction) override {
    transaction.append_audit_entry(entry_);
    set_result({});
  }
  void committed() override {}

 private:
  const AuditEntry entry_;
};

}  // namespace ae::store::postgres
