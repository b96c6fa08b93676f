#include "runtime/log_writer.h"

#include <chrono>
#include <utility>

#include "inspect/head.h"

namespace ae::runtime {
namespace {

constexpr int kUnknownTries = 8;

SealInput draw_sealing(const World& world, const JobId& job, const LogEnd& end, Instant at,
                       std::optional<AttemptId> attempt) {
  return {.job = job,
          .first_seq = end.seq + 1,
          .prev_hash = end.head,
          .first_id = uuid_v7(static_cast<std::uint64_t>(at.us / 1000), world.random.next(),
                              world.random.next()),
          .created_at = at,
          .attempt_id = std::move(attempt),
          .salt_seed_a = world.random.next(),
          .salt_seed_b = world.random.next()};
}

}  // namespace

void sign_head(const World& world, const LogEnd& end, Instant now, store::Batch& batch) {
  if (world.signer == nullptr) return;
  batch.signed_head = engine::signed_head(*world.signer, batch.job, end.seq, end.head, now);
}

LogWriter::LogWriter(const World& world, JobId job, const LogEnd& end, Instant at,
                     std::optional<AttemptId> attempt)
    : job_(std::move(job)),
      end_(end),
      sealing_(draw_sealing(world, job_, end_, at, std::move(attempt))) {}

Result<LogEnd> LogWriter::end_after(const std::vector<Event>& events) const {
  AE_ASSIGN(const SealedBatch sealed, seal(sealing_, events));
  return LogEnd{sealed.last_seq, sealed.head};
}

Result<std::vector<Event>> LogWriter::append(std::vector<Event> events, store::RowState row,
                                             store::Batch& batch) {
  return put(seal(sealing_, std::move(events)), std::move(row), batch);
}

Result<std::vector<Event>> LogWriter::append(std::vector<EventBody> bodies, store::RowState row,
                                             store::Batch& batch, const KnownText& known) {
  sealing_.known = known;
  auto sealed = seal(sealing_, std::move(bodies));
  sealing_.known = {};
  return put(std::move(sealed), std::move(row), batch);
}

Result<std::vector<Event>> LogWriter::put(Result<SealedBatch> sealed, store::RowState row,
                                          store::Batch& batch) {
  if (!sealed) return std::unexpected(std::move(sealed).error());
  batch.job = job_;
  batch.expected_seq = end_.seq;
  batch.row = std::move(row);
  end_ = {sealed->last_seq, sealed->head};
  std::vector<Event> written = std::move(sealed->events);
  batch.sealed = *std::move(sealed);
  return written;
}

void commit_until_known(const World& world, async::Alive::Watch alive,
                        std::shared_ptr<const store::Batch> batch,
                        async::Done<Result<store::CommitResult>> done, int tries) {
  auto on_result = [&world, alive = std::move(alive), batch, tries,
                    done = std::move(done)](Result<store::CommitResult> result) mutable {
    const Code code = result ? Code{} : result.error().code;
    const bool nothing_new = code == Code::unavailable || code == Code::store_stopped;
    // The first try may have been committed: the caller must not take this for "nothing changed".
    if (!result && tries > 0 && nothing_new) result.error().code = Code::unknown_outcome;
    if (result || code != Code::unknown_outcome || tries >= kUnknownTries) {
      return done(std::move(result));
    }
    auto again = [&world, alive = std::move(alive), batch, tries,
                  done = std::move(done)]() mutable {
      if (alive) commit_until_known(world, alive, batch, std::move(done), tries + 1);
    };
    world.loop.after(std::chrono::milliseconds(20 << tries), std::move(again));
  };
  world.store.commit(*batch, std::move(on_result));
}

}  // namespace ae::runtime
