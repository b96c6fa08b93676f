// Batch: one commit of a job, with everything that changes together.
//
// The authority names who writes. A batch either takes effect completely or changes nothing.
// Errors: see Store::commit.
// Threads: values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/boxed.h"
#include "base/hash.h"
#include "base/ids.h"
#include "log/seal.h"
#include "store/audit.h"
#include "store/claims.h"
#include "store/rows.h"

namespace ae::store {

struct Batch {
  // The job is new. REQUIRES: events, expected_seq 0.
  struct Create {
    Boxed<NewJob> job;  // always present
  };
  // The job's claim row has this fence. The lease may have expired: until another worker claims the
  // job, the fence stays valid.
  struct Leased {
    Fence fence;
  };
  // No worker holds the job: there is no claim row, live or expired.
  struct Unleased {};
  // Any state of the lease: a result that arrived after its try was closed or its attempt had lost
  // the job. REQUIRES: effects only.
  struct LateResult {
    // SHA-256 of the job's first commit, as it was read. If it has changed since (values of the job
    // were redacted), the batch is refused with `sequence_conflict`. nullopt = any.
    std::optional<Hash> first_commit = {};
  };
  using Authority = std::variant<Create, Leased, Unleased, LateResult>;

  JobId job;
  Authority authority;
  // Last seq of the log before this commit (not checked for LateResult).
  std::uint64_t expected_seq = 0;
  // nullopt: no events, only the rows below change. REQUIRES: first_seq == expected_seq + 1
  std::optional<SealedBatch> sealed;
  // Written when `sealed` or `writes_row` is set. REQUIRES: a commit that leaves a job neither queued nor running
  // also releases it (or is made without a lease): a blocked job with a lease could never wake up.
  RowState row;
  // Writes `row` without events: entries of the inbox are consumed, and the job is not due any more.
  // REQUIRES: Unleased, the status of the row is unchanged.
  bool writes_row = false;
  std::vector<EffectRow> effects;
  // Refused with `sequence_conflict` if one of these is recorded: a commit that decides an unknown
  // outcome lists its try here, so the decision and the result exclude each other. Load the job
  // again and decide again.
  std::vector<std::pair<InvocationId, std::uint32_t>> effects_absent;
  std::vector<LedgerRow> ledger_put;
  std::vector<std::pair<InvocationId, std::uint32_t>> ledger_erase;
  // Numbers of the entries that this commit consumes, ascending. A number that is gone is ignored.
  std::vector<std::uint64_t> inbox_consumed;
  // Replies to some of them, ascending.
  std::vector<InboxReply> inbox_replies;
  // Releases the lease (Leased). Refused with `inbox_pending` while other entries are left.
  bool release = false;
  // The release leaves the entries for the next lease holder: the job is parked before they are
  // applied.
  bool keeps_inbox = false;
  // Number of the last entry that was read. If a later one exists, the batch is refused with
  // `inbox_pending`: some decisions (opening a wait, an expiry) must not overtake an accepted
  // entry.
  std::optional<std::uint64_t> inbox_read_through;
  // Entries for the inboxes of other jobs, written with this commit. One whose id is in its inbox,
  // or whose job does not exist or has ended, is not written. If no worker holds the other job, its
  // wake_at becomes the time of this commit at the latest: `list_due` returns it, and the request
  // that follows applies the entry. REQUIRES: not Create or LateResult.
  std::vector<InboxPut> inbox_puts;
  // A job in whose name this is written: it creates the job, or sends a request to it. Refused with
  // `stale_attempt` if its claim row does not have this fence. REQUIRES: Unleased, or Create
  // and another job.
  Boxed<HeldJob> sender;
  // Replaces the job's signed head, a side record that contains its own seq. The store does not
  // interpret it.
  Boxed<std::string> signed_head;
  // Replaces the job's summary. REQUIRES: sealed.
  Boxed<Summary> summary;
  // Replaces the job's checkpoint: its state after this commit, stored under the last seq.
  // REQUIRES: Leased.
  Boxed<std::string> checkpoint;
  // Written to the store's audit log with this commit; not written if the batch is refused or
  // `is_duplicate`.
  Boxed<AuditEntry> audit;
  // Failpoints to hit once the rows are written: before the COMMIT if there are events, else after
  // it. The names have static storage ("effect.after_put", "ledger.after_commit").
  std::vector<std::string_view> failpoints;
};

struct CommitResult {
  std::uint64_t last_seq = 0;  // of the log after this commit (without events: its current end)
  bool is_duplicate = false;   // the same bytes were already stored: nothing was written
  // Create only: the job that was created with this idempotency key, and its request hash; nothing
  // was written.
  std::optional<JobId> existing;
  std::optional<Hash> existing_request;
  // Create with a claim (is_duplicate: only if that claim still holds).
  std::optional<Lease> lease;
};

}  // namespace ae::store
