// A PostgreSQL store that went backwards: restored under a process or before it began, or a server that took over without the
// last commits. What is missing is taken away by hand, as it would be after either.
#include <filesystem>

#include "store/postgres/postgres_fixture_test.h"

namespace ae::store {
namespace {

class Folder {
 public:
  Folder() {
    std::string pattern = std::filesystem::temp_directory_path() / "aetheris-marks-XXXXXX";
    AE_CHECK(::mkdtemp(pattern.data()) != nullptr, pattern);
    path_ = pattern;
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

PostgresOptions remembering(Desk& desk, const Folder& folder) {
  PostgresOptions options = desk.options();
  options.remember_in = folder.path();
  options.plans_age = std::chrono::milliseconds(1);  // looked at again at once
  return options;
}

// As the store stood one commit ago.
void lose_last_commit(const OwnSchema& schema) {
  sql("DELETE FROM commits WHERE first_seq = (SELECT max(first_seq) FROM commits); "
      "UPDATE heads SET last_seq = last_seq - 1",
      schema.name());
}

std::string word_of(const OwnSchema& schema, const std::string& key) {
  const auto rows = sql("SELECT value FROM meta WHERE key = '" + key + "'", schema.name());
  return rows.at(1).empty() ? "" : rows.at(1).text(0, 0);
}

void cut_connections() {
  sql("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
      "WHERE application_name = 'aetheris' AND pid <> pg_backend_pid()");
}

AE_TEST("rollback/what a process wrote is missed when it begins anew, and reading goes on") {
  const OwnSchema schema;
  const Folder folder;
  Desk desk(schema.name());
  ASSERT_TRUE(desk.open(remembering(desk, folder)));
  ASSERT_TRUE(desk.commit(Desk::create_claimed("j0")));
  ASSERT_TRUE(desk.commit(Desk::append("j0", 2)));
  desk.close();
  ASSERT_TRUE(desk.open(remembering(desk, folder))) << "nothing is missing yet";
  desk.close();
  lose_last_commit(schema);
  const auto refused = desk.open(remembering(desk, folder));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::store_rolled_back);
  EXPECT_TRUE(refused.error().message.contains("j0")) << refused.error().message;
  EXPECT_TRUE(refused.error().message.contains("--accept-rollback"));
  auto read_only = remembering(desk, folder);
  read_only.read_only = true;
  ASSERT_TRUE(desk.open(read_only));
  EXPECT_EQ(desk.load("j0")->row.last_seq, 2u);
}

AE_TEST("rollback/whoever finds something missing stops those who remember nothing") {
  const OwnSchema schema;
  const Folder folder;
  Desk desk(schema.name()), other(schema.name());
  ASSERT_TRUE(desk.open(remembering(desk, folder)));
  ASSERT_TRUE(other.open(remembering(other, Folder())));
  ASSERT_TRUE(desk.commit(Desk::create_claimed("j0")));
  ASSERT_TRUE(desk.commit(Desk::append("j0", 2)));
  lose_last_commit(schema);
  ASSERT_TRUE(other.commit(Desk::create("j1"))) << "nobody has said anything yet";
  EXPECT_EQ(desk.commit(Desk::append("j0", 3)).error().code, Code::store_stopped);
  std::this_thread::sleep_for(std::chrono::milliseconds(2));  // its next look
  EXPECT_EQ(other.commit(Desk::create("j2")).error().code, Code::store_stopped);
  EXPECT_TRUE(word_of(schema, "lost").contains("j0"));
  Desk third(schema.name());
  EXPECT_EQ(third.open().error().code, Code::store_rolled_back);
}

AE_TEST("rollback/a process whose server comes back without its last commit writes nothing more") {
  const OwnSchema schema;
  Desk desk(schema.name());
  PostgresOptions options =
      desk.options();  // which remembers in its head only, and looks on new connections
  options.plans_age = std::chrono::hours(1);
  ASSERT_TRUE(desk.open(options));
  ASSERT_TRUE(desk.commit(Desk::create_claimed("j0")));
  ASSERT_TRUE(desk.commit(Desk::append("j0", 2)));
  cut_connections();
  ASSERT_TRUE(desk.commit(Desk::append("j0", 3))) << "nothing was lost";
  lose_last_commit(schema);
  cut_connections();
  const auto stopped = desk.commit(Desk::append("j0", 4));
  ASSERT_FALSE(stopped);
  EXPECT_EQ(stopped.error().code, Code::store_stopped) << stopped.error().message;
  EXPECT_EQ(desk.load("j0").error().code, Code::store_stopped)
      << "what it would read back is not what it knows";
  sql("UPDATE heads SET last_seq = last_seq + 1", schema.name());
  EXPECT_EQ(desk.commit(Desk::append("j0", 4)).error().code, Code::store_stopped) << "for good";
}

AE_TEST(
    "rollback/a shared store whose loss was accepted opens for nothing else before its jobs rest") {
  const OwnSchema schema;
  const Folder folder;
  Desk desk(schema.name()), old(schema.name());
  ASSERT_TRUE(desk.open(remembering(desk, folder)));
  ASSERT_TRUE(old.open(remembering(old, Folder())));
  ASSERT_TRUE(desk.commit(Desk::create_claimed("j0")));
  ASSERT_TRUE(desk.commit(Desk::append("j0", 2)));
  desk.close();
  auto accepts = remembering(desk, folder);
  accepts.accept_loss = true;
  accepts.accepted_by = "ada";
  ASSERT_TRUE(desk.open(accepts));
  EXPECT_FALSE(desk.store().accepting()) << "there is nothing to accept";
  desk.close();

  lose_last_commit(schema);
  ASSERT_TRUE(desk.open(accepts));
  EXPECT_TRUE(desk.store().accepting());
  const std::string timeline = desk.store().timeline();
  EXPECT_EQ(word_of(schema, "timeline"), timeline);
  Desk third(schema.name());
  EXPECT_EQ(third.open().error().code, Code::store_rolled_back) << "its jobs do not rest yet";
  desk.close();
  ASSERT_TRUE(desk.open(accepts)) << "who dies in between begins again";
  EXPECT_TRUE(desk.store().accepting());
  EXPECT_EQ(desk.store().timeline(), timeline) << "of one loss there is one timeline";
  ASSERT_TRUE(desk.loop.await<Result<void>>(
      [&](auto done) { desk.store().finish_accepting(std::move(done)); }));
  ASSERT_TRUE(third.open());
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  EXPECT_EQ(old.commit(Desk::create("j1")).error().code, Code::store_stopped)
      << "who began before holds what was lost";
  desk.close();
  ASSERT_TRUE(desk.open(remembering(desk, folder)));
  const auto log = desk.loop.await<Result<AuditLog>>(
      [&](auto done) { desk.store().audit_log(0, std::move(done)); });
  ASSERT_TRUE(log);
  ASSERT_EQ(log->rows.size(), 1u);
  EXPECT_TRUE(log->rows[0].body.contains("accept_rollback") && log->rows[0].body.contains("ada"));
  EXPECT_TRUE(prove(*log).ok);
}

AE_TEST(
    "rollback/a copy from before an accepted loss is missed too, and a restored one when somebody "
    "says so") {
  const OwnSchema schema;
  const Folder folder;
  Desk desk(schema.name());
  ASSERT_TRUE(desk.open(remembering(desk, folder)));
  ASSERT_TRUE(desk.commit(Desk::create_claimed("j0")));
  desk.close();
  auto accepts = remembering(desk, folder);
  accepts.accept_loss = accepts.surely_lost = true;
  ASSERT_TRUE(desk.open(accepts));
  EXPECT_TRUE(desk.store().accepting()) << "nothing is missing, but somebody knows better";
  ASSERT_TRUE(desk.loop.await<Result<void>>(
      [&](auto done) { desk.store().finish_accepting(std::move(done)); }));
  desk.close();
  ASSERT_TRUE(desk.open(remembering(desk, folder)));
  ASSERT_TRUE(desk.commit(Desk::append("j0", 2)));
  desk.close();
  sql("DELETE FROM meta WHERE key IN ('timeline', 'timelines')", schema.name());
  EXPECT_EQ(desk.open(remembering(desk, folder)).error().code, Code::store_rolled_back);
}

AE_TEST("rollback/a mark that is torn or of another store refuses nothing") {
  const OwnSchema schema;
  const Folder folder;
  Desk desk(schema.name());
  ASSERT_TRUE(desk.open(remembering(desk, folder)));
  ASSERT_TRUE(desk.commit(Desk::create_claimed("j0")));
  desk.close();
  std::filesystem::path mark;
  for (const auto& file : std::filesystem::directory_iterator(folder.path())) mark = file.path();
  ASSERT_TRUE(mark.string().ends_with(word_of(schema, "store_id") + ".mark")) << mark;
  lose_last_commit(schema);
  for (const std::uintmax_t size : {std::filesystem::file_size(mark) / 2, std::uintmax_t{0}}) {
    std::filesystem::resize_file(mark, size);
    ASSERT_TRUE(desk.open(remembering(desk, folder))) << size;
    desk.close();
  }
}

// As `aetheris prune` does it: the audit entry says which numbers went.
Result<bool> prune(Desk& desk, const std::string& job) {
  const JobRow row = desk.load(job)->row;
  Pruning pruning;
  pruning.jobs.push_back(
      {.job = row.id, .last_seq = row.last_seq, .head = row.head, .contents = {}});
  pruning.audit = {.at = Instant{1},
                   .by = "me",
                   .act = "prune",
                   .job = {},
                   .detail = Value::object({{"numbers", std::to_string(row.number)}})};
  return desk.loop.await<Result<bool>>(
      [&](auto done) { desk.store().prune(pruning, std::move(done)); });
}

void end(Desk& desk, const std::string& job) {
  Batch last = Desk::append(job, 2);
  last.row.status = "completed";
  last.release = true;
  ASSERT_TRUE(desk.commit(last));
}

AE_TEST(
    "rollback/a job that another process deleted is not missed, and what it remembers then is") {
  const OwnSchema schema;
  const Folder folder;
  Desk desk(schema.name()), other(schema.name());
  ASSERT_TRUE(desk.open(remembering(desk, folder)));
  ASSERT_TRUE(other.open(remembering(other, Folder())));
  ASSERT_TRUE(other.commit(Desk::create_claimed("j1")));
  ASSERT_TRUE(desk.commit(Desk::create_claimed("j0")));
  end(desk, "j0");
  EXPECT_EQ(*prune(other, "j0"), true);
  // Another job gets its id, and stands earlier in its life.
  ASSERT_TRUE(other.commit(Desk::create("j0")));
  std::this_thread::sleep_for(std::chrono::milliseconds(2));  // its next look
  EXPECT_TRUE(desk.load("j0")) << desk.load("j0").error().message;
  EXPECT_EQ(word_of(schema, "lost"), "");
  desk.close();
  ASSERT_TRUE(desk.open(remembering(desk, folder))) << "nor when it begins anew";
  desk.close();
  // The store as it was before that entry of the audit log.
  sql("DELETE FROM audit; UPDATE meta SET value = '0 ' || repeat('0', 64) "
      "WHERE key = 'audit_head'",
      schema.name());
  const auto refused = desk.open(remembering(desk, folder));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::store_rolled_back);
  EXPECT_TRUE(refused.error().message.contains("audit log")) << refused.error().message;
}

AE_TEST(
    "rollback/a store that was written in another cluster, database or set of tables is refused") {
  const OwnSchema schema;
  Desk desk(schema.name());
  ASSERT_TRUE(desk.open());
  ASSERT_TRUE(desk.commit(Desk::create("j0")));
  desk.close();
  const std::string place = word_of(schema, "place");
  const auto put = [&](const std::string& words) {
    sql("UPDATE meta SET value = '" + words + "' WHERE key = 'place'", schema.name());
  };
  const std::size_t first = place.find(' '), second = place.rfind(' ');
  const std::pair<std::string, std::string> others[] = {
      {"cluster", "1" + place.substr(first)},
      {"database", place.substr(0, first) + " 1" + place.substr(second)},
      {"set of tables", place.substr(0, second) + " 1"}};
  for (const auto& [what, words] : others) {
    put(words);
    const auto refused = desk.open();
    ASSERT_FALSE(refused) << what;
    EXPECT_EQ(refused.error().code, Code::store_rolled_back);
    EXPECT_TRUE(refused.error().message.contains("another " + what)) << refused.error().message;
  }
  put(place);
  EXPECT_TRUE(desk.open());
}

AE_TEST("rollback/who deleted jobs misses it when they are back") {
  const OwnSchema schema;
  const Folder folder;
  Desk desk(schema.name());
  ASSERT_TRUE(desk.open(remembering(desk, folder)));
  ASSERT_TRUE(desk.commit(Desk::create_claimed("j0")));
  end(desk, "j0");
  EXPECT_EQ(*prune(desk, "j0"), true);
  desk.close();
  ASSERT_TRUE(desk.open(remembering(desk, folder)));
  desk.close();
  sql("DELETE FROM audit", schema.name());
  EXPECT_EQ(desk.open(remembering(desk, folder)).error().code, Code::store_rolled_back);
}

AE_TEST("rollback/a job that is missing is missed, whichever others were deleted") {
  const OwnSchema schema;
  const Folder folder;
  Desk desk(schema.name()), other(schema.name());
  ASSERT_TRUE(other.open(remembering(other, Folder())));
  ASSERT_TRUE(other.commit(Desk::create_claimed("j1")));
  end(other, "j1");
  EXPECT_EQ(*prune(other, "j1"), true);
  ASSERT_TRUE(desk.open(remembering(desk, folder)));
  ASSERT_TRUE(desk.commit(Desk::create_claimed("j0")));
  desk.close();
  sql("DELETE FROM heads; DELETE FROM jobs", schema.name());
  const auto refused = desk.open(remembering(desk, folder));
  ASSERT_FALSE(refused);
  EXPECT_TRUE(refused.error().message.contains("j0")) << refused.error().message;
}

AE_TEST("prune/of a deleted job no row is left in any table") {
  const OwnSchema schema;
  Desk desk(schema.name());
  ASSERT_TRUE(desk.open());
  Batch create = Desk::create_claimed("j0");
  create.sealed->blobs = {conformance::blob("plan"), conformance::blob("own")};
  create.effects = {{InvocationId("i1"), 1, "{}"}};
  create.ledger_put = {{InvocationId("i1"), 1, "COMMITTED", "{}"}};
  create.signed_head = "signed";
  std::get<Batch::Create>(create.authority).job.labels = {{"a", "b"}};
  ASSERT_TRUE(desk.commit(create));
  end(desk, "j0");
  const auto rows = [&](const std::string& table) {
    return sql("SELECT count(*) FROM " + table, schema.name()).at(1).count(0, 0);
  };
  EXPECT_EQ(rows("value_uses"), 2U);
  EXPECT_EQ(*prune(desk, "j0"), true);
  for (const char* table : {"jobs", "heads", "commits", "blobs", "labels", "effects", "ledger",
                            "inbox", "signed_heads", "checkpoints", "value_uses"}) {
    EXPECT_EQ(rows(table), 0U) << table;
  }
}

}  // namespace
}  // namespace ae::store
