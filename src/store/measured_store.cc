#include "store/measured_store.h"

#include <chrono>
#include <memory>
#include <utility>

namespace ae::store {
namespace {

void note(OperationTimes& times, Duration took, bool failed) {
  const double seconds = std::chrono::duration<double>(took).count();
  std::size_t i = 0;
  while (i < OperationTimes::kBounds.size() && seconds > OperationTimes::kBounds.at(i)) ++i;
  ++times.in.at(i);
  times.sum += seconds;
  times.failures += failed ? 1 : 0;
}

}  // namespace

template <class T>
async::Done<Result<T>> MeasuredStore::timed(std::string_view operation,
                                            async::Done<Result<T>> done) {
  return [times = times_, operation, &steady = steady_, began = steady_.since_start(),
          done = std::move(done)](Result<T> answer) mutable {
    const Code code = answer ? Code{} : answer.error().code;
    const bool failed = !answer && (code == Code::unavailable || code == Code::unknown_outcome ||
                                    code == Code::store_stopped);
    note((*times)[operation], steady.since_start() - began, failed);
    done(std::move(answer));
  };
}

template <class T>
async::Done<Result<T>> MeasuredStore::written(std::string_view operation,
                                              async::Done<Result<T>> done) {
  return timed<T>(operation, [last = write_failed_, &steady = steady_,
                              done = std::move(done)](Result<T> answer) mutable {
    const bool failed = !answer && (answer.error().code == Code::unavailable ||
                                    answer.error().code == Code::unknown_outcome ||
                                    answer.error().code == Code::store_stopped);
    if (failed) *last = steady.since_start();
    if (answer) last->reset();
    done(std::move(answer));
  });
}

bool MeasuredStore::writes_fail() const {
  return *write_failed_ && steady_.since_start() - **write_failed_ < kWritesFailFor;
}

void MeasuredStore::commit(Batch batch, async::Done<Result<Committed>> done) {
  inner_.commit(std::move(batch), written("commit", std::move(done)));
}
void MeasuredStore::put_inbox(JobId job, InboxEntry entry, async::Done<Result<void>> done) {
  inner_.put_inbox(std::move(job), std::move(entry), written("put_inbox", std::move(done)));
}
void MeasuredStore::claim(ClaimRequest request, async::Done<Result<std::vector<Lease>>> done) {
  inner_.claim(std::move(request), timed("claim", std::move(done)));
}
void MeasuredStore::claim_job(JobId job, ClaimRequest request,
                              async::Done<Result<std::optional<Lease>>> done) {
  inner_.claim_job(std::move(job), std::move(request), timed("claim_job", std::move(done)));
}
void MeasuredStore::heartbeat(std::vector<std::pair<JobId, Fence>> held, Duration lease,
                              async::Done<Result<std::vector<std::optional<Instant>>>> done) {
  inner_.heartbeat(std::move(held), lease, timed("heartbeat", std::move(done)));
}
void MeasuredStore::due(std::size_t limit, async::Done<Result<std::vector<JobId>>> done) {
  inner_.due(limit, timed("due", std::move(done)));
}
void MeasuredStore::next_due(async::Done<Result<std::optional<Instant>>> done) {
  inner_.next_due(timed("next_due", std::move(done)));
}
void MeasuredStore::load(JobId job, std::uint64_t from_seq, async::Done<Result<Loaded>> done) {
  inner_.load(std::move(job), from_seq, timed("load", std::move(done)));
}
void MeasuredStore::query(Filter filter, async::Done<Result<std::vector<JobRow>>> done) {
  inner_.query(std::move(filter), timed("query", std::move(done)));
}
void MeasuredStore::ended(EndedFilter filter, async::Done<Result<EndedPage>> done) {
  inner_.ended(std::move(filter), timed("ended", std::move(done)));
}
void MeasuredStore::prune(Pruning pruning, async::Done<Result<bool>> done) {
  inner_.prune(std::move(pruning), timed("prune", std::move(done)));
}
void MeasuredStore::redact(Redaction redaction, async::Done<Result<void>> done) {
  inner_.redact(std::move(redaction), timed("redact", std::move(done)));
}
void MeasuredStore::wipe(async::Done<Result<std::vector<OldCopy>>> done) {
  inner_.wipe(timed("wipe", std::move(done)));
}
void MeasuredStore::record(AuditEntry entry, async::Done<Result<void>> done) {
  inner_.record(std::move(entry), written("record", std::move(done)));
}
void MeasuredStore::audit_log(std::uint64_t after, async::Done<Result<AuditLog>> done) {
  inner_.audit_log(after, timed("audit_log", std::move(done)));
}
void MeasuredStore::census(async::Done<Result<Census>> done) {
  inner_.census(timed("census", std::move(done)));
}
void MeasuredStore::announce(std::string worker, std::string says, Duration lasts) {
  inner_.announce(std::move(worker), std::move(says), lasts);
}
void MeasuredStore::on_hint(std::function<void(const Hint&)> hear) {
  inner_.on_hint(std::move(hear));
}

}  // namespace ae::store
