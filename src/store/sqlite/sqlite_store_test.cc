#include "store/sqlite/sqlite_store.h"

#include <sqlite3.h>

#include <algorithm>
#include <fstream>
#include <thread>

#include "store/conformance_test.h"
#include "store/sqlite/sqlite_fixture_test.h"
#include "store/sqlite/tables.h"

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
                  : std::string(code_name(opened.error().code)) + " " + opened.error().message;
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

// Reads repeatedly until the redaction is visible: one load reads the commit before it and the
// blobs after it.
AE_TEST("sqlite/a load during a redaction returns the job before or after it, never a mixture") {
  const TempDir folder(true);
  SqliteFixture fixture(folder / "a.db");
  ASSERT_TRUE(fixture.open());
  for (int round = 0; round < 3; ++round) {
    const std::string id = "j" + std::to_string(round);
    Batch job = SqliteFixture::create(id);
    for (int i = 0; i < 2000; ++i) {
      job.sealed->blobs.push_back(conformance::blob(id + " value " + std::to_string(i)));
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

AE_TEST("sqlite/concurrent commits are grouped into few transactions") {
  const TempDir folder(true);
  SqliteFixture fixture(folder / "a.db");
  ASSERT_TRUE(fixture.open());
  std::size_t pending = 2000;
  for (int i = 0; i < 2000; ++i) {
    fixture.store().commit(SqliteFixture::create("j" + std::to_string(i)),
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

AE_TEST("sqlite/a log with a missing commit loads the remaining ones in order") {
  const TempDir folder(true);
  SqliteFixture fixture(folder / "a.db");
  ASSERT_TRUE(fixture.open());
  ASSERT_TRUE(fixture.commit(SqliteFixture::create("other")));
  ASSERT_TRUE(fixture.commit(SqliteFixture::create("j0")));
  for (std::uint64_t seq = 2; seq < 7; ++seq)
    ASSERT_TRUE(fixture.commit(SqliteFixture::append("j0", seq)));
  const auto all_commits = fixture.load("j0")->commits;
  ASSERT_EQ(all_commits.size(), 6U);
  fixture.close();
  const auto without = [&](std::size_t which, std::uint64_t from_seq = 1) {
    const TempDir damaged(true);
    std::filesystem::copy_file(folder / "a.db", damaged / "a.db");
    sqlite3* db = nullptr;
    EXPECT_EQ(sqlite3_open((damaged / "a.db").c_str(), &db), SQLITE_OK);
    const std::string sql =
        "DELETE FROM commits WHERE id = (SELECT id FROM commits WHERE job = (SELECT id FROM jobs "
        "WHERE job_id = 'j0') ORDER BY id LIMIT 1 OFFSET " +
        std::to_string(which) + ")";
    EXPECT_EQ(sqlite3_exec(db, sql.c_str(), nullptr, nullptr, nullptr), SQLITE_OK);
    sqlite3_close(db);
    SqliteFixture after(damaged / "a.db");
    EXPECT_TRUE(after.open());
    const auto loaded = after.loop.await<Result<LoadedJob>>(
        [&](auto done) { after.store().load(JobId("j0"), from_seq, std::move(done)); });
    EXPECT_TRUE(loaded) << (loaded ? "" : loaded.error().message);
    EXPECT_EQ(after.load("other")->commits.size(), 1U);
    EXPECT_EQ(loaded->row.last_seq, 7U);
    return loaded->commits;
  };
  for (std::size_t which = 0; which < all_commits.size(); ++which) {
    auto remaining = all_commits;
    remaining.erase(remaining.begin() + static_cast<std::ptrdiff_t>(which));
    EXPECT_EQ(without(which), remaining) << which;
  }
  EXPECT_EQ(without(5, 6), std::vector<std::string>{all_commits[4]}) << "from event 6 on";
}

// One row that is used to find a job's commits, with one column changed outside the store.
struct PointerChange {
  std::string table, row, column, value;
  std::string sql() const {
    return "UPDATE " + table + " SET " + column + " = " + value + " WHERE " + row;
  }
};

// Changes each column that is used to find the nine commits of "j0": to nothing, forwards, to
// itself, to another job's commit, and past all numbers.
std::vector<PointerChange> pointer_changes(const std::vector<std::string>& ids) {
  std::vector<PointerChange> all;
  const auto add = [&](const std::string& table, const std::string& row,
                       std::initializer_list<const char*> columns, const std::string& own) {
    for (const char* column : columns) {
      for (const std::string& value :
           {own, own + " + 1", own + " - 1", std::string("0"), std::string("1"), std::string("-1"),
            std::string("9223372036854775807")}) {
        all.push_back({table, row, column, value});
      }
    }
  };
  for (const std::string& id : ids) {
    add("commits", "id = " + id, {"prev", "jump", "first_seq", "last_seq", "job"}, id);
  }
  for (const char* column : {"last_commit", "commits", "last_seq"}) {
    add("heads", "job = 2", {column}, column);
    add("heads", "job = 2", {column}, ids[4]);
  }
  return all;
}

// `ids`: the rows of j0's commits. The first job's commit is before them, the last job's after
// them.
std::vector<std::string> make_nine_commits(const std::string& path) {
  SqliteFixture fixture(path);
  EXPECT_TRUE(fixture.open());
  EXPECT_TRUE(fixture.commit(SqliteFixture::create("before")));
  EXPECT_TRUE(fixture.commit(SqliteFixture::create("j0")));
  for (std::uint64_t seq = 2; seq < 10; ++seq)
    EXPECT_TRUE(fixture.commit(SqliteFixture::append("j0", seq)));
  EXPECT_TRUE(fixture.commit(SqliteFixture::create("after")));
  std::vector<std::string> ids;
  for (int id = 2; id <= 10; ++id) ids.push_back(std::to_string(id));
  return ids;
}

AE_TEST_SLOW("sqlite/loads with corrupt pointers terminate and return only the job's own commits") {
  const TempDir folder(true);
  const std::vector<std::string> ids = make_nine_commits(folder / "a.db");
  SqliteFixture whole(folder / "a.db");
  ASSERT_TRUE(whole.open());
  const std::vector<std::string> commits = whole.load("j0")->commits;
  ASSERT_EQ(commits.size(), 9U);
  whole.close();
  for (const PointerChange& change : pointer_changes(ids)) {
    const TempDir damaged(true);
    std::filesystem::copy_file(folder / "a.db", damaged / "a.db");
    run_sql(damaged / "a.db", change.sql().c_str());
    SqliteFixture after(damaged / "a.db");
    SqliteOptions options = after.options();
    options.read_only = true;
    ASSERT_TRUE(after.open(options));
    for (const std::uint64_t from_seq : {1U, 6U, 10U}) {
      const auto loaded = after.loop.await<Result<LoadedJob>>(
          [&](auto done) { after.store().load(JobId("j0"), from_seq, std::move(done)); });
      ASSERT_TRUE(loaded) << change.sql();
      // A subset of its commits, each once, in order.
      auto next = commits.begin();
      for (const std::string& commit : loaded->commits) {
        next = std::find(next, commits.end(), commit);
        ASSERT_NE(next, commits.end()) << change.sql();
        ++next;
      }
      // A pointer that does not lead backwards is detected: the other commits are found without it.
      const bool is_invalid = change.column == "jump" ||
                              (change.column == "prev" &&
                               change.value.find('-') == std::string::npos && change.value != "1");
      if (is_invalid && from_seq == 1) {
        EXPECT_EQ(loaded->commits, commits) << change.sql();
      }
    }
  }
}

AE_TEST_SLOW("sqlite/writes with corrupt pointers terminate and store no commit twice") {
  const TempDir folder(true);
  const std::vector<std::string> ids = make_nine_commits(folder / "a.db");
  for (const PointerChange& change : pointer_changes(ids)) {
    const TempDir damaged(true);
    std::filesystem::copy_file(folder / "a.db", damaged / "a.db");
    run_sql(damaged / "a.db", change.sql().c_str());
    SqliteFixture after(damaged / "a.db");
    ASSERT_TRUE(after.open());
    const auto outcome = [&](const Result<CommitResult>& result) {
      return result ? std::string(result->is_duplicate ? "repeated" : "written")
                    : std::string(code_name(result.error().code));
    };
    const auto expect_one_of = [&](const Result<CommitResult>& result, std::string_view expected) {
      const std::string word = outcome(result);
      EXPECT_NE(expected.find(word), std::string::npos) << change.sql() << ": " << word;
    };
    // Stored commits are never written again, and missing ones are not reported as duplicates.
    for (std::uint64_t seq = 2; seq < 10; ++seq) {
      expect_one_of(after.commit(SqliteFixture::append("j0", seq)),
                    "repeated log_corrupt sequence_conflict");
    }
    expect_one_of(after.commit(SqliteFixture::create("j0")), "repeated log_corrupt already_exists");
    expect_one_of(after.commit(SqliteFixture::append("j0", 10)), "written log_corrupt");
    const auto put = after.loop.await<Result<void>>([&](auto done) {
      after.store().put_inbox(JobId("j0"), {.id = "i", .request = "{}"}, std::move(done));
    });
    EXPECT_TRUE(put || put.error().code == Code::log_corrupt) << change.sql();
    const auto claimed = after.loop.await<Result<std::vector<Lease>>>([&](auto done) {
      after.store().claim(conformance::ConformanceFixture::claim_request("B", 9), std::move(done));
    });
    EXPECT_TRUE(claimed) << change.sql();
    const auto by_name = after.loop.await<Result<std::optional<Lease>>>([&](auto done) {
      after.store().claim_job(JobId("j0"), conformance::ConformanceFixture::claim_request("C"),
                              std::move(done));
    });
    EXPECT_TRUE(by_name || by_name.error().code == Code::log_corrupt) << change.sql();
    EXPECT_TRUE(after.commit(SqliteFixture::create("another"))) << change.sql();
  }
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
          "DROP INDEX jobs_pending; ALTER TABLE jobs DROP COLUMN pending; DROP TABLE inbox_replies;"
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

AE_TEST("sqlite/claim statements search an index and neither scan nor sort") {
  const TempDir folder(true);
  SqliteFixture fixture(folder / "a.db");
  ASSERT_TRUE(fixture.open());
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open((folder / "a.db").c_str(), &db), SQLITE_OK);
  for (const char* query : sqlite::ClaimStatements::kAll) {
    std::string plan;
    const auto add = [](void* to, int columns, char** values, char**) {
      static_cast<std::string*>(to)->append(values[columns - 1]).append("\n");
      return 0;
    };
    const std::string sql = "EXPLAIN QUERY PLAN " + std::string(query);
    EXPECT_EQ(sqlite3_exec(db, sql.c_str(), add, &plan, nullptr), SQLITE_OK) << sqlite3_errmsg(db);
    EXPECT_PRED2(contains, plan, "SEARCH jobs USING");
    EXPECT_EQ(plan.find("TEMP B-TREE"), plan.npos) << query << ": " << plan;
    EXPECT_EQ(plan.find("SCAN jobs"), plan.npos) << query << ": " << plan;
  }
  sqlite3_close(db);
}

// The cost of each query of a claim, in steps of SQLite's virtual machine.
AE_TEST("sqlite/the cost of a claim does not depend on the number of jobs") {
  const auto steps = [](int crowd) {
    const TempDir folder(true);
    SqliteFixture fixture(folder / "a.db");
    SqliteOptions options = fixture.options();
    options.fair_by = "tenant";
    EXPECT_TRUE(fixture.open(options));
    int pending = 0;
    const auto create = [&](const std::string& id, std::string status, std::string tenant,
                            std::string agent = "a", std::vector<std::string> needs = {}) {
      Batch b = SqliteFixture::create(id);
      NewJob& job = std::get<Batch::Create>(b.authority).job;
      job.agent = std::move(agent);
      job.capabilities = std::move(needs);
      job.claim.reset();
      job.queue = tenant == "crowd" ? "full" : "open";
      job.labels = {{"tenant", std::move(tenant)}};
      b.row.status = std::move(status);
      ++pending;
      fixture.store().commit(std::move(b), [&](Result<CommitResult> answer) {
        EXPECT_TRUE(answer);
        --pending;
      });
    };
    for (int i = 0; i < crowd; ++i) {
      create("crowd" + std::to_string(i), "queued", "crowd");
      create("open" + std::to_string(i), "queued", "other");
      create("old" + std::to_string(i), "completed", "other");
      create("others" + std::to_string(i), "queued", "crowd", "another");
      create("needy" + std::to_string(i), "queued", "other", "a", {"gpu"});
    }
    EXPECT_TRUE(fixture.loop.run_until([&] { return pending == 0; }));
    ClaimRequest request = conformance::ConformanceFixture::claim_request("A");
    request.queues = {{"full", 1}};
    request.agents = {"a"};
    const auto claim = [&] {
      const auto leases = fixture.loop.await<Result<std::vector<Lease>>>(
          [&](auto done) { fixture.store().claim(request, std::move(done)); });
      return leases && !leases->empty() ? leases->at(0).job.text.string() : std::string();
    };
    EXPECT_EQ(claim(), "crowd0");
    EXPECT_EQ(claim(), "open0") << "the other queue is full now";
    sqlite3* db = nullptr;
    EXPECT_EQ(sqlite3_open((folder / "a.db").c_str(), &db), SQLITE_OK);
    std::vector<int> all;
    for (const char* query : sqlite::ClaimStatements::kAll) {
      sqlite3_stmt* statement = nullptr;
      EXPECT_EQ(sqlite3_prepare_v2(db, query, -1, &statement, nullptr), SQLITE_OK);
      const std::string text = query;
      const bool counts = text.starts_with("SELECT count"), next_queue = text.contains("queue > ");
      sqlite3_bind_text(statement, 1, counts || next_queue ? "full" : "open", -1, SQLITE_STATIC);
      if (counts) {
        sqlite3_bind_int(statement, 3, 1);
      } else if (!next_queue) {
        sqlite3_bind_text(statement, 2, text.contains("agent > ") ? "Z" : "a", -1, SQLITE_STATIC);
      }
      if (text.contains("?4")) {
        sqlite3_bind_text(statement, 3, "", -1, SQLITE_STATIC);
        sqlite3_bind_int(statement, 4, text.contains("priority <") ? 9 : 0);
      } else if (text.contains("capabilities > ")) {
        sqlite3_bind_text(statement, 3, "", -1, SQLITE_STATIC);
      }
      if (text.contains("turn >")) sqlite3_bind_text(statement, 5, "crowd", -1, SQLITE_STATIC);
      if (text.contains("turn =")) sqlite3_bind_text(statement, 5, "other", -1, SQLITE_STATIC);
      if (text.contains("id > ?6")) sqlite3_bind_int(statement, 6, 2);
      EXPECT_EQ(sqlite3_step(statement), SQLITE_ROW) << query;
      all.push_back(sqlite3_stmt_status(statement, SQLITE_STMTSTATUS_VM_STEP, 0));
      EXPECT_GT(all.back(), 0);
      sqlite3_finalize(statement);
    }
    sqlite3_close(db);
    return all;
  };
  EXPECT_EQ(steps(5), steps(3000));
}

AE_TEST("sqlite/the fairness label and its current turn are stored") {
  const TempDir folder(true);
  SqliteFixture fixture(folder / "a.db");
  const auto open = [&](std::optional<std::string> fair_by) {
    fixture.close();
    SqliteOptions options = fixture.options();
    options.fair_by = std::move(fair_by);
    ASSERT_TRUE(fixture.open(options));
  };
  const auto claim = [&](std::size_t limit) {
    std::string jobs;
    const auto leases = fixture.loop.await<Result<std::vector<Lease>>>([&](auto done) {
      fixture.store().claim(conformance::ConformanceFixture::claim_request("A", limit),
                            std::move(done));
    });
    for (const Lease& lease : *leases) jobs += (jobs.empty() ? "" : " ") + lease.job.text;
    return jobs;
  };
  open({});
  for (const char* id : {"a1", "a2", "b1", "b2", "c1"}) {
    Batch b = SqliteFixture::create(id);
    NewJob& job = std::get<Batch::Create>(b.authority).job;
    job.claim.reset();
    job.labels = {{"tenant", std::string(1, id[0])}, {"size", id[1] == '1' ? "s" : "l"}};
    b.row.status = "queued";
    ASSERT_TRUE(fixture.commit(b));
  }
  EXPECT_EQ(claim(5), "a1 a2 b1 b2 c1") << "no fairness label is set";
  open("tenant");
  EXPECT_EQ(claim(2), "a1 b1");
  open({});
  EXPECT_EQ(claim(3), "c1 a1 b1") << "the turn is stored too";
  open("size");
  EXPECT_EQ(claim(5), "a2 a1 b2 b1 c1");
  open("");
  EXPECT_EQ(claim(5), "a1 a2 b1 b2 c1");
}

// Copies the single file of a closed store.
void copy(const std::string& from, const std::string& to) {
  std::filesystem::copy_file(from, to, std::filesystem::copy_options::overwrite_existing);
}

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

// A claimed job with a row in every table.
void fill_tables(SqliteFixture& fixture, const std::string& job, const std::string& status) {
  Batch create = SqliteFixture::create(job);
  std::get<Batch::Create>(create.authority).job.labels = {{"who", job}};
  create.sealed->blobs = {conformance::blob("plan"), conformance::blob("of " + job)};
  ASSERT_TRUE(fixture.commit(create));
  Batch more = SqliteFixture::append(job, 2);
  more.effects = {{InvocationId("i1"), 1, "secret effect"}};
  more.ledger_put = {{InvocationId("i1"), 1, "COMMITTED", "a call"}};
  more.checkpoint = "state";
  more.signed_head = "signed";
  more.summary = Summary{.error = {}, .body = "secret summary"};
  ASSERT_TRUE(fixture.commit(more));
  Batch end = SqliteFixture::append(job, 3);
  end.row.status = status;
  end.release = true;
  ASSERT_TRUE(fixture.commit(end));
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

AE_TEST("sqlite/the first commit is found despite corrupt pointers") {
  const TempDir folder(true);
  SqliteFixture source(folder / "a.db");
  ASSERT_TRUE(source.open());
  fill_tables(source, "j0", "completed");  // commits 1, 2, 3
  const std::vector<std::string> commits = source.load("j0")->commits;
  source.close();
  ASSERT_EQ(commits.size(), 3U);
  for (const std::string column : {"prev", "jump"}) {
    for (const std::string value : {"0", "3", "999"}) {
      const TempDir damaged(true);
      const std::string path = damaged / "a.db";
      std::filesystem::copy_file(folder / "a.db", path);
      run_sql(path, ("UPDATE commits SET " + column + " = " + value + " WHERE id > 1").c_str());
      SqliteFixture fixture(path);
      ASSERT_TRUE(fixture.open());
      const auto first = fixture.loop.await<Result<LoadedJob>>(
          [&](auto done) { fixture.store().load(JobId("j0"), kFirstCommit, std::move(done)); });
      ASSERT_TRUE(first) << first.error().message;
      EXPECT_EQ(first->commits, std::vector<std::string>{commits[0]}) << column << " " << value;
    }
  }
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
        const std::string change = "UPDATE " + column + " = " + value + " WHERE " +
                                   (head ? "job" : "id") + " = " + std::to_string(id);
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
  copy(path, folder / "backup.db");
  ASSERT_TRUE(fixture.open());
  EXPECT_EQ(*prune(fixture, "j0"), true);
  fixture.close();
  ASSERT_TRUE(fixture.open());
  fixture.close();
  EXPECT_TRUE(check_for_lost_writes(path));
  copy(folder / "backup.db", path);
  const auto opened = fixture.open();
  ASSERT_FALSE(opened) << "the deleted job is back, and no restore is recorded";
  EXPECT_EQ(opened.error().code, Code::store_rolled_back);
}

AE_TEST("rollback/a backup that was not restored is refused for writing") {
  const TempDir folder(true);
  SqliteFixture fixture(folder / "a.db");
  ASSERT_TRUE(fixture.open());
  ASSERT_TRUE(fixture.commit(SqliteFixture::create("j0")));
  const std::string timeline = fixture.store().timeline();
  ASSERT_TRUE(backup_sqlite(folder / "a.db", folder / "b.db"));
  ASSERT_TRUE(backup_sqlite(folder / "b.db", folder / "again.db"));
  for (const char* name : {"b.db", "again.db"}) {
    SqliteFixture copied(folder / name);
    EXPECT_EQ(copied.open().error().code, Code::store_rolled_back);
    EXPECT_EQ(check_for_lost_writes(folder / name).error().code, Code::store_rolled_back);
    SqliteOptions reading = copied.options();
    reading.read_only = true;
    ASSERT_TRUE(copied.open(reading));
    EXPECT_EQ(copied.load("j0")->row.last_seq, 2U);
    copied.close();
    SqliteOptions accept = copied.options();
    accept.accept_loss = true;
    ASSERT_TRUE(copied.open(accept));
    EXPECT_TRUE(copied.store().accepting());
    EXPECT_NE(copied.store().timeline(), timeline) << "jobs are parked on the new timeline";
  }
  EXPECT_TRUE(fixture.commit(SqliteFixture::append("j0", 2))) << "the original store is not marked";
}

AE_TEST("rollback/an older copy in place of a store is refused for writing and can be read") {
  const TempDir folder(true);
  const std::string path = folder / "a.db";
  SqliteFixture fixture(path);
  ASSERT_TRUE(fixture.open());
  ASSERT_TRUE(fixture.commit(SqliteFixture::create("j0")));
  fixture.close();
  copy(path, folder / "backup.db");
  EXPECT_TRUE(check_for_lost_writes(path));
  ASSERT_TRUE(fixture.open());
  ASSERT_TRUE(fixture.commit(SqliteFixture::append("j0", 2)));
  fixture.close();
  copy(folder / "backup.db", path);
  for (int times = 0; times < 2; ++times) {
    const auto opened = fixture.open();
    ASSERT_FALSE(opened);
    EXPECT_EQ(opened.error().code, Code::store_rolled_back);
    EXPECT_PRED2(contains, opened.error().message, "doctor --accept-rollback");
    EXPECT_EQ(check_for_lost_writes(path).error().code, Code::store_rolled_back);
  }
  SqliteOptions reading = fixture.options();
  reading.read_only = true;
  ASSERT_TRUE(fixture.open(reading));
  EXPECT_EQ(fixture.load("j0")->row.last_seq, 2U);
  SqliteFixture elsewhere(folder / "backup.db");
  EXPECT_TRUE(elsewhere.open()) << "there is no position file";
}

AE_TEST("rollback/a lost inbox entry, claim or heartbeat is detected") {
  for (const int what : {0, 1, 2}) {
    const TempDir folder(true);
    const std::string path = folder / "a.db";
    SqliteFixture fixture(path);
    ASSERT_TRUE(fixture.open());
    ASSERT_TRUE(fixture.commit(SqliteFixture::create("j0")));
    fixture.close();
    copy(path, folder / "backup.db");
    ASSERT_TRUE(fixture.open());
    if (what == 0) {
      ASSERT_TRUE(fixture.loop.await<Result<void>>([&](auto done) {
        fixture.store().put_inbox(JobId("j0"), {.id = "s", .request = "{}"}, std::move(done));
      }));
    } else {
      ASSERT_EQ(fixture.loop
                    .await<Result<std::vector<Lease>>>([&](auto done) {
                      fixture.store().claim(conformance::ConformanceFixture::claim_request("B"),
                                            std::move(done));
                    })
                    ->size(),
                1U);
    }
    if (what == 2) {
      ASSERT_TRUE(fixture.loop.await<Result<std::vector<std::optional<Instant>>>>([&](auto done) {
        fixture.store().heartbeat({{JobId("j0"), conformance::fence("B", 2)}}, conformance::kLease,
                                  std::move(done));
      }));
    }
    fixture.close();
    ASSERT_TRUE(fixture.open()) << "opening alone is not a rollback";
    fixture.close();
    copy(folder / "backup.db", path);
    EXPECT_EQ(fixture.open().error().code, Code::store_rolled_back) << what;
  }
}

AE_TEST("rollback/an accepted loss stays pending until the acceptance is finished") {
  const TempDir folder(true);
  const std::string path = folder / "a.db";
  SqliteFixture fixture(path);
  ASSERT_TRUE(fixture.open());
  ASSERT_TRUE(fixture.commit(SqliteFixture::create("j0")));
  fixture.close();
  copy(path, folder / "backup.db");
  ASSERT_TRUE(fixture.open());
  ASSERT_TRUE(fixture.commit(SqliteFixture::append("j0", 2)));
  const std::string first = fixture.store().timeline();
  fixture.close();
  copy(path, folder / "newer.db");
  copy(folder / "backup.db", path);
  SqliteOptions accept = fixture.options();
  accept.accept_loss = true;
  ASSERT_TRUE(fixture.open(accept));
  EXPECT_TRUE(fixture.store().accepting());
  const std::string second = fixture.store().timeline();
  EXPECT_NE(first, second);
  fixture.close();
  EXPECT_EQ(fixture.open().error().code, Code::store_rolled_back)
      << "the acceptance is not finished";
  ASSERT_TRUE(fixture.open(accept));
  EXPECT_TRUE(fixture.store().accepting());
  EXPECT_EQ(fixture.store().timeline(), second) << "one loss, one timeline";
  ASSERT_TRUE(fixture.loop.await<Result<void>>(
      [&](auto done) { fixture.store().finish_accepting(std::move(done)); }));
  fixture.close();
  ASSERT_TRUE(fixture.open());
  EXPECT_FALSE(fixture.store().accepting());
  fixture.close();
  ASSERT_TRUE(fixture.open(accept)) << "nothing was lost";
  EXPECT_FALSE(fixture.store().accepting());
  fixture.close();
  // Both copies are older than the accepted loss, also the one with the higher position.
  for (const char* older : {"newer.db", "backup.db"}) {
    copy(folder / older, path);
    EXPECT_EQ(fixture.open().error().code, Code::store_rolled_back) << older;
  }
}

AE_TEST("rollback/a torn, missing or foreign position file does not refuse a store") {
  const TempDir folder(true);
  const std::string path = folder / "a.db";
  SqliteFixture fixture(path);
  const auto open_and_commit = [&](std::uint64_t seq) {
    const auto opened = fixture.open();
    ASSERT_TRUE(opened) << opened.error().message;
    ASSERT_TRUE(fixture.commit(seq == 0 ? SqliteFixture::create("j0")
                                        : SqliteFixture::append("j0", seq + 1)));
    fixture.close();
  };
  open_and_commit(0);
  const std::string file = path + ".position";
  std::filesystem::resize_file(file, 100);
  open_and_commit(1);
  std::filesystem::remove(file);
  open_and_commit(2);
  std::ofstream(file) << std::string(512, 'x');
  open_and_commit(3);
  SqliteFixture other(folder / "b.db");
  ASSERT_TRUE(other.open());
  other.close();
  std::filesystem::copy_file(folder / "b.db", folder / "empty.db");
  ASSERT_TRUE(other.open());
  ASSERT_TRUE(other.commit(SqliteFixture::create("j0")));
  other.close();
  copy(folder / "b.db", path);
  open_and_commit(1);
  copy(folder / "empty.db", path);
  EXPECT_EQ(fixture.open().error().code, Code::store_rolled_back)
      << "the older copy lacks recorded commits";
  // Damages each slot in turn: the other one counts.
  for (const std::size_t at : {std::size_t{100}, std::size_t{356}}) {
    sqlite::PositionFile two(folder / "two.position");
    ASSERT_TRUE(two.write({std::string(32, 'a'), std::string(32, 'b'), 7}));
    ASSERT_TRUE(two.write({std::string(32, 'a'), std::string(32, 'b'), 8}));
    EXPECT_EQ(two.read()->number, 8U);
    std::fstream slots(folder / "two.position");
    slots.seekp(static_cast<std::streamoff>(at - 70));
    slots.put('#');
    slots.close();
    EXPECT_EQ(two.read()->number, at == 100 ? 8U : 7U);
    std::filesystem::remove(folder / "two.position");
  }
}

// Waits until a new write has a later timestamp than the last write to this file (file times have a
// coarse resolution).
void wait_for_later_file_time(const std::string& path) {
  const std::string now = path + ".now";
  do {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::ofstream(now) << "now";
  } while (std::filesystem::last_write_time(now) <= std::filesystem::last_write_time(path));
  std::filesystem::remove(now);
}

AE_TEST("rollback/a process stops writing if its file is replaced, overwritten or removed") {
  for (const std::string what : {"replaced", "overwritten", "removed"}) {
    const TempDir folder(true);
    const std::string path = folder / "a.db";
    SqliteFixture fixture(path);
    SqliteOptions options = fixture.options();
    options.idle = std::chrono::milliseconds(1);
    ASSERT_TRUE(fixture.open(options));
    ASSERT_TRUE(fixture.commit(SqliteFixture::create("j0")));
    fixture.close();
    copy(path, folder / "backup.db");
    ASSERT_TRUE(fixture.open(options));
    ASSERT_TRUE(fixture.commit(SqliteFixture::append("j0", 2)));
    for (int i = 0; i < 2000 && fixture.store().stats().wal_bytes > 0; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));  // until the WAL is empty
    }
    wait_for_later_file_time(path);
    if (what == "replaced") {
      copy(folder / "backup.db", folder / "new.db");
      std::filesystem::rename(folder / "new.db", path);
    } else if (what == "overwritten") {
      std::ifstream from(folder / "backup.db", std::ios::binary);
      std::fstream to(path, std::ios::in | std::ios::out | std::ios::binary);
      to << from.rdbuf();
    } else {
      std::filesystem::remove(path);
    }
    const auto refused = fixture.commit(SqliteFixture::append("j0", 3));
    ASSERT_FALSE(refused) << what;
    EXPECT_EQ(refused.error().code, Code::store_stopped) << what;
    EXPECT_PRED2(contains, refused.error().message, what);
    const auto claimed = fixture.loop.await<Result<std::vector<Lease>>>([&](auto done) {
      fixture.store().claim(conformance::ConformanceFixture::claim_request("B"), std::move(done));
    });
    EXPECT_EQ(claimed.error().code, Code::store_stopped) << what;
    fixture.close();
    if (what == "removed") continue;
    EXPECT_EQ(fixture.open().error().code, Code::store_rolled_back) << what;
    EXPECT_EQ(integrity(path), "ok") << what;
  }
}

AE_TEST("rollback/a file with only a new modification time is checked and used") {
  const TempDir folder(true);
  SqliteFixture fixture(folder / "a.db");
  ASSERT_TRUE(fixture.open());
  ASSERT_TRUE(fixture.commit(SqliteFixture::create("j0")));
  std::filesystem::last_write_time(
      folder / "a.db", std::filesystem::file_time_type::clock::now() + std::chrono::hours(1));
  ASSERT_TRUE(fixture.commit(SqliteFixture::append("j0", 2)));
  EXPECT_EQ(fixture.load("j0")->row.last_seq, 3U);
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
    std::get<Batch::Create>(b.authority).job.claim.reset();
    b.row.status = "completed";
    b.sealed->bytes = "kept " + is_duplicate(secret, bytes) + " kept";
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
    EXPECT_EQ(residual_copies->front().where, "the write-ahead log " + path + "-wal");
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
  const auto name = [](int i) { return "j" + std::to_string(i); };
  const auto secret = [](int i) { return "SECRET-" + std::to_string(100000 + i) + "-"; };
  std::vector<Batch> batches;
  for (int i = 0; i < kJobs; ++i) {
    Batch b = SqliteFixture::create(name(i));
    std::get<Batch::Create>(b.authority).job.claim.reset();
    b.row.status = "completed";
    b.sealed->bytes = secret(i) + std::string(std::size_t(i * 37 % 1500), 'x');
    b.sealed->blobs = {conformance::blob(secret(i) + std::string(std::size_t(i * 91 % 900), 'y'))};
    b.effects = {{InvocationId("i" + std::to_string(i * 7919 % 1009)), 1, secret(i)}};
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

AE_TEST("sqlite/calls made before the store closes are written and answered") {
  const TempDir folder(true);
  SqliteFixture fixture(folder / "a.db");
  ASSERT_TRUE(fixture.open());
  int answers = 0;
  for (int i = 0; i < 100; ++i) {
    fixture.store().commit(
        SqliteFixture::create("j" + std::to_string(i)),
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
