// Conformance: entries that a commit puts into the inboxes of other jobs.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "store/conformance_fixture_test.h"

namespace ae::store::conformance {

inline InboxPut put_for(std::string job, std::string id, std::string request = "{}") {
  return {.job = JobId(std::move(job)),
          .entry = {.number = 0, .id = std::move(id), .request = std::move(request)}};
}

inline RowState waiting_until(Instant at) { return {.status = "waiting", .wake_at = at}; }

inline void puts_into_other_inboxes(ConformanceFixture& r) {
  r.must_commit(r.create_claimed("child"));
  r.must_commit(r.create_claimed("leased", "A2"));
  r.must_commit(r.create("idle", {}, {.status = "waiting", .wake_at = r.at(kLease)}));
  Batch ends = r.append("child", r.leased(), 2, "completed");
  ends.release = true;
  ends.inbox_puts = {put_for("leased", "e1", "one"), put_for("idle", "e1", "two"),
                     put_for("idle", "e2", "three"), put_for("missing", "e1")};
  r.must_commit(ends);
  ASSERT_EQ(r.load("leased")->inbox.size(), 1u);
  EXPECT_EQ(r.load("leased")->inbox[0].request, "one");
  const auto inbox = r.load("idle")->inbox;
  ASSERT_EQ(inbox.size(), 2u);
  EXPECT_EQ(inbox[0].id + inbox[0].request + inbox[1].id + inbox[1].request, "e1twoe2three");
  EXPECT_LT(inbox[0].number, inbox[1].number);
  EXPECT_EQ(r.due_now(), "idle") << "a job without a lease is due at once";
  EXPECT_EQ(r.row("idle").status, "waiting");
  EXPECT_EQ(r.row("leased").wake_at, std::nullopt) << "the lease holder reads its inbox";
  Batch release = r.append("leased", r.leased("A2"), 2, "waiting");
  release.release = true;
  EXPECT_EQ(r.expect_refused(release), Code::inbox_pending);
}

inline void puts_once(ConformanceFixture& r) {
  r.must_commit(r.create_claimed("child"));
  r.must_commit(r.create("parent", {}, {.status = "waiting"}));
  Batch first = r.append("child", r.leased(), 2);
  first.inbox_puts = {put_for("parent", "e1", "one")};
  r.must_commit(first);
  r.must_commit(first);  // the same bytes again
  Batch again = r.append("child", r.leased(), 3);
  again.inbox_puts = {put_for("parent", "e1", "other")};
  r.must_commit(again);
  auto inbox = r.load("parent")->inbox;
  ASSERT_EQ(inbox.size(), 1u);
  EXPECT_EQ(inbox[0].request, "one");
  Batch takes = r.append("parent", ConformanceFixture::unleased(), 2, "queued");
  takes.inbox_consumed = {inbox[0].number};
  takes.inbox_read_through = inbox[0].number;
  r.must_commit(takes);
  r.must_commit(first);  // also after the entry was consumed
  EXPECT_EQ(r.load("parent")->inbox.size(), 0u);
  EXPECT_EQ(r.due_now(), "") << "the commit of the other job replaces its wake_at";
}

inline void refused_puts(ConformanceFixture& r) {
  r.must_commit(r.create_claimed("child"));
  r.must_commit(r.create("parent", {}, {.status = "waiting"}));
  Batch stale = r.append("child", r.leased("A9"), 2);
  stale.inbox_puts = {put_for("parent", "e1")};
  EXPECT_EQ(r.expect_refused(stale), Code::stale_attempt);
  EXPECT_EQ(r.load("parent")->inbox.size(), 0u);
  EXPECT_EQ(r.due_now(), "");
  r.must_commit(r.append("parent", ConformanceFixture::unleased(), 2, "cancelled"));
  Batch ends = r.append("child", r.leased(), 2);
  ends.inbox_puts = {put_for("parent", "e1")};
  r.must_commit(ends);
  EXPECT_EQ(r.load("parent")->inbox.size(), 0u) << "an ended job receives nothing";
  EXPECT_EQ(r.due_now(), "");
}

// Of a message: its sender must be held when the message is delivered, in either way.
inline void sender_must_be_held(ConformanceFixture& r) {
  const auto sender = [](std::string_view attempt, std::uint64_t epoch) {
    return HeldJob{JobId("sender"), fence(attempt, epoch)};
  };
  r.must_commit(r.create("idle", {}, {.status = "waiting"}));
  r.must_commit(r.create_claimed("held", "A9"));
  std::uint64_t seq = 2;
  const auto appends = [&](const HeldJob& by) {
    Batch b = r.append("idle", ConformanceFixture::unleased(), seq, "waiting");
    b.sender = by;
    return b;
  };
  const auto puts = [&](const HeldJob& by, std::string id) {
    return show(r.loop.await<Result<void>>([&](auto done) {
      r.store().put_inbox(JobId("held"), {.id = std::move(id), .request = "{}", .sender = by},
                          std::move(done));
    }));
  };
  EXPECT_EQ(r.expect_refused(appends(sender("A1", 1))), Code::stale_attempt) << "no such job";
  EXPECT_EQ(puts(sender("A1", 1), "e1"), "stale_attempt");
  r.must_commit(r.create_claimed("sender"));
  for (const HeldJob& other : {sender("A1", 2), sender("A2", 1)}) {
    EXPECT_EQ(r.expect_refused(appends(other)), Code::stale_attempt);
    EXPECT_EQ(puts(other, "e1"), "stale_attempt");
  }
  const Batch delivered = appends(sender("A1", 1));
  r.must_commit(delivered);
  ++seq;
  EXPECT_EQ(puts(sender("A1", 1), "e1"), "ok");
  Batch ends = r.append("sender", r.leased("A1", 1), 2, "completed");
  ends.release = true;
  r.must_commit(ends);
  EXPECT_EQ(r.expect_refused(appends(sender("A1", 1))), Code::stale_attempt) << "it has ended";
  EXPECT_EQ(puts(sender("A1", 1), "e2"), "stale_attempt");
  EXPECT_TRUE(r.commit(delivered)->is_duplicate) << "that was done before";
  EXPECT_EQ(r.load("held")->inbox.size(), 1u);
  EXPECT_EQ(r.row("idle").last_seq, seq);
}

inline void unleased_commit_reads_the_inbox(ConformanceFixture& r) {
  r.must_commit(r.create_claimed("child"));
  r.must_commit(r.create("parent", {}, {.status = "waiting"}));
  Batch parent = r.append("parent", ConformanceFixture::unleased(), 2, "queued");
  parent.inbox_read_through = 0;
  Batch child = r.append("child", r.leased(), 2);
  child.inbox_puts = {put_for("parent", "e1")};
  r.must_commit(child);
  EXPECT_EQ(r.expect_refused(parent), Code::inbox_pending);
  parent.inbox_read_through = r.load("parent")->inbox.at(0).number;
  r.must_commit(parent);
  ASSERT_EQ(r.claimed_ids(r.claim_request("A2")), "parent");
  EXPECT_EQ(r.load("parent")->inbox.size(), 1u) << "the next lease holder applies it";
}

inline void consumes_without_events(ConformanceFixture& r) {
  r.must_commit(r.create_claimed("child"));
  r.must_commit(r.create("parent", {}, waiting_until(r.at(kLease))));
  Batch child = r.append("child", r.leased(), 2);
  child.inbox_puts = {put_for("parent", "e1")};
  r.must_commit(child);
  ASSERT_EQ(r.due_now(), "parent");
  Batch takes = r.rows_only("parent", ConformanceFixture::unleased(), 2);
  takes.inbox_consumed = {r.load("parent")->inbox.at(0).number};
  takes.inbox_read_through = takes.inbox_consumed[0];
  takes.row = waiting_until(r.at(kLease));
  takes.writes_row = true;
  r.must_commit(takes);
  EXPECT_EQ(r.due_now(), "");
  EXPECT_EQ(r.row("parent").wake_at, r.at(kLease));
  EXPECT_EQ(r.row("parent").last_seq, 2u);
}

inline std::vector<Case> inbox_put_cases() {
  return {
      {"a commit puts entries into the inboxes of other jobs", puts_into_other_inboxes},
      {"a repeated commit puts its entries once", puts_once},
      {"a refused commit puts no entry, and an ended job gets none", refused_puts},
      {"a request of another job is delivered only while that is held so", sender_must_be_held},
      {"an unleased commit that read the inbox is refused if a later entry exists",
       unleased_commit_reads_the_inbox},
      {"a commit without events consumes an entry, and the job is not due any more",
       consumes_without_events},
  };
}

}  // namespace ae::store::conformance
