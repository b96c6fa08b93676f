#include "store/measured_store.h"

#include <chrono>
#include <memory>
#include <utility>

namespace ae::store {
namespace {

void note(OperationLatency& latency, Duration took, bool failed) {
  const double seconds = std::chrono::duration<double>(took).count();
  std::size_t i = 0;
  while (i < OperationLatency::kBounds.size() && seconds > OperationLatency::kBounds.at(i)) ++i;
  ++latency.buckets.at(i);
  latency.sum += seconds;
  latency.failures += failed ? 1 : 0;
}

}  // namespace

template <class T>
async::Done<Result<T>> MeasuredStore::time_call(std::string_view operation,
                                                async::Done<Result<T>> done) {
  return [latencies = latencies_, operation, &steady = steady_, began = steady_.since_start(),
          done = std::move(done)](Result<T> answer) mutable {
    const Code code = answer ? Code{} : answer.error().code;
    const bool failed = !answer && (code == Code::unavailable || code == Code::unknown_outcome ||
                                    code == Code::store_stopped);
    note((*latencies)[operation], steady.since_start() - began, failed);
    done(std::move(answer));
  };
}

template <class T>
async::Done<Result<T>> MeasuredStore::time_write(std::string_view operation,
                                                 async::Done<Result<T>> done) {
  return time_call<T>(operation, [last = write_failed_, &steady = steady_,
                                  done = std::move(done)](Result<T> answer) mutable {
    const bool failed = !answer && (answer.error().code == Code::unavailable ||
                                    answer.error().code == Code::unknown_outcome ||
                                    answer.error().code == Code::store_stopped);
    if (failed) *last = steady.since_start();
    if (answer) last->reset();
    done(std::move(answer));
  });
}

bool MeasuredStore::is_failing_writes() const {
  return *write_failed_ && steady_.since_start() - **write_failed_ < kWriteFailureTtl;
}

void MeasuredStore::commit(Batch batch, async::Done<Result<CommitResult>> done) {
  inner_.commit(std::move(batch), time_write("commit", std::move(done)));
}
void MeasuredStore::put_inbox(JobId job, InboxEntry entry, async::Done<Result<void>> done) {
  inner_.put_inbox(std::move(job), std::move(entry), time_write("put_inbox", std::move(done)));
}
void MeasuredStore::claim(ClaimRequest request, async::Done<Result<std::vector<Lease>>> done) {
  inner_.claim(std::move(request), time_call("claim", std::move(done)));
}
void MeasuredStore::claim_job(JobId job, ClaimRequest request,
                              async::Done<Result<std::optional<Lease>>> done) {
  inner_.claim_job(std::move(job), std::move(request), time_call("claim_job", std::move(done)));
}
void MeasuredStore::heartbeat(std::vector<std::pair<JobId, Fence>> held, Duration lease,
                              async::Done<Result<std::vector<std::optional<Instant>>>> done) {
  inner_.heartbeat(std::move(held), lease, time_call("heartbeat", std::move(done)));
}
void MeasuredStore::list_due(std::size_t limit, async::Done<Result<std::vector<JobId>>> done) {
  inner_.list_due(limit, time_call("due", std::move(done)));
}
void MeasuredStore::next_due(async::Done<Result<std::optional<Instant>>> done) {
  inner_.next_due(time_call("next_due", std::move(done)));
}
void MeasuredStore::load(JobId job, std::uint64_t from_seq, async::Done<Result<LoadedJob>> done) {
  inner_.load(std::move(job), from_seq, time_call("load", std::move(done)));
}
void MeasuredStore::query(Filter filter, async::Done<Result<std::vector<JobRow>>> done) {
  inner_.query(std::move(filter), time_call("query", std::move(done)));
}
void MeasuredStore::list_ended(EndedFilter filter, async::Done<Result<EndedPage>> done) {
  inner_.list_ended(std::move(filter), time_call("ended", std::move(done)));
}
void MeasuredStore::prune(Pruning pruning, async::Done<Result<bool>> done) {
  inner_.prune(std::move(pruning), time_call("prune", std::move(done)));
}
void MeasuredStore::redact(Redaction redaction, async::Done<Result<void>> done) {
  inner_.redact(std::move(redaction), time_call("redact", std::move(done)));
}
void MeasuredStore::erase_dropped_values(async::Done<Result<std::vector<ResidualCopy>>> done) {
  inner_.erase_dropped_values(time_call("wipe", std::move(done)));
}
void MeasuredStore::append_audit_entry(AuditEntry entry, async::Done<Result<void>> done) {
  inner_.append_audit_entry(std::move(entry), time_write("record", std::move(done)));
}
void MeasuredStore::read_audit_log(std::uint64_t after, async::Done<Result<AuditLog>> done) {
  inner_.read_audit_log(after, time_call("audit_log", std::move(done)));
}
void MeasuredStore::count_jobs(async::Done<Result<JobStats>> done) {
  inner_.count_jobs(time_call("census", std::move(done)));
}
void MeasuredStore::announce(std::string worker, std::string announcement, Duration ttl) {
  inner_.announce(std::move(worker), std::move(announcement), ttl);
}
void MeasuredStore::on_hint(std::function<void(const Hint&)> callback) {
  inner_.on_hint(std::move(callback));
}

}  // namespace ae::store
