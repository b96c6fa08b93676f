// ClaimOrder: which of the ready jobs a claim takes. Priority, then turns between the values of a label, then age; never
// more of a queue than its limit allows.
//
// Every driver asks the same questions of its ready jobs, each of them one look into an order that it keeps, so that all
// drivers choose alike and what a claim costs does not grow with the jobs that stand in line, whoever may run them. Ready
// jobs of one queue that ask the same of a worker (agent and capabilities) stand in one line. A claim costs
//   one look for each line, of which there are few: queues × agents × sets of capabilities that are ready now;
//   some for each line that this worker may take from, and for each job that is taken;
//   one for each job that stands in such a line and is named in ClaimRequest::except, or whose lease is not over.
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

// The ready jobs as a driver keeps them: by line (queue, and what the job needs), falling priority, turn (the value of the
// label, "" without it) and number. What it gives is
//   Failure                                what can go wrong in looking
//   Line                                   how it finds a line again; has its `queue`, and `priority`, its highest one
//   lines() → vector<Line>                 those with ready jobs from which this worker may take, in any order
//   held(q, enough) → size_t               live claims of the queue's jobs, counted up to `enough`
//   priority_below(l, p) → optional<int64> the highest one below p
//   turn_after(l, p, t) → optional<string> the next turn; nullopt = from the first
//   job_after(l, p, t, n) → optional<ReadyJob>
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
  struct Lane {
    typename Source::Line line;
    std::int64_t priority = 0;                   // of its best jobs that were not looked at
    std::map<std::string, std::int64_t> passed;  // at this priority, by turn: up to this number
    std::optional<Candidate> candidate;
    bool empty = false;  // nothing is left at this priority
  };
  static constexpr std::int64_t kAll = std::numeric_limits<std::int64_t>::max();

  Answer<void> open_lanes() {
    if (request_.limit == 0) return {};
    AE_ASSIGN(auto lines, source_.lines());
    for (auto& line : lines) {
      if (!room_.contains(line.queue)) {
        std::size_t room = request_.limit;
        if (const auto limit = limit_of(request_, line.queue)) {
          AE_ASSIGN(const std::size_t held, source_.held(line.queue, *limit));
          room = *limit - std::min(*limit, held);
        }
        room_[line.queue] = room;
      }
      if (room_[line.queue] == 0) continue;
      const std::int64_t priority = line.priority;
      lanes_.push_back(
          {.line = std::move(line), .priority = priority, .passed = {}, .candidate = {}});
    }
    return {};
  }

  // The lane with the job whose turn it is; nullptr = there is none.
  Answer<Lane*> next() {
    while (!lanes_.empty()) {
      const std::int64_t priority = std::ranges::max_element(lanes_, {}, &Lane::priority)->priority;
      AE_ASSIGN(const auto last, last_turn(priority));
      Lane* best = nullptr;
      for (Lane& lane : lanes_) {
        if (lane.priority != priority) continue;
        if (!lane.candidate && !lane.empty) {
          AE_ASSIGN(lane.candidate, candidate_of(lane, last));
          lane.empty = !lane.candidate;
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
        AE_ASSIGN(const auto lower, source_.priority_below(lane.line, priority));
        if (!lower) {
          lanes_.erase(lanes_.begin() + static_cast<std::ptrdiff_t>(i));
          continue;
        }
        lane.priority = *lower;
        lane.passed.clear();
        lane.empty = false;
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
        AE_ASSIGN(turn, source_.turn_after(lane.line, lane.priority, turn));
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
      AE_ASSIGN(auto job, source_.job_after(lane.line, lane.priority, turn, passed));
      if (job && job->fits) return job;
      passed = job ? job->number : kAll;
    }
    return std::nullopt;
  }

  void take(Lane& lane) {
    const Candidate taken = *std::exchange(lane.candidate, std::nullopt);
    const std::int64_t priority = lane.priority;
    lane.passed[taken.turn] = taken.job.number;
    if (source_.takes_turns()) {
      taken_[priority] = taken.turn;
      last_[priority] = taken.turn;
      for (Lane& other : lanes_) pass_turn(other, taken.turn);
    }
    const std::string queue = lane.line.queue;
    if (--room_[queue] == 0) {
      std::erase_if(lanes_, [&](const Lane& other) { return other.line.queue == queue; });
    }
  }

  // Another's candidate came behind the turn that was served: it still is the first one behind it, in this round or the
  // next. One of the same turn has to wait for all the others.
  void pass_turn(Lane& lane, const std::string& turn) {
    if (!lane.candidate) return;
    if (lane.candidate->turn == turn) return lane.candidate.reset();
    lane.candidate->after_the_last = lane.candidate->turn < turn;
  }

  Source& source_;
  const ClaimRequest& request_;
  std::vector<Lane> lanes_;
  std::map<std::string, std::size_t> room_;  // by queue
  std::map<std::int64_t, std::optional<std::string>> last_;
  std::map<std::int64_t, std::string> taken_;
};

}  // namespace ae::store
