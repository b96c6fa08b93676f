// The Store calls as writes of the Writer: one small class per call.
//
// Threads: created and answered on the loop's thread, applied on the writer's.
#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "store/answers.h"
#include "store/batch_failpoints.h"
#include "store/rules.h"
#include "store/sqlite/tables.h"
#include "store/sqlite/writer.h"
#include "store/store.h"

namespace ae::store::sqlite {

template <class T>
using WriteWithResult = store::WriteWithResult<Write, T>;

class CommitWrite final : public WriteWithResult<CommitResult> {
 public:
  CommitWrite(Batch batch, Instant now, async::Done<Result<CommitResult>> done);
  std::size_t bytes() const override { return written_bytes(batch_); }
  Sql<void> apply(Tables& tables) override;
  void committed() override;

 private:
  Batch batch_;
  const Instant now_;
  std::optional<BatchFailpoints> failpoints_;
  bool written_ = false;
};

class InboxWrite final : public WriteWithResult<void> {
 public:
  InboxWrite(JobId job, InboxEntry entry, async::Done<Result<void>> done)
      : WriteWithResult(std::move(done)), job_(std::move(job)), entry_(std::move(entry)) {}
  std::size_t bytes() const override { return entry_.request.size(); }
  Sql<void> apply(Tables& tables) override;
  void committed() override;

 private:
  const JobId job_;
  const InboxEntry entry_;
};

class ClaimWrite final : public WriteWithResult<std::vector<Lease>> {
 public:
  ClaimWrite(ClaimRequest request, Instant now, async::Done<Result<std::vector<Lease>>> done)
      : WriteWithResult(std::move(done)), request_(std::move(request)), now_(now) {}
  Sql<void> apply(Tables& tables) override;
  void committed() override;

 private:
  const ClaimRequest request_;
  const Instant now_;
};

class ClaimJobWrite final : public WriteWithResult<std::optional<Lease>> {
 public:
  ClaimJobWrite(JobId job, ClaimRequest request, Instant now,
                async::Done<Result<std::optional<Lease>>> done)
      : WriteWithResult(std::move(done)),
        job_(std::move(job)),
        request_(std::move(request)),
        now_(now) {}
  Sql<void> apply(Tables& tables) override;
  void committed() override;

 private:
  const JobId job_;
  const ClaimRequest request_;
  const Instant now_;
};

class RedactWrite final : public WriteWithResult<void> {
 public:
  RedactWrite(Redaction redaction, async::Done<Result<void>> done)
      : WriteWithResult(std::move(done)), redaction_(std::move(redaction)) {}
  Sql<void> apply(Tables& tables) override;
  void committed() override;

 private:
  const Redaction redaction_;
};

class EraseWrite final : public WriteWithResult<std::vector<ResidualCopy>> {
 public:
  using WriteWithResult::WriteWithResult;
  bool is_erase() const override { return true; }
  Sql<void> apply(Tables&) override { return {}; }
  void committed() override {}
  void set_residual_copies(std::vector<ResidualCopy> copies) override {
    set_result(std::move(copies));
  }
};

class PruneWrite final : public WriteWithResult<bool> {
 public:
  PruneWrite(Pruning pruning, async::Done<Result<bool>> done)
      : WriteWithResult(std::move(done)), pruning_(std::move(pruning)) {}
  Sql<void> apply(Tables& tables) override;
  void committed() override;

 private:
  const Pruning pruning_;
  std::optional<Error> error_after_;
};

class AuditWrite final : public WriteWithResult<void> {
 public:
  AuditWrite(AuditEntry entry, async::Done<Result<void>> done)
      : WriteWithResult(std::move(done)), entry_(std::move(entry)) {}
  Sql<void> apply(Tables& tables) override;
  void committed() override {}

 private:
  const AuditEntry entry_;
};

class FinishAcceptingWrite final : public WriteWithResult<void> {
 public:
  explicit FinishAcceptingWrite(async::Done<Result<void>> done)
      : WriteWithResult(std::move(done)) {}
  Sql<void> apply(Tables& tables) override;
  void committed() override {}
};

class HeartbeatWrite final : public WriteWithResult<std::vector<std::optional<Instant>>> {
 public:
  HeartbeatWrite(std::vector<std::pair<JobId, Fence>> held, Duration lease, Instant now,
                 async::Done<Result<std::vector<std::optional<Instant>>>> done)
      : WriteWithResult(std::move(done)), held_(std::move(held)), lease_(lease), now_(now) {}
  Sql<void> apply(Tables& tables) override;
  void committed() override;

 private:
  const std::vector<std::pair<JobId, Fence>> held_;
  const Duration lease_;
  const Instant now_;
  std::optional<Error> error_after_;
};

}  // namespace ae::store::sqlite
