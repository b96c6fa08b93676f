// ClaimOrder: chooses the jobs of a claim. Order: priority, then fairness key in rotation, then
// age; never more of a queue than its limit allows.
//
// Every driver answers the same queries about its ready jobs, each with one index lookup. So all
// drivers choose alike, and the cost of a claim does not depend on the number of ready jobs. Ready
// jobs of one queue with the same requirements (agent and capabilities) form a group. A claim costs
//   one lookup per group (few: queues × agents × sets of capabilities that are ready now);
//   some per group that this worker may take from, and per job that is taken;
//   one per job of such a group that is in ClaimRequest::excluded_jobs or whose lease is not over.
// Threads: a value. See docs/decisions/0024-queues-and-turns.md.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <expected>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/ids.h"
#include "store/claim_cursor.h"
#include "store/rules.h"

namespace ae::store {

// Source: the ready jobs of a driver, ordered by group (queue, agent, capabilities), descending
// priority, fairness key (the value of the label, "" without it) and number. It provides
//   Failure                                       the error type of a lookup
//   Group                                         a group; has `queue` and its highest `priority`
//   is_fair() → bool                              there is a fairness label
//   groups() → vector<Group>                      groups that this worker may run, unordered
//   count_leased(q, enough) → size_t              live claims of the queue, up to `enough`
//   priority_below(g, p) → optional<int64>        the next lower priority
//   fairness_key_after(g, p, k) → optional<string>  the next key; k = nullopt: the first
//   job_after(g, p, k, n) → optional<ReadyJob>    the next job of this key
//   last_served_key_at(p) → optional<string>      key last served at this priority; nullopt = none
// Each returns std::expected<…, Failure>, except is_fair.
template <class Source>
class ClaimOrder {
 public:
  template <class T>
  using Expected = std::expected<T, typename Source::Failure>;

  ClaimOrder(Source& source, const ClaimRequest& request) : source_(source), request_(request) {}

  // At most `request.limit` jobs, in the order in which they are taken.
  Expected<std::vector<JobId>> choose_jobs() {
    AE_TRY(open_cursors());
    std::vector<JobId> chosen;
    while (chosen.size() < request_.limit) {
      AE_ASSIGN(Cursor * best, next());
      if (best == nullptr) break;
      chosen.push_back(choose(*best));
    }
    return chosen;
  }
  // The last served key of each priority at which a job was chosen. Empty without a fairness label.
  const std::map<std::int64_t, std::string>& served_keys() const { return newly_served_; }

 private:
  using Cursor = ClaimCursor<Source>;

  Expected<void> open_cursors() {
    if (request_.limit == 0) return {};
    AE_ASSIGN(auto groups, source_.groups());
    for (auto& group : groups) {
      if (!free_slots_.contains(group.queue)) {
        std::size_t free_slots = request_.limit;
        if (const auto limit = queue_limit_of(request_, group.queue)) {
          AE_ASSIGN(const std::size_t held, source_.count_leased(group.queue, *limit));
          free_slots = *limit - std::min(*limit, held);
        }
        free_slots_[group.queue] = free_slots;
      }
      if (free_slots_[group.queue] == 0) continue;
      cursors_.emplace_back(std::move(group));
    }
    return {};
  }

  // The cursor with the job to take next; nullptr = none.
  Expected<Cursor*> next() {
    while (!cursors_.empty()) {
      const std::int64_t priority =
          std::ranges::max_element(cursors_, {}, &Cursor::priority)->priority();
      AE_ASSIGN(const auto last, last_served_key(priority));
      Cursor* best = nullptr;
      const typename Cursor::Candidate* best_candidate = nullptr;
      for (Cursor& cursor : cursors_) {
        if (cursor.priority() != priority) continue;
        AE_ASSIGN(const auto* candidate, cursor.find_candidate(source_, last));
        if (candidate == nullptr) continue;
        if (best == nullptr || candidate->order() < best_candidate->order()) {
          best = &cursor;
          best_candidate = candidate;
        }
      }
      if (best != nullptr) return best;
      AE_TRY(lower_priority(priority));
    }
    return nullptr;
  }

  // Moves the cursors of this priority, which has no jobs left, to their next lower one.
  Expected<void> lower_priority(std::int64_t priority) {
    for (std::size_t i = 0; i < cursors_.size();) {
      if (cursors_[i].priority() == priority) {
        AE_ASSIGN(const bool has_more, cursors_[i].lower_priority(source_));
        if (!has_more) {
          cursors_.erase(cursors_.begin() + static_cast<std::ptrdiff_t>(i));
          continue;
        }
      }
      ++i;
    }
    return {};
  }

  Expected<std::optional<std::string>> last_served_key(std::int64_t priority) {
    const auto cached = last_.find(priority);
    if (cached != last_.end()) return cached->second;
    AE_ASSIGN(auto last, source_.last_served_key_at(priority));
    return last_.emplace(priority, std::move(last)).first->second;
  }

  // Takes the cursor's candidate, and closes the cursors of a queue that is now at its limit.
  JobId choose(Cursor& cursor) {
    const std::int64_t priority = cursor.priority();
    const std::string queue = cursor.queue();
    const typename Cursor::Candidate chosen = cursor.take_candidate();
    if (source_.is_fair()) {
      newly_served_[priority] = chosen.fairness_key;
      last_[priority] = chosen.fairness_key;
      for (Cursor& other : cursors_) other.skip_served_key(chosen.fairness_key);
    }
    if (--free_slots_[queue] == 0) {
      std::erase_if(cursors_, [&](const Cursor& other) { return other.queue() == queue; });
    }
    return chosen.job.job;
  }

  Source& source_;
  const ClaimRequest& request_;
  std::vector<Cursor> cursors_;
  std::map<std::string, std::size_t> free_slots_;  // free slots, by queue
  std::map<std::int64_t, std::optional<std::string>> last_;
  std::map<std::int64_t, std::string> newly_served_;
};

}  // namespace ae::store
