// Conformance: random jobs and claims give the same order as a naive implementation.
#pragma once

#include <fmt/core.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "log/field_names.h"
#include "store/conformance_fixture_test.h"
#include "store/rules.h"

namespace ae::store::conformance {

// A naive implementation of the claim order: scans all jobs for each one that is taken.
class NaiveClaimOrder {
 public:
  struct Job {
    std::string id;
    NewJob new_job;
    std::string fairness_key;
    bool ready = true;
  };
  explicit NaiveClaimOrder(bool is_fair) : is_fair_(is_fair) {}
  std::vector<Job> jobs;  // by age

  std::string claim(const ClaimRequest& request) {
    std::string claimed;
    for (std::size_t n = 0; n < request.limit; ++n) {
      Job* best = nullptr;
      for (Job& job : jobs) {
        if (may_claim(request, job) && (best == nullptr || order(job) < order(*best))) best = &job;
      }
      if (best == nullptr) break;
      best->ready = false;
      ++leased_[best->new_job.queue];
      last_[best->new_job.priority] = best->fairness_key;
      claimed += (claimed.empty() ? "" : " ") + best->id;
    }
    return claimed;
  }

 private:
  bool may_claim(const ClaimRequest& request, const Job& job) {
    const auto limit = queue_limit_of(request, job.new_job.queue);
    return job.ready && (!limit || leased_[job.new_job.queue] < *limit) &&
           matches(request, {JobId(job.id), job.new_job.agent, job.new_job.capabilities});
  }
  std::tuple<std::int64_t, bool, std::string> order(const Job& job) const {
    const auto last = last_.find(job.new_job.priority);
    const bool next_round = is_fair_ && last != last_.end() && job.fairness_key <= last->second;
    return {-job.new_job.priority, next_round, is_fair_ ? job.fairness_key : std::string()};
  }

  const bool is_fair_;
  std::map<std::string, std::size_t> leased_;
  std::map<std::int64_t, std::string> last_;
};

// Jobs of many kinds in many queues, and workers that may run some of them.
inline void same_claim_order(ConformanceFixture& r, bool is_fair) {
  if (is_fair) {
    ASSERT_NE(r.store_driver->fair_by("tenant"), nullptr);
  }
  std::uint64_t state = is_fair ? 7 : 11;
  const auto below = [&state](std::uint64_t n) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    return (state >> 33) % n;
  };
  NaiveClaimOrder naive(is_fair);
  const auto create = [&] {
    NewJob job{.agent = fmt::format("agent{}", below(3)),
               .priority = static_cast<std::int64_t>(below(3)),
               .queue = fmt::format("q{}", below(2))};
    if (below(3) == 0) job.capabilities.emplace_back("eu");
    if (below(3) == 0) job.capabilities.emplace_back("gpu");
    const std::string tenant = fmt::format("t{}", below(3));
    job.labels = {{"tenant", tenant}};
    const std::string id = fmt::format("j{}", naive.jobs.size());
    naive.jobs.push_back({.id = id, .new_job = job, .fairness_key = is_fair ? tenant : ""});
    r.must_commit(r.create(id, std::move(job)));
  };
  for (int i = 0; i < 50; ++i) create();
  for (int i = 0; i < 25; ++i) {
    ClaimRequest request = ConformanceFixture::claim_request(fmt::format("A{}.", i), 1 + below(4));
    if (below(2) == 0) request.agents = {field::agent + std::to_string(below(3)), "agent9"};
    if (below(2) == 0) request.capabilities.emplace_back("gpu");
    if (below(2) == 0) request.capabilities.emplace_back("eu");
    if (below(3) == 0) request.queues = {{fmt::format("q{}", below(2)), 1 + below(20)}};
    for (std::uint64_t n = below(4); n > 0; --n) {
      request.excluded_jobs.emplace_back(fmt::format("j{}", below(naive.jobs.size())));
    }
    const std::string expected = naive.claim(request);
    EXPECT_EQ(r.claimed_ids(request), expected) << i;
    if (below(2) == 0) create();
  }
}
inline void same_claim_order_by_age(ConformanceFixture& r) { same_claim_order(r, false); }
inline void same_claim_order_by_fairness_key(ConformanceFixture& r) { same_claim_order(r, true); }

inline std::vector<Case> claim_order_cases() {
  return {
      {"eligible jobs are claimed in one order, whatever other jobs require",
       same_claim_order_by_age},
      {"jobs that a worker may not run do not change the fair order of the others",
       same_claim_order_by_fairness_key},
  };
}

}  // namespace ae::store::conformance
