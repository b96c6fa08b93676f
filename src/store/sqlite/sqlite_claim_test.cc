// The cost and the fair order of claims.
#include <fmt/core.h>
#include <sqlite3.h>

#include "store/sqlite/sqlite_fixture_test.h"
#include "store/sqlite/tables.h"

namespace ae::store {
namespace {

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
    const std::string sql = fmt::format("EXPLAIN QUERY PLAN {}", query);
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
      NewJob& job = *std::get<Batch::Create>(b.authority).job;
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
      create(fmt::format("crowd{}", i), "queued", "crowd");
      create(fmt::format("open{}", i), "queued", "other");
      create(fmt::format("old{}", i), "completed", "other");
      create(fmt::format("others{}", i), "queued", "crowd", "another");
      create(fmt::format("needy{}", i), "queued", "other", "a", {"gpu"});
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
    NewJob& job = *std::get<Batch::Create>(b.authority).job;
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

}  // namespace
}  // namespace ae::store
