// Deletion of jobs from a SQLite store.
#include <fmt/core.h>
#include <sqlite3.h>

#include <fstream>

#include "store/sqlite/sqlite_fixture_test.h"

namespace ae::store {
namespace {

std::int64_t count_in(const std::string& path, const std::string& query) {
  sqlite3* db = nullptr;
  sqlite3_stmt* statement = nullptr;
  EXPECT_EQ(sqlite3_open(path.c_str(), &db), SQLITE_OK);
  EXPECT_EQ(sqlite3_prepare_v2(db, query.c_str(), -1, &statement, nullptr), SQLITE_OK) << query;
  EXPECT_EQ(sqlite3_step(statement), SQLITE_ROW);
  const std::int64_t count = sqlite3_column_int64(statement, 0);
  sqlite3_finalize(statement);
  sqlite3_close(db);
  return count;
}

constexpr const char* kTablesOfJobs[] = {"jobs",         "heads",       "commits",    "blobs",
                                         "labels",       "effects",     "ledger",     "inbox",
                                         "signed_heads", "checkpoints", "value_uses", "summaries"};

Result<bool> prune(SqliteFixture& fixture, const std::string& job) {
  const JobRow row = fixture.load(job)->row;
  Pruning pruning;
  pruning.jobs.push_back(
      {.job = row.id, .last_seq = row.last_seq, .head = row.head, .content_hash = {}});
  pruning.audit = {
      .at = fixture.loop.now(), .by = "me", .act = "prune", .job = {}, .detail = Value::object({})};
  return fixture.loop.await<Result<bool>>(
      [&](auto done) { fixture.store().prune(pruning, std::move(done)); });
}

AE_TEST("prune/a deleted job leaves no row in any table and no data in the file") {
  const TempDir folder(true);
  const std::string path = folder / "a.db";
  SqliteFixture fixture(path);
  ASSERT_TRUE(fixture.open());
  fill_tables(fixture, "secret-job", "completed");
  EXPECT_EQ(*prune(fixture, "secret-job"), true);
  fixture.close();
  for (const std::string table : kTablesOfJobs) {
    EXPECT_EQ(count_in(path, "SELECT count(*) FROM " + table), 0) << table;
  }
  EXPECT_EQ(integrity(path), "ok");
  std::ifstream file(path, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), {});
  EXPECT_EQ(bytes.find("secret-job"), bytes.npos);
  EXPECT_EQ(bytes.find("secret effect"), bytes.npos);
  EXPECT_EQ(bytes.find("secret summary"), bytes.npos);
}

AE_TEST("prune/a job with a missing commit is deleted completely") {
  const TempDir folder(true);
  const std::string path = folder / "a.db";
  SqliteFixture fixture(path);
  ASSERT_TRUE(fixture.open());
  fill_tables(fixture, "j0", "completed");
  fill_tables(fixture, "j1", "waiting");
  const JobRow row = fixture.load("j0")->row;
  fixture.close();
  run_sql(path, "DELETE FROM commits WHERE job = 1 AND first_seq = 3");
  std::filesystem::remove(path + ".position");
  ASSERT_TRUE(fixture.open());
  Pruning pruning;
  pruning.jobs.push_back(
      {.job = row.id, .last_seq = row.last_seq, .head = row.head, .content_hash = {}});
  pruning.audit = {
      .at = fixture.loop.now(), .by = "me", .act = "prune", .job = {}, .detail = Value::object({})};
  const auto done = fixture.loop.await<Result<bool>>(
      [&](auto answer) { fixture.store().prune(pruning, std::move(answer)); });
  EXPECT_EQ(*done, true);
  EXPECT_EQ(fixture.load("j1")->commits.size(), 3U);
  fixture.close();
  EXPECT_EQ(count_in(path, "SELECT count(*) FROM commits WHERE job = 1"), 0);
  EXPECT_EQ(count_in(path, "SELECT count(*) FROM blobs"), 2);
}

AE_TEST_SLOW("prune/a job with corrupt pointers is deleted completely, and no other job is") {
  const TempDir folder(true);
  SqliteFixture source(folder / "a.db");
  ASSERT_TRUE(source.open());
  fill_tables(source, "j0", "completed");  // commits 1, 2, 3
  fill_tables(source, "j1", "waiting");
  const JobRow row = source.load("j0")->row;
  source.close();
  for (const std::string column :
       {"commits SET prev", "commits SET jump", "heads SET last_commit", "heads SET commits"}) {
    for (int id = 1; id <= 3; ++id) {
      for (const std::string value : {"NULL", "0", "1", "2", "3", "5", "-1", "999"}) {
        const bool head = column.starts_with("heads");
        if (head && (id > 1 || value == "NULL")) continue;
        const std::string change =
            fmt::format("UPDATE {} = {} WHERE {} = {}", column, value, head ? "job" : "id", id);
        const TempDir damaged(true);
        const std::string path = damaged / "a.db";
        std::filesystem::copy_file(folder / "a.db", path);
        run_sql(path, change.c_str());
        SqliteFixture fixture(path);
        ASSERT_TRUE(fixture.open());
        Pruning pruning;
        pruning.jobs.push_back(
            {.job = row.id, .last_seq = row.last_seq, .head = row.head, .content_hash = {}});
        pruning.audit = {.at = fixture.loop.now(),
                         .by = "me",
                         .act = "prune",
                         .job = {},
                         .detail = Value::object({})};
        const auto done = fixture.loop.await<Result<bool>>(
            [&](auto answer) { fixture.store().prune(pruning, std::move(answer)); });
        ASSERT_TRUE(done) << change << ": " << done.error().message;
        EXPECT_EQ(fixture.load("j1")->commits.size(), 3U) << change;
        fixture.close();
        EXPECT_EQ(count_in(path, "SELECT count(*) FROM commits WHERE job = 1"), 0) << change;
      }
    }
  }
}

AE_TEST("prune/each commit is indexed once, spread over several transactions") {
  const TempDir folder(true);
  const std::string path = folder / "a.db";
  SqliteFixture fixture(path);
  ASSERT_TRUE(fixture.open());
  ASSERT_TRUE(fixture.commit(SqliteFixture::create("long")));
  for (std::uint64_t seq = 2; seq < 5000; ++seq) {
    fixture.store().commit(SqliteFixture::append("long", seq), [](Result<CommitResult>) {});
  }
  fill_tables(fixture, "old", "completed");
  fill_tables(fixture, "older", "completed");
  EXPECT_EQ(*prune(fixture, "old"), false) << "not all in one transaction";
  EXPECT_EQ(fixture.load("old")->commits.size(), 3U) << "nothing is deleted by then";
  EXPECT_EQ(*prune(fixture, "old"), true);
  const std::int64_t listed = count_in(path, "SELECT value FROM meta WHERE key = 'values_listed'");
  EXPECT_EQ(*prune(fixture, "older"), true) << "at once";
  EXPECT_LE(count_in(path, "SELECT value FROM meta WHERE key = 'values_listed'"), listed);
  EXPECT_EQ(count_in(path, "SELECT max(id) FROM commits"),
            count_in(path, "SELECT value FROM meta WHERE key = 'values_listed'"));
}

AE_TEST("prune/a deletion is no rollback, but a copy from before the deletion is") {
  const TempDir folder(true);
  const std::string path = folder / "a.db";
  SqliteFixture fixture(path);
  ASSERT_TRUE(fixture.open());
  fill_tables(fixture, "j0", "completed");
  fixture.close();
  copy_store(path, folder / "backup.db");
  ASSERT_TRUE(fixture.open());
  EXPECT_EQ(*prune(fixture, "j0"), true);
  fixture.close();
  ASSERT_TRUE(fixture.open());
  fixture.close();
  EXPECT_TRUE(check_for_lost_writes(path));
  copy_store(folder / "backup.db", path);
  const auto opened = fixture.open();
  ASSERT_FALSE(opened) << "the deleted job is back, and no restore is recorded";
  EXPECT_EQ(opened.error().code, Code::store_rolled_back);
}

}  // namespace
}  // namespace ae::store
