// Fixture of the prune tests: ended jobs, jobs with a row in every table, and calls that prune and
// list them.
//
// Threads: the test's thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "store/conformance_fixture_test.h"

namespace ae::store::conformance {

inline Instant hour(int n) { return testing::TestLoop::kStart + std::chrono::hours(n); }

// A job created in one hour and ended in another.
inline void ended_job(ConformanceFixture& r, const std::string& id, int created_hour,
                      int ended_hour, const std::string& status = "completed", NewJob job = {}) {
  Batch create = r.create(id, std::move(job));
  create.sealed->created_at = hour(created_hour);
  r.must_commit(create);
  Batch end = r.append(id, r.unleased(), 2, status);
  end.sealed->created_at = hour(ended_hour);
  r.must_commit(end);
}

inline Pruning pruning_of(ConformanceFixture& r, const std::vector<std::string>& jobs) {
  Pruning pruning;
  for (const std::string& job : jobs) {
    const JobRow row = r.row(job);
    pruning.jobs.push_back(
        {.job = JobId(job), .last_seq = row.last_seq, .head = row.head, .content_hash = {}});
  }
  pruning.audit = {.at = r.loop.now(),
                   .by = "me",
                   .act = "prune",
                   .job = {},
                   .detail = Value::object({{"jobs", std::uint64_t{jobs.size()}}})};
  return pruning;
}

inline Result<bool> prune(ConformanceFixture& r, const Pruning& pruning) {
  for (int tries = 0; tries < 1000; ++tries) {
    auto done = r.loop.await<Result<bool>>(
        [&](auto answer) { r.store().prune(pruning, std::move(answer)); });
    if (!done || *done) return done;
  }
  return fail(Code::unavailable, "pruning does not finish");
}

inline std::string pruned(ConformanceFixture& r, const Pruning& pruning) {
  const auto done = prune(r, pruning);
  return done ? "gone" : std::string(code_name(done.error().code));
}

inline std::string ended_ids(ConformanceFixture& r, EndedFilter filter,
                             std::optional<std::uint64_t>* next = nullptr) {
  const auto page = r.loop.await<Result<EndedPage>>(
      [&](auto done) { r.store().list_ended(std::move(filter), std::move(done)); });
  if (!page) return std::string(code_name(page.error().code));
  if (next != nullptr) *next = page->next;
  std::string text;
  for (const JobRow& row : page->rows) text += (text.empty() ? "" : " ") + row.id.text;
  return text;
}

// A job with a row in every table.
inline void fill_all_tables(ConformanceFixture& r, const std::string& id,
                            const std::string& last_status) {
  NewJob job{.agent = "refund", .idempotency_key = "key of " + id, .labels = {{"who", id}}};
  Batch create = r.create_claimed(id, "A-" + id, std::move(job));
  create.sealed->blobs = {blob("the plan"), blob("a value of " + id)};
  r.must_commit(create);
  EXPECT_EQ(show(r.put(id, "s1")), "ok");
  Batch more = r.append(id, r.leased("A-" + id), 2);
  more.effects = {{InvocationId("i1"), 1, "an effect of " + id}};
  more.ledger_put = {{InvocationId("i1"), 1, "COMMITTED", "a call of " + id}};
  more.checkpoint = "a checkpoint of " + id;
  more.signed_head = "a signed head of " + id;
  more.inbox_consumed = {r.load(id)->inbox.at(0).number};
  r.must_commit(more);
  Batch end = r.append(id, r.leased("A-" + id), 3, last_status);
  end.release = last_status != "running";
  r.must_commit(end);
}

}  // namespace ae::store::conformance
