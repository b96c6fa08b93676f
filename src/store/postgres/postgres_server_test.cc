// PostgreSQL servers, schema versions, and the cost of the store's statements.
#include <fmt/core.h>
#include <pwd.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <thread>

#include "store/postgres/claims.h"
#include "store/postgres/job_stats.h"
#include "store/postgres/postgres_fixture_test.h"
#include "store/postgres/postgres_rebuild.h"
#include "store/postgres/redaction.h"
#include "store/postgres/server_info.h"
#include "store/postgres/transaction.h"
#include "store/postgres/views.h"

namespace ae::store {
namespace {

using testing::PostgresServer;

bool has_text(const std::string& text, const std::string& part) { return text.contains(part); }

std::string refusal(const PostgresOptions& options) {
  const auto opened = PostgresStore::open(options);
  if (opened) return "opened";
  return fmt::format("{}: {}", code_name(opened.error().code), opened.error().message);
}

std::string refusal(const std::string& url) {
  testing::TestLoop loop;
  return refusal({.url = url, .loop = loop});
}

AE_TEST("postgres_server/a server with fsync=off is refused unless it is allowed") {
  const PostgresServer without_fsync({"fsync=off"});
  EXPECT_PRED2(has_text, refusal(without_fsync.url()), "unsupported: ");
  EXPECT_PRED2(has_text, refusal(without_fsync.url()), "fsync=on");
  testing::TestLoop loop;
  EXPECT_EQ(refusal({.url = without_fsync.url(), .loop = loop, .allow_no_fsync = true}), "opened");
}

AE_TEST("postgres_server/a replica is refused") {
  const std::unique_ptr<PostgresServer> replica(PostgresServer::follow(server()));
  EXPECT_PRED2(has_text, refusal(replica->url()), "address of the primary");
}

AE_TEST(
    "postgres_server/an unreachable server, a wrong address and a wrong encoding are reported") {
  EXPECT_PRED2(has_text, refusal("postgres://127.0.0.1:1/x"), "unavailable: ");
  EXPECT_PRED2(has_text, refusal(server().url("nowhere")), "\"nowhere\" does not exist");
  EXPECT_PRED2(has_text, refusal("postgres://%%%"), "usage: ");
  server().create_database("latin", "LATIN1");
  EXPECT_PRED2(has_text, refusal(server().url("latin")), "UTF8");
}

AE_TEST("postgres_server/settings, connections and clock of a server are reported") {
  const PostgresServer small({"max_connections=10", "superuser_reserved_connections=3",
                              "full_page_writes=off", "autovacuum=off",
                              "synchronous_standby_names=elsewhere"});
  const auto facts = read_server_info(small.url());
  ASSERT_TRUE(facts) << facts.error().message;
  EXPECT_TRUE(facts->synchronous_standby);
  EXPECT_FALSE(facts->full_page_writes);
  EXPECT_FALSE(facts->autovacuum);
  EXPECT_EQ(facts->connections_max, 7);
  EXPECT_EQ(facts->connections_used, 0) << "without the connection of this query";
  const auto apart = std::max(facts->clock_ahead, Duration(0) - facts->clock_ahead);
  EXPECT_LE(apart, facts->clock_error + std::chrono::milliseconds(5)) << "it is this machine's";
  auto other = postgres::Connection::open({.url = small.url()});
  ASSERT_TRUE(other);
  EXPECT_EQ(read_server_info(small.url())->connections_used, 1);
  const auto plain = read_server_info(server().url());
  ASSERT_TRUE(plain);
  EXPECT_FALSE(plain->synchronous_standby);
  EXPECT_TRUE(plain->full_page_writes && plain->autovacuum);
  EXPECT_EQ(read_server_info("postgres://127.0.0.1:1/x").error().code, Code::unavailable);
}

AE_TEST("postgres_server/a session with synchronous_commit=off is made durable") {
  const std::string less = server().url("postgres", "&options=-csynchronous_commit%3Doff");
  auto connection = postgres::Connection::open({.url = less});
  ASSERT_TRUE(connection);
  ASSERT_TRUE(postgres::prepare_session(*connection, {.schema = "aetheris"}));
  connection->add_unprepared("SHOW synchronous_commit");
  EXPECT_EQ(connection->run()->at(0).text(0, 0), "on");
}

class Pooler {
 public:
  explicit Pooler(const std::string& mode) {
    std::string name = (std::filesystem::temp_directory_path() / "aetheris-pool-XXXXXX").string();
    AE_CHECK(::mkdtemp(name.data()) != nullptr);
    folder_ = name;
    std::filesystem::permissions(folder_, std::filesystem::perms::all);
    std::ofstream(folder_ + "/ini")
        << "[databases]\n* = host=127.0.0.1 user=aetheris port=" << server().port()
        << "\n[pgbouncer]\n"
        << "listen_addr=\nunix_socket_dir=" << folder_ << "\nlisten_port=6432\nauth_type=any\n"
        << "pool_mode=" << mode << "\nignore_startup_parameters=extra_float_digits,options\n"
        << "[users]\n";
    process_ = ::fork();
    if (process_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (const passwd* user = ::geteuid() == 0 ? ::getpwnam("postgres") : nullptr) {
        if (::setgid(user->pw_gid) != 0 || ::setuid(user->pw_uid) != 0) ::_exit(126);
      }
      ::execl("/usr/sbin/pgbouncer", "pgbouncer", "-q", (folder_ + "/ini").c_str(), nullptr);
      ::_exit(127);
    }
    while (!postgres::Connection::open({.url = url()})) {  // the socket exists before
      int status = 0;
      AE_CHECK(::waitpid(process_, &status, WNOHANG) == 0,
               "pgbouncer does not start: install the Debian package pgbouncer");
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
  ~Pooler() {
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
    std::filesystem::remove_all(folder_);
  }
  std::string url(const std::string& database = "postgres") const {
    return fmt::format("postgres:///{}?host={}&port=6432&user=aetheris", database, folder_);
  }

 private:
  std::string folder_;
  pid_t process_ = -1;
};

// A session is impossible if two clients share one server process.
AE_TEST("postgres_server/a pooler is refused in transaction mode and accepted in session mode") {
  EXPECT_PRED2(has_text, refusal(Pooler("transaction").url()), "unsupported: a pooler");
  EXPECT_EQ(refusal(Pooler("session").url()), "opened");
}

AE_TEST("postgres_server/a transaction pooler is refused for creating, migrating and rebuilding") {
  server().create_database("pooled");
  const Pooler transaction_pooler("transaction");
  const Pooler session_pooler("session");
  const auto outcome = [](const auto& result) {
    if (result) return std::string("done");
    return fmt::format("{}: {}", code_name(result.error().code), result.error().message);
  };
  const std::string url = transaction_pooler.url("pooled");
  EXPECT_PRED2(has_text, refusal(url), "unsupported: a pooler");
  EXPECT_PRED2(has_text, outcome(migrate_postgres(url)), "unsupported: a pooler");
  EXPECT_PRED2(has_text, outcome(migrate_postgres(url, {.check_only = true})),
               "unsupported: a pooler");
  const auto schemas = sql("SELECT count(*) FROM pg_namespace WHERE nspname = 'aetheris'", "public",
                           server().url("pooled"));
  EXPECT_EQ(schemas[1].integer(0, 0), 0);
  EXPECT_EQ(outcome(migrate_postgres(session_pooler.url("pooled"))), "done");
  EXPECT_PRED2(has_text, outcome(open_postgres_rebuild({.url = url})), "unsupported: a pooler");
  EXPECT_EQ(outcome(open_postgres_rebuild({.url = session_pooler.url("pooled")})), "done");
}

// ---------------------------------------------------------------- versions

AE_TEST("postgres_schema/a store of a newer layout is refused, also read-only") {
  const OwnSchema schema;
  PostgresFixture fixture(schema.name());
  ASSERT_TRUE(fixture.open());
  fixture.close();
  const auto set_layout = [&](std::int64_t layout) {
    sql(fmt::format("UPDATE meta SET value = '{}' WHERE key = 'layout'", layout), schema.name());
  };
  PostgresOptions reading = fixture.options();
  reading.read_only = true;
  set_layout(postgres::newest_layout() + 1);
  EXPECT_PRED2(has_text, refusal(fixture.options()), "needs_version: ");
  EXPECT_PRED2(has_text, refusal(reading), "needs_version: ");
  set_layout(postgres::newest_layout());
  EXPECT_EQ(refusal(reading), "opened");
}

AE_TEST("postgres_schema/several processes can create a store concurrently") {
  std::vector<std::thread> processes;
  std::vector<std::string> answers(6);
  processes.reserve(answers.size());
  for (std::size_t i = 0; i < answers.size(); ++i) {
    processes.emplace_back([&answers, i] {
      testing::TestLoop loop;
      answers[i] = refusal({.url = server().url(), .loop = loop, .schema = "at_once"});
    });
  }
  for (std::thread& process : processes) process.join();
  for (const std::string& answer : answers) EXPECT_EQ(answer, "opened");
  EXPECT_EQ(sql("SELECT count(*) FROM meta WHERE key = 'store_id'", "at_once")[1].integer(0, 0), 1);
}

// The connection is lost while it creates the tables: the next one finds nothing, and creates them.
AE_TEST("postgres_schema/an interrupted creation of a store is repeated") {
  sql("BEGIN; CREATE SCHEMA half; CREATE TABLE half.meta(key text, value text); ROLLBACK");
  auto interrupted = postgres::Connection::open({.url = server().url()});
  ASSERT_TRUE(interrupted);
  interrupted->add_unprepared("BEGIN");
  interrupted->add_unprepared("CREATE SCHEMA half");
  interrupted->add_unprepared("CREATE TABLE half.jobs(number bigint)");
  interrupted->add_unprepared("SELECT pg_terminate_backend(pg_backend_pid())");
  EXPECT_TRUE(interrupted->run().error().connection_lost);
  testing::TestLoop loop;
  EXPECT_EQ(refusal({.url = server().url(), .loop = loop, .schema = "half"}), "opened");
}

AE_TEST("postgres_schema/a migrated store has the same schema as a new one") {
  const auto dump = [](const std::string& database) {
    std::istringstream lines(
        server().run("pg_dump", {"--schema-only", "--no-owner", "-d", server().url(database)}));
    std::string text, group;
    while (std::getline(lines, group)) {
      if (!group.contains("restrict ")) text += group + "\n";  // followed by a random word
    }
    return text;
  };
  for (const char* database : {"fresh", "migrated"}) {
    server().create_database(database);
    auto connection = postgres::Connection::open({.url = server().url(database)});
    ASSERT_TRUE(connection);
    ASSERT_TRUE(postgres::prepare_session(*connection, {.schema = "aetheris"}));
    const std::int64_t first = database == std::string("fresh") ? postgres::newest_layout() : 1;
    for (std::int64_t layout = first; layout <= postgres::newest_layout(); ++layout) {
      ASSERT_TRUE(postgres::prepare_schema(*connection, "aetheris", layout));
    }
  }
  const std::string fresh = dump("fresh");
  EXPECT_PRED2(has_text, fresh, "CREATE TABLE aetheris.heads");
  EXPECT_EQ(fresh, dump("migrated"));
}

// The kind is computed in C++ for new jobs, and in SQL for existing ones.
AE_TEST("postgres_schema/a migration gives existing jobs the kind of new ones") {
  server().create_database("kinds");
  testing::TestLoop loop;
  auto connection = postgres::Connection::open({.url = server().url("kinds")});
  ASSERT_TRUE(connection);
  ASSERT_TRUE(postgres::prepare_session(*connection, {.schema = "aetheris"}));
  ASSERT_TRUE(postgres::prepare_schema(*connection, "aetheris", 2));
  const auto add = [&](int number, const std::string& status, const std::string& needs) {
    sql(fmt::format(
            "INSERT INTO jobs VALUES({0}, 'j{0}', 'a', '', '\\x00'::bytea, 0, '{1}', 0);"
            "INSERT INTO heads VALUES({0}, 2, 0, '\\x00'::bytea, 0, 0, NULL, NULL, NULL, NULL, "
            "true, '{2}', NULL, NULL, 'default', '')",
            number, needs, status),
        "aetheris", server().url("kinds"));
  };
  add(1, "queued", "{}");
  add(2, "queued", "{eu,gpu}");
  add(3, "completed", "{eu,gpu}");
  ASSERT_TRUE(postgres::prepare_schema(*connection, "aetheris", postgres::newest_layout()));
  connection->add_unprepared("SELECT kind FROM heads ORDER BY job");
  const auto kinds = connection->run();
  ASSERT_TRUE(kinds);
  EXPECT_EQ(kinds->at(0).bytes(0, 0), postgres::kind_of("a", {}));
  EXPECT_EQ(kinds->at(0).bytes(1, 0), postgres::kind_of("a", {"eu", "gpu"}));
  EXPECT_EQ(kinds->at(0).bytes(2, 0), "") << "it is never claimed again";
}

// A process that was started before the migration goes on with its prepared statements.
AE_TEST("postgres_schema/a process of an older layout neither claims nor appends") {
  const OwnSchema schema;
  for (const char* old : {"UPDATE heads SET epoch = epoch + 1, attempt = 'B', worker = 'w'",
                          "UPDATE heads SET last_seq = 3, updated_at = 0, head = ''",
                          "SELECT last_seq, worker FROM heads"}) {
    auto connection = postgres::Connection::open({.url = server().url()});
    ASSERT_TRUE(connection);
    ASSERT_TRUE(postgres::prepare_session(*connection, {.schema = schema.name()}));
    connection->add_unprepared(old);
    const auto done = connection->run();
    ASSERT_FALSE(done) << old;
    EXPECT_EQ(done.error().sqlstate, "42703") << old;
  }
}

// ---------------------------------------------------------------- cost

// Completed jobs, inserted directly by SQL.
void add_history(const std::string& schema, int jobs) {
  sql(fmt::format(
          "DELETE FROM heads WHERE status = 'completed'; DELETE FROM commits; "
          "DELETE FROM log_ends USING jobs WHERE number = job AND job_id LIKE 'old%'; "
          "DELETE FROM jobs WHERE job_id LIKE 'old%';"
          "INSERT INTO jobs SELECT nextval('job_numbers'), 'old' || n, 'a', '', "
          "'\\x00'::bytea, 0, '{{}}', n FROM generate_series(1, {}) AS n;"
          "INSERT INTO heads SELECT number, 0, 1, NULL, NULL, NULL, NULL, "
          "false, 'completed', NULL, NULL, 'default', '' FROM jobs WHERE job_id LIKE 'old%';"
          "INSERT INTO log_ends SELECT number, NULL, 2, 0, '\\x00'::bytea FROM jobs "
          "WHERE job_id LIKE 'old%';"
          "INSERT INTO commits SELECT number, 1, 2, NULL, '\\x00'::bytea FROM jobs "
          "WHERE job_id LIKE 'old%'",
          jobs),
      schema);
}

std::string plan_of(postgres::Connection& connection, const postgres::Statement& statement) {
  std::string types;  // every parameter is NULL: the plan is the generic one
  for (int i = 1; std::string(statement.sql).contains(fmt::format("${}", i)); ++i) {
    types += (i == 1 ? "NULL" : ", NULL");
  }
  const std::string name = fmt::format("explained_{}", statement.name);
  connection.add_unprepared("DEALLOCATE ALL");
  connection.add_unprepared(fmt::format("PREPARE {} AS {}", name, statement.sql));
  connection.add_unprepared(
      fmt::format("EXPLAIN EXECUTE {}{}", name, types.empty() ? "" : fmt::format("({})", types)));
  auto answers = connection.run();
  if (!answers) return answers.error().text();
  std::string plan;
  for (int i = 0; i < answers->at(2).size(); ++i) plan += answers->at(2).text(i, 0) + "\n";
  return plan;
}

// Number of buffer pages that a statement reads; it is rolled back.
std::int64_t pages_of(postgres::Connection& connection, const postgres::Statement& statement,
                      const std::string& values) {
  const std::string name = fmt::format("measured_{}", statement.name);
  connection.add_unprepared("DEALLOCATE ALL");
  connection.add_unprepared(fmt::format("PREPARE {} AS {}", name, statement.sql));
  connection.add_unprepared("BEGIN");
  connection.add_unprepared(fmt::format("EXPLAIN (ANALYZE, BUFFERS, TIMING OFF) EXECUTE {}{}", name,
                                        values.empty() ? "" : fmt::format("({})", values)));
  connection.add_unprepared("ROLLBACK");
  const auto answers = connection.run();
  AE_CHECK(answers.has_value(), answers.error().text());
  const postgres::Rows& plan = answers->at(3);
  for (int i = 0; i < plan.size(); ++i) {
    const std::string group = plan.text(i, 0);
    if (!group.contains("Buffers: shared")) continue;  // the first line is the total
    std::int64_t pages = 0;
    for (const char* identity : {"hit=", "read="}) {
      if (const std::size_t at = group.find(identity); at != group.npos) {
        pages += std::stoll(group.substr(at + std::string_view(identity).size()));
      }
    }
    return pages;
  }
  return 0;
}

const postgres::Statement& named(const std::vector<postgres::Statement>& statements,
                                 std::string_view name) {
  const auto found = std::ranges::find(statements, name, &postgres::Statement::name);
  AE_CHECK(found != statements.end(), name);
  return *found;
}

// Costs of the statements of a claim for one job of agent `a`. Other activity of the server
// (autovacuum, catalog changes) only increases them, so the minimum of several measurements is
// used.
std::map<std::string, std::int64_t> pages_of_claims(const std::string& schema) {
  const auto statements = postgres::claim_statements();
  const std::map<std::string, std::string> values = {
      {"make_delayed_eligible", "NULL"},
      {"make_expired_eligible", "NULL"},
      {"claim_ready", "NULL, '{a}', '{}', '{}', 1, '{x}', 'w', 1000"},
      {"ready_groups", "'{a}', '{}'"}};
  std::map<std::string, std::int64_t> pages;
  for (int round = 0; round < 3; ++round) {
    auto connection = postgres::Connection::open({.url = server().url()});
    AE_CHECK(connection.has_value());
    AE_CHECK(postgres::prepare_session(*connection, {.schema = schema}).has_value());
    // Deleted rows of earlier tests would add to the first measurement.
    connection->add_unprepared("VACUUM heads");
    AE_CHECK(connection->run().has_value());
    const auto measure = [&](const postgres::Statement& statement, const std::string& with) {
      const std::int64_t now = pages_of(*connection, statement, with);
      const auto [before, first] = pages.emplace(statement.name, now);
      if (!first) before->second = std::min(before->second, now);
    };
    for (const auto& [name, with] : values) measure(named(statements, name), with);
    for (const postgres::Statement& timer : postgres::timer_statements()) {
      measure(timer, std::string(timer.sql).contains("$2") ? "NULL, 1" : "NULL");
    }
  }
  return pages;
}

// On a slow machine, autovacuum could collect statistics during a test and change the server's
// plans.
void disable_autovacuum(const std::string& schema) {
  sql("ALTER TABLE jobs SET (autovacuum_enabled = false);"
      "ALTER TABLE heads SET (autovacuum_enabled = false);"
      "ALTER TABLE log_ends SET (autovacuum_enabled = false);"
      "ALTER TABLE commits SET (autovacuum_enabled = false)",
      schema);
}

// Ready jobs with a higher priority that a worker of agent `a` may not run: another agent, or a
// capability.
void add_crowd(const std::string& schema, int jobs) {
  sql(fmt::format(
          "INSERT INTO jobs SELECT nextval('job_numbers'), 'crowd' || n, "
          "CASE WHEN n % 2 = 0 THEN 'other' ELSE 'a' END, '', '\\x00'::bytea, 5, "
          "CASE WHEN n % 2 = 0 THEN '{{}}'::text[] ELSE '{{gpu}}' END, n "
          "FROM generate_series(1, {}) AS n;"
          "INSERT INTO log_ends SELECT number, NULL, 2, 0, '\\x00'::bytea FROM jobs "
          "WHERE job_id LIKE 'crowd%';"
          "INSERT INTO heads SELECT number, 5, 0, NULL, NULL, NULL, NULL, true, 'queued', NULL, "
          "NULL, 'default', '', substring(sha256(convert_to(agent, 'UTF8') "
          "|| "
          "'\\x00'::bytea || convert_to(array_to_string(capabilities, chr(10)), 'UTF8')) FOR 16) "
          "FROM jobs WHERE job_id LIKE 'crowd%'",
          jobs),
      schema);
}

AE_TEST("postgres_cost/the cost of a claim does not grow with jobs of other workers") {
  const auto pages = [](int crowd) {
    const OwnSchema schema;
    PostgresFixture fixture(schema.name());
    EXPECT_TRUE(fixture.open());
    disable_autovacuum(schema.name());
    add_crowd(schema.name(), crowd);
    EXPECT_TRUE(fixture.commit(PostgresFixture::create("ours")));
    return pages_of_claims(schema.name());
  };
  const auto few = pages(20), many = pages(2000);
  for (const auto& [statement, scanned] : few) {
    // A B-tree with 2,000 entries is one level higher than one with 20.
    EXPECT_LE(many.at(statement), scanned * 2 + 4) << statement;
  }
}

// A locked row shows its locker in xmax.
AE_TEST("postgres_cost/a claim with queue limits locks only the jobs that it claims") {
  const OwnSchema schema;
  PostgresFixture fixture(schema.name());
  ASSERT_TRUE(fixture.open());
  add_crowd(schema.name(), 100);
  for (int i = 0; i < 4; ++i) {
    for (const char* queue : {"q", "r"}) {
      ASSERT_TRUE(
          fixture.commit(PostgresFixture::create(queue + std::to_string(i), {.queue = queue})));
    }
  }
  ClaimRequest request = conformance::ConformanceFixture::claim_request("A", 3);
  request.agents = {"a"};
  request.queues = {{"q", 2}};
  const auto leases = fixture.loop.await<Result<std::vector<Lease>>>(
      [&](auto done) { fixture.store().claim(request, std::move(done)); });
  ASSERT_TRUE(leases && leases->size() == 3);
  EXPECT_EQ(sql("SELECT count(*) FROM heads WHERE ready", schema.name())[1].integer(0, 0), 105);
  EXPECT_EQ(
      sql("SELECT count(*) FROM heads WHERE ready AND xmax::text <> '0'", schema.name())[1].integer(
          0, 0),
      0);
}

// The best job is locked by another transaction: the next one is claimed instead, without waiting.
AE_TEST("postgres/a claim skips a job locked by another transaction, also with queue limits") {
  const OwnSchema schema;
  PostgresFixture fixture(schema.name());
  ASSERT_TRUE(fixture.open());
  for (const char* id : {"j0", "j1", "j2"})
    ASSERT_TRUE(fixture.commit(PostgresFixture::create(id)));
  auto other = postgres::Connection::open({.url = server().url()});
  ASSERT_TRUE(other);
  for (const bool limited : {false, true}) {
    other->add_unprepared("BEGIN");
    other->add_unprepared(fmt::format(
        "SELECT 1 FROM {}.heads WHERE ready ORDER BY job LIMIT 1 FOR UPDATE", schema.name()));
    ASSERT_TRUE(other->run());
    ClaimRequest request = conformance::ConformanceFixture::claim_request("A");
    if (limited) request.queues = {{"elsewhere", 1}};
    const auto leases = fixture.loop.await<Result<std::vector<Lease>>>(
        [&](auto done) { fixture.store().claim(request, std::move(done)); });
    ASSERT_TRUE(leases && leases->size() == 1);
    EXPECT_EQ(leases->at(0).job.text, limited ? "j2" : "j1");
    other->add_unprepared("ROLLBACK");
    ASSERT_TRUE(other->run());
  }
}

AE_TEST("postgres_cost/the cost of a redaction does not grow with the number of jobs") {
  const OwnSchema schema;
  PostgresFixture fixture(schema.name());
  ASSERT_TRUE(fixture.open());
  const auto pages = [&](int history) {
    add_history(schema.name(), history);
    Batch job = PostgresFixture::create(fmt::format("new{}", history));
    job.sealed->blobs = {conformance::blob("value")};
    EXPECT_TRUE(fixture.commit(job));
    auto connection = postgres::Connection::open({.url = server().url()});
    AE_CHECK(connection.has_value());
    AE_CHECK(postgres::prepare_session(*connection, {.schema = schema.name()}).has_value());
    const std::string value =
        fmt::format("ARRAY['\\x{}'::bytea]", to_hex(conformance::blob("value").hash));
    const std::string newest =
        std::to_string(sql("SELECT max(number) FROM jobs", schema.name())[1].integer(0, 0));
    std::map<std::string, std::int64_t> scanned;
    for (const postgres::Statement& statement : postgres::redaction_statements()) {
      const bool of_job = std::string(statement.sql).contains("$2");
      scanned[statement.name] =
          pages_of(*connection, statement, of_job ? fmt::format("{}, {}", newest, value) : value);
    }
    return scanned;
  };
  const auto few = pages(20), many = pages(2000);
  EXPECT_EQ(few.size(), 3u);
  for (const auto& [statement, scanned] : few) {
    EXPECT_GT(scanned, 0) << statement;
    EXPECT_LE(many.at(statement), scanned * 2 + 8) << statement;
  }
}

AE_TEST("postgres_cost/the cost of claims and timers does not grow with finished jobs") {
  const OwnSchema schema;
  PostgresFixture fixture(schema.name());
  ASSERT_TRUE(fixture.open());
  disable_autovacuum(schema.name());
  ASSERT_TRUE(fixture.commit(PostgresFixture::create("new")));
  for (int i = 0; i < 40; ++i) {
    ASSERT_TRUE(fixture.commit(PostgresFixture::create_claimed(fmt::format("held{}", i))));
  }
  add_history(schema.name(), 20);
  const auto few = pages_of_claims(schema.name());
  add_history(schema.name(), 2000);
  const auto many = pages_of_claims(schema.name());
  for (const auto& [statement, scanned] : few) {
    EXPECT_LE(many.at(statement), scanned * 2 + 4) << statement;
  }
  auto connection = postgres::Connection::open({.url = server().url()});
  ASSERT_TRUE(connection);
  ASSERT_TRUE(postgres::prepare_session(*connection, {.schema = schema.name()}));
  for (const bool analyzed : {false, true}) {
    if (analyzed) sql("ANALYZE", schema.name());
    // Each statement uses one of the small indexes.
    const std::map<std::string, std::string> ways = {
        {"make_delayed_eligible", "heads_delayed"},
        {"make_expired_eligible", "heads_leased"},
        {"claim_ready", "Scan using heads_ready"},
        {"ready_groups", "Scan using heads_line"},
        {"lock_chosen", "Scan using heads_pkey"},
        {"count_leased_of_queue", "Scan using heads_held"},
        {"priority_below", "Scan using heads_line"},
        {"first_fairness_key", "Scan using heads_line"},
        {"fairness_key_after", "Scan using heads_line"},
        {"job_after", "Scan using heads_line"},
        {"due", "Scan using heads_wake"},
        {"next_due", "Scan using heads_wake"},
        {"count_by_status", "Scan using heads_status"},
        {"count_ready_by_queue", "Scan using heads_"},
        {"count_leased_by_worker", "Scan using heads_held"},
        {"read_announcements", "using workers_pkey"}};
    auto statements = postgres::claim_statements();
    const auto timers = postgres::timer_statements();
    statements.insert(statements.end(), timers.begin(), timers.end());
    const auto numbers = postgres::job_stats_statements();
    statements.insert(statements.end(), numbers.begin(), numbers.end());
    EXPECT_EQ(statements.size(), ways.size());
    for (const postgres::Statement& statement : statements) {
      const std::string plan = plan_of(*connection, statement);
      EXPECT_PRED2(has_text, plan, ways.at(statement.name));
      EXPECT_FALSE(plan.contains("Seq Scan")) << statement.name << "\n" << plan;
    }
  }
  sql("TRUNCATE jobs, heads, commits", schema.name());
}

}  // namespace
}  // namespace ae::store
