#include "runtime/driver/late_results.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/hash.h"
#include "engine/heart/side_record.h"
#include "json/json.h"
#include "log/redacted.h"
#include "runtime/log.h"

namespace ae::runtime {
namespace {

// A late result that cannot be stored for about ten minutes is dropped; its call has an unknown
// outcome, and a warning is logged.
constexpr int kLateTries = 30;

}  // namespace

void LateResults::add(const JobId& job, const engine::SentTry& sent, const Outcome& outcome) {
  if (!engine::is_certain(outcome)) return;
  auto batch = std::make_shared<store::Batch>();
  batch->job = job;
  batch->authority = store::Batch::LateResult{};
  batch->effects.push_back({sent.invocation, sent.try_no,
                            canonical(engine::effect_record(job, sent, outcome, world_.store.now(),
                                                            engine::Arrival::late))});
  write(std::move(batch), 0);
}

// A job whose values were erased must not get a new value: then only the fact and the outcome of
// the call are stored, without its result.
void LateResults::write(std::shared_ptr<store::Batch> batch, int tries) {
  world_.store.load(
      batch->job, store::kFirstCommit, [this, batch, tries](Result<store::LoadedJob> loaded) {
        const auto created =
            loaded ? open_job_created(batch->job, *loaded) : std::unexpected(loaded.error());
        if (!created) return on_written(batch, tries, std::unexpected(created.error()));
        if (!erased_fields(*created).empty()) {
          store::EffectRow& effect = batch->effects.front();
          auto erased = engine::erased_effect(
              engine::effect_location(batch->job, effect.invocation, effect.try_no), effect.record);
          AE_CHECK(erased.has_value(), batch->job.text);  // this process wrote the record
          effect.record = *std::move(erased);
        }
        batch->authority =
            store::Batch::LateResult{.first_commit = sha256(loaded->commits.front())};
        world_.store.commit(*batch, [this, batch, tries](Result<store::CommitResult> result) {
          on_written(batch, tries, std::move(result));
        });
      });
}

// The lease holder gets the result through the job's inbox, so that the job cannot become idle
// without it. Without a lease holder the result is applied here, because no process reads an ended
// job again.
void LateResults::on_written(std::shared_ptr<store::Batch> batch, int tries,
                             Result<store::CommitResult> result) {
  if (!result) return retry(batch, tries, "cannot be stored", result.error());
  if (tries == 0) warn_(batch->job, "a late result is stored");
  submit_(batch->job, [this, batch, tries](Result<Value> applied) {
    if (applied) return;
    retry(batch, tries, "is stored but not in the log", applied.error());
  });
}

void LateResults::retry(const std::shared_ptr<store::Batch>& batch, int tries,
                        const std::string& what, const Error& error) {
  const bool is_transient =
      error.code == Code::unavailable || error.code == Code::unknown_outcome ||
      error.code == Code::sequence_conflict;  // the job's values were erased meanwhile
  if (!is_transient || tries >= kLateTries) {
    return warn_(batch->job, fmt::format("a late result {}, its call has an unknown outcome: {}",
                                         what, error.message));
  }
  world_.loop.after(std::chrono::milliseconds(50 << std::min(tries, 9)),
                    [this, alive = alive_.watch(), batch, tries] {
                      if (alive) write(batch, tries + 1);
                    });
}

}  // namespace ae::runtime
