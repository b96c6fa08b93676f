// Conformance: entries of the inbox, and the commits that read, consume or leave them.
#pragma once

#include <fmt/core.h>

#include <string>
#include <vector>

#include "store/conformance_fixture_test.h"

namespace ae::store::conformance {

inline void reads_the_inbox(ConformanceFixture& r) {
  r.must_commit(r.create_claimed("j1"));
  EXPECT_EQ(show(r.put("j1", "s1", "one")), "ok");
  EXPECT_EQ(show(r.put("j1", "s2", "two")), "ok");
  const auto inbox = r.load("j1")->inbox;
  Batch b = r.append("j1", r.leased(), 2);
  b.inbox_read_through = inbox[0].number;
  EXPECT_EQ(r.expect_refused(b), Code::inbox_pending) << "the second one came after what was read";
  b.inbox_consumed = {inbox[1].number};
  EXPECT_EQ(r.expect_refused(b), Code::inbox_pending)
      << "also if it consumes an entry that it has not read";
  b.inbox_consumed.clear();
  b.inbox_read_through = inbox[1].number;
  r.must_commit(b);
  EXPECT_EQ(r.load("j1")->inbox.size(), 2u) << "what was read may be left for a later commit";
}

inline void release_with_inbox(ConformanceFixture& r) {
  r.must_commit(r.create_claimed("j1"));
  EXPECT_EQ(show(r.put("j1", "s1", "one")), "ok");
  EXPECT_EQ(show(r.put("j1", "s2", "two")), "ok");
  const auto inbox = r.load("j1")->inbox;
  ASSERT_EQ(inbox.size(), 2u);
  Batch b = r.append("j1", r.leased(), 2, "waiting");
  b.release = true;
  EXPECT_EQ(r.expect_refused(b), Code::inbox_pending);
  b.inbox_consumed = {inbox[1].number};
  EXPECT_EQ(r.expect_refused(b), Code::inbox_pending);
  EXPECT_EQ(r.load("j1")->inbox.size(), 2u) << "a refused batch consumes nothing";
  b.inbox_consumed = {inbox[0].number, inbox[1].number, 4711};
  r.must_commit(b);
  EXPECT_EQ(r.load("j1")->inbox.size(), 0u);
  EXPECT_EQ(r.row("j1").claim, std::nullopt);
  EXPECT_EQ(r.row("j1").lease_until, std::nullopt);
  EXPECT_EQ(show(r.put("j1", "s3")), "not_held");
}

inline void release_keeps_inbox(ConformanceFixture& r) {
  r.must_commit(r.create_claimed("j1"));
  for (const char* id : {"s1", "s2", "s3"}) EXPECT_EQ(show(r.put("j1", id, id)), "ok");
  Batch parks = r.append("j1", r.leased(), 2, "parked");
  parks.release = parks.keeps_inbox = true;
  r.must_commit(parks);
  const auto inbox = r.load("j1")->inbox;
  ASSERT_EQ(inbox.size(), 3u);
  EXPECT_EQ(show(r.put("j1", "s4")), "not_held");
  // A commit consumes the inbox entries before its own control request.
  Batch unleased_append = r.append("j1", ConformanceFixture::unleased(), 3, "parked");
  unleased_append.inbox_consumed = {inbox[0].number, inbox[2].number};
  r.must_commit(unleased_append);
  ASSERT_EQ(r.load("j1")->inbox.size(), 1u);
  EXPECT_EQ(r.load("j1")->inbox.at(0).number, inbox[1].number);
}

inline void inbox(ConformanceFixture& r) {
  r.must_commit(r.create("j1"));
  EXPECT_EQ(show(r.put("j1", "s1")), "not_held");
  ASSERT_EQ(r.claimed_ids(r.claim_request("A1")), "j1");
  for (const char* id : {"s3", "s1", "s2", "s1", "s3"}) {
    EXPECT_EQ(show(r.put("j1", id, fmt::format("act of {}", id))), "ok");
  }
  EXPECT_EQ(show(r.put("j1", "s1", "another act")), "ok");
  auto entries = r.load("j1")->inbox;
  ASSERT_EQ(entries.size(), 3u);
  EXPECT_EQ(fmt::format("{},{},{}", entries[0].request, entries[1].request, entries[2].request),
            "act of s3,act of s1,act of s2");
  EXPECT_LT(entries[0].number, entries[1].number);
  EXPECT_LT(entries[1].number, entries[2].number);
  Batch append = r.append("j1", r.leased("A1", 1), 2);
  for (const auto& entry : entries) append.inbox_consumed.push_back(entry.number);
  r.must_commit(append);
  // Numbers are not reused.
  EXPECT_EQ(show(r.put("j1", "s4")), "ok");
  EXPECT_GT(r.load("j1")->inbox.at(0).number, entries[2].number);
  // Expired but not claimed: the entry waits for the next lease holder.
  r.loop.advance(kLease + kLease);
  EXPECT_EQ(show(r.put("j1", "s5")), "ok");
}

inline void inbox_of_another_job(ConformanceFixture& r) {
  r.must_commit(r.create_claimed("j1"));
  r.must_commit(r.create_claimed("j2", "A2"));
  r.put("j1", "s1").value();
  r.put("j2", "s1").value();
  Batch append = r.append("j1", r.leased(), 2);
  append.inbox_consumed = {r.load("j2")->inbox.at(0).number};
  r.must_commit(append);
  EXPECT_EQ(r.load("j2")->inbox.size(), 1u);
}

inline std::vector<Case> inbox_cases() {
  return {
      {"a release is refused while the inbox has entries", release_with_inbox},
      {"an unleased commit can consume entries that a release left in the inbox",
       release_keeps_inbox},
      {"a commit that read the inbox is refused if a later entry exists", reads_the_inbox},
      {"the inbox keeps its order and ignores a duplicate of a pending id", inbox},
      {"a commit consumes only its own job's inbox entries", inbox_of_another_job},
  };
}

}  // namespace ae::store::conformance
