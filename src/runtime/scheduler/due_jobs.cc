// Runtime: wakes the jobs that no worker holds and that are due.
#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "runtime/scheduler/runtime.h"

namespace ae::runtime {
namespace {

constexpr std::size_t kDuePage = 256;  // jobs that are listed and fired at once

}  // namespace

// The next timer may be due before the next poll.
void Runtime::schedule_next_due() {
  if (!started_ || stopping_) return;
  world_.store.next_due([this](Result<std::optional<Instant>> next) {
    if (!next || !*next || stopping_) return;
    const Duration wait =
        std::max(Duration(0), **next - world_.store.now()) + std::chrono::milliseconds(1);
    if (wait >= options_.poll) return;
    if (due_timer_) world_.loop.cancel(*due_timer_);
    due_timer_ = world_.loop.after(wait, [this] {
      due_timer_.reset();
      claimable_ = true;
      fire_due_timers();
      claim_more();
    });
  });
}

// Fires the timers, expiries and deadlines of jobs without a lease holder. A full page is followed
// by the next page at once, not at the next poll, because many may be due at the same time. A page
// in which nothing fired is not: the same jobs would be listed again.
void Runtime::fire_due_timers() {
  if (stopping_ || firing_) return;
  firing_ = true;
  world_.store.list_due(kDuePage, [this](Result<std::vector<JobId>> due) {
    firing_ = false;
    if (!due && due.error().code == Code::store_stopped) return store_stopped(due.error());
    // A process that claims detects an outage there.
    if (!options_.may_claim) update_store_health(due ? nullptr : &due.error());
    if (!due) return;
    if (std::exchange(fire_again_, false)) fire_due_timers();
    fire_timers_of(*std::move(due));
  });
}

// At most one request of a job is in flight: others would conflict with it, and each of them reads
// the job again. A job that is listed meanwhile gets the next request. A driver fires the timers of
// its job.
void Runtime::fire_timers_of(std::vector<JobId> due) {
  struct Page {
    std::size_t left = 0;
    bool full = false, fired = false;
  };
  auto page = std::make_shared<Page>(Page{.full = due.size() == kDuePage});
  std::erase_if(due, [this](const JobId& job) {
    if (drivers_.contains(job)) return true;
    const auto [active, is_new] = fired_jobs_.try_emplace(job, false);
    if (!is_new) active->second = true;
    return !is_new;
  });
  page->left = due.size();
  for (const JobId& job : due) {
    submit_request(job, {.body = engine::TimersRequest{}},
                   [this, alive = alive_.watch(), page, job](const Result<Value>& answer) {
                     if (!alive) return;
                     page->fired = page->fired || (answer && (*answer)["fired"] != Value(0));
                     const bool is_end = --page->left == 0;
                     if (fired_jobs_.extract(job).mapped()) fire_timers_of({job});
                     if (is_end && page->full && page->fired) fire_due_timers();
                   });
  }
}

}  // namespace ae::runtime
