#include "runtime/job_reader.h"

#include <memory>
#include <utility>

#include "runtime/log.h"
#include "runtime/log_opener.h"

namespace ae::runtime {
namespace {

// Opens and folds the log. On a reader thread.
Result<JobSnapshot> open_and_fold(const JobId& job, store::LoadedJob loaded,
                                  const engine::PlanCache& plans,
                                  const async::Interrupt& interrupt) {
  JobSnapshot snapshot;
  {
    LogOpener opener(job, loaded, plans.lookup());
    AE_ASSIGN(snapshot.events, open_all(opener, interrupt));
  }
  // Freed before the fold, which needs memory of its own.
  loaded.commits = {};
  loaded.blobs = {};
  engine::IncrementalFold folding(loaded.row.id, snapshot.events, plans.source());
  while (folding.next()) {
    if (interrupt.requested()) return std::unexpected(read_interrupted_error());
  }
  AE_ASSIGN(snapshot.state, std::move(folding).take());
  snapshot.row = std::move(loaded.row);
  snapshot.effects = std::move(loaded.effects);
  snapshot.inbox = std::move(loaded.inbox);
  return snapshot;
}

}  // namespace

void JobReader::load_job(const JobId& job, std::uint64_t from_seq, std::stop_token abandoned,
                         LoadedTask work, async::Done<Status> then) {
  world_.store.load(
      job, from_seq,
      [this, alive = alive_.watch(), abandoned = std::move(abandoned), work = std::move(work),
       then = std::move(then)](Result<store::LoadedJob> loaded) mutable {
        if (!loaded) return then(std::unexpected(std::move(loaded).error()));
        if (!alive) return;
        if (abandoned.stop_requested()) return then(std::unexpected(read_interrupted_error()));
        executor().run(
            [work = std::move(work), loaded = *std::move(loaded),
             abandoned = std::move(abandoned)](const std::stop_token& stopping) mutable {
              work(std::move(loaded), {.stopping = stopping, .abandoned = abandoned});
            },
            [alive, then = std::move(then)]() mutable {
              if (alive) then({});
            });
      });
}

void JobReader::read_snapshot(const JobId& job, std::stop_token abandoned,
                              std::move_only_function<void(Result<JobSnapshot>)> work,
                              async::Done<Status> then) {
  // The plan of the job; written by the work, read after it.
  auto plan = std::make_shared<std::shared_ptr<const engine::Plan>>();
  load_job(
      job, 1, std::move(abandoned),
      [job, plan, plans = plans_.copy(), work = std::move(work)](
          store::LoadedJob&& loaded, const async::Interrupt& interrupt) mutable {
        auto snapshot = open_and_fold(job, std::move(loaded), *plans, interrupt);
        if (snapshot) *plan = snapshot->state.plan;
        work(std::move(snapshot));
      },
      [this, plan, then = std::move(then)](Status loaded) mutable {
        if (*plan) plans_.insert(*plan);
        then(std::move(loaded));
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
