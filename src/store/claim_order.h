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
#include <cstdint>
#include <expected>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "store/rules.h"

namespace ae::store {

struct ReadyJob {
  JobId job;
  std::int64_t number = 0;  // order of creation
  bool matches = true;      // this worker may take it
};

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
      chosen.push_back(best->candidate->job.job);
      choose(*best);
    }
    return chosen;
  }
  // The last served key of each priority at which a job was chosen. Empty without a fairness label.
  const std::map<std::int64_t, std::string>& served_keys() const { return newly_served_; }

 private:
  struct Candidate {
    bool is_in_next_round = false;  // its key is served in the next round
    std::string fairness_key;
    ReadyJob job;
    auto order() const { return std::tie(is_in_next_round, fairness_key, job.number); }
  };
  struct Cursor {
    typename Source::Group group;
    std::int64_t priority = 0;                       // of its best jobs not visited yet
    std::map<std::string, std::int64_t> scanned_to;  // last visited number, by fairness key
    std::optional<Candidate> candidate;
    bool empty = false;  // no jobs are left at this priority
  };
  static constexpr std::int64_t kAll = std::numeric_limits<std::int64_t>::max();

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
      const std::int64_t priority = group.priority;
      cursors_.push_back(
          {.group = std::move(group), .priority = priority, .scanned_to = {}, .candidate = {}});
    }
    return {};
  }

  // The cursor with the job to take next; nullptr = none.
  Expected<Cursor*> next() {
    while (!cursors_.empty()) {
      const std::int64_t priority =
          std::ranges::max_element(cursors_, {}, &Cursor::priority)->priority;
      AE_ASSIGN(const auto last, last_served_key(priority));
      Cursor* best = nullptr;
      for (Cursor& cursor : cursors_) {
        if (cursor.priority != priority) continue;
        if (!cursor.candidate && !cursor.empty) {
          AE_ASSIGN(cursor.candidate, next_candidate(cursor, last));
          cursor.empty = !cursor.candidate;
        }
        if (!cursor.candidate) continue;
        const bool better = best == nullptr || cursor.candidate->order() < best->candidate->order();
        if (better) best = &cursor;
      }
      if (best != nullptr) return best;
      AE_TRY(lower_priority(priority));
    }
    return nullptr;
  }

  // Moves the cursors of this priority, which has no jobs left, to their next lower one.
  Expected<void> lower_priority(std::int64_t priority) {
    for (std::size_t i = 0; i < cursors_.size();) {
      Cursor& cursor = cursors_[i];
      if (cursor.priority == priority) {
        AE_ASSIGN(const auto lower, source_.priority_below(cursor.group, priority));
        if (!lower) {
          cursors_.erase(cursors_.begin() + static_cast<std::ptrdiff_t>(i));
          continue;
        }
        cursor.priority = *lower;
        cursor.scanned_to.clear();
        cursor.empty = false;
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

  // The fairness keys after the last served one; then, in the next round, those up to it.
  Expected<std::optional<Candidate>> next_candidate(Cursor& cursor,
                                                    const std::optional<std::string>& last) {
    for (const bool next_round : {false, true}) {
      if (next_round && !last) break;
      std::optional<std::string> fairness_key = next_round ? std::nullopt : last;
      for (;;) {
        AE_ASSIGN(fairness_key,
                  source_.fairness_key_after(cursor.group, cursor.priority, fairness_key));
        if (!fairness_key || (next_round && *fairness_key > *last)) break;
        AE_ASSIGN(auto job, job_of(cursor, *fairness_key));
        if (job) return Candidate{next_round, *std::move(fairness_key), *std::move(job)};
      }
    }
    return std::nullopt;
  }

  Expected<std::optional<ReadyJob>> job_of(Cursor& cursor, const std::string& fairness_key) {
    std::int64_t& scanned_to = cursor.scanned_to[fairness_key];
    while (scanned_to != kAll) {
      AE_ASSIGN(auto job,
                source_.job_after(cursor.group, cursor.priority, fairness_key, scanned_to));
      if (job && job->matches) return job;
      scanned_to = job ? job->number : kAll;
    }
    return std::nullopt;
  }

  void choose(Cursor& cursor) {
    const Candidate chosen = *std::exchange(cursor.candidate, std::nullopt);
    const std::int64_t priority = cursor.priority;
    cursor.scanned_to[chosen.fairness_key] = chosen.job.number;
    if (source_.is_fair()) {
      newly_served_[priority] = chosen.fairness_key;
      last_[priority] = chosen.fairness_key;
      for (Cursor& other : cursors_) skip_served_key(other, chosen.fairness_key);
    }
    const std::string queue = cursor.group.queue;
    if (--free_slots_[queue] == 0) {
      std::erase_if(cursors_, [&](const Cursor& other) { return other.group.queue == queue; });
    }
  }

  // Updates the candidate of another cursor after this key was served. It remains the first key
  // after the last served one, in this round or the next. A candidate with the served key itself
  // must wait for all other keys.
  void skip_served_key(Cursor& cursor, const std::string& fairness_key) {
    if (!cursor.candidate) return;
    if (cursor.candidate->fairness_key == fairness_key) return cursor.candidate.reset();
    cursor.candidate->is_in_next_round = cursor.candidate->fairness_key < fairness_key;
  }

  Source& source_;
  const ClaimRequest& request_;
  std::vector<Cursor> cursors_;
  std::map<std::string, std::size_t> free_slots_;  // free slots, by queue
  std::map<std::int64_t, std::optional<std::string>> last_;
  std::map<std::int64_t, std::string> newly_served_;
};

}  // namespace ae::store
