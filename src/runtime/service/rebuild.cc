#include "runtime/service/rebuild.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "async/failpoint.h"
#include "engine/state/checkpoint.h"
#include "inspect/head.h"
#include "json/json.h"
#include "log/seal.h"
#include "runtime/row.h"

namespace ae::runtime {
namespace {

// Limits of one transaction, whichever is reached first.
constexpr std::size_t kBatchJobs = 50;
constexpr std::size_t kBatchBytes = 8u << 20;
// Checkpoint of a job that has not ended: a claim reads at most this many events without one.
constexpr std::uint64_t kCheckpointFrom = 250;
constexpr std::size_t kPlansMax = 64;

std::unexpected<Error> corrupt(std::string message) {
  return fail(Code::log_corrupt, std::move(message));
}

// Reads one log from its beginning.
class Projector {
 public:
  Projector(const store::StoredLog& log, const BlobSource& blobs, const engine::PlanCache& plans)
      : log_(log), blobs_(blobs), plans_(plans) {
    state_.job = log.job;
    out_.job = log.job;
  }

  Result<store::Projection> project() {
    for (const std::string& bytes : log_.commits) AE_TRY(read(bytes));
    if (out_.last_seq == 0) return corrupt("the job has no events");
    AE_TRY(check_known_ends());
    out_.row = row_of(state_);
    out_.epoch = state_.epoch;
    AE_TRY(read_job_created());
    choose_checkpoint();
    return std::move(out_);
  }

 private:
  Status read(const std::string& bytes) {
    store::Projection::Commit& commit = out_.commits.emplace_back();
    const BlobSource recording_blobs = [&](const Hash& hash) {
      if (std::ranges::find(commit.blobs, hash) == commit.blobs.end()) commit.blobs.push_back(hash);
      return blobs_(hash);
    };
    AE_ASSIGN(OpenedBatch opened,
              open(log_.job, bytes, out_.head, recording_blobs, plans_.lookup()));
    if (opened.first_seq != out_.last_seq + 1) {
      return corrupt(fmt::format("event {} is missing", out_.last_seq + 1));
    }
    for (const Event& event : opened.events) {
      AE_TRY(engine::apply(state_, event, plans_.source()));
      const bool first_plan = event.type == EventType::plan_generated && state_.plan_number == 0;
      if (first_plan) first_plan_ = state_.plan;
      out_.updated_at = event.created_at;
      match_known_ends(event);
    }
    if (auto summary = changed_summary(state_, summary_key_)) {
      out_.summary = *std::move(summary);
    }
    summary_key_ = engine::summary_key(state_);
    if (out_.last_seq == 0) job_created_ = std::move(opened.events.front());
    commit.first_seq = opened.first_seq;
    commit.last_seq = out_.last_seq = opened.last_seq;
    out_.head = opened.head;
    if (log_.checkpoint && log_.checkpoint->seq == out_.last_seq && state_.plan) {
      checkpoint_bytes_ = engine::checkpoint(state_, out_.head);
    }
    return {};
  }

  // Records whether the log contains the ends that the store's row and the signed head know: a
  // longer or different log would prove missing or changed commits.
  void match_known_ends(const Event& event) {
    if (log_.end && event.seq == log_.end->last_seq) end_found_ = event.hash == log_.end->head;
    if (signed_head_ && event.seq == signed_head_->count)
      signed_head_found_ = event.hash == signed_head_->hash;
  }
  static std::optional<engine::Head> read_signed_head(const store::StoredLog& log) {
    if (!log.signed_head) return std::nullopt;
    auto head = engine::head_from_text(*log.signed_head);
    if (!head) return std::nullopt;
    return *std::move(head);
  }
  Status check_known_ends() const {
    std::string known;
    if (log_.end && !end_found_) {
      known = fmt::format("the store knows event {} with the hash {} as its last",
                          log_.end->last_seq, to_hex(log_.end->head));
    } else if (signed_head_ && !signed_head_found_) {
      known = fmt::format("event {} with the hash {} was signed", signed_head_->count,
                          to_hex(signed_head_->hash));
    }
    if (known.empty()) return {};
    return fail(Code::log_corrupt, Action{.act = act::kVerify, .job = log_.job.text},
                "its log ends at event {}, and {}, which is not there: commits are missing or were "
                "changed; restore a backup",
                out_.last_seq, known);
  }

  Status read_job_created() {
    if (job_created_.type != EventType::job_created) return corrupt("event 1 is not job_created");
    const JobCreated& created = job_created_of(job_created_);
    out_.created_at = job_created_.created_at;
    out_.agent = created.agent;
    out_.idempotency_key = or_empty(created.idempotency_key);
    out_.labels = labels_of(created.labels);
    if (!created.forked_from.is_null()) {
      out_.forked_from = created.forked_from.read_leniently().job_id;
    }
    if (created.priority) out_.priority = *created.priority;
    if (!or_empty(created.queue).empty()) out_.queue = *created.queue;
    out_.capabilities =
        needed_capabilities(created.required_capabilities.read_leniently(), out_.agent,
                            created.execution_version, first_plan_.get());
    out_.request_hash = request_hash_of(job_created_);
    return {};
  }

  // An existing checkpoint is compared at its event. If it is wrong about that event, or was made
  // by another version of the fold, it is replaced by one at the end of the log. A missing one is
  // created if a claim would otherwise have to read many events.
  void choose_checkpoint() {
    if (!state_.plan) return;
    if (checkpoint_bytes_) {
      out_.checkpoint = {log_.checkpoint->seq, std::move(*checkpoint_bytes_)};
    } else if (log_.checkpoint ||
               (out_.last_seq >= kCheckpointFrom && !engine::is_terminal(state_.status))) {
      out_.checkpoint = {out_.last_seq, engine::checkpoint(state_, out_.head)};
    }
  }

  const store::StoredLog& log_;
  const BlobSource& blobs_;
  const engine::PlanCache& plans_;
  const std::optional<engine::Head> signed_head_ = read_signed_head(log_);
  bool end_found_ = false, signed_head_found_ = false;
  engine::State state_;
  engine::SummaryKey summary_key_;  // after the commit before
  Event job_created_;
  // Of the plan that the job was created with
  std::shared_ptr<const engine::Plan> first_plan_;
  std::optional<std::string> checkpoint_bytes_;
  store::Projection out_;
};

}  // namespace

Result<store::Projection> project(const store::StoredLog& log, const BlobSource& blobs,
                                  const engine::PlanCache& plans) {
  return Projector(log, blobs, plans).project();
}

Result<RebuildResult> rebuild(store::Rebuild& store, const std::function<Instant()>& now,
                              const std::function<void(const RebuildProgress&)>& progress,
                              const std::string& by) {
  RebuildResult rebuilt;
  AE_ASSIGN(const std::uint64_t jobs, store.count_jobs());
  engine::PlanCache plans(kPlansMax);
  const BlobSource blobs = [&](const Hash& hash) { return store.blob(hash); };
  const auto note = [&](const JobId& job, std::vector<store::Difference> rows) -> Status {
    if (rows.empty()) return {};
    if (rebuilt.differing_jobs == 0) {
      AE_TRY(store.append_audit_entry({.at = now(),
                                       .by = by,
                                       .act = "rebuild",
                                       .job = {},
                                       .detail = Value::object({{"first", job.text}})}));
    }
    ++rebuilt.differing_jobs;
    if (rebuilt.differing.size() < kListedMax) rebuilt.differing.push_back({job, std::move(rows)});
    return {};
  };
  std::size_t batch_jobs = 0, batch_bytes = 0;
  for (;;) {
    AE_ASSIGN(const auto job, store.next_job());
    if (!job) break;
    AE_ASSIGN(const store::StoredLog log, store.read(*job));
    for (const std::string& bytes : log.commits) batch_bytes += bytes.size();
    auto projection = project(log, blobs, plans);
    auto rows = projection ? store.reconcile(*projection, now())
                           : std::unexpected(std::move(projection).error());
    if (rows) {
      AE_TRY(note(*job, *std::move(rows)));
    } else if (rows.error().code == Code::unavailable) {
      return std::unexpected(std::move(rows).error());
    } else {
      ++rebuilt.refused_jobs;
      if (rebuilt.refused.size() < kListedMax) {
        rebuilt.refused.push_back({*job, std::move(rows).error()});
      }
    }
    ++rebuilt.jobs;
    progress({rebuilt.jobs, std::max(jobs, rebuilt.jobs)});
    if (++batch_jobs < kBatchJobs && batch_bytes < kBatchBytes) continue;
    AE_TRY(store.commit());
    static_cast<void>(AE_FAILPOINT("rebuild.after_batch"));
    batch_jobs = batch_bytes = 0;
  }
  AE_ASSIGN(auto orphaned_rows, store.reconcile_store_rows());
  if (!orphaned_rows.empty()) {
    if (rebuilt.differing.size() >= kListedMax) rebuilt.differing.pop_back();
    rebuilt.differing.push_back({JobId(), std::move(orphaned_rows)});
  }
  AE_TRY(store.commit());
  static_cast<void>(AE_FAILPOINT("rebuild.after_batch"));
  return rebuilt;
}

}  // namespace ae::runtime
