#include "runtime/service/job_reader.h"

#include <memory>
#include <utility>

#include "runtime/log.h"
#include "runtime/log_opener.h"

namespace ae::runtime {
namespace {

// Opens and folds the log. On a reader thread. `keeps_folded`: State::keeps_folded.
Result<JobSnapshot> open_and_fold(const JobId& job, store::LoadedJob loaded,
                                  const engine::PlanCache& plans, bool keeps_folded,
                                  const async::Interrupt& interrupt) {
  JobSnapshot snapshot;
  {
    LogOpener opener(job, loaded, plans.lookup());
    AE_ASSIGN(snapshot.events, open_all(opener, interrupt));
  }
  // Freed before the fold, which needs memory of its own.
  loaded.commits = {};
  loaded.blobs = {};
  engine::IncrementalFold folding(loaded.row.id, snapshot.events, plans.source(), keeps_folded);
  while (folding.next()) {
    if (interrupt.requested()) return std::unexpected(read_interrupted_error());
  }
  AE_ASSIGN(snapshot.state, std::move(folding).take());
  snapshot.row = std::move(loaded.row);
  snapshot.effects = std::move(loaded.effects);
  snapshot.inbox = std::move(loaded.inbox);
  return snapshot;
}

Result<JobSnapshot> snapshot_of(LoadedState&& read) {
  if (!read.state) return std::unexpected(std::move(read.state).error());
  store::LoadedJob& loaded = read.loaded;
  return JobSnapshot{
      std::move(loaded.row),   {},         std::move(*read.state), std::move(loaded.effects),
      std::move(loaded.inbox), read.bytes, read.checkpoint_seq,    read.checkpoint_bytes};
}

// nullopt: its checkpoint does not match the log.
std::optional<Result<JobSnapshot>> restore_and_fold(const JobId& job, store::LoadedJob loaded,
                                                    const engine::PlanCache& plans,
                                                    const async::Interrupt& interrupt) {
  if (!loaded.checkpoint) {
    auto read = open_and_fold(job, std::move(loaded), plans, /*keeps_folded=*/false, interrupt);
    if (read) read->events = {};
    return read;
  }
  auto read = fold_from_checkpoint(job, std::move(loaded), plans);
  if (!read) return std::nullopt;
  return snapshot_of(*std::move(read));
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

void JobReader::read_snapshot(const JobId& job, std::stop_token abandoned, SnapshotTask work,
                              async::Done<Status> then) {
  // The plan of the job; written by the work, read after it.
  auto plan = std::make_shared<std::shared_ptr<const engine::Plan>>();
  load_job(
      job, 1, std::move(abandoned),
      [job, plan, plans = plans_.copy(), work = std::move(work)](
          store::LoadedJob&& loaded, const async::Interrupt& interrupt) mutable {
        // Views show all steps.
        auto snapshot =
            open_and_fold(job, std::move(loaded), *plans, /*keeps_folded=*/true, interrupt);
        if (snapshot) *plan = snapshot->state.plan;
        work(std::move(snapshot));
      },
      [this, plan, then = std::move(then)](Status loaded) mutable {
        if (*plan) plans_.insert(*plan);
        then(std::move(loaded));
      });
}

// From `kFromCheckpoint`, and from 1 if the checkpoint does not match the log.
void JobReader::read_checkpointed(const JobId& job, std::uint64_t from_seq,
                                  std::stop_token abandoned, SnapshotTask work,
                                  async::Done<Status> then) {
  struct Reading {
    SnapshotTask work;
    std::shared_ptr<const engine::Plan> plan;
    bool is_done = false;
  };
  auto reading = std::make_shared<Reading>(Reading{.work = std::move(work), .plan = {}});
  load_job(
      job, from_seq, abandoned,
      [job, from_seq, reading, plans = plans_.copy()](store::LoadedJob&& loaded,
                                                      const async::Interrupt& interrupt) {
        if (from_seq == 1) loaded.checkpoint.reset();
        auto read = restore_and_fold(job, std::move(loaded), *plans, interrupt);
        if (!read) return;
        reading->is_done = true;
        if (*read) reading->plan = (*read)->state.plan;
        std::exchange(reading->work, nullptr)(*std::move(read));
      },
      [this, job, abandoned, reading, then = std::move(then)](Status loaded) mutable {
        if (reading->plan) plans_.insert(reading->plan);
        if (loaded && !reading->is_done) {
          return read_checkpointed(job, 1, std::move(abandoned), std::move(reading->work),
                                   std::move(then));
        }
        then(std::move(loaded));
      });
}

void JobReader::read_newest(const JobId& job, async::Done<Result<JobSnapshot>> done) {
  load_state(world_.store, job, plans_, cache_.extract(job),
             [done = std::move(done)](Result<LoadedState> loaded) mutable {
               if (!loaded) return done(std::unexpected(loaded.error()));
               done(snapshot_of(*std::move(loaded)));
             });
}

void JobReader::cache_state(const JobId& job, JobSnapshot&& read) {
  if (engine::is_terminal(read.state.status)) return;
  cache_.insert(job, {std::move(read.state), read.row.head, read.bytes, read.checkpoint_seq,
                      read.checkpoint_bytes});
}

}  // namespace ae::runtime
