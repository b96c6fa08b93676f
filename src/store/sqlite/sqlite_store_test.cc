#include "store/sqlite/sqlite_store.h"

#include <sqlite3.h>

#include <fstream>
#include <thread>

#include "store/conformance_test.h"
#include "store/sqlite/sqlite_fixture_test.h"

namespace ae::store {
namespace {

class SqliteDriver final : public conformance::Driver {
 public:
  explicit SqliteDriver(testing::TestLoop& loop) : loop_(loop) { restart(); }
  Store& store() override { return *store_; }
  void restart() override {
    store_.reset();
    auto opened = SqliteStore::open({.path = folder_ / "a.db", .loop = loop_, .clock = loop_});
    AE_CHECK(opened.has_value(), opened.error().message);
    store_ = *std::move(opened);
  }

 private:
  testing::TestLoop& loop_;
  Folder folder_{true};
  std::unique_ptr<SqliteStore> store_;
};

const bool registered = conformance::register_conformance(
    "store_sqlite", [](testing::TestLoop& loop) { return std::make_unique<SqliteDriver>(loop); });

void run_sql(const std::string& path, const char* sql) {
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open(path.c_str(), &db), SQLITE_OK);
  char* error = nullptr;
  sqlite3_exec(db, sql, nullptr, nullptr, &error);
  EXPECT_EQ(error, nullptr) << error;
  sqlite3_close(db);
}

unsigned mode_of(const std::string& path) {
  struct stat info{};
  EXPECT_EQ(::stat(path.c_str(), &info), 0) << path;
  return info.st_mode & 0777U;
}

AE_TEST("sqlite/a new store is for its owner only, and leaves one file and its lock") {
  const Folder folder(true);
  const std::string path = folder / "deep/er/a.db";
  Bench bench(path);
  ASSERT_TRUE(bench.open());
  ASSERT_TRUE(bench.commit(Bench::create("j0")));
  EXPECT_TRUE(bench.store().owned());
  EXPECT_EQ(mode_of(folder / "deep"), 0700U);
  EXPECT_EQ(mode_of(folder / "deep/er"), 0700U);
  for (const char* suffix : {"", "-wal", "-shm", ".lock"}) EXPECT_EQ(mode_of(path + suffix), 0600U);
  bench.close();
  EXPECT_FALSE(std::filesystem::exists(path + "-wal"));
  EXPECT_TRUE(std::filesystem::exists(path));
}

AE_TEST("sqlite/a path may hold what a URI gives a meaning") {
  const Folder folder(true);
  const std::string path = folder / "50% #1?x=y & more.db";
  Bench bench(path);
  ASSERT_TRUE(bench.open());
  ASSERT_TRUE(bench.commit(Bench::create("j0")));
  bench.close();
  EXPECT_GT(std::filesystem::file_size(path), 0U);
}

AE_TEST("sqlite/what cannot be used is refused, and the message says what to do") {
  const Folder folder(true);
  const auto refusal = [&](const std::string& name, bool read_only = false) {
    Bench bench(folder / name);
    SqliteOptions options = bench.options();
    options.read_only = read_only;
    const auto opened = bench.open(options);
    return opened ? "opened"
                  : std::string(code_name(opened.error().code)) + " " + opened.error().message;
  };
  std::ofstream(folder / "text.db") << std::string(5000, 'x');
  EXPECT_PRED2(holds, refusal("text.db"), "unavailable");
  EXPECT_PRED2(holds, refusal("text.db"), "file is not a database");
  run_sql(folder / "other.db", "CREATE TABLE t(x)");
  EXPECT_PRED2(holds, refusal("other.db"), "another program");
  run_sql(folder / "other2.db", "PRAGMA application_id = 77; CREATE TABLE t(x)");
  EXPECT_PRED2(holds, refusal("other2.db"), "another program");
  EXPECT_EQ(refusal("a.db"), "opened");
  run_sql(folder / "a.db", "PRAGMA user_version = 99");
  EXPECT_PRED2(begins, refusal("a.db"), "needs_version");
  EXPECT_PRED2(begins, refusal("a.db", true), "needs_version");
  EXPECT_PRED2(begins, refusal("none.db", true), "not_found");
  EXPECT_FALSE(std::filesystem::exists(folder / "none.db"));
  std::ofstream(folder / "file") << "x";
  EXPECT_PRED2(begins, refusal("file/a.db"), "unavailable");
  EXPECT_PRED2(begins, refusal("."), "unavailable");
}

AE_TEST("sqlite/read-only sees what the owner wrote and writes nothing") {
  const Folder folder(true);
  Bench owner(folder / "a.db");
  ASSERT_TRUE(owner.open());
  ASSERT_TRUE(owner.commit(Bench::create("j0")));
  Bench reader(folder / "a.db");
  SqliteOptions options = reader.options();
  options.read_only = true;
  ASSERT_TRUE(reader.open(options));
  EXPECT_FALSE(reader.store().owned());
  EXPECT_EQ(reader.load("j0")->row.claim, conformance::fence("A", 1));
  EXPECT_EQ(reader.commit(Bench::append("j0", 2)).error().code, Code::unavailable);
  ASSERT_TRUE(owner.commit(Bench::append("j0", 2)));
  EXPECT_EQ(reader.load("j0")->row.last_seq, 3U);
  owner.close();
  EXPECT_EQ(reader.load("j0")->row.last_seq, 3U);
  reader.close();
  ASSERT_TRUE(reader.open(options));
  EXPECT_EQ(reader.load("j0")->row.last_seq, 3U);
}

AE_TEST("sqlite/what comes together is committed together, and alone nobody waits") {
  const Folder folder(true);
  Bench bench(folder / "a.db");
  ASSERT_TRUE(bench.open());
  std::size_t left = 2000;
  for (int i = 0; i < 2000; ++i) {
    bench.store().commit(Bench::create("j" + std::to_string(i)), [&](Result<Committed> answer) {
      EXPECT_TRUE(answer);
      --left;
    });
  }
  ASSERT_TRUE(bench.loop.run_until([&] { return left == 0; }));
  EXPECT_EQ(bench.store().stats().writes, 2000U);
  EXPECT_LT(bench.store().stats().groups, 500U);
}

AE_TEST("sqlite/a large batch and a long log go in and come out") {
  const Folder folder(true);
  Bench bench(folder / "a.db");
  ASSERT_TRUE(bench.open());
  Batch b = Bench::create("j0", 3u << 20);
  b.sealed->blobs.push_back({sha256("big"), std::string(16u << 20, 'b')});
  ASSERT_TRUE(bench.commit(b));
  for (std::uint64_t seq = 2; seq < 12; ++seq) {
    ASSERT_TRUE(bench.commit(Bench::append("j0", seq, 1u << 20)));
  }
  const auto loaded = bench.load("j0");
  ASSERT_EQ(loaded->commits.size(), 11U);
  EXPECT_EQ(loaded->commits[0], b.sealed->bytes);
  for (std::uint64_t seq = 2; seq < 12; ++seq) {
    EXPECT_EQ(loaded->commits[seq - 1], Bench::append("j0", seq, 1u << 20).sealed->bytes);
  }
  EXPECT_EQ(loaded->blobs.at(0).bytes.size(), 16u << 20);
}

AE_TEST("sqlite/the WAL stays small under load and is empty when idle") {
  const Folder folder(true);
  Bench bench(folder / "a.db");
  SqliteOptions options = bench.options();
  options.wal_bytes = 1u << 20;
  options.idle = std::chrono::milliseconds(5);
  ASSERT_TRUE(bench.open(options));
  ASSERT_TRUE(bench.commit(Bench::create("j0")));
  std::uintmax_t largest = 0;
  for (std::uint64_t seq = 2; seq < 300; ++seq) {
    ASSERT_TRUE(bench.commit(Bench::append("j0", seq, 32u << 10)));
    largest = std::max(largest, std::filesystem::file_size(folder / "a.db-wal"));
  }
  EXPECT_LT(largest, 3u << 20);
  EXPECT_EQ(bench.load("j0")->commits.size(), 299U);
  for (int i = 0; i < 2000 && bench.store().stats().wal_bytes > 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // real idleness is what is tested
  }
  EXPECT_EQ(std::filesystem::file_size(folder / "a.db-wal"), 0U);
}

AE_TEST("sqlite/another program's lock is waited for, then nothing has changed") {
  const Folder folder(true);
  Bench bench(folder / "a.db");
  SqliteOptions options = bench.options();
  options.busy = std::chrono::milliseconds(20);
  ASSERT_TRUE(bench.open(options));
  ASSERT_TRUE(bench.commit(Bench::create("j0")));
  sqlite3* other = nullptr;
  ASSERT_EQ(sqlite3_open((folder / "a.db").c_str(), &other), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(other, "BEGIN IMMEDIATE", nullptr, nullptr, nullptr), SQLITE_OK);
  const auto refused = bench.commit(Bench::append("j0", 2));
  EXPECT_EQ(refused.error().code, Code::unavailable);
  EXPECT_PRED2(holds, refused.error().message, "another program");
  EXPECT_EQ(bench.load("j0")->row.last_seq, 2U) << "reading goes on";
  ASSERT_EQ(sqlite3_exec(other, "COMMIT", nullptr, nullptr, nullptr), SQLITE_OK);
  EXPECT_TRUE(bench.commit(Bench::append("j0", 2)));
  sqlite3_close(other);
}

AE_TEST("sqlite/a backup is a whole store, also while the owner works") {
  const Folder folder(true);
  Bench bench(folder / "a.db");
  ASSERT_TRUE(bench.open());
  ASSERT_TRUE(bench.commit(Bench::create("j0")));
  const auto backup = backup_sqlite(folder / "a.db", folder / "b.db");
  ASSERT_TRUE(backup) << backup.error().message;
  EXPECT_EQ(mode_of(folder / "b.db"), 0600U);
  ASSERT_TRUE(bench.commit(Bench::append("j0", 2)));
  EXPECT_EQ(backup_sqlite(folder / "a.db", folder / "b.db").error().code, Code::already_exists);
  EXPECT_EQ(backup_sqlite(folder / "none.db", folder / "c.db").error().code, Code::not_found);
  EXPECT_EQ(backup_sqlite(folder / "a.db", folder / "no/c.db").error().code, Code::unavailable);
  EXPECT_EQ(integrity(folder / "b.db"), "ok");
  Bench restored(folder / "b.db");
  ASSERT_TRUE(restored.open());
  EXPECT_EQ(restored.load("j0")->commits.size(), 1U);
  ASSERT_TRUE(restored.commit(Bench::append("j0", 2)));
}

AE_TEST("sqlite/of a log with a commit gone, what is left is given in its order") {
  const Folder folder(true);
  Bench bench(folder / "a.db");
  ASSERT_TRUE(bench.open());
  ASSERT_TRUE(bench.commit(Bench::create("other")));
  ASSERT_TRUE(bench.commit(Bench::create("j0")));
  for (std::uint64_t seq = 2; seq < 7; ++seq) ASSERT_TRUE(bench.commit(Bench::append("j0", seq)));
  const auto whole = bench.load("j0")->commits;
  ASSERT_EQ(whole.size(), 6U);
  bench.close();
  const auto without = [&](std::size_t which, std::uint64_t from_seq = 1) {
    const Folder damaged(true);
    std::filesystem::copy_file(folder / "a.db", damaged / "a.db");
    sqlite3* db = nullptr;
    EXPECT_EQ(sqlite3_open((damaged / "a.db").c_str(), &db), SQLITE_OK);
    const std::string gone =
        "DELETE FROM commits WHERE id = (SELECT id FROM commits WHERE job = (SELECT id FROM jobs "
        "WHERE job_id = 'j0') ORDER BY id LIMIT 1 OFFSET " +
        std::to_string(which) + ")";
    EXPECT_EQ(sqlite3_exec(db, gone.c_str(), nullptr, nullptr, nullptr), SQLITE_OK);
    sqlite3_close(db);
    Bench after(damaged / "a.db");
    EXPECT_TRUE(after.open());
    const auto loaded = after.loop.await<Result<Loaded>>(
        [&](auto done) { after.store().load(JobId("j0"), from_seq, std::move(done)); });
    EXPECT_TRUE(loaded) << (loaded ? "" : loaded.error().message);
    EXPECT_EQ(after.load("other")->commits.size(), 1U);
    EXPECT_EQ(loaded->row.last_seq, 7U);
    return loaded->commits;
  };
  for (std::size_t which = 0; which < whole.size(); ++which) {
    auto left = whole;
    left.erase(left.begin() + static_cast<std::ptrdiff_t>(which));
    EXPECT_EQ(without(which), left) << which;
  }
  EXPECT_EQ(without(5, 6), std::vector<std::string>{whole[4]}) << "from event 6 on";
}

AE_TEST("sqlite/a file of the first layout is brought up to date, and loses nothing") {
  const Folder folder(true);
  const std::string path = folder / "a.db";
  {
    Bench bench(path);
    ASSERT_TRUE(bench.open());
    ASSERT_TRUE(bench.commit(Bench::create("j0")));
  }
  run_sql(path,
          "DROP TABLE signed_heads; DROP TABLE checkpoints;"
          "ALTER TABLE jobs DROP COLUMN capabilities; PRAGMA user_version = 1");
  testing::TestLoop loop;
  auto read_only =
      SqliteStore::open({.path = path, .loop = loop, .clock = loop, .read_only = true});
  ASSERT_FALSE(read_only) << "who only reads changes nothing";
  EXPECT_EQ(read_only.error().code, Code::needs_version);
  Bench bench(path);
  ASSERT_TRUE(bench.open());
  ASSERT_TRUE(bench.commit(Bench::append("j0", 2)));
  ASSERT_EQ(bench.query()->size(), 1U);
  EXPECT_TRUE(bench.query()->at(0).capabilities.empty());
  Bench fresh(folder / "fresh.db");
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
                 "ORDER BY 1",
                 add, &columns, nullptr);
    sqlite3_close(db);
    return columns;
  };
  EXPECT_EQ(tables(path), tables(folder / "fresh.db"));
}

AE_TEST("sqlite/what was asked before the store closes is written and answered") {
  const Folder folder(true);
  Bench bench(folder / "a.db");
  ASSERT_TRUE(bench.open());
  int answers = 0;
  for (int i = 0; i < 100; ++i) {
    bench.store().commit(Bench::create("j" + std::to_string(i)),
                         [&](Result<Committed> answer) { answers += answer.has_value() ? 1 : 0; });
  }
  bench.close();
  bench.loop.run_ready();
  EXPECT_EQ(answers, 100);
  ASSERT_TRUE(bench.open());
  EXPECT_EQ(bench.query()->size(), 100U);
}

}  // namespace
}  // namespace ae::store
