// Redaction, and the erasure of dropped values from the tables.
#include "store/postgres/redaction.h"

#include <fmt/core.h>

#include <thread>

#include "store/postgres/postgres_fixture_test.h"

namespace ae::store {
namespace {

Redaction redaction_of(const std::string& id, const SealedBatch& stored) {
  Redaction drop{.job = JobId(id)};
  drop.commits = {{.first_seq = stored.first_seq,
                   .expected_hash = sha256(stored.bytes),
                   .bytes = "left",
                   .blobs = {}}};
  drop.audit = {.at = {}, .by = "me", .act = "redact", .job = drop.job, .detail = {}};
  return drop;
}

// The commits are read and the blobs are not: reading them waits for a lock that the redaction
// holds to its end.
AE_TEST("postgres/a load during a redaction returns the redacted job") {
  const OwnSchema schema;
  PostgresFixture fixture(schema.name());
  ASSERT_TRUE(fixture.open());
  Batch job = PostgresFixture::create("j0");
  job.row.status = "completed";
  job.sealed->blobs = {conformance::blob("value")};
  ASSERT_TRUE(fixture.commit(job));
  auto other = postgres::Connection::open({.url = server().url()});
  ASSERT_TRUE(other);
  ASSERT_TRUE(postgres::prepare_session(*other, {.schema = schema.name()}));
  other->add_unprepared("BEGIN");
  other->add_unprepared("LOCK TABLE blobs IN ACCESS EXCLUSIVE MODE");
  ASSERT_TRUE(other->run());
  std::optional<Result<LoadedJob>> read;
  fixture.store().load(JobId("j0"), 1, [&](Result<LoadedJob> loaded) { read = std::move(loaded); });
  const auto waits = [&] {
    return sql("SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'blobs'::regclass",
               schema.name())[1]
               .integer(0, 0) > 0;
  };
  while (!waits()) std::this_thread::yield();
  const auto dropped = postgres::redact(*other, redaction_of("j0", *job.sealed));
  ASSERT_TRUE(dropped && *dropped);
  ASSERT_TRUE(fixture.loop.run_until([&] { return read.has_value(); }));
  ASSERT_TRUE(*read) << read->error().message;
  EXPECT_EQ((*read)->commits, std::vector<std::string>{"left"});
  EXPECT_TRUE((*read)->blobs.empty());

  Batch damaged = PostgresFixture::create("j1");
  damaged.sealed->blobs = {conformance::blob("another")};
  ASSERT_TRUE(fixture.commit(damaged));
  sql("DELETE FROM blobs", schema.name());
  const auto found = fixture.load("j1");
  ASSERT_TRUE(found) << "a missing blob is reported when the commit is decoded";
  EXPECT_EQ(found->commits.size(), 1u);
  EXPECT_TRUE(found->blobs.empty());
}

// Number of references that are in `value_uses` but in no commit, or the other way round, compared
// with an index built from all commits.
std::int64_t wrong_uses(const std::string& schema) {
  const std::string fresh =
      "SELECT job, substring(blobs FROM 1 + 32 * n FOR 32) AS hash FROM commits CROSS JOIN LATERAL "
      "generate_series(0, length(blobs) / 32 - 1) AS n WHERE blobs IS NOT NULL";
  const std::string listed = "SELECT job, hash FROM value_uses";
  return sql(fmt::format(
                 "SELECT count(*) FROM (({0} EXCEPT {1}) UNION ALL ({1} EXCEPT {0})) AS wrong",
                 fresh, listed),
             schema)[1]
      .integer(0, 0);
}

AE_TEST("postgres/a redaction keeps exactly the blobs that are still referenced") {
  const OwnSchema schema;
  PostgresFixture fixture(schema.name());
  ASSERT_TRUE(fixture.open());
  Batch born = PostgresFixture::create_claimed("j0");
  born.sealed->blobs = {conformance::blob("own"), conformance::blob("twice"),
                        conformance::blob("shared")};
  ASSERT_TRUE(fixture.commit(born));
  Batch more = PostgresFixture::append("j0", 2);
  more.sealed->blobs = {conformance::blob("twice")};
  more.row.status = "completed";
  more.release = true;
  ASSERT_TRUE(fixture.commit(more));
  Batch other = PostgresFixture::create("j1");
  other.sealed->blobs = {conformance::blob("shared")};
  other.row.status = "completed";
  ASSERT_TRUE(fixture.commit(other));
  const auto redact = [&](const Redaction& drop) {
    return fixture.loop.await<Result<void>>(
        [&](auto done) { fixture.store().redact(drop, std::move(done)); });
  };
  const auto stored = [&] {
    const auto rows =
        sql("SELECT convert_from(bytes, 'UTF8') FROM blobs ORDER BY 1", schema.name());
    std::string all;
    for (int i = 0; i < rows[1].size(); ++i) all += rows[1].text(i, 0) + " ";
    return all;
  };
  EXPECT_EQ(wrong_uses(schema.name()), 0);
  ASSERT_TRUE(redact(redaction_of("j0", *born.sealed)));
  EXPECT_EQ(stored(), "shared twice ");
  EXPECT_EQ(wrong_uses(schema.name()), 0);
  // An obsolete reference left by an older version does not count.
  Batch last = PostgresFixture::create("j2");
  last.sealed->blobs = {conformance::blob("last")};
  last.row.status = "completed";
  ASSERT_TRUE(fixture.commit(last));
  sql("INSERT INTO value_uses SELECT other.number, hash FROM value_uses, jobs AS ours, jobs AS "
      "other WHERE ours.job_id = 'j2' AND ours.number = value_uses.job AND other.job_id = 'j1'",
      schema.name());
  EXPECT_EQ(wrong_uses(schema.name()), 1);
  ASSERT_TRUE(redact(redaction_of("j2", *last.sealed)));
  EXPECT_EQ(stored(), "shared twice ");
}

std::string erasure_report(PostgresFixture& fixture) {
  const auto residual_copies = fixture.loop.await<Result<std::vector<ResidualCopy>>>(
      [&](auto done) { fixture.store().erase_dropped_values(std::move(done)); });
  if (!residual_copies) return residual_copies.error().message;
  std::string all;
  for (const ResidualCopy& copy : *residual_copies)
    all += fmt::format("{}: {}\n", copy.where, copy.why);
  return all;
}

AE_TEST("postgres/erasure rewrites tables and reports a blocked one instead of waiting") {
  const OwnSchema schema;
  PostgresFixture fixture(schema.name());
  PostgresOptions options = fixture.options();
  ASSERT_TRUE(fixture.open(options));
  const auto file = [&] {
    return sql("SELECT pg_relation_filenode('commits')::bigint", schema.name())[1].integer(0, 0);
  };
  const std::int64_t before = file();
  ASSERT_TRUE(fixture.commit(PostgresFixture::create("j0")));
  EXPECT_FALSE(erasure_report(fixture).contains("old rows"));
  EXPECT_NE(file(), before) << "the table was rewritten";
  // A long read of a table, as by pg_dump.
  auto other = postgres::Connection::open({.url = server().url()});
  ASSERT_TRUE(other);
  other->add_unprepared("SET search_path = " + schema.name());
  other->add_unprepared("BEGIN");
  other->add_unprepared("LOCK TABLE commits IN ACCESS SHARE MODE");
  ASSERT_TRUE(other->run());
  std::optional<Result<std::vector<ResidualCopy>>> residual_copies;
  fixture.store().erase_dropped_values([&](auto answer) { residual_copies = std::move(answer); });
  for (int i = 1; !residual_copies; ++i)
    ASSERT_TRUE(fixture.commit(PostgresFixture::create(fmt::format("j{}", i))));
  ASSERT_TRUE(*residual_copies) << residual_copies->error().message;
  ASSERT_EQ((*residual_copies)->size(), 2u);
  EXPECT_EQ((**residual_copies)[1].where,
            fmt::format("old rows in the pages of \"{}\".commits", schema.name()));
  other->add_unprepared("COMMIT");
  ASSERT_TRUE(other->run());
  EXPECT_FALSE(erasure_report(fixture).contains("old rows"));
  // Rows that an older transaction still sees are not removed.
  other->add_unprepared("BEGIN ISOLATION LEVEL REPEATABLE READ");
  other->add_unprepared("SELECT 1");
  ASSERT_TRUE(other->run());
  EXPECT_TRUE(erasure_report(fixture).contains(fmt::format("process {}", other->backend_pid())));
  other->add_unprepared("COMMIT");
  ASSERT_TRUE(other->run());
  options.rewrite_bytes = 8192;
  ASSERT_TRUE(fixture.open(options));
  EXPECT_TRUE(erasure_report(fixture).contains("too large"));
}

}  // namespace
}  // namespace ae::store
