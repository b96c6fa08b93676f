// Conformance: effect records, ledger rows and blobs that a commit writes beside the log.
#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "store/conformance_fixture_test.h"

namespace ae::store::conformance {

inline void effects_once(ConformanceFixture& r) {
  r.must_commit(r.create_claimed("j1"));
  Batch b = r.rows_only("j1", r.leased(), 2);
  b.effects = {
      {InvocationId("i2"), 1, "x"}, {InvocationId("i1"), 2, "y"}, {InvocationId("i1"), 1, "z"}};
  EXPECT_EQ(show(r.commit(b)), "seq 2");
  b.effects = {{InvocationId("i1"), 1, "another"}, {InvocationId("i3"), 1, "new"}};
  EXPECT_EQ(show(r.commit(b)), "seq 2");
  std::string text;
  const auto effects = r.load("j1")->effects;
  for (const EffectRow& e : effects) {
    text += fmt::format("{}/{}={} ", e.invocation.text, e.try_no, e.record);
  }
  EXPECT_EQ(text, "i1/1=z i1/2=y i2/1=x i3/1=new ");
}

inline void late_effect(ConformanceFixture& r) {
  r.must_commit(r.create_claimed("j1"));
  r.loop.advance(kLease + kLease);
  ASSERT_EQ(r.claimed_ids(r.claim_request("A2")), "j1");
  Batch late_result = r.rows_only("j1", Batch::LateResult{}, 0);
  late_result.effects = {{InvocationId("i1"), 1, "the result"}};
  EXPECT_EQ(show(r.commit(late_result)), "seq 2");
  EXPECT_EQ(r.load("j1")->effects.at(0).record, "the result");
}

inline void closed_slots(ConformanceFixture& r) {
  r.must_commit(r.create_claimed("j1"));
  Batch decide = r.append("j1", r.leased(), 2);
  decide.effects_absent = {{InvocationId("i1"), 1}};
  Batch late_result = r.rows_only("j1", Batch::LateResult{}, 0);
  late_result.effects = {{InvocationId("i1"), 2, "{}"}};
  r.must_commit(late_result);
  Batch first = decide;
  first.effects_absent = {{InvocationId("i1"), 2}};
  EXPECT_EQ(r.expect_refused(first), Code::sequence_conflict);
  r.must_commit(decide);
}

inline void ledger(ConformanceFixture& r) {
  r.must_commit(r.create_claimed("j1"));
  Batch b = r.append("j1", r.leased(), 2);
  b.ledger_put = {{InvocationId("i1"), 1, "INFLIGHT", "a"},
                  {InvocationId("i1"), 2, "INFLIGHT", "b"}};
  r.must_commit(b);
  b = r.rows_only("j1", r.leased(), 3);
  b.ledger_put = {{InvocationId("i1"), 2, "COMMITTED", "c"}};
  b.ledger_erase = {{InvocationId("i1"), 1}, {InvocationId("none"), 1}};
  r.must_commit(b);
  const auto rows = r.load("j1")->ledger;
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].state + rows[0].record, "COMMITTEDc");
}

inline void blobs_are_shared(ConformanceFixture& r) {
  Batch b = r.create_claimed("j1");
  b.sealed->blobs = {blob("plan"), blob("big")};
  r.must_commit(b);
  Batch other = r.create_claimed("j2");
  other.sealed->blobs = {blob("plan")};
  r.must_commit(other);
  Batch more = r.append("j1", r.leased(), 2);
  more.sealed->blobs = {blob("big"), blob("new")};
  r.must_commit(more);
  const auto texts = [&](std::string_view job, std::uint64_t from) {
    std::string text;
    const auto blobs = r.load(job, from)->blobs;
    for (const Blob& found : blobs) {
      EXPECT_EQ(found.hash, sha256(found.bytes));
      text += found.bytes + " ";
    }
    return text;
  };
  EXPECT_EQ(texts("j1", 1), "plan big new ");
  EXPECT_EQ(texts("j1", 3), "big new ");
  EXPECT_EQ(texts("j2", 1), "plan ");
}

inline std::vector<Case> side_row_cases() {
  return {
      {"an effect is stored once, and the first record is kept", effects_once},
      {"a late result is stored whichever worker holds the lease", late_effect},
      {"a commit is refused if an effect that it requires to be absent is stored", closed_slots},
      {"a ledger row is replaced and erased", ledger},
      {"a blob is shared by all jobs that reference it", blobs_are_shared},
  };
}

}  // namespace ae::store::conformance
