// Conformance: redactions and the audit log.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "log/field_names.h"
#include "store/audit.h"
#include "store/conformance_fixture_test.h"

namespace ae::store::conformance {

inline AuditEntry entry(std::string operation, std::string job = {}) {
  return {.at = testing::TestLoop::kStart,
          .by = "ada",
          .act = std::move(operation),
          .job = JobId(std::move(job)),
          .detail = Value::object({{"why", "asked"}})};
}

inline Redaction redaction_of(std::string job, const SealedBatch& stored, std::string bytes) {
  Redaction r{.job = JobId(job)};
  r.commits.push_back({.first_seq = stored.first_seq,
                       .expected_hash = sha256(stored.bytes),
                       .bytes = std::move(bytes),
                       .blobs = {}});
  r.audit = entry("redact", job);
  return r;
}

// An ended job of three commits; each has its own blob, and one blob is shared with another job.
inline void ended_job(ConformanceFixture& r) {
  Batch born = r.create_claimed("j1");
  born.sealed->blobs = {blob("own"), blob("shared")};
  r.must_commit(born);
  Batch more = r.append("j1", r.leased(), 2);
  more.sealed->blobs = {blob("middle")};
  more.effects = {
      {InvocationId("i1"), 1, "e1"}, {InvocationId("i1"), 2, "e2"}, {InvocationId("i2"), 1, "e3"}};
  more.checkpoint = "state";
  r.must_commit(more);
  Batch done = r.append("j1", r.leased(), 3, "completed");
  done.release = true;
  r.must_commit(done);
  Batch other = r.create("j2", {}, {.status = "completed"});
  other.sealed->blobs = {blob("shared")};
  r.must_commit(other);
}

// Its effects; `first` determines the records of the first invocation.
inline std::vector<EffectRow> effects_of(const std::string& first) {
  return {{InvocationId("i1"), 1, first + "1"},
          {InvocationId("i1"), 2, first + "2"},
          {InvocationId("i2"), 1, "e3"}};
}

inline void redacts(ConformanceFixture& r) {
  ended_job(r);
  const LoadedJob before = *r.load("j1");
  Redaction redaction = redaction_of("j1", sealed("j1", 1, 2), "left");
  redaction.effects = effects_of("left");
  EXPECT_EQ(show(r.redact(redaction)), "ok");
  const LoadedJob after = *r.load("j1");
  EXPECT_EQ(after.commits.at(0), "left");
  EXPECT_EQ(after.commits.at(1), before.commits.at(1));
  EXPECT_EQ(after.commits.at(2), before.commits.at(2));
  EXPECT_EQ(show(after.row), show(before.row)) << "the log ends where it ended";
  std::string effects;
  for (const EffectRow& effect : after.effects) effects += effect.record + " ";
  EXPECT_EQ(effects, "left1 left2 e3 ");
  EXPECT_EQ(after.checkpoint, std::nullopt) << "it holds the values too";
  std::string blobs;
  for (const Blob& b : after.blobs) blobs += b.bytes + " ";
  EXPECT_EQ(blobs, "middle ");
  EXPECT_EQ(r.load("j2")->blobs.at(0).bytes, "shared") << "another job's stays";
  ASSERT_EQ(r.audit().rows.size(), 1u);
  EXPECT_NE(r.audit().rows[0].body.find("\"job\":\"j1\""), std::string::npos);
  EXPECT_EQ(show(r.redact(redaction)), "ok") << "repeated, as after a lost response";
  EXPECT_EQ(r.audit().rows.size(), 1u) << "it was done once";
  redaction.effects = effects_of("other");
  EXPECT_EQ(show(r.redact(redaction)), "ok") << "the effects alone";
  EXPECT_EQ(r.load("j1")->effects.at(0).record, "other1");
  EXPECT_EQ(r.audit().rows.size(), 2u);
  // A deleted blob is stored again when a commit contains it again.
  Batch again = r.create("j3", {}, {.status = "completed"});
  again.sealed->blobs = {blob("own")};
  r.must_commit(again);
  EXPECT_EQ(r.load("j3")->blobs.at(0).bytes, "own");
}

inline void redacts_only_what_was_read(ConformanceFixture& r) {
  ended_job(r);
  r.must_commit(r.create_claimed("held"));
  EXPECT_EQ(show(r.redact(redaction_of("held", sealed("held", 1, 2), "left"))), "held");
  EXPECT_EQ(show(r.redact(redaction_of("none", sealed("none", 1, 2), "left"))), "not_found");
  // Two redactions of the same log: the second must not restore what the first redacted.
  Redaction first = redaction_of("j1", sealed("j1", 1, 2), "left");
  EXPECT_EQ(show(r.redact(first)), "sequence_conflict")
      << "there are effects that it does not list";
  first.effects = effects_of("e");
  EXPECT_EQ(show(r.redact(first)), "ok");
  Redaction second = redaction_of("j1", sealed("j1", 1, 2), "left otherwise");
  second.commits.push_back({.first_seq = 3,
                            .expected_hash = sha256(sealed("j1", 3).bytes),
                            .bytes = "third",
                            .blobs = {}});
  second.effects = effects_of("e");
  EXPECT_EQ(show(r.redact(second)), "sequence_conflict");
  EXPECT_EQ(show(r.redact(redaction_of("j1", sealed("j1", 2), "x"))), "sequence_conflict");
  // A late result whose writer read the job before the redaction.
  Batch late_result =
      r.rows_only("j1", Batch::LateResult{.first_commit = sha256(sealed("j1", 1, 2).bytes)}, 0);
  late_result.effects = {{InvocationId("i3"), 1, "late"}};
  EXPECT_EQ(r.expect_refused(late_result), Code::sequence_conflict);
  EXPECT_EQ(r.load("j1")->effects.size(), 3u);
  late_result.authority = Batch::LateResult{.first_commit = sha256("left")};
  EXPECT_EQ(show(r.commit(late_result)), "seq 4");
  EXPECT_EQ(r.load("j1")->effects.size(), 4u);
  EXPECT_EQ(r.load("j1")->commits.at(0), "left");
  EXPECT_EQ(r.load("j1")->commits.at(1), sealed("j1", 3).bytes) << "all or nothing";
  EXPECT_EQ(r.audit().rows.size(), 1u);
  EXPECT_EQ(r.row("held").last_seq, 2u);
}

inline void audits(ConformanceFixture& r) {
  EXPECT_TRUE(verify_audit_log(r.audit()).ok) << "an empty one";
  r.append_audit_entry(entry("first"));
  Batch born = r.create("j1", {.agent = "a", .idempotency_key = "k"});
  born.audit = entry("fork", "j0");
  r.must_commit(born);
  r.must_commit(born);  // duplicate
  Batch same_key = r.create("j2", {.agent = "a", .idempotency_key = "k"});
  same_key.audit = entry("fork", "j0");
  r.must_commit(same_key);
  Batch expect_refused = r.append("j1", r.unleased(), 7);
  expect_refused.audit = entry("never");
  EXPECT_EQ(r.expect_refused(expect_refused), Code::sequence_conflict);
  if (r.store().owned()) r.store_driver->restart();
  Batch more = r.append("j1", r.unleased(), 2, "queued");
  more.audit = entry("last", "j1");
  r.must_commit(more);
  const AuditLog log = r.audit();
  std::string operations;
  Hash prev;
  for (const AuditRow& row : log.rows) {
    const Value view = audit_view(row, prev);
    prev = row.hash;
    operations += std::string(view.text("act")) + " ";
    EXPECT_EQ(view.text(field::by), "ada");
  }
  EXPECT_EQ(operations, "first fork last ") << "only with applied writes";
  EXPECT_TRUE(verify_audit_log(log).ok);
  for (std::uint64_t after = 0; after <= log.rows.size() + 1; ++after) {
    const AuditLog tail = r.audit(after);
    EXPECT_EQ(tail.head, log.head);
    const std::size_t expected_rows =
        log.rows.size() - std::min<std::size_t>(after, log.rows.size());
    ASSERT_EQ(tail.rows.size(), expected_rows);
    EXPECT_TRUE(expected_rows == 0 || tail.rows.front().seq == after + 1);
  }
}

inline std::vector<Case> redact_cases() {
  return {
      {"a redaction erases values of an ended job once, with blobs no other job uses", redacts},
      {"a redaction replaces exactly the bytes that were read, all or none",
       redacts_only_what_was_read},
      {"an audit entry is committed with its operation or not at all", audits},
  };
}

}  // namespace ae::store::conformance
