// Conformance: ended jobs are deleted completely, and nothing else is.
#pragma once

#include <fmt/core.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "store/conformance_prune_fixture_test.h"
#include "store/failpoint_recorder_test.h"
#include "store/rules.h"

namespace ae::store::conformance {

inline void prunes_whole_jobs(ConformanceFixture& r) {
  fill_all_tables(r, "old", "completed");
  fill_all_tables(r, "waits", "waiting");
  fill_all_tables(r, "runs", "running");
  fill_all_tables(r, "other", "failed");
  const auto others = [&] {
    return show(r.load("waits")) + show(r.load("runs")) + show(r.load("other"));
  };
  const std::string before = others();
  const std::uint64_t waiting = r.count_jobs().statuses.at("waiting");
  EXPECT_EQ(pruned(r, pruning_of(r, {"old"})), "gone");
  EXPECT_EQ(show(r.load("old")), "not_found");
  EXPECT_EQ(r.listed_ids({}), "other runs waits");
  EXPECT_EQ(r.listed_ids({.labels = {{"who", "old"}}}), "");
  EXPECT_EQ(others(), before);
  EXPECT_EQ(r.count_jobs().statuses.at("waiting"), waiting);
  EXPECT_EQ(r.count_jobs().statuses.at("running"), 1u);
  r.store_driver->restart();
  EXPECT_EQ(show(r.load("old")), "not_found");
  EXPECT_EQ(r.listed_ids({}), "other runs waits");
  // The other jobs continue.
  r.must_commit(r.append("waits", r.unleased(), 4, "completed"));
  EXPECT_EQ(r.audit().rows.size(), 1u);
  EXPECT_TRUE(verify_audit_log(r.audit()).ok);
}

inline void prunes_only_what_was_read(ConformanceFixture& r) {
  ended_job(r, "old", 1, 2);
  ended_job(r, "other", 1, 2);
  r.must_commit(r.create("new"));
  r.must_commit(r.create_claimed("held"));
  EXPECT_EQ(pruned(r, pruning_of(r, {"old", "new"})), "sequence_conflict") << "it has not ended";
  EXPECT_EQ(pruned(r, pruning_of(r, {"old", "held"})), "held");
  Pruning pruning = pruning_of(r, {"old", "other"});
  pruning.jobs[1].last_seq = 2;
  EXPECT_EQ(pruned(r, pruning), "sequence_conflict");
  pruning = pruning_of(r, {"old", "other"});
  pruning.jobs[1].head = sha256("another");
  EXPECT_EQ(pruned(r, pruning), "sequence_conflict");
  pruning = pruning_of(r, {"old", "other"});
  pruning.jobs[0].job = JobId("none");
  EXPECT_EQ(pruned(r, pruning), "not_found");
  EXPECT_EQ(r.listed_ids({}), "held new other old") << "all of them or none";
  EXPECT_EQ(r.audit().rows.size(), 0u);
  EXPECT_EQ(pruned(r, pruning_of(r, {"old", "other"})), "gone");
  EXPECT_EQ(pruned(r, pruning), "not_found");
  EXPECT_EQ(r.audit().rows.size(), 1u);
}

// A job that was redacted or got another signed head after it was read no longer matches its
// archived contents.
inline void prunes_only_these_contents(ConformanceFixture& r) {
  fill_all_tables(r, "old", "completed");
  const auto content_hash = [&] {
    const auto loaded = r.load("old");
    std::vector<Hash> commits;
    for (const std::string& bytes : loaded->commits) commits.push_back(sha256(bytes));
    return content_hash_of(commits, loaded->signed_head);
  };
  Pruning pruning = pruning_of(r, {"old"});
  pruning.jobs[0].content_hash = content_hash();
  Redaction redaction{.job = JobId("old"), .effects = r.load("old")->effects};
  redaction.commits.push_back({.first_seq = 4,
                               .expected_hash = sha256(sealed("old", 4).bytes),
                               .bytes = "left",
                               .blobs = {}});
  redaction.audit = {.at = r.loop.now(),
                     .by = "me",
                     .act = "redact",
                     .job = JobId("old"),
                     .detail = Value::object({})};
  EXPECT_EQ(show(r.redact(redaction)), "ok");
  EXPECT_EQ(pruned(r, pruning), "sequence_conflict");
  pruning.jobs[0].content_hash = content_hash();
  Batch sign = r.rows_only("old", r.unleased(), 4);
  sign.signed_head = "signed anew";
  r.must_commit(sign);
  EXPECT_EQ(pruned(r, pruning), "sequence_conflict");
  pruning.jobs[0].content_hash = content_hash();
  EXPECT_EQ(pruned(r, pruning), "gone");
}

inline void pruned_values(ConformanceFixture& r) {
  fill_all_tables(r, "old", "completed");
  fill_all_tables(r, "young", "completed");
  EXPECT_EQ(pruned(r, pruning_of(r, {"old"})), "gone");
  const auto values = [&](std::string_view job) {
    std::string text;
    const auto loaded = r.load(job);
    for (const Blob& b : loaded->blobs) text += b.bytes + "; ";
    return text;
  };
  EXPECT_EQ(values("young"), "the plan; a value of young; ");
  // A deleted blob is stored again when a commit contains it.
  Batch again = r.create("again");
  again.sealed->blobs = {blob("a value of old"), blob("the plan")};
  r.must_commit(again);
  EXPECT_EQ(values("again"), "a value of old; the plan; ");
  EXPECT_EQ(pruned(r, pruning_of(r, {"young"})), "gone");
  EXPECT_EQ(values("again"), "a value of old; the plan; ");
  r.store_driver->restart();
  EXPECT_EQ(values("again"), "a value of old; the plan; ");
}

inline void pruned_names_are_free(ConformanceFixture& r) {
  ended_job(r, "j1", 1, 2, "completed", {.agent = "refund", .idempotency_key = "k"});
  const std::uint64_t number = r.row("j1").number;
  EXPECT_EQ(pruned(r, pruning_of(r, {"j1"})), "gone");
  r.store_driver->restart();
  ended_job(r, "j1", 3, 4, "failed", {.agent = "refund", .idempotency_key = "k"});
  EXPECT_EQ(r.row("j1").status, "failed");
  EXPECT_GT(r.row("j1").number, number) << "no number is given twice";
  EXPECT_EQ(r.load("j1")->commits.size(), 2u);
  // A late result does not reach the new job with the old id.
  EXPECT_EQ(pruned(r, pruning_of(r, {"j1"})), "gone");
  Batch late_result = r.rows_only("j1", Batch::LateResult{}, 0);
  late_result.effects = {{InvocationId("i1"), 1, "late"}};
  EXPECT_EQ(r.expect_refused(late_result), Code::not_found);
  EXPECT_EQ(show(r.put("j1", "s1")), "not_found");
}

inline void prune_failpoints(ConformanceFixture& r) {
  ended_job(r, "j1", 1, 2);
  ended_job(r, "j2", 1, 2);
  FailpointRecorder failpoints;
  failpoints.action_at = "prune.before";
  failpoints.action = async::FailpointAction::error;
  EXPECT_EQ(pruned(r, pruning_of(r, {"j1"})), "unavailable");
  EXPECT_EQ(r.listed_ids({}), "j2 j1");
  failpoints.action = async::FailpointAction::error_after;
  EXPECT_EQ(pruned(r, pruning_of(r, {"j1"})), "unknown_outcome");
  EXPECT_EQ(r.listed_ids({}), "j2") << "it was done";
  failpoints.action_at = "prune.after";
  EXPECT_EQ(pruned(r, pruning_of(r, {"j2"})), "unknown_outcome");
  EXPECT_EQ(r.listed_ids({}), "");
  EXPECT_EQ(r.audit().rows.size(), 2u);
}

// Indexing the blob references of these jobs takes more than one transaction.
inline void prunes_many(ConformanceFixture& r) {
  std::vector<std::string> all;
  for (int i = 0; i < 1100; ++i) {
    const std::string id = fmt::format("j{}", i);
    Batch create = r.create(id);
    create.sealed->blobs = {blob("the plan"), blob("of " + id)};
    r.must_commit(create);
    r.must_commit(r.append(id, r.unleased(), 2, i % 5 == 0 ? "waiting" : "completed"));
    if (i % 5 != 0) all.push_back(id);
  }
  EXPECT_EQ(ended_ids(r, {.before = hour(1), .limit = 3}), "j1 j2 j3");
  while (!all.empty()) {
    const std::size_t count = std::min(all.size(), kPruneJobsMax);
    const std::vector<std::string> some(all.begin(),
                                        all.begin() + static_cast<std::ptrdiff_t>(count));
    ASSERT_EQ(pruned(r, pruning_of(r, some)), "gone");
    all.erase(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(count));
  }
  EXPECT_EQ(r.count_jobs().statuses.at("waiting"), 220u);
  for (const char* job : {"j0", "j5", "j1095"}) EXPECT_EQ(r.load(job)->blobs.size(), 2u);
  std::optional<std::uint64_t> next;
  EXPECT_EQ(ended_ids(r, {.before = hour(1)}, &next), "");
}

inline std::vector<Case> prune_cases() {
  return {
      {"pruning deletes a job completely and changes no other job", prunes_whole_jobs},
      {"pruning deletes exactly the jobs that were read, all or none", prunes_only_what_was_read},
      {"pruning is refused if a job has changed since it was archived", prunes_only_these_contents},
      {"a blob is deleted with the last job that references it", pruned_values},
      {"the id and key of a deleted job can be reused, its number cannot", pruned_names_are_free},
      {"a failed pruning reports whether it was applied", prune_failpoints},
  };
}

}  // namespace ae::store::conformance
