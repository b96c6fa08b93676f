// Logs with missing commits or corrupt pointers.
#include <fmt/core.h>
#include <sqlite3.h>

#include <algorithm>

#include "store/sqlite/sqlite_fixture_test.h"

namespace ae::store {
namespace {

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
    const std::string sql = fmt::format(
        "DELETE FROM commits WHERE id = (SELECT id FROM commits WHERE job = (SELECT id FROM jobs "
        "WHERE job_id = 'j0') ORDER BY id LIMIT 1 OFFSET {})",
        which);
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
    return fmt::format("UPDATE {} SET {} = {} WHERE {}", table, column, value, row);
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
      run_sql(path, fmt::format("UPDATE commits SET {} = {} WHERE id > 1", column, value).c_str());
      SqliteFixture fixture(path);
      ASSERT_TRUE(fixture.open());
      const auto first = fixture.loop.await<Result<LoadedJob>>(
          [&](auto done) { fixture.store().load(JobId("j0"), kFirstCommit, std::move(done)); });
      ASSERT_TRUE(first) << first.error().message;
      EXPECT_EQ(first->commits, std::vector<std::string>{commits[0]}) << column << " " << value;
    }
  }
}

}  // namespace
}  // namespace ae::store
