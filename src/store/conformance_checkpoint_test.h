// Conformance: signed heads, checkpoints and the first commit.
#pragma once

#include <string>
#include <vector>

#include "store/conformance_fixture_test.h"

namespace ae::store::conformance {

inline void signed_heads(ConformanceFixture& r) {
  Batch born = r.create_claimed("j1");
  r.must_commit(born);
  EXPECT_FALSE(r.load("j1")->signed_head);
  Batch next = r.append("j1", r.leased(), 2);
  next.signed_head = "one";
  r.must_commit(next);
  EXPECT_EQ(r.load("j1")->signed_head, "one");
  r.must_commit(r.append("j1", r.leased(), 3));
  EXPECT_EQ(r.load("j1")->signed_head, "one") << "it is kept until another one replaces it";
  Batch rows = r.rows_only("j1", r.leased(), 4);
  rows.signed_head = "two";
  rows.release = true;
  r.must_commit(rows);
  EXPECT_EQ(r.load("j1")->signed_head, "two");
  Batch freely = r.append("j1", r.unleased(), 4, "queued");
  freely.signed_head = "three";
  r.must_commit(freely);
  EXPECT_EQ(r.load("j1")->signed_head, "three");
  Batch other = r.create("j2");
  other.signed_head = "four";
  r.must_commit(other);
  EXPECT_EQ(r.load("j2")->signed_head, "four");
  EXPECT_EQ(r.load("j1")->signed_head, "three");
}

inline Result<LoadedJob> load_from(ConformanceFixture& r, const char* job, std::uint64_t seq) {
  return r.loop.await<Result<LoadedJob>>(
      [&](auto done) { r.store().load(JobId(job), seq, std::move(done)); });
}

inline void checkpoints(ConformanceFixture& r) {
  r.must_commit(r.create_claimed("j1"));
  r.must_commit(r.append("j1", r.leased(), 2));
  EXPECT_EQ(load_from(r, "j1", kFromCheckpoint)->commits.size(), 2u)
      << "without one: the whole log";
  Batch with = r.append("j1", r.leased(), 3);
  with.checkpoint = "at four";
  r.must_commit(with);
  r.must_commit(r.append("j1", r.leased(), 4));
  const auto tail = load_from(r, "j1", kFromCheckpoint);
  EXPECT_EQ(tail->checkpoint->seq, 4u);
  EXPECT_EQ(tail->checkpoint->bytes, "at four");
  EXPECT_EQ(tail->commits, std::vector<std::string>{r.append("j1", r.leased(), 4).sealed->bytes});
  const auto loaded = load_from(r, "j1", 1);
  EXPECT_EQ(loaded->commits.size(), 4u);
  EXPECT_EQ(loaded->checkpoint->seq, 4u);
  EXPECT_FALSE(load_from(r, "j1", 2)->checkpoint) << "only a load that requests it returns it";
  // A refused commit keeps the old checkpoint; a later commit replaces it; a checkpoint at the last
  // event leaves no commits to load.
  Batch stale = r.append("j1", r.leased("A9", 9), 5);
  stale.checkpoint = "stale";
  EXPECT_EQ(r.expect_refused(stale), Code::stale_attempt);
  EXPECT_EQ(load_from(r, "j1", 1)->checkpoint->bytes, "at four");
  Batch rows = r.rows_only("j1", r.leased(), 5);
  rows.checkpoint = "at five";
  r.must_commit(rows);
  const auto last = load_from(r, "j1", kFromCheckpoint);
  EXPECT_EQ(last->checkpoint->seq, 5u);
  EXPECT_TRUE(last->commits.empty());
  EXPECT_EQ(last->row.last_seq, 5u);
}

inline void first_commit_alone(ConformanceFixture& r) {
  Batch birth = r.create_claimed("j1");
  birth.sealed->blobs = {blob("apart")};
  r.must_commit(birth);
  const std::uint64_t born = birth.sealed->last_seq;
  for (std::uint64_t seq = born; seq < born + 40; ++seq) {
    Batch more = r.append("j1", r.leased(), seq);
    more.sealed->blobs = {blob("later")};
    if (seq == born + 20) more.checkpoint = "in the middle";
    r.must_commit(more);
  }
  const auto first = load_from(r, "j1", kFirstCommit);
  ASSERT_TRUE(first) << first.error().message;
  EXPECT_EQ(first->commits, std::vector<std::string>{birth.sealed->bytes});
  ASSERT_EQ(first->blobs.size(), 1u) << "only its own values";
  EXPECT_EQ(first->blobs[0].bytes, "apart");
  EXPECT_EQ(first->row.last_seq, born + 40);
  EXPECT_FALSE(first->checkpoint);
  EXPECT_EQ(load_from(r, "none", kFirstCommit).error().code, Code::not_found);
  const auto row = load_from(r, "j1", kNoCommits);
  ASSERT_TRUE(row) << row.error().message;
  EXPECT_TRUE(row->commits.empty());
  EXPECT_TRUE(row->blobs.empty());
  EXPECT_EQ(row->row.last_seq, born + 40);
  EXPECT_EQ(load_from(r, "none", kNoCommits).error().code, Code::not_found);
}

inline std::vector<Case> checkpoint_cases() {
  return {
      {"a signed head is stored until another one replaces it", signed_heads},
      {"a checkpoint is stored with its seq, and a load can start from it", checkpoints},
      {"the first commit can be loaded alone", first_commit_alone},
  };
}

}  // namespace ae::store::conformance
