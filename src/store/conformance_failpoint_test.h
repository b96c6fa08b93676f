// Conformance: the failpoints of each operation, and what a failure at one of them leaves.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "store/conformance_fixture_test.h"
#include "store/failpoint_recorder_test.h"

namespace ae::store::conformance {

inline void failpoints(ConformanceFixture& r) {
  FailpointRecorder failpoints;
  r.must_commit(r.create_claimed("j1"));
  EXPECT_EQ(failpoints.hits(), "append.before append.after claim.after");
  Batch split = r.rows_only("j1", r.leased(), 2);
  split.failpoints = {"effect.after_put"};
  split.effects = {{InvocationId("i1"), 1, "{}"}};
  r.must_commit(split);
  EXPECT_EQ(failpoints.hits(), "effect.after_put");
  Batch fused = r.append("j1", r.leased(), 2);
  fused.failpoints = {"effect.after_put", "ledger.after_commit"};
  r.must_commit(fused);
  EXPECT_EQ(failpoints.hits(), "append.before effect.after_put ledger.after_commit append.after");
  EXPECT_EQ(r.expect_refused(r.append("j1", r.leased("A9", 9), 3)), Code::stale_attempt);
  EXPECT_EQ(failpoints.hits(), "append.before");
  EXPECT_TRUE(r.put("j1", "s1"));
  EXPECT_EQ(failpoints.hits(), "signal.after_inbox");
  EXPECT_TRUE(r.heartbeat({{JobId("j1"), fence("A1", 1)}}));
  EXPECT_EQ(failpoints.hits(), "heartbeat.before");
  EXPECT_EQ(r.claimed_ids(r.claim_request("A2")), "");
  EXPECT_EQ(failpoints.hits(), "");
  r.must_commit(r.create("j2"));
  failpoints.hits();
  EXPECT_EQ(r.claimed_ids(r.claim_request("A2")), "j2");
  EXPECT_EQ(failpoints.hits(), "claim.after");
}

inline void failpoints_that_fail(ConformanceFixture& r) {
  FailpointRecorder failpoints;
  r.must_commit(r.create_claimed("j1"));
  std::uint64_t seq = 2;
  const auto commit_with = [&](const char* name, async::FailpointAction action) {
    failpoints.action_at = name;
    failpoints.action = action;
    Batch b = r.append("j1", r.leased(), seq);
    b.failpoints = {"effect.after_put", "ledger.after_commit"};
    b.ledger_put = {{InvocationId("i"), static_cast<std::uint32_t>(seq), "COMMITTED", "{}"}};
    const auto answer = r.commit(b);
    failpoints.action = async::FailpointAction::proceed;
    const auto loaded = r.load("j1");
    const bool done = loaded->row.last_seq == seq + 1;
    EXPECT_EQ(loaded->ledger.size(), loaded->row.last_seq - 2);
    seq = loaded->row.last_seq;
    return show(answer) + (done ? ", done" : ", not done");
  };
  for (const char* name : {"append.before", "effect.after_put", "ledger.after_commit"}) {
    EXPECT_EQ(commit_with(name, async::FailpointAction::error), "unavailable, not done") << name;
    EXPECT_EQ(commit_with(name, async::FailpointAction::error_after), "unknown_outcome, done")
        << name;
  }
  EXPECT_EQ(commit_with("append.after", async::FailpointAction::error), "unknown_outcome, done");
  EXPECT_EQ(commit_with("append.after", async::FailpointAction::error_after),
            "unknown_outcome, done");

  failpoints.action_at = "heartbeat.before";
  failpoints.action = async::FailpointAction::error;
  EXPECT_EQ(r.heartbeat({{JobId("j1"), fence("A1", 1)}}).error().code, Code::unavailable);
  failpoints.action = async::FailpointAction::error_after;
  EXPECT_EQ(r.heartbeat({{JobId("j1"), fence("A1", 1)}}).error().code, Code::unknown_outcome);
  failpoints.action_at = "signal.after_inbox";
  failpoints.action = async::FailpointAction::error;
  EXPECT_EQ(show(r.put("j1", "s1")), "unknown_outcome");
  EXPECT_EQ(r.load("j1")->inbox.size(), 1u);
  r.must_commit(r.create("j2"));
  failpoints.action_at = "claim.after";
  EXPECT_EQ(r.claim(r.claim_request("A2")).error().code, Code::unknown_outcome);
  EXPECT_EQ(r.row("j2").claim, fence("A2", 1));
}

// An undone batch does not affect the other batches of its group.
inline void failpoint_in_a_group(ConformanceFixture& r) {
  FailpointRecorder failpoints;
  for (const char* id : {"j1", "j2", "j3"}) r.must_commit(r.create_claimed(id));
  failpoints.action_at = "effect.after_put";
  failpoints.action = async::FailpointAction::error;
  std::string answers;
  for (const char* id : {"j1", "j2", "j3"}) {
    Batch b = r.append(id, r.leased(), 2);
    if (id == std::string_view("j2")) b.failpoints = {"effect.after_put"};
    r.store().commit(std::move(b), [&](Result<CommitResult> a) { answers += show(a) + ";"; });
  }
  ASSERT_TRUE(r.loop.run_until([&] { return std::ranges::count(answers, ';') == 3; }));
  EXPECT_EQ(answers, "seq 3;unavailable;seq 3;");
  EXPECT_EQ(r.row("j2").last_seq, 2u);
  r.must_commit(r.append("j1", r.leased(), 3));
  failpoints.action = async::FailpointAction::proceed;
  r.must_commit(r.append("j2", r.leased(), 2));
}

inline std::vector<Case> failpoint_cases() {
  return {
      {"each operation hits its failpoints in order", failpoints},
      {"a failpoint error is unavailable before the commit, unknown_outcome after it",
       failpoints_that_fail},
      {"a batch rolled back by a failpoint does not affect its group", failpoint_in_a_group},
  };
}

}  // namespace ae::store::conformance
