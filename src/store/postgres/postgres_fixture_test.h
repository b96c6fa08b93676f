// PostgresFixture: helpers of the PostgreSQL store's tests: one server per test program, and a
// schema per store.
#pragma once

#include <fmt/core.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "store/conformance_fixture_test.h"
#include "store/postgres/connection.h"
#include "store/postgres/postgres_store.h"
#include "store/postgres/schema.h"
#include "testing/postgres_server.h"
#include "testing/test.h"
#include "testing/test_loop.h"

namespace ae::store {

// Started at first use, stopped when the program ends.
inline testing::PostgresServer& server() {
  static testing::PostgresServer one;
  return one;
}

inline std::vector<postgres::Rows> sql(const std::string& text,
                                       const std::string& schema = "public",
                                       const std::string& url = server().url()) {
  auto connection = postgres::Connection::open({.url = url});
  AE_CHECK(connection.has_value(), connection.error().text());
  connection->add_unprepared(fmt::format("SELECT set_config('search_path', '{}', false)", schema));
  std::size_t begin = 0;
  while (begin < text.size()) {
    const std::size_t end = std::min(text.find(';', begin), text.size());
    if (text.find_first_not_of(" \n", begin) < end) {
      connection->add_unprepared(text.substr(begin, end - begin));
    }
    begin = end + 1;
  }
  auto answers = connection->run();
  AE_CHECK(answers.has_value(), fmt::format("{}: {}", text, answers.error().text()));
  return std::move(*answers);
}

// A schema for one test. Schemas are emptied and reused, because creating a store takes longer than
// most tests.
class OwnSchema {
 public:
  OwnSchema() {
    if (free().empty()) {
      name_ = fmt::format("s{}", ++schema_count());
    } else {
      name_ = free().back();
      free().pop_back();
      sql("DELETE FROM jobs; DELETE FROM heads; DELETE FROM log_ends; DELETE FROM commits; DELETE "
          "FROM blobs; "
          "DELETE FROM labels; DELETE FROM effects; DELETE FROM ledger; DELETE FROM inbox; "
          "DELETE FROM signed_heads; DELETE FROM checkpoints; DELETE FROM summaries; "
          "DELETE FROM turns; DELETE FROM "
          "audit; DELETE FROM workers; DELETE FROM value_uses; "
          "DELETE FROM meta WHERE key IN ('lost', 'timeline', 'timelines', 'accepting'); "
          "UPDATE meta SET value = '' WHERE key = 'fair_by'; "
          "UPDATE meta SET value = '0 ' || repeat('0', 64) WHERE key = 'audit_head'",
          name_);
    }
  }
  ~OwnSchema() {
    EXPECT_EQ(sql("SELECT count(*) FROM heads h JOIN log_ends e USING (job) "
                  "WHERE h.attempt IS DISTINCT FROM e.attempt",
                  name_)[1]
                  .integer(0, 0),
              0)
        << "the log is fenced by the lease of its job";
    free().push_back(name_);
  }
  OwnSchema(const OwnSchema&) = delete;
  OwnSchema& operator=(const OwnSchema&) = delete;
  const std::string& name() const { return name_; }

 private:
  static std::vector<std::string>& free() {
    static std::vector<std::string> all;
    return all;
  }
  static int& schema_count() {
    static int count = 0;
    return count;
  }
  std::string name_;
};

// A store with synchronous calls.
class PostgresFixture {
 public:
  explicit PostgresFixture(const std::string& schema, bool own_time = true)
      : schema_(schema), own_time_(own_time) {}

  PostgresOptions options() {
    PostgresOptions options{.url = server().url(), .loop = loop, .schema = schema_};
    if (!own_time_) options.clock = &loop;
    return options;
  }
  Result<void> open() { return open(options()); }
  Result<void> open(const PostgresOptions& options) {
    store_.reset();
    auto opened = PostgresStore::open(options);
    if (!opened) return std::unexpected(opened.error());
    store_ = *std::move(opened);
    return {};
  }
  void close() { store_.reset(); }
  PostgresStore& store() { return *store_; }

  static Batch create(const std::string& id, NewJob job = {}) {
    if (job.agent.empty()) job.agent = "a";
    Batch b{.job = JobId(id), .authority = Batch::Create{std::move(job)}};
    b.sealed = conformance::sealed(id, 1, 2);
    return b;
  }
  static Batch create_claimed(const std::string& id, Duration lease = conformance::kLease) {
    NewJob job;
    job.claim = InitialClaimParams{.worker = "w", .attempt = AttemptId("A"), .lease = lease};
    Batch b = create(id, std::move(job));
    b.row.status = "running";
    return b;
  }
  static Batch append(const std::string& id, std::uint64_t expected,
                      const Fence& fence = conformance::fence("A", 1)) {
    Batch b{.job = JobId(id), .authority = Batch::Leased{fence}, .expected_seq = expected};
    b.sealed = conformance::sealed(id, expected + 1, 1);
    b.row.status = "running";
    return b;
  }

  Result<CommitResult> commit(Batch batch) {
    return loop.await<Result<CommitResult>>(
        [&](auto done) { store_->commit(std::move(batch), std::move(done)); });
  }
  Result<LoadedJob> load(const std::string& id) {
    return loop.await<Result<LoadedJob>>(
        [&](auto done) { store_->load(JobId(id), 1, std::move(done)); });
  }
  Result<std::vector<JobRow>> query(Filter filter = {}) {
    return loop.await<Result<std::vector<JobRow>>>(
        [&](auto done) { store_->query(std::move(filter), std::move(done)); });
  }
  Result<std::vector<Lease>> claim(std::size_t limit, const std::string& attempt = "B",
                                   Duration lease = conformance::kLease) {
    ClaimRequest request{.worker = "w2", .limit = limit, .lease = lease};
    for (std::size_t i = 0; i < limit; ++i) {
      request.attempts.emplace_back(attempt + std::to_string(i));
    }
    return loop.await<Result<std::vector<Lease>>>(
        [&](auto done) { store_->claim(std::move(request), std::move(done)); });
  }

  testing::TestLoop loop;

 private:
  std::string schema_;
  bool own_time_;
  std::unique_ptr<PostgresStore> store_;
};

}  // namespace ae::store
