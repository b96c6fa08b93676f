// SqliteFixture: helpers of the SQLite store's tests: temporary folders, and a store with
// synchronous calls.
#pragma once

#include <fmt/core.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "store/conformance_fixture_test.h"
#include "store/sqlite/sqlite_store.h"
#include "testing/test.h"
#include "testing/test_loop.h"

namespace ae::store {

inline bool contains(const std::string& text, const std::string& part) {
  return text.contains(part);
}
inline bool begins(const std::string& text, const std::string& part) {
  return text.starts_with(part);
}

class TempDir {
 public:
  // `memory`: on a file system where fsync costs nothing.
  explicit TempDir(bool memory = false) {
    std::filesystem::path where = std::filesystem::temp_directory_path();
    if (memory && ::access("/dev/shm", W_OK) == 0) where = "/dev/shm";
    std::string pattern = where / "aetheris-store-XXXXXX";
    AE_CHECK(::mkdtemp(pattern.data()) != nullptr, pattern);
    path_ = pattern;
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  std::string operator/(const std::string& name) const { return fmt::format("{}/{}", path_, name); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// The result of PRAGMA integrity_check: "ok".
inline std::string integrity(const std::string& path) {
  sqlite3* db = nullptr;
  std::string answer;
  sqlite3_open(path.c_str(), &db);
  sqlite3_exec(
      db, "PRAGMA integrity_check",
      [](void* to, int, char** values, char**) {
        *static_cast<std::string*>(to) += values[0];
        return 0;
      },
      &answer, nullptr);
  sqlite3_close(db);
  return answer;
}

// Jobs "j0", "j1", …, each created with a lease of attempt "A". Later commits have one event; the
// first has two.
class SqliteFixture {
 public:
  explicit SqliteFixture(std::string path) : path_(std::move(path)) {}

  SqliteOptions options() { return {.path = path_, .loop = loop, .clock = loop}; }
  Result<void> open() { return open(options()); }
  Result<void> open(const SqliteOptions& options) {
    store_.reset();
    AE_ASSIGN(store_, SqliteStore::open(options));
    return {};
  }
  void close() { store_.reset(); }
  SqliteStore& store() { return *store_; }

  static Batch create(const std::string& job, std::size_t bytes = 0) {
    NewJob new_job{.agent = "a"};
    new_job.claim =
        InitialClaimParams{.worker = "w", .attempt = AttemptId("A"), .lease = conformance::kLease};
    Batch b{.job = JobId(job), .authority = Batch::Create{std::move(new_job)}};
    b.sealed = conformance::sealed(job, 1, 2);
    b.sealed->bytes.append(bytes, '.');
    b.row.status = "running";
    return b;
  }
  static Batch append(const std::string& job, std::uint64_t expected, std::size_t bytes = 0) {
    Batch b{.job = JobId(job),
            .authority = Batch::Leased{conformance::fence("A", 1)},
            .expected_seq = expected};
    b.sealed = conformance::sealed(job, expected + 1);
    b.sealed->bytes.append(bytes, '.');
    b.row.status = "running";
    return b;
  }
  Result<CommitResult> commit(Batch b) {
    return loop.await<Result<CommitResult>>(
        [&](auto done) { store().commit(std::move(b), std::move(done)); });
  }
  Result<LoadedJob> load(const std::string& job) {
    return loop.await<Result<LoadedJob>>(
        [&](auto done) { store().load(JobId(job), 1, std::move(done)); });
  }
  Result<std::vector<JobRow>> query(Filter filter = {}) {
    return loop.await<Result<std::vector<JobRow>>>(
        [&](auto done) { store().query(std::move(filter), std::move(done)); });
  }

  testing::TestLoop loop;

 private:
  const std::string path_;
  std::unique_ptr<SqliteStore> store_;
};

inline void run_sql(const std::string& path, const char* sql) {
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open(path.c_str(), &db), SQLITE_OK);
  char* error = nullptr;
  sqlite3_exec(db, sql, nullptr, nullptr, &error);
  EXPECT_EQ(error, nullptr) << error;
  sqlite3_close(db);
}

// Copies the single file of a closed store.
inline void copy_store(const std::string& from, const std::string& to) {
  std::filesystem::copy_file(from, to, std::filesystem::copy_options::overwrite_existing);
}

// A claimed job with a row in every table.
inline void fill_tables(SqliteFixture& fixture, const std::string& job, const std::string& status) {
  Batch create = SqliteFixture::create(job);
  std::get<Batch::Create>(create.authority).job->labels = {{"who", job}};
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

}  // namespace ae::store
