// ClaimOrder: which of the ready jobs a claim takes. Priority, then turns between the values of a label, then age; never
// more of a queue than its limit allows.
//
// Every driver asks the same questions of its ready jobs, each of them one look into an order that it keeps, so that all
// drivers choose alike and what a claim costs does not grow with the jobs that stand in line. It grows with the queues
// that have ready jobs, with the jobs that are taken, and with those that this worker cannot take.
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
  bool fits = true;         // this worker may take it
};

// The ready jobs as a driver keeps them: by queue, falling priority, turn (the value of the label, "" without it) and
// number. What it gives is
//   Failure                                what can go wrong in looking
//   queue_after(q) → optional<string>      the next queue with ready jobs; "" = from the first
//   held(q, enough) → size_t               live claims of the queue's jobs, counted up to `enough`
//   priority_below(q, p) → optional<int64> the highest one below p
//   turn_after(q, p, t) → optional<string> the next turn; nullopt = from the first
//   job_after(q, p, t, n) → optional<ReadyJob>
//   served(p) → optional<string>           whose turn was the last at this priority; nullopt = nobody's, or no turns
// each as std::expected<…, Failure>.
template <class Source>
class ClaimOrder {
 public:
  template <class T>
  using Answer = std::expected<T, typename Source::Failure>;

  ClaimOrder(Source& source, const ClaimRequest& request) : source_(source), request_(request) {}

  // At most `request.limit` jobs, in the order in which they are taken.
  Answer<std::vector<JobId>> choose() {
    AE_TRY(open_lanes());
    std::vector<JobId> chosen;
    while (chosen.size() < request_.limit) {
      AE_ASSIGN(Lane * best, next());
      if (best == nullptr) break;
      chosen.push_back(best->candidate->job.job);
      take(*best);
    }
    return chosen;
  }
  // Whose turn was the last now, at each priority at which a job was chosen. Nothing when there are no turns.
  const std::map<std::int64_t, std::string>& turns() const { return taken_; }

 private:
  struct Candidate {
    bool after_the_last = false;  // its turn comes in the next round
    std::string turn;
    ReadyJob job;
    auto order() const { return std::tie(after_the_last, turn, job.number); }
  };
  struct Lane {  // a queue
    std::string queue;
    std::size_t room = 0;
    std::int64_t priority = 0;                   // of its best jobs that were not looked at
    std::map<std::string, std::int64_t> passed;  // at this priority, by turn: up to this number
    std::optional<Candidate> candidate;
  };
  static constexpr std::int64_t kAll = std::numeric_limits<std::int64_t>::max();

  Answer<void> open_lanes() {
    if (request_.limit == 0) return {};
    for (std::string queue;;) {
      AE_ASSIGN(auto found, source_.queue_after(queue));
      if (!found) return {};
      queue = *std::move(found);
      Lane lane{.queue = queue, .room = request_.limit, .passed = {}, .candidate = {}};
      if (const auto limit = limit_of(request_, queue)) {
        AE_ASSIGN(const std::size_t held, source_.held(queue, *limit));
        lane.room = *limit - std::min(*limit, held);
      }
      if (lane.room == 0) continue;
      AE_ASSIGN(const auto priority, source_.priority_below(queue, kAll));
      if (!priority) continue;
      lane.priority = *priority;
      lanes_.push_back(std::move(lane));
    }
  }

  // The lane with the job whose turn it is; nullptr = there is none.
  Answer<Lane*> next() {
    while (!lanes_.empty()) {
      const std::int64_t priority = std::ranges::max_element(lanes_, {}, &Lane::priority)->priority;
      AE_ASSIGN(const auto last, last_turn(priority));
      Lane* best = nullptr;
      for (Lane& lane : lanes_) {
        if (lane.priority != priority) continue;
        if (!lane.candidate) {
          AE_ASSIGN(lane.candidate, candidate_of(lane, last));
        }
        if (!lane.candidate) continue;
        const bool better = best == nullptr || lane.candidate->order() < best->candidate->order();
        if (better) best = &lane;
      }
      if (best != nullptr) return best;
      AE_TRY(descend(priority));
    }
    return nullptr;
  }

  // Nothing is left at this priority.
  Answer<void> descend(std::int64_t priority) {
    for (std::size_t i = 0; i < lanes_.size();) {
      Lane& lane = lanes_[i];
      if (lane.priority == priority) {
        AE_ASSIGN(const auto lower, source_.priority_below(lane.queue, priority));
        if (!lower) {
          lanes_.erase(lanes_.begin() + static_cast<std::ptrdiff_t>(i));
          continue;
        }
        lane.priority = *lower;
        lane.passed.clear();
      }
      ++i;
    }
    return {};
  }

  Answer<std::optional<std::string>> last_turn(std::int64_t priority) {
    const auto known = last_.find(priority);
    if (known != last_.end()) return known->second;
    AE_ASSIGN(auto last, source_.served(priority));
    return last_.emplace(priority, std::move(last)).first->second;
  }

  // The turns behind the last one, then, in the next round, those up to it.
  Answer<std::optional<Candidate>> candidate_of(Lane& lane,
                                                const std::optional<std::string>& last) {
    for (const bool next_round : {false, true}) {
      if (next_round && !last) break;
      std::optional<std::string> turn = next_round ? std::nullopt : last;
      for (;;) {
        AE_ASSIGN(turn, source_.turn_after(lane.queue, lane.priority, turn));
        if (!turn || (next_round && *turn > *last)) break;
        AE_ASSIGN(auto job, job_of(lane, *turn));
        if (job) return Candidate{next_round, *std::move(turn), *std::move(job)};
      }
    }
    return std::nullopt;
  }

  Answer<std::optional<ReadyJob>> job_of(Lane& lane, const std::string& turn) {
    std::int64_t& passed = lane.passed[turn];
    while (passed != kAll) {
      AE_ASSIGN(auto job, source_.job_after(lane.queue, lane.priority, turn, passed));
      if (job && job->fits) return job;
      passed = job ? job->number : kAll;
    }
    return std::nullopt;
  }

  void take(Lane& lane) {
    const Candidate taken = *std::exchange(lane.candidate, std::nullopt);
    const std::int64_t priority = lane.priority;
    lane.passed[taken.turn] = taken.job.number;
    lane.room -= 1;
    if (source_.takes_turns()) {
      taken_[priority] = taken.turn;
      last_[priority] = taken.turn;
      for (Lane& other : lanes_) other.candidate.reset();
    }
    if (lane.room == 0) lanes_.erase(lanes_.begin() + (&lane - lanes_.data()));
  }

  Source& source_;
  const ClaimRequest& request_;
  std::vector<Lane> lanes_;
  std::map<std::int64_t, std::optional<std::string>> last_;
  std::map<std::int64_t, std::string> taken_;
};

}  // namespace ae::store
