// Conformance: who may commit, where a commit continues the log, and what a repeated one does.
#pragma once

#include <fmt/core.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "store/conformance_fixture_test.h"

namespace ae::store::conformance {

// Every authority against every state of the claim.
inline void authority_and_claim(ConformanceFixture& r) {
  r.must_commit(r.create_claimed("j1"));
  const auto try_append = [&](Batch::Authority authority) {
    const auto answer = r.commit(r.rows_only("j1", std::move(authority), 2));
    return answer ? std::string("ok") : std::string(code_name(answer.error().code));
  };
  const auto commit_late_result = [&] {
    Batch b = r.rows_only("j1", Batch::LateResult{}, 0);
    b.effects.push_back({InvocationId("i"), 1, "{}"});
    return r.commit(b).has_value();
  };
  // live lease
  EXPECT_EQ(try_append(r.leased("A1", 1)), "ok");
  EXPECT_EQ(try_append(r.leased("A1", 2)), "stale_attempt");
  EXPECT_EQ(try_append(r.leased("A2", 1)), "stale_attempt");
  EXPECT_EQ(try_append(r.unleased()), "held");
  EXPECT_TRUE(commit_late_result());
  // expired, not claimed by another: the claim row remains
  r.loop.advance(kLease + kLease);
  EXPECT_EQ(try_append(r.leased("A1", 1)), "ok");
  EXPECT_EQ(try_append(r.unleased()), "held");
  EXPECT_EQ(show(r.put("j1", "s")), "ok");
  // claimed by another
  ASSERT_EQ(r.claimed_ids(r.claim_request("A2")), "j1");
  EXPECT_EQ(try_append(r.leased("A1", 1)), "stale_attempt");
  EXPECT_EQ(try_append(r.leased("A2", 1)), "stale_attempt");
  EXPECT_EQ(try_append(r.leased("A2", 2)), "ok");
  EXPECT_EQ(try_append(r.unleased()), "held");
  EXPECT_TRUE(commit_late_result());
  // released
  Batch release = r.append("j1", r.leased("A2", 2), 2, "queued");
  release.release = true;
  release.inbox_consumed = {r.load("j1")->inbox.at(0).number};
  r.must_commit(release);
  const auto try_append_at_3 = [&](Batch::Authority authority) {
    const auto answer = r.commit(r.rows_only("j1", std::move(authority), 3));
    return answer ? std::string("ok") : std::string(code_name(answer.error().code));
  };
  EXPECT_EQ(try_append_at_3(r.leased("A2", 2)), "stale_attempt");
  EXPECT_EQ(try_append_at_3(r.leased("A1", 1)), "stale_attempt");
  EXPECT_EQ(try_append_at_3(r.unleased()), "ok");
  EXPECT_TRUE(commit_late_result());
}

inline void stale_before_sequence(ConformanceFixture& r) {
  r.must_commit(r.create_claimed("j1"));
  r.must_commit(r.append("j1", r.leased(), 2));
  EXPECT_EQ(r.expect_refused(r.append("j1", r.leased("A9", 9), 2, "running", "b")),
            Code::stale_attempt);
  EXPECT_EQ(r.expect_refused(r.append("j1", r.unleased(), 2, "running", "b")), Code::held);
}

inline void expected_seq(ConformanceFixture& r) {
  r.must_commit(r.create_claimed("j1"));
  EXPECT_EQ(r.expect_refused(r.append("j1", r.leased(), 1)), Code::sequence_conflict);
  EXPECT_EQ(r.expect_refused(r.append("j1", r.leased(), 3)), Code::sequence_conflict);
  EXPECT_EQ(r.expect_refused(r.rows_only("j1", r.leased(), 1)), Code::sequence_conflict);
  r.must_commit(r.append("j1", r.leased(), 2));
  EXPECT_EQ(r.expect_refused(r.append("j1", r.leased(), 2, "running", "b")),
            Code::sequence_conflict);
  EXPECT_EQ(r.row("j1").last_seq, 3u);
}

inline void repeated_bytes(ConformanceFixture& r) {
  r.must_commit(r.create_claimed("j1"));
  const Batch b = r.append("j1", r.leased(), 2);
  EXPECT_EQ(show(r.commit(b)), "seq 3");
  EXPECT_EQ(show(r.commit(b)), "seq 3 repeated");
  for (std::uint64_t seq = 3; seq < 12; ++seq) r.must_commit(r.append("j1", r.leased(), seq));
  EXPECT_EQ(show(r.commit(b)), "seq 3 repeated");
  // A part of a commit, or other bytes at its place, is not a duplicate.
  Batch part = b;
  part.sealed = sealed("j1", 3, 2);
  EXPECT_EQ(r.expect_refused(part), Code::sequence_conflict);
  part.expected_seq = 1;
  part.sealed = sealed("j1", 2, 1);
  EXPECT_EQ(r.expect_refused(part), Code::sequence_conflict);
  EXPECT_EQ(r.row("j1").last_seq, 12u);
}

inline void repeated_after_release(ConformanceFixture& r) {
  r.must_commit(r.create_claimed("j1"));
  Batch b = r.append("j1", r.leased(), 2, "queued");
  b.release = true;
  b.effects.push_back({InvocationId("i"), 1, "once"});
  r.must_commit(b);
  EXPECT_EQ(show(r.commit(b)), "seq 3 repeated");
  ASSERT_EQ(r.claimed_ids(r.claim_request("A2")), "j1");
  EXPECT_EQ(show(r.commit(b)), "seq 3 repeated");
  EXPECT_EQ(r.row("j1").claim, fence("A2", 2));  // did not release the other claim
}

// A refused batch changes nothing, also between others.
inline void refused_in_a_group(ConformanceFixture& r) {
  for (int i = 0; i < 20; ++i) r.must_commit(r.create_claimed(fmt::format("j{}", i)));
  std::vector<std::string> answers(60);
  std::size_t pending = answers.size();
  for (std::size_t i = 0; i < 20; ++i) {
    const std::string id = fmt::format("j{}", i);
    Batch wrong_seq = r.append(id, r.leased(), 7, "failed", "wrong");
    wrong_seq.release = true;
    Batch stale = r.append(id, r.leased("A9", 4), 2, "running", "stale");
    stale.effects = {{InvocationId("i1"), 1, "stale"}};
    Batch batches[] = {std::move(wrong_seq), r.append(id, r.leased(), 2), std::move(stale)};
    for (std::size_t k = 0; k < 3; ++k) {
      r.store().commit(std::move(batches[k]), [&, at = i * 3 + k](Result<CommitResult> answer) {
        answers[at] = show(answer);
        --pending;
      });
    }
  }
  ASSERT_TRUE(r.loop.run_until([&] { return pending == 0; }));
  for (std::size_t i = 0; i < 20; ++i) {
    EXPECT_EQ(answers[i * 3], "sequence_conflict");
    EXPECT_EQ(answers[i * 3 + 1], "seq 3");
    EXPECT_EQ(answers[i * 3 + 2], "stale_attempt");
    const auto loaded = r.load(fmt::format("j{}", i));
    EXPECT_EQ(loaded->commits.size(), 2u);
    EXPECT_EQ(loaded->effects.size(), 0u);
    EXPECT_EQ(loaded->row.status, "running");
    EXPECT_EQ(loaded->row.claim, fence("A1", 1));
  }
}

// Commits of one job may be sent without waiting for each other.
inline void in_order(ConformanceFixture& r) {
  r.must_commit(r.create_claimed("j1"));
  std::string answers;
  std::size_t pending = 50;
  for (std::uint64_t seq = 2; seq < 52; ++seq) {
    r.store().commit(r.append("j1", r.leased(), seq), [&](Result<CommitResult> answer) {
      answers += answer ? "+" : "-";
      --pending;
    });
  }
  EXPECT_EQ(answers, "") << "answered inside the call";
  ASSERT_TRUE(r.loop.run_until([&] { return pending == 0; }));
  EXPECT_EQ(answers, std::string(50, '+'));
  EXPECT_EQ(r.load("j1")->commits.size(), 51u);
}

inline std::vector<Case> commit_cases() {
  return {
      {"every commit authority is checked against every state of the claim", authority_and_claim},
      {"a stale attempt is reported before a sequence conflict", stale_before_sequence},
      {"a commit that does not continue at the end of the log is refused", expected_seq},
      {"a repeated commit is reported as a duplicate and not written", repeated_bytes},
      {"a repeated commit is a duplicate also after a release and another claim",
       repeated_after_release},
      {"a refused batch does not affect the others of its group", refused_in_a_group},
      {"commits take effect in the order of the calls", in_order},
  };
}

}  // namespace ae::store::conformance
