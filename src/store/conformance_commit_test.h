// Conformance: the guarantees of `commit` and `put_inbox`.
#pragma once

#include <vector>

#include "store/conformance_fixture_test.h"

namespace ae::store::conformance {

inline void creates(ConformanceFixture& r) {
  NewJob job{.agent = "refund", .request_hash = sha256("r"), .priority = 7};
  job.labels = {{"team", "a"}, {"env", "prod"}};
  Batch b = r.create("j1", job, {.status = "queued", .wake_at = r.at(std::chrono::hours(1))});
  b.sealed->created_at = r.at(std::chrono::seconds(3));
  const auto answer = r.commit(b);
  EXPECT_EQ(show(answer), "seq 2");
  const auto loaded = r.load("j1");
  ASSERT_TRUE(loaded);
  EXPECT_EQ(loaded->commits, std::vector<std::string>{sealed("j1", 1, 2).bytes});
  EXPECT_EQ(show(loaded->row),
            "j1 agent=refund status=queued key= labels=team=a,env=prod, priority=7 "
            "needs= queue=default created=3000000 updated=3000000 seq=2 head=" +
                to_hex(sealed("j1", 1, 2).head).substr(0, 8) +
                " not_before=- wake_at=3600000000 claim=- worker= until=-");
}

inline void creates_claimed(ConformanceFixture& r) {
  const auto answer = r.commit(r.create_claimed("j1"));
  EXPECT_EQ(show(answer), "seq 2 lease j1 A1@1 until 30000000");
  const JobRow row = r.row("j1");
  EXPECT_EQ(row.claim, fence("A1", 1));
  EXPECT_EQ(row.claim_worker, "w1");
  EXPECT_EQ(row.lease_until, r.loop.now() + kLease);
  EXPECT_EQ(r.claimed_ids(r.claim_request("A2")), "");
  r.must_commit(r.append("j1", r.leased(), 2));
}

inline void same_key_gives_the_same_job(ConformanceFixture& r) {
  NewJob job{.agent = "refund", .idempotency_key = "k", .request_hash = sha256("one")};
  r.must_commit(r.create("j1", job));
  job.request_hash = sha256("two");
  const auto again = r.commit(r.create("j2", job));
  EXPECT_EQ(show(again), "seq 2 existing j1 request " + to_hex(sha256("one")).substr(0, 8));
  EXPECT_EQ(show(r.load("j2")), "not_found");
  // The same job id and key with other events: still the existing job of that key.
  Batch other = r.create("j1", job);
  other.sealed = sealed("j1", 1, 3, "other");
  EXPECT_EQ(show(r.commit(other)),
            "seq 2 existing j1 request " + to_hex(sha256("one")).substr(0, 8));
  job.agent = "another";
  EXPECT_EQ(show(r.commit(r.create("j3", job))), "seq 2");
  // Jobs without a key do not conflict.
  EXPECT_EQ(show(r.commit(r.create("j4"))), "seq 2");
  EXPECT_EQ(show(r.commit(r.create("j5"))), "seq 2");
}

inline void job_id_is_used_once(ConformanceFixture& r) {
  r.must_commit(r.create("j1"));
  Batch other = r.create("j1");
  other.sealed = sealed("j1", 1, 2, "other");
  EXPECT_EQ(r.expect_refused(other), Code::already_exists);
}

inline void repeated_create(ConformanceFixture& r) {
  r.must_commit(r.create_claimed("j1"));
  r.loop.advance(std::chrono::seconds(1));
  EXPECT_EQ(show(r.commit(r.create_claimed("j1"))), "seq 2 repeated lease j1 A1@1 until 30000000");
  r.must_commit(r.append("j1", r.leased(), 2));
  EXPECT_EQ(show(r.commit(r.create_claimed("j1"))), "seq 2 repeated lease j1 A1@1 until 30000000");
  r.loop.advance(std::chrono::seconds(60));
  ASSERT_EQ(r.claimed_ids(r.claim_request("A2")), "j1");
  EXPECT_EQ(show(r.commit(r.create_claimed("j1"))), "seq 2 repeated");
}

inline void unknown_job(ConformanceFixture& r) {
  EXPECT_EQ(r.expect_refused(r.append("nope", r.leased(), 0)), Code::not_found);
  EXPECT_EQ(r.expect_refused(r.append("nope", r.unleased(), 0)), Code::not_found);
  EXPECT_EQ(r.expect_refused(r.rows_only("nope", Batch::LateResult{}, 0)), Code::not_found);
  EXPECT_EQ(show(r.put("nope", "s")), "not_found");
  EXPECT_EQ(show(r.load("nope")), "not_found");
  EXPECT_EQ(r.claim_job("nope", r.claim_request("A")).error().code, Code::not_found);
}

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
    EXPECT_EQ(show(r.put("j1", id, std::string("act of ") + id)), "ok");
  }
  EXPECT_EQ(show(r.put("j1", "s1", "another act")), "ok");
  auto entries = r.load("j1")->inbox;
  ASSERT_EQ(entries.size(), 3u);
  EXPECT_EQ(entries[0].request + "," + entries[1].request + "," + entries[2].request,
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
    text += e.invocation.text + "/" + std::to_string(e.try_no) + "=" + e.record + " ";
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

// A refused batch changes nothing, also between others.
inline void refused_in_a_group(ConformanceFixture& r) {
  for (int i = 0; i < 20; ++i) r.must_commit(r.create_claimed("j" + std::to_string(i)));
  std::vector<std::string> answers(60);
  std::size_t pending = answers.size();
  for (std::size_t i = 0; i < 20; ++i) {
    const std::string id = "j" + std::to_string(i);
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
    const auto loaded = r.load("j" + std::to_string(i));
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

inline std::vector<Case> commit_cases() {
  return {
      {"a new job is stored completely, with all fields of its row", creates},
      {"a job created with a lease is leased to its creator", creates_claimed},
      {"an idempotency key creates at most one job per agent", same_key_gives_the_same_job},
      {"a duplicate job id is refused", job_id_is_used_once},
      {"a repeated create is reported as a duplicate, with its lease if still held",
       repeated_create},
      {"every call for an unknown job returns not_found", unknown_job},
      {"every commit authority is checked against every state of the claim", authority_and_claim},
      {"a stale attempt is reported before a sequence conflict", stale_before_sequence},
      {"a commit that does not continue at the end of the log is refused", expected_seq},
      {"a repeated commit is reported as a duplicate and not written", repeated_bytes},
      {"a repeated commit is a duplicate also after a release and another claim",
       repeated_after_release},
      {"a release is refused while the inbox has entries", release_with_inbox},
      {"an unleased commit can consume entries that a release left in the inbox",
       release_keeps_inbox},
      {"a commit that read the inbox is refused if a later entry exists", reads_the_inbox},
      {"the inbox keeps its order and ignores a duplicate of a pending id", inbox},
      {"a commit consumes only its own job's inbox entries", inbox_of_another_job},
      {"an effect is stored once, and the first record is kept", effects_once},
      {"a late result is stored whichever worker holds the lease", late_effect},
      {"a commit is refused if an effect that it requires to be absent is stored", closed_slots},
      {"a ledger row is replaced and erased", ledger},
      {"a blob is shared by all jobs that reference it", blobs_are_shared},
      {"a refused batch does not affect the others of its group", refused_in_a_group},
      {"commits take effect in the order of the calls", in_order},
      {"each operation hits its failpoints in order", failpoints},
      {"a failpoint error is unavailable before the commit, unknown_outcome after it",
       failpoints_that_fail},
      {"a batch rolled back by a failpoint does not affect its group", failpoint_in_a_group},
  };
}

}  // namespace ae::store::conformance
