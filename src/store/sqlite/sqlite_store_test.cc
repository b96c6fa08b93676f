// The SQLite driver: the conformance suite, files, commits, backups and migration.
#include "store/sqlite/sqlite_store.h"

#include <fmt/core.h>
#include <sqlite3.h>
#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <thread>

#include "store/conformance_test.h"
#include "store/sqlite/sqlite_fixture_test.h"

namespace ae::store {
namespace {

class SqliteDriver final : public conformance::StoreDriver {
 public:
  explicit SqliteDriver(testing::TestLoop& loop) : loop_(loop) { restart(); }
  Store& store() override { return *store_; }
  void restart() override { open({}); }
  Store* fair_by(const std::string& label) override {
    open(label);
    return store_.get();
  }

 private:
  void open(std::optional<std::string> fair_by) {
    store_.reset();
    auto opened = SqliteStore::open(
        {.path = folder_ / "a.db", .loop = loop_, .clock = loop_, .fair_by = std::move(fair_by)});
    AE_CHECK(opened.has_value(), opened.error().message);
    store_ = *std::move(opened);
  }

  testing::TestLoop& loop_;
  TempDir folder_{true};
  std::unique_ptr<SqliteStore> store_;
};

const bool registered = conformance::register_conformance(
    "store_sqlite", [](testing::TestLoop& loop) { return std::make_unique<SqliteDriver>(loop); });

unsigned mode_of(const std::string& path) {
  struct stat info{};
  EXPECT_EQ(::stat(path.c_str(), &info), 0) << path;
  return info.st_mode & 0777U;
}

AE_TEST("sqlite/the files of a store are private to its owner, and closing removes the WAL") {
  const TempDir folder(true);
  const std::string path = folder / "deep/er/a.db";
  SqliteFixture fixture(path);
  ASSERT_TRUE(fixture.open());
  ASSERT_TRUE(fixture.commit(SqliteFixture::create("j0")));
  EXPECT_TRUE(fixture.store().owned());
  EXPECT_EQ(mode_of(folder / "deep"), 0700U);
  EXPECT_EQ(mode_of(folder / "deep/er"), 0700U);
  for (const char* suffix : {"", "-wal", "-shm", ".lock"}) EXPECT_EQ(mode_of(path + suffix), 0600U);
  fixture.close();
  EXPECT_EQ(mode_of(path + ".position"), 0600U);
  EXPECT_FALSE(std::filesystem::exists(path + "-wal"));
  EXPECT_TRUE(std::filesystem::exists(path));
}

AE_TEST("sqlite/a path may contain characters that are special in URIs") {
  const TempDir folder(true);
  const std::string path = folder / "50% #1?x=y & more.db";
  SqliteFixture fixture(path);
  ASSERT_TRUE(fixture.open());
  ASSERT_TRUE(fixture.commit(SqliteFixture::create("j0")));
  fixture.close();
  EXPECT_GT(std::filesystem::file_size(path), 0U);
}

AE_TEST("sqlite/a file that is not a usable store is refused with the reason") {
  const TempDir folder(true);
  const auto refusal = [&](const std::string& name, bool read_only = false) {
    SqliteFixture fixture(folder / name);
    SqliteOptions options = fixture.options();
    options.read_only = read_only;
    const auto opened = fixture.open(options);
    return opened ? "opened"
                  : fmt::format("{} {}", code_name(opened.error().code), opened.error().message);
  };
  std::ofstream(folder / "text.db") << std::string(5000, 'x');
  EXPECT_PRED2(contains, refusal("text.db"), "unavailable");
  EXPECT_PRED2(contains, refusal("text.db"), "file is not a database");
  run_sql(folder / "other.db", "CREATE TABLE t(x)");
  EXPECT_PRED2(contains, refusal("other.db"), "another program");
  run_sql(folder / "other2.db", "PRAGMA application_id = 77; CREATE TABLE t(x)");
  EXPECT_PRED2(contains, refusal("other2.db"), "another program");
  EXPECT_EQ(refusal("a.db"), "opened");
  run_sql(folder / "a.db", "PRAGMA user_version = 99");
  EXPECT_PRED2(begins, refusal("a.db"), "needs_version");
  EXPECT_PRED2(begins, refusal("a.db", true), "needs_version");
  EXPECT_PRED2(begins, refusal("none.db", true), "not_found");
  EXPECT_FALSE(std::filesystem::exists(folder / "none.db"));
  std::ofstream(folder / "file") << "x";
  EXPECT_PRED2(begins, refusal("file/a.db"), "unavailable");
  EXPECT_PRED2(begins, refusal("."), "usage")
      << "what is no regular file is refused before it is opened";
}

AE_TEST("sqlite/a read-only store reads the owner's commits and refuses writes") {
  const TempDir folder(true);
  SqliteFixture owner(folder / "a.db");
  ASSERT_TRUE(owner.open());
  ASSERT_TRUE(owner.commit(SqliteFixture::create("j0")));
  SqliteFixture reader(folder / "a.db");
  SqliteOptions options = reader.options();
  options.read_only = true;
  ASSERT_TRUE(reader.open(options));
  EXPECT_FALSE(reader.store().owned());
  EXPECT_EQ(reader.load("j0")->row.claim, conformance::fence("A", 1));
  EXPECT_EQ(reader.commit(SqliteFixture::append("j0", 2)).error().code, Code::unavailable);
  ASSERT_TRUE(owner.commit(SqliteFixture::append("j0", 2)));
  EXPECT_EQ(reader.load("j0")->row.last_seq, 3U);
  owner.close();
  EXPECT_EQ(reader.load("j0")->row.last_seq, 3U);
  reader.close();
  ASSERT_TRUE(reader.open(options));
  EXPECT_EQ(reader.load("j0")->row.last_seq, 3U);
}

AE_TEST("sqlite/concurrent commits are grouped into few transactions") {
  const TempDir folder(true);
  SqliteFixture fixture(folder / "a.db");
  ASSERT_TRUE(fixture.open());
  std::size_t pending = 2000;
  for (int i = 0; i < 2000; ++i) {
    fixture.store().commit(SqliteFixture::create(fmt::format("j{}", i)),
                           [&](Result<CommitResult> answer) {
                             EXPECT_TRUE(answer);
                             --pending;
                           });
  }
  ASSERT_TRUE(fixture.loop.run_until([&] { return pending == 0; }));
  EXPECT_EQ(fixture.store().stats().writes, 2000U);
  EXPECT_LT(fixture.store().stats().groups, 500U);
}

AE_TEST("sqlite/a large batch and a long log are stored and loaded unchanged") {
  const TempDir folder(true);
  SqliteFixture fixture(folder / "a.db");
  ASSERT_TRUE(fixture.open());
  Batch b = SqliteFixture::create("j0", 3u << 20);
  b.sealed->blobs.push_back({sha256("big"), std::string(16u << 20, 'b')});
  ASSERT_TRUE(fixture.commit(b));
  for (std::uint64_t seq = 2; seq < 12; ++seq) {
    ASSERT_TRUE(fixture.commit(SqliteFixture::append("j0", seq, 1u << 20)));
  }
  const auto loaded = fixture.load("j0");
  ASSERT_EQ(loaded->commits.size(), 11U);
  EXPECT_EQ(loaded->commits[0], b.sealed->bytes);
  for (std::uint64_t seq = 2; seq < 12; ++seq) {
    EXPECT_EQ(loaded->commits[seq - 1], SqliteFixture::append("j0", seq, 1u << 20).sealed->bytes);
  }
  EXPECT_EQ(loaded->blobs.at(0).bytes.size(), 16u << 20);
}

AE_TEST("sqlite/the WAL stays small under load and is empty when idle") {
  const TempDir folder(true);
  SqliteFixture fixture(folder / "a.db");
  SqliteOptions options = fixture.options();
  options.wal_bytes = 1u << 20;
  options.idle = std::chrono::milliseconds(5);
  ASSERT_TRUE(fixture.open(options));
  ASSERT_TRUE(fixture.commit(SqliteFixture::create("j0")));
  std::uintmax_t largest = 0;
  for (std::uint64_t seq = 2; seq < 300; ++seq) {
    ASSERT_TRUE(fixture.commit(SqliteFixture::append("j0", seq, 32u << 10)));
    largest = std::max(largest, std::filesystem::file_size(folder / "a.db-wal"));
  }
  EXPECT_LT(largest, 3u << 20);
  EXPECT_EQ(fixture.load("j0")->commits.size(), 299U);
  for (int i = 0; i < 2000 && fixture.store().stats().wal_bytes > 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // requires real idle time
  }
  EXPECT_EQ(std::filesystem::file_size(folder / "a.db-wal"), 0U);
}

AE_TEST("sqlite/a commit blocked by another program's lock times out and changes nothing") {
  const TempDir folder(true);
  SqliteFixture fixture(folder / "a.db");
  SqliteOptions options = fixture.options();
  options.busy = std::chrono::milliseconds(20);
  ASSERT_TRUE(fixture.open(options));
  ASSERT_TRUE(fixture.commit(SqliteFixture::create("j0")));
  sqlite3* other = nullptr;
  ASSERT_EQ(sqlite3_open((folder / "a.db").c_str(), &other), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(other, "BEGIN IMMEDIATE", nullptr, nullptr, nullptr), SQLITE_OK);
  const auto refused = fixture.commit(SqliteFixture::append("j0", 2));
  EXPECT_EQ(refused.error().code, Code::unavailable);
  EXPECT_PRED2(contains, refused.error().message, "another program");
  EXPECT_EQ(fixture.load("j0")->row.last_seq, 2U) << "reads still work";
  ASSERT_EQ(sqlite3_exec(other, "COMMIT", nullptr, nullptr, nullptr), SQLITE_OK);
  EXPECT_TRUE(fixture.commit(SqliteFixture::append("j0", 2)));
  sqlite3_close(other);
}

AE_TEST("sqlite/a backup of a store in use is a complete store") {
  const TempDir folder(true);
  SqliteFixture fixture(folder / "a.db");
  ASSERT_TRUE(fixture.open());
  ASSERT_TRUE(fixture.commit(SqliteFixture::create("j0")));
  const auto backup = backup_sqlite(folder / "a.db", folder / "b.db");
  ASSERT_TRUE(backup) << backup.error().message;
  EXPECT_EQ(mode_of(folder / "b.db"), 0600U);
  ASSERT_TRUE(fixture.commit(SqliteFixture::append("j0", 2)));
  EXPECT_EQ(backup_sqlite(folder / "a.db", folder / "b.db").error().code, Code::already_exists);
  EXPECT_EQ(backup_sqlite(folder / "none.db", folder / "c.db").error().code, Code::not_found);
  EXPECT_EQ(backup_sqlite(folder / "a.db", folder / "no/c.db").error().code, Code::unavailable);
  EXPECT_EQ(integrity(folder / "b.db"), "ok");
  SqliteFixture restored(folder / "c.db");
  ASSERT_TRUE(restore_sqlite(folder / "b.db", folder / "c.db", {.nothing_lost = true}));
  ASSERT_TRUE(restored.open());
  EXPECT_EQ(restored.load("j0")->commits.size(), 1U);
  ASSERT_TRUE(restored.commit(SqliteFixture::append("j0", 2)));
}

AE_TEST("sqlite/a file of the first layout is migrated without losing data") {
  const TempDir folder(true);
  const std::string path = folder / "a.db";
  {
    SqliteFixture fixture(path);
    ASSERT_TRUE(fixture.open());
    ASSERT_TRUE(fixture.commit(SqliteFixture::create("j0")));
  }
  run_sql(path,
          "DELETE FROM meta WHERE key <> 'store_id';"
          "DROP TABLE signed_heads; DROP TABLE checkpoints; DROP TABLE turns; DROP TABLE audit;"
          "DROP TABLE value_uses; DROP TABLE inbox_replies; DROP TABLE summaries;"
          "DROP INDEX jobs_pending; ALTER TABLE jobs DROP COLUMN pending;"
          "DROP INDEX jobs_forked_from; ALTER TABLE jobs DROP COLUMN forked_from;"
          "DROP INDEX jobs_ready; DROP INDEX jobs_held;"
          "CREATE INDEX jobs_ready ON jobs(priority DESC) WHERE ready = 1;"
          "ALTER TABLE jobs DROP COLUMN queue; ALTER TABLE jobs DROP COLUMN turn;"
          "ALTER TABLE jobs DROP COLUMN capabilities; PRAGMA user_version = 1");
  std::filesystem::remove(path + ".position");
  testing::TestLoop loop;
  auto read_only =
      SqliteStore::open({.path = path, .loop = loop, .clock = loop, .read_only = true});
  ASSERT_FALSE(read_only) << "a read-only open does not migrate";
  EXPECT_EQ(read_only.error().code, Code::needs_version);
  SqliteFixture fixture(path);
  ASSERT_TRUE(fixture.open());
  ASSERT_TRUE(fixture.commit(SqliteFixture::append("j0", 2)));
  ASSERT_EQ(fixture.query()->size(), 1U);
  EXPECT_TRUE(fixture.query()->at(0).capabilities.empty());
  EXPECT_EQ(fixture.query()->at(0).queue, kDefaultQueue);
  EXPECT_FALSE(fixture.query()->at(0).forked_from);
  EXPECT_FALSE(fixture.query()->at(0).summary);
  SqliteFixture fresh(folder / "fresh.db");
  ASSERT_TRUE(fresh.open());
  const auto tables = [](const std::string& file) {
    sqlite3* db = nullptr;
    EXPECT_EQ(sqlite3_open(file.c_str(), &db), SQLITE_OK);
    std::string columns;
    const auto add = [](void* to, int, char** values, char**) {
      static_cast<std::string*>(to)->append(values[0]).append("\n");
      return 0;
    };
    sqlite3_exec(db,
                 "SELECT m.name || '.' || c.name || ' ' || c.type || c.\"notnull\" || "
                 "coalesce(c.dflt_value, '') FROM sqlite_schema m, pragma_table_info(m.name) c "
                 "UNION ALL SELECT name || ' ' || sql FROM sqlite_schema WHERE type = 'index' "
                 "AND sql IS NOT NULL ORDER BY 1",
                 add, &columns, nullptr);
    sqlite3_close(db);
    return columns;
  };
  EXPECT_EQ(tables(path), tables(folder / "fresh.db"));
}

AE_TEST("sqlite/calls made before the store closes are written and answered") {
  const TempDir folder(true);
  SqliteFixture fixture(folder / "a.db");
  ASSERT_TRUE(fixture.open());
  int answers = 0;
  for (int i = 0; i < 100; ++i) {
    fixture.store().commit(
        SqliteFixture::create(fmt::format("j{}", i)),
        [&](Result<CommitResult> answer) { answers += answer.has_value() ? 1 : 0; });
  }
  fixture.close();
  fixture.loop.run_ready();
  EXPECT_EQ(answers, 100);
  ASSERT_TRUE(fixture.open());
  EXPECT_EQ(fixture.query()->size(), 100U);
}

}  // namespace
}  // namespace ae::store
