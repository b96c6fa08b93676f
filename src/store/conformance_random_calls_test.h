// RandomCalls: draws the arguments of calls to a store from a small set, so that they conflict: few
// jobs, few attempts, close seqs.
//
// The same seed draws the same arguments if the same methods are called in the same order.
// Threads: the test's thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "store/conformance_fixture_test.h"
#include "testing/seeded_random.h"

namespace ae::store::conformance {

class RandomCalls {
 public:
  static constexpr int kJobs = 6;

  RandomCalls(std::uint64_t seed, ConformanceFixture& fixture) : random_(seed), fixture_(fixture) {}

  bool one_in(std::uint64_t n) { return random_.one_in(n); }
  std::uint64_t below(std::uint64_t n) { return random_.below(n); }
  // One of `of` names of this kind.
  std::string name(const char* kind, std::uint64_t of = 4) {
    return kind + std::to_string(random_.below(of));
  }
  std::string job() { return name("j", kJobs); }

  Batch create() {
    NewJob new_job{.agent = name("agent", 2)};
    if (random_.one_in(3)) new_job.idempotency_key = name("key");
    new_job.request_hash = sha256(name("request"));
    new_job.priority = static_cast<std::int64_t>(random_.below(3));
    if (random_.one_in(2)) new_job.labels = {{"l", name("v")}};
    if (random_.one_in(4)) new_job.capabilities = {"gpu"};
    if (random_.one_in(2)) new_job.queue = name("q", 2);
    if (random_.one_in(3)) new_job.forked_from = job();
    const bool claimed = random_.one_in(2);
    if (claimed)
      new_job.claim =
          InitialClaimParams{.worker = "w", .attempt = AttemptId(name("A")), .lease = kLease};
    Batch b = fixture_.create(job(), std::move(new_job), row(!claimed));
    if (random_.one_in(2)) b.sealed->blobs = {blob(name("blob"))};
    return b;
  }

  // A commit of a job with this row; nullopt: there is no such job.
  Batch batch(const std::string& id, const std::optional<JobRow>& current_row) {
    const std::uint64_t last = current_row ? current_row->last_seq : 0;
    Batch b{.job = JobId(id)};
    b.expected_seq = last;
    if (last > 0 && random_.one_in(6)) b.expected_seq = random_.below(last + 2);
    if (current_row && current_row->claim && !random_.one_in(6)) {
      b.authority = Batch::Leased{*current_row->claim};
    } else if (random_.one_in(3)) {
      b.authority = Batch::Leased{fence(name("A"), random_.below(3))};
    } else {
      b.authority = Batch::Unleased{};
    }
    const bool held = std::holds_alternative<Batch::Leased>(b.authority);
    b.release = held && random_.one_in(4);
    if (!random_.one_in(4)) {
      b.sealed = sealed(id, b.expected_seq + 1, 1 + random_.below(2), name("t", 2));
      b.row = row(!held || b.release);
      if (random_.one_in(4)) b.sealed->blobs = {blob(name("blob")), blob(name("blob"))};
      if (random_.one_in(4)) b.summary = Summary{.error = name("error", 2), .body = name("s")};
    }
    if (random_.one_in(3)) b.effects = {{InvocationId(name("i")), 1, name("e")}};
    if (random_.one_in(8)) b.effects_absent = {{InvocationId(name("i")), 1}};
    if (random_.one_in(3)) b.ledger_put = {{InvocationId(name("i")), 1, "INFLIGHT", name("r")}};
    if (random_.one_in(3)) b.ledger_erase = {{InvocationId(name("i")), 1}};
    return b;
  }

  ClaimRequest claim_request() {
    ClaimRequest request = ConformanceFixture::claim_request(name("A"), 1 + random_.below(3));
    if (random_.one_in(3)) request.agents = {name("agent", 2)};
    if (random_.one_in(4)) request.excluded_jobs = {JobId(job())};
    if (random_.one_in(2)) request.queues = {{name("q", 2), 1 + random_.below(2)}};
    return request;
  }

  WindowRequest window() {
    return {.direction = random_.one_in(2) ? WindowRequest::Direction::after
                                           : WindowRequest::Direction::before,
            .seq = random_.below(9),
            .events_max = 1 + random_.below(4)};
  }

  Filter filter() {
    Filter filter{.limit = 1 + random_.below(4)};
    if (random_.one_in(2)) filter.statuses = {"running"};
    if (random_.one_in(6)) filter.forked_from = job();
    if (random_.one_in(6)) filter.error = name("error", 2);
    if (random_.one_in(2)) filter.agent = name("agent", 2);
    if (random_.one_in(3)) filter.labels = {{"l", name("v")}};
    if (random_.one_in(3)) filter.after = job();
    return filter;
  }

 private:
  std::optional<Instant> soon() {
    if (random_.one_in(2)) return std::nullopt;
    return fixture_.loop.now() + Duration(static_cast<std::int64_t>(random_.below(60)) * 1'000'000);
  }

  RowState row(bool blocked_too) {
    static constexpr const char* kStatus[] = {"queued", "running", "waiting", "parked",
                                              "completed"};
    return {.status = kStatus[random_.below(blocked_too ? 5 : 2)],
            .not_before = soon(),
            .wake_at = soon()};
  }

  testing::SeededRandom random_;
  ConformanceFixture& fixture_;
};

}  // namespace ae::store::conformance
