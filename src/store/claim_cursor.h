// ClaimCursor: the next job of a claim from one group of ready jobs.
//
// It visits the group by descending priority. At one priority it proposes the first job of the
// first fairness key after the last served one; when there is none, of the keys up to that one,
// which are served in the next round. See claim_order.h for what Source provides.
// Errors: those of the Source's lookups.
// Threads: a value.
#pragma once

#include <cstdint>
#include <expected>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/ids.h"

namespace ae::store {

struct ReadyJob {
  JobId job;
  std::int64_t number = 0;  // order of creation
  bool matches = true;      // this worker may take it
};

template <class Source>
class ClaimCursor {
 public:
  template <class T>
  using Expected = std::expected<T, typename Source::Failure>;
  struct Candidate {
    bool is_in_next_round = false;  // its key is served in the next round
    std::string fairness_key;
    ReadyJob job;
    auto order() const { return std::tie(is_in_next_round, fairness_key, job.number); }
  };

  explicit ClaimCursor(typename Source::Group group)
      : group_(std::move(group)), priority_(group_.priority) {}

  const std::string& queue() const { return group_.queue; }
  std::int64_t priority() const { return priority_; }  // of its best jobs not visited yet

  // The job that it proposes at its priority; nullptr = no jobs are left there. `last` is the key
  // last served at this priority.
  Expected<const Candidate*> find_candidate(Source& source,
                                            const std::optional<std::string>& last) {
    if (!candidate_ && !empty_) {
      AE_ASSIGN(candidate_, next_candidate(source, last));
      empty_ = !candidate_;
    }
    return candidate_ ? &*candidate_ : nullptr;
  }

  // Removes the candidate, which is claimed.
  Candidate take_candidate() {
    Candidate taken = *std::exchange(candidate_, std::nullopt);
    scanned_to_[taken.fairness_key] = taken.job.number;
    return taken;
  }

  // Moves to the next lower priority; false = the group has no more jobs.
  Expected<bool> lower_priority(Source& source) {
    AE_ASSIGN(const auto lower, source.priority_below(group_, priority_));
    if (!lower) return false;
    priority_ = *lower;
    scanned_to_.clear();
    empty_ = false;
    return true;
  }

  // Updates the candidate after this key was served, by any cursor. It remains the first key after
  // the last served one, in this round or the next. A candidate with the served key itself must
  // wait for all other keys.
  void skip_served_key(const std::string& fairness_key) {
    if (!candidate_) return;
    if (candidate_->fairness_key == fairness_key) return candidate_.reset();
    candidate_->is_in_next_round = candidate_->fairness_key < fairness_key;
  }

 private:
  static constexpr std::int64_t kAll = std::numeric_limits<std::int64_t>::max();

  // The fairness keys after the last served one; then, in the next round, those up to it.
  Expected<std::optional<Candidate>> next_candidate(Source& source,
                                                    const std::optional<std::string>& last) {
    for (const bool next_round : {false, true}) {
      if (next_round && !last) break;
      std::optional<std::string> fairness_key = next_round ? std::nullopt : last;
      for (;;) {
        AE_ASSIGN(fairness_key, source.fairness_key_after(group_, priority_, fairness_key));
        if (!fairness_key || (next_round && *fairness_key > *last)) break;
        AE_ASSIGN(auto job, next_job(source, *fairness_key));
        if (job) return Candidate{next_round, *std::move(fairness_key), *std::move(job)};
      }
    }
    return std::nullopt;
  }

  Expected<std::optional<ReadyJob>> next_job(Source& source, const std::string& fairness_key) {
    std::int64_t& scanned_to = scanned_to_[fairness_key];
    while (scanned_to != kAll) {
      AE_ASSIGN(auto job, source.job_after(group_, priority_, fairness_key, scanned_to));
      if (job && job->matches) return job;
      scanned_to = job ? job->number : kAll;
    }
    return std::nullopt;
  }

  typename Source::Group group_;
  std::int64_t priority_ = 0;
  std::map<std::string, std::int64_t> scanned_to_;  // last visited number, by fairness key
  std::optional<Candidate> candidate_;
  bool empty_ = false;  // no jobs are left at this priority
};

}  // namespace ae::store
