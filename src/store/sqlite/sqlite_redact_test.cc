// Redaction and the erasure of dropped values from the file.
#include <fmt/core.h>

#include <fstream>

#include "store/sqlite/database.h"
#include "store/sqlite/sqlite_fixture_test.h"

namespace ae::store {
namespace {

// Reads repeatedly until the redaction is visible: one load reads the commit before it and the
// blobs after it.
AE_TEST("sqlite/a load during a redaction returns the job before or after it, never a mixture") {
  const TempDir folder(true);
  SqliteFixture fixture(folder / "a.db");
  ASSERT_TRUE(fixture.open());
  for (int round = 0; round < 3; ++round) {
    const std::string id = fmt::format("j{}", round);
    Batch job = SqliteFixture::create(id);
    for (int i = 0; i < 2000; ++i) {
      job.sealed->blobs.push_back(conformance::blob(fmt::format("{} value {}", id, i)));
    }
    ASSERT_TRUE(fixture.commit(job));
    Batch release = SqliteFixture::append(id, 2);
    release.row.status = "completed";
    release.release = true;
    ASSERT_TRUE(fixture.commit(release));
    Redaction drop{.job = JobId(id)};
    drop.commits = {
        {.first_seq = 1, .expected_hash = sha256(job.sealed->bytes), .bytes = "left", .blobs = {}}};
    drop.audit = {.at = {}, .by = "me", .act = "redact", .job = drop.job, .detail = {}};
    std::optional<Result<void>> dropped;
    fixture.store().redact(drop, [&](Result<void> outcome) { dropped = std::move(outcome); });
    while (!dropped) {
      const auto read = fixture.load(id);
      ASSERT_TRUE(read) << read.error().message;
      const bool before = read->commits.at(0) != "left";
      ASSERT_EQ(read->blobs.size(), before ? 2000u : 0u);
    }
    ASSERT_TRUE(*dropped) << dropped->error().message;
  }
}

std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

Result<std::vector<ResidualCopy>> erase_dropped_values(SqliteFixture& fixture) {
  return fixture.loop.await<Result<std::vector<ResidualCopy>>>(
      [&](auto done) { fixture.store().erase_dropped_values(std::move(done)); });
}

AE_TEST("redact/no byte of a dropped value remains in the file") {
  const TempDir folder(true);
  const std::string path = folder / "a.db";
  const std::string secret = "SECRET-4711-", apart = "APART-0815-", effect = "EFFECT-1234-";
  const auto is_duplicate = [](const std::string& text, std::size_t bytes) {
    std::string all;
    while (all.size() < bytes) all += text;
    return all;
  };
  for (const std::size_t bytes : {std::size_t{40}, std::size_t{20'000}}) {
    std::filesystem::remove(path);
    std::filesystem::remove(path + ".position");
    SqliteFixture fixture(path);
    ASSERT_TRUE(fixture.open());
    Batch b = SqliteFixture::create("j0");
    std::get<Batch::Create>(b.authority).job->claim.reset();
    b.row.status = "completed";
    b.sealed->bytes = fmt::format("kept {} kept", is_duplicate(secret, bytes));
    b.sealed->blobs = {conformance::blob(is_duplicate(apart, bytes))};
    b.effects = {{InvocationId("i"), 1, is_duplicate(effect, bytes)}};
    ASSERT_TRUE(fixture.commit(b));
    Redaction redaction{.job = JobId("j0"), .effects = {{InvocationId("i"), 1, "left"}}};
    redaction.commits.push_back({.first_seq = 1,
                                 .expected_hash = sha256(b.sealed->bytes),
                                 .bytes = "kept  kept",
                                 .blobs = {}});
    redaction.audit = {
        .at = {}, .by = "ada", .act = "redact", .job = JobId("j0"), .detail = Value::object({})};
    ASSERT_TRUE(fixture.loop.await<Result<void>>(
        [&](auto done) { fixture.store().redact(redaction, std::move(done)); }));
    const auto residual_copies = erase_dropped_values(fixture);
    ASSERT_TRUE(residual_copies) << residual_copies.error().message;
    EXPECT_EQ(residual_copies->size(), 0U);
    auto db = sqlite::Database::open({.path = path, .read_only = true});
    ASSERT_TRUE(db);
    EXPECT_EQ(db->integer("PRAGMA freelist_count").value_or(-1), 0) << "the file is rewritten";
    const std::string all = bytes_of(path) + bytes_of(path + "-wal");  // the owner has them open
    EXPECT_NE(all.find("kept  kept"), all.npos);
    for (const std::string& word : {secret, apart, effect}) {
      EXPECT_EQ(all.find(word), all.npos) << word << " of " << bytes;
    }
    ASSERT_TRUE(fixture.commit(SqliteFixture::create("after")));
    fixture.close();
    EXPECT_EQ(integrity(path), "ok");
  }
}

AE_TEST("redact/a reader that blocks truncating the write-ahead log is reported") {
  const TempDir folder(true);
  const std::string path = folder / "a.db";
  SqliteFixture fixture(path);
  SqliteOptions options = fixture.options();
  options.readers = std::chrono::milliseconds(50);
  ASSERT_TRUE(fixture.open(options));
  ASSERT_TRUE(fixture.commit(SqliteFixture::create("j0")));
  {
    auto db = sqlite::Database::open({.path = path, .read_only = true});
    ASSERT_TRUE(db);
    ASSERT_TRUE(db->execute("BEGIN; SELECT count(*) FROM jobs"));
    ASSERT_TRUE(fixture.commit(SqliteFixture::create("j1")));
    const auto residual_copies = erase_dropped_values(fixture);
    ASSERT_TRUE(residual_copies) << residual_copies.error().message;
    ASSERT_EQ(residual_copies->size(), 1U);
    EXPECT_EQ(residual_copies->front().where, fmt::format("the write-ahead log {}-wal", path));
    ASSERT_TRUE(db->execute("COMMIT"));
  }
  const auto residual_copies = erase_dropped_values(fixture);
  ASSERT_TRUE(residual_copies) << residual_copies.error().message;
  EXPECT_EQ(residual_copies->size(), 0U);
  EXPECT_EQ(bytes_of(path + "-wal"), "");
}

AE_TEST("redact/a file too large to be rewritten is reported") {
  const TempDir folder(true);
  SqliteFixture fixture(folder / "a.db");
  SqliteOptions options = fixture.options();
  options.rewrite_bytes = 4096;
  ASSERT_TRUE(fixture.open(options));
  ASSERT_TRUE(fixture.commit(SqliteFixture::create("j0")));
  const auto residual_copies = erase_dropped_values(fixture);
  ASSERT_TRUE(residual_copies) << residual_copies.error().message;
  ASSERT_EQ(residual_copies->size(), 1U);
  EXPECT_NE(residual_copies->front().why.find("VACUUM"), std::string::npos)
      << residual_copies->front().why;
}

// Rows of many sizes are inserted, changed and deleted, so that SQLite moves them between pages.
AE_TEST_SLOW("redact/no page keeps a copy of a dropped value that SQLite moved") {
  const TempDir folder(true);
  const std::string path = folder / "a.db";
  SqliteFixture fixture(path);
  ASSERT_TRUE(fixture.open());
  constexpr int kJobs = 2000;  // without the rewrite, about one in a thousand left a copy
  const auto name = [](int i) { return fmt::format("j{}", i); };
  const auto secret = [](int i) { return fmt::format("SECRET-{}-", 100000 + i); };
  std::vector<Batch> batches;
  for (int i = 0; i < kJobs; ++i) {
    Batch b = SqliteFixture::create(name(i));
    std::get<Batch::Create>(b.authority).job->claim.reset();
    b.row.status = "completed";
    b.sealed->bytes = secret(i) + std::string(std::size_t(i * 37 % 1500), 'x');
    b.sealed->blobs = {conformance::blob(secret(i) + std::string(std::size_t(i * 91 % 900), 'y'))};
    b.effects = {{InvocationId(fmt::format("i{}", i * 7919 % 1009)), 1, secret(i)}};
    ASSERT_TRUE(fixture.commit(b));
    batches.push_back(std::move(b));
    if (i % 2 == 0) continue;
    const Batch& old = batches[std::size_t(i) / 2];
    Redaction redaction{.job = old.job};
    redaction.effects = {{old.effects[0].invocation, 1, "left"}};
    redaction.commits.push_back(
        {.first_seq = 1, .expected_hash = sha256(old.sealed->bytes), .bytes = "left", .blobs = {}});
    redaction.audit = {.at = {}, .by = "ada", .act = "redact", .job = old.job, .detail = {}};
    ASSERT_TRUE(fixture.loop.await<Result<void>>(
        [&](auto done) { fixture.store().redact(redaction, std::move(done)); }));
  }
  ASSERT_EQ(erase_dropped_values(fixture)->size(), 0U);
  const std::string all = bytes_of(path) + bytes_of(path + "-wal");
  for (int i = 0; i < kJobs / 2; ++i) EXPECT_EQ(all.find(secret(i)), all.npos) << i;
  EXPECT_NE(all.find(secret(kJobs - 1)), all.npos);
}

}  // namespace
}  // namespace ae::store
