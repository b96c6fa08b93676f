#include "runtime/job_reader.h"

#include <memory>
#include <utility>

#include "async/time_slices.h"
#include "runtime/log.h"
#include "runtime/log_opener.h"

namespace ae::runtime {

// One read of a whole log: opens its commits, then folds its events.
struct JobReader::LogReading {
  LogReading(const JobId& job, store::LoadedJob&& all, const engine::PlanCache& cache,
             async::Done<Result<JobSnapshot>> answer)
      : loaded(std::move(all)),
        plans(cache),
        opener(job, loaded, plans.lookup()),
        done(std::move(answer)) {}

  bool next() {
    if (folding) return folding->next();
    if (opener.next()) return true;
    opened = opener.take();
    if (opened) folding.emplace(loaded.row.id, *opened, plans.source());
    return opened.has_value();
  }
  Result<JobSnapshot> take() {
    if (!opened) return std::unexpected(opened.error());
    AE_ASSIGN(engine::State state, std::move(*folding).take());
    return JobSnapshot{std::move(loaded.row), std::move(*opened), std::move(state),
                       std::move(loaded.effects), std::move(loaded.inbox)};
  }

  store::LoadedJob loaded;
  const engine::PlanCache& plans;
  LogOpener opener;
  Result<std::vector<Event>> opened;
  std::optional<engine::IncrementalFold> folding;
  async::Done<Result<JobSnapshot>> done;
};

void JobReader::read(const JobId& job, async::Done<Result<JobSnapshot>> done) {
  world_.store.load(job, 1,
                    [this, alive = alive_.watch(), job,
                     done = std::move(done)](Result<store::LoadedJob> loaded) mutable {
                      if (!loaded) return done(std::unexpected(loaded.error()));
                      if (!alive) return;
                      const auto log_reading = std::make_shared<LogReading>(
                          job, std::move(*loaded), plans_, std::move(done));
                      async::run_in_slices(
                          world_.loop, world_.steady,
                          [log_reading, alive] { return alive && log_reading->next(); },
                          [log_reading, alive] {
                            if (alive) log_reading->done(log_reading->take());
                          });
                    });
}

void JobReader::read_state(const JobId& job, async::Done<Result<JobSnapshot>> done) {
  read_from(job, std::nullopt, std::move(done));
}

void JobReader::read_newest(const JobId& job, async::Done<Result<JobSnapshot>> done) {
  read_from(job, cache_.extract(job), std::move(done));
}

void JobReader::read_from(const JobId& job, std::optional<CachedJob> cached,
                          async::Done<Result<JobSnapshot>> done) {
  load_state(world_.store, job, plans_, std::move(cached),
             [done = std::move(done)](Result<LoadedState> loaded_state) mutable {
               if (!loaded_state) return done(std::unexpected(loaded_state.error()));
               if (!loaded_state->state) return done(std::unexpected(loaded_state->state.error()));
               store::LoadedJob& loaded = loaded_state->loaded;
               done(JobSnapshot{std::move(loaded.row),
                                {},
                                std::move(*loaded_state->state),
                                std::move(loaded.effects),
                                std::move(loaded.inbox),
                                loaded_state->bytes,
                                loaded_state->checkpoint_seq,
                                loaded_state->checkpoint_bytes});
             });
}

void JobReader::cache_state(const JobId& job, JobSnapshot&& read) {
  if (engine::is_terminal(read.state.status)) return;
  cache_.insert(job, {std::move(read.state), read.row.head, read.bytes, read.checkpoint_seq,
                      read.checkpoint_bytes});
}

}  // namespace ae::runtime
