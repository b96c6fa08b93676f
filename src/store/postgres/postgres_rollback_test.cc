// Rollbacks of a PostgreSQL store: restored while a process uses it or before it starts, or a
// failover without the last commits. The tests delete the lost rows directly.
#include <fmt/core.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "store/postgres/postgres_fixture_test.h"

namespace ae::store {
namespace {

class TempDir {
 public:
  TempDir() {
    std::string pattern = std::filesystem::temp_directory_path() / "aetheris-marks-XXXXXX";
    AE_CHECK(::mkdtemp(pattern.data()) != nullptr, pattern);
    path_ = pattern;
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

PostgresOptions guarded(PostgresFixture& fixture, const TempDir& folder) {
  PostgresOptions options = fixture.options();
  options.rollback_guard_dir = folder.path();
  options.plan_max_age = std::chrono::milliseconds(1);  // check again at once
  return options;
}

// The store as it was one commit earlier.
void lose_last_commit(const OwnSchema& schema) {
  sql("DELETE FROM commits WHERE first_seq = (SELECT max(first_seq) FROM commits); "
      "UPDATE log_ends SET last_seq = last_seq - 1",
      schema.name());
}

std::string meta_value(const OwnSchema& schema, const std::string& key) {
  const auto rows = sql(fmt::format("SELECT value FROM meta WHERE key = '{}'", key), schema.name());
  return rows.at(1).empty() ? "" : rows.at(1).text(0, 0);
}

void cut_connections() {
  sql("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
      "WHERE application_name = 'aetheris' AND pid <> pg_backend_pid()");
}

AE_TEST("rollback/a restarted process detects a lost commit and can still read") {
  const OwnSchema schema;
  const TempDir folder;
  PostgresFixture fixture(schema.name());
  ASSERT_TRUE(fixture.open(guarded(fixture, folder)));
  ASSERT_TRUE(fixture.commit(PostgresFixture::create_claimed("j0")));
  ASSERT_TRUE(fixture.commit(PostgresFixture::append("j0", 2)));
  fixture.close();
  ASSERT_TRUE(fixture.open(guarded(fixture, folder))) << "nothing is missing yet";
  fixture.close();
  lose_last_commit(schema);
  const auto refused = fixture.open(guarded(fixture, folder));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::store_rolled_back);
  EXPECT_TRUE(refused.error().message.contains("j0")) << refused.error().message;
  EXPECT_EQ(refused.error().action, Action{.act = act::kAcceptRollback});
  auto read_only = guarded(fixture, folder);
  read_only.read_only = true;
  ASSERT_TRUE(fixture.open(read_only));
  EXPECT_EQ(fixture.load("j0")->row.last_seq, 2u);
}

AE_TEST("rollback/a process that detects a loss stops all other processes") {
  const OwnSchema schema;
  const TempDir folder;
  PostgresFixture fixture(schema.name()), other(schema.name());
  ASSERT_TRUE(fixture.open(guarded(fixture, folder)));
  ASSERT_TRUE(other.open(guarded(other, TempDir())));
  ASSERT_TRUE(fixture.commit(PostgresFixture::create_claimed("j0")));
  ASSERT_TRUE(fixture.commit(PostgresFixture::append("j0", 2)));
  lose_last_commit(schema);
  ASSERT_TRUE(other.commit(PostgresFixture::create("j1")))
      << "no process has reported the loss yet";
  EXPECT_EQ(fixture.commit(PostgresFixture::append("j0", 3)).error().code, Code::store_stopped);
  std::this_thread::sleep_for(std::chrono::milliseconds(2));  // its next check
  EXPECT_EQ(other.commit(PostgresFixture::create("j2")).error().code, Code::store_stopped);
  EXPECT_TRUE(meta_value(schema, "lost").contains("j0"));
  PostgresFixture third(schema.name());
  EXPECT_EQ(third.open().error().code, Code::store_rolled_back);
}

AE_TEST("rollback/a process stops writing if the server returns without its last commit") {
  const OwnSchema schema;
  PostgresFixture fixture(schema.name());
  // These options keep the mark in memory only and check on new connections.
  PostgresOptions options = fixture.options();
  options.plan_max_age = std::chrono::hours(1);
  ASSERT_TRUE(fixture.open(options));
  ASSERT_TRUE(fixture.commit(PostgresFixture::create_claimed("j0")));
  ASSERT_TRUE(fixture.commit(PostgresFixture::append("j0", 2)));
  cut_connections();
  ASSERT_TRUE(fixture.commit(PostgresFixture::append("j0", 3))) << "nothing was lost";
  lose_last_commit(schema);
  cut_connections();
  const auto stopped = fixture.commit(PostgresFixture::append("j0", 4));
  ASSERT_FALSE(stopped);
  EXPECT_EQ(stopped.error().code, Code::store_stopped) << stopped.error().message;
  EXPECT_EQ(fixture.load("j0").error().code, Code::store_stopped)
      << "it would read less than it has acknowledged";
  sql("UPDATE log_ends SET last_seq = last_seq + 1", schema.name());
  EXPECT_EQ(fixture.commit(PostgresFixture::append("j0", 4)).error().code, Code::store_stopped)
      << "for good";
}

AE_TEST("rollback/a shared store refuses other opens until an accepted loss is finished") {
  const OwnSchema schema;
  const TempDir folder;
  PostgresFixture fixture(schema.name()), old(schema.name());
  ASSERT_TRUE(fixture.open(guarded(fixture, folder)));
  ASSERT_TRUE(old.open(guarded(old, TempDir())));
  ASSERT_TRUE(fixture.commit(PostgresFixture::create_claimed("j0")));
  ASSERT_TRUE(fixture.commit(PostgresFixture::append("j0", 2)));
  fixture.close();
  auto accepts = guarded(fixture, folder);
  accepts.accept_loss = true;
  accepts.accepted_by = "ada";
  ASSERT_TRUE(fixture.open(accepts));
  EXPECT_FALSE(fixture.store().accepting()) << "there is nothing to accept";
  fixture.close();

  lose_last_commit(schema);
  ASSERT_TRUE(fixture.open(accepts));
  EXPECT_TRUE(fixture.store().accepting());
  const std::string timeline = fixture.store().timeline();
  EXPECT_EQ(meta_value(schema, "timeline"), timeline);
  PostgresFixture third(schema.name());
  EXPECT_EQ(third.open().error().code, Code::store_rolled_back) << "its jobs are not parked yet";
  fixture.close();
  ASSERT_TRUE(fixture.open(accepts)) << "an interrupted acceptance starts again";
  EXPECT_TRUE(fixture.store().accepting());
  EXPECT_EQ(fixture.store().timeline(), timeline) << "one loss has one timeline";
  ASSERT_TRUE(fixture.loop.await<Result<void>>(
      [&](auto done) { fixture.store().finish_accepting(std::move(done)); }));
  ASSERT_TRUE(third.open());
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  EXPECT_EQ(old.commit(PostgresFixture::create("j1")).error().code, Code::store_stopped)
      << "a process from before the loss may hold lost state";
  fixture.close();
  ASSERT_TRUE(fixture.open(guarded(fixture, folder)));
  const auto log = fixture.loop.await<Result<AuditLog>>(
      [&](auto done) { fixture.store().read_audit_log(0, std::move(done)); });
  ASSERT_TRUE(log);
  ASSERT_EQ(log->rows.size(), 1u);
  EXPECT_TRUE(log->rows[0].body.contains("accept_rollback") && log->rows[0].body.contains("ada"));
  EXPECT_TRUE(verify_audit_log(*log).ok);
}

AE_TEST("rollback/a loss can be declared, and a copy from before an accepted loss is refused") {
  const OwnSchema schema;
  const TempDir folder;
  PostgresFixture fixture(schema.name());
  ASSERT_TRUE(fixture.open(guarded(fixture, folder)));
  ASSERT_TRUE(fixture.commit(PostgresFixture::create_claimed("j0")));
  fixture.close();
  auto accepts = guarded(fixture, folder);
  accepts.accept_loss = accepts.is_loss_certain = true;
  ASSERT_TRUE(fixture.open(accepts));
  EXPECT_TRUE(fixture.store().accepting()) << "nothing is missing, but the loss was declared";
  ASSERT_TRUE(fixture.loop.await<Result<void>>(
      [&](auto done) { fixture.store().finish_accepting(std::move(done)); }));
  fixture.close();
  ASSERT_TRUE(fixture.open(guarded(fixture, folder)));
  ASSERT_TRUE(fixture.commit(PostgresFixture::append("j0", 2)));
  fixture.close();
  sql("DELETE FROM meta WHERE key IN ('timeline', 'timelines')", schema.name());
  EXPECT_EQ(fixture.open(guarded(fixture, folder)).error().code, Code::store_rolled_back);
}

AE_TEST("rollback/a torn or empty high-water mark does not refuse a store") {
  const OwnSchema schema;
  const TempDir folder;
  PostgresFixture fixture(schema.name());
  ASSERT_TRUE(fixture.open(guarded(fixture, folder)));
  ASSERT_TRUE(fixture.commit(PostgresFixture::create_claimed("j0")));
  fixture.close();
  std::filesystem::path high_water_mark;
  for (const auto& file : std::filesystem::directory_iterator(folder.path()))
    high_water_mark = file.path();
  ASSERT_TRUE(high_water_mark.string().ends_with(meta_value(schema, "store_id") + ".mark"))
      << high_water_mark;
  lose_last_commit(schema);
  for (const std::uintmax_t size :
       {std::filesystem::file_size(high_water_mark) / 2, std::uintmax_t{0}}) {
    std::filesystem::resize_file(high_water_mark, size);
    ASSERT_TRUE(fixture.open(guarded(fixture, folder))) << size;
    fixture.close();
  }
}

// As `aetheris prune`: the audit entry contains the numbers of the deleted jobs.
Result<bool> prune(PostgresFixture& fixture, const std::string& job) {
  const JobRow row = fixture.load(job)->row;
  Pruning pruning;
  pruning.jobs.push_back(
      {.job = row.id, .last_seq = row.last_seq, .head = row.head, .content_hash = {}});
  pruning.audit = {.at = Instant{1},
                   .by = "me",
                   .act = "prune",
                   .job = {},
                   .detail = Value::object({{"numbers", std::to_string(row.number)}})};
  return fixture.loop.await<Result<bool>>(
      [&](auto done) { fixture.store().prune(pruning, std::move(done)); });
}

void end(PostgresFixture& fixture, const std::string& job) {
  Batch last = PostgresFixture::append(job, 2);
  last.row.status = "completed";
  last.release = true;
  ASSERT_TRUE(fixture.commit(last));
}

AE_TEST("rollback/a job pruned by another process is no loss, but a lost audit entry of it is") {
  const OwnSchema schema;
  const TempDir folder;
  PostgresFixture fixture(schema.name()), other(schema.name());
  ASSERT_TRUE(fixture.open(guarded(fixture, folder)));
  ASSERT_TRUE(other.open(guarded(other, TempDir())));
  ASSERT_TRUE(other.commit(PostgresFixture::create_claimed("j1")));
  ASSERT_TRUE(fixture.commit(PostgresFixture::create_claimed("j0")));
  end(fixture, "j0");
  EXPECT_EQ(*prune(other, "j0"), true);
  // Another job reuses its id, with a lower seq.
  ASSERT_TRUE(other.commit(PostgresFixture::create("j0")));
  std::this_thread::sleep_for(std::chrono::milliseconds(2));  // its next check
  EXPECT_TRUE(fixture.load("j0")) << fixture.load("j0").error().message;
  EXPECT_EQ(meta_value(schema, "lost"), "");
  fixture.close();
  ASSERT_TRUE(fixture.open(guarded(fixture, folder))) << "nor after a restart";
  fixture.close();
  // The store as it was before that audit entry.
  sql("DELETE FROM audit; UPDATE meta SET value = '0 ' || repeat('0', 64) "
      "WHERE key = 'audit_head'",
      schema.name());
  const auto refused = fixture.open(guarded(fixture, folder));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::store_rolled_back);
  EXPECT_TRUE(refused.error().message.contains("audit log")) << refused.error().message;
}

AE_TEST("rollback/a store written in another cluster, database or set of tables is refused") {
  const OwnSchema schema;
  PostgresFixture fixture(schema.name());
  ASSERT_TRUE(fixture.open());
  ASSERT_TRUE(fixture.commit(PostgresFixture::create("j0")));
  fixture.close();
  const std::string location = meta_value(schema, "place");
  const auto set_location = [&](const std::string& value) {
    sql(fmt::format("UPDATE meta SET value = '{}' WHERE key = 'place'", value), schema.name());
  };
  const std::size_t first = location.find(' '), second = location.rfind(' ');
  const std::pair<std::string, std::string> others[] = {
      {"cluster", "1" + location.substr(first)},
      {"database", fmt::format("{} 1{}", location.substr(0, first), location.substr(second))},
      {"set of tables", location.substr(0, second) + " 1"}};
  for (const auto& [what, value] : others) {
    set_location(value);
    const auto refused = fixture.open();
    ASSERT_FALSE(refused) << what;
    EXPECT_EQ(refused.error().code, Code::store_rolled_back);
    EXPECT_TRUE(refused.error().message.contains("another " + what)) << refused.error().message;
  }
  set_location(location);
  EXPECT_TRUE(fixture.open());
}

AE_TEST("rollback/a process that pruned jobs detects the loss of its audit entry") {
  const OwnSchema schema;
  const TempDir folder;
  PostgresFixture fixture(schema.name());
  ASSERT_TRUE(fixture.open(guarded(fixture, folder)));
  ASSERT_TRUE(fixture.commit(PostgresFixture::create_claimed("j0")));
  end(fixture, "j0");
  EXPECT_EQ(*prune(fixture, "j0"), true);
  fixture.close();
  ASSERT_TRUE(fixture.open(guarded(fixture, folder)));
  fixture.close();
  sql("DELETE FROM audit", schema.name());
  EXPECT_EQ(fixture.open(guarded(fixture, folder)).error().code, Code::store_rolled_back);
}

AE_TEST("rollback/a missing job is detected even if other jobs were pruned") {
  const OwnSchema schema;
  const TempDir folder;
  PostgresFixture fixture(schema.name()), other(schema.name());
  ASSERT_TRUE(other.open(guarded(other, TempDir())));
  ASSERT_TRUE(other.commit(PostgresFixture::create_claimed("j1")));
  end(other, "j1");
  EXPECT_EQ(*prune(other, "j1"), true);
  ASSERT_TRUE(fixture.open(guarded(fixture, folder)));
  ASSERT_TRUE(fixture.commit(PostgresFixture::create_claimed("j0")));
  fixture.close();
  sql("DELETE FROM heads; DELETE FROM log_ends; DELETE FROM jobs", schema.name());
  const auto refused = fixture.open(guarded(fixture, folder));
  ASSERT_FALSE(refused);
  EXPECT_TRUE(refused.error().message.contains("j0")) << refused.error().message;
}

AE_TEST("prune/a deleted job leaves no row in any table") {
  const OwnSchema schema;
  PostgresFixture fixture(schema.name());
  ASSERT_TRUE(fixture.open());
  Batch create = PostgresFixture::create_claimed("j0");
  create.sealed->blobs = {conformance::blob("plan"), conformance::blob("own")};
  create.effects = {{InvocationId("i1"), 1, "{}"}};
  create.ledger_put = {{InvocationId("i1"), 1, "COMMITTED", "{}"}};
  create.signed_head = "signed";
  create.summary = Summary{.error = {}, .body = "{}"};
  std::get<Batch::Create>(create.authority).job->labels = {{"a", "b"}};
  ASSERT_TRUE(fixture.commit(create));
  end(fixture, "j0");
  const auto rows = [&](const std::string& table) {
    return sql("SELECT count(*) FROM " + table, schema.name()).at(1).count(0, 0);
  };
  EXPECT_EQ(rows("value_uses"), 2U);
  EXPECT_EQ(*prune(fixture, "j0"), true);
  for (const char* table :
       {"jobs", "heads", "log_ends", "commits", "blobs", "labels", "effects", "ledger", "inbox",
        "signed_heads", "checkpoints", "value_uses", "summaries"}) {
    EXPECT_EQ(rows(table), 0U) << table;
  }
}

}  // namespace
}  // namespace ae::store
