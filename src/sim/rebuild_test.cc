// Derived rows can be rebuilt from the logs: the rebuilt rows equal the original ones.
//
// Method: a world of random jobs is stopped while it works, and its file is copied. In the copy,
// everything that is derived (docs/data.md) is dropped, damaged or mixed up, then rebuilt, and all
// tables are compared byte by byte.
#include "runtime/service/rebuild.h"

#include <fmt/core.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <set>
#include <utility>

#include "sim/users.h"
#include "sim/workload.h"
#include "sim/world.h"
#include "store/sqlite/database.h"
#include "store/sqlite/sqlite_rebuild.h"
#include "store/sqlite/sqlite_store.h"
#include "testing/test.h"

namespace ae::sim {
namespace {

using namespace std::chrono_literals;
using store::sqlite::Database;
using store::sqlite::Rows;

constexpr Instant kNow{4'000'000'000'000'000};  // after all timers of a world

class Folder {
 public:
  Folder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "aetheris-sim-XXXXXX").string();
    AE_CHECK(::mkdtemp(pattern.data()) != nullptr, pattern);
    path_ = pattern;
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string operator/(const char* name) const { return fmt::format("{}/{}", path_, name); }

 private:
  std::string path_;
};

template <class T>
T expect_ok(store::sqlite::Sql<T> answer) {
  AE_CHECK(answer.has_value(), answer ? "" : answer.error().text());
  if constexpr (!std::is_void_v<T>) return *std::move(answer);
}

void run_sql(const std::string& path, const std::vector<std::string>& statements) {
  Database db = expect_ok(Database::open({.path = path}));
  for (const std::string& sql : statements) expect_ok(db.execute(sql.c_str()));
}

std::vector<std::string> texts(Database& db, const std::string& sql) {
  std::vector<std::string> all;
  auto statement = expect_ok(db.prepare(sql));
  for (Rows row(statement); expect_ok(row.next());) all.push_back(row->text(0));
  return all;
}

// All rows of all tables, as SQL writes them, except for the audit log, which records the rebuild.
using Dump = std::map<std::string, std::vector<std::string>>;
Dump dump(const std::string& path) {
  Database db = expect_ok(Database::open({.path = path, .read_only = true}));
  Dump all;
  for (const std::string& table : texts(
           db, "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite%'")) {
    std::string row;
    for (const std::string& column :
         texts(db, fmt::format("SELECT name FROM pragma_table_info('{}') ORDER BY cid", table))) {
      row += fmt::format("{0}{1}=' || quote({1})", row.empty() ? "'" : " || ' ", column);
    }
    if (table == "audit") continue;
    const std::string where = table == "meta" ? " WHERE key <> 'audit_head'" : "";
    all[table] = texts(db, fmt::format("SELECT {} FROM {}{} ORDER BY 1", row, table, where));
  }
  return all;
}

// Runs a world, stops it while it works, and writes it to a file.
void make_history(std::uint64_t seed, PlanBook& plans, const std::string& to) {
  SimRandom random(seed);
  SimWorld world(
      {.seed = seed,
       .workers = 2,
       .owned = false,
       .sqlite = true,
       .durability = {seed % 2 == 0 ? runtime::Durability::fused : runtime::Durability::split},
       .odds = {.refused = 10, .denied = 15, .silent = 10, .late = 10, .broken = 30}});
  Users users(world, {});
  world.set_fault_plan(
      {.dies = [&](const SimProcess&, std::string_view) { return random.one_in(400); },
       .fails = {},
       .store = {},
       .died =
           [&](std::size_t worker) {
             world.loop().after(1s, [&world, worker] {
               if (!world.is_alive(worker)) world.start(worker);
             });
           }});
  for (std::size_t i = 0; i < world.workers(); ++i) world.start(i);
  for (std::uint64_t i = 0; i < 12; ++i) {
    const SimPlan& plan = plans.plan_by_number(random.below(PlanBook::kPlans));
    runtime::NewJobRequest request;
    request.job = JobId(fmt::format("job-{}", i));
    request.agent = "sim";
    request.plan = plan.plan;
    request.input = random_input(random);
    if (random.one_in(2)) request.labels = {{"team", "red"}, {"a", std::to_string(i)}};
    if (random.one_in(2)) request.idempotency_key = fmt::format("create-{}", i);
    if (random.one_in(3)) request.priority = static_cast<std::int64_t>(i) - 5;
    if (random.one_in(3)) request.queue = "narrow";
    if (random.one_in(5)) request.required_capabilities = {"a-gpu", "much-memory"};
    request.start_here = !random.one_in(3);
    for (const auto& [type, key] : plan.waits) {
      if (random.one_in(3)) continue;
      const Value payload = Value::object({{"decision", "approve"}, {"from", "first"}});
      engine::RequestBody body = engine::SignalRequest{.correlation_key = key, .payload = payload};
      if (type == "message") body = engine::MessageRequest{.channel = key, .payload = payload};
      const engine::ControlRequest sent{
          .id = "first-" + key, .by = "someone", .body = std::move(body)};
      world.loop().after(random.between(5s, 20s),
                         [&users, job = request.job, sent] { users.submit(job, sent, 5); });
    }
    if (random.one_in(6)) {
      world.loop().after(random.between(5s, 20s), [&users, job = request.job] {
        users.submit(job, {.id = "cancel", .by = "someone", .body = engine::CancelRequest{}}, 5);
      });
    }
    world.loop().after(random.between(0s, 15s), [&users, request = std::move(request)]() mutable {
      users.create(std::move(request));
    });
  }
  world.loop().run([] { return false; }, world.loop().now() + random.between(14s, 40s));
  world.freeze();
  const Status copied = store::backup_sqlite(world.disk_file(), to);
  AE_CHECK(copied.has_value(), copied ? "" : copied.error().message);
}

runtime::RebuildResult rebuild(const std::string& path, bool compare_only = false,
                               const std::string& job = "") {
  auto opened =
      store::open_sqlite_rebuild({.path = path, .compare_only = compare_only, .job = job});
  AE_CHECK(opened.has_value(), opened ? "" : opened.error().message);
  auto rebuilt =
      runtime::rebuild(**opened, [] { return kNow; }, [](const runtime::RebuildProgress&) {});
  AE_CHECK(rebuilt.has_value(), rebuilt ? "" : rebuilt.error().message);
  return *std::move(rebuilt);
}

std::string rebuild_text(const runtime::RebuildResult& rebuilt) {
  std::string text;
  for (const auto& [job, rows] : rebuilt.differing) {
    for (const auto& row : rows) {
      text += fmt::format("{} {}.{}: {}, not {}\n", job.text, row.table, row.column, row.stored,
                          row.derived);
    }
  }
  for (const auto& [job, error] : rebuilt.refused)
    text += fmt::format("{}: {}\n", job.text, error.message);
  return text;
}

// Every column that is derived from the log. Claims and epochs are not derived.
const std::vector<std::string> kDamage = {
    // Keys of other jobs, as far as they stay unique.
    "UPDATE jobs SET agent = 'nobody', idempotency_key = ''",
    "UPDATE jobs SET agent = 'sim', idempotency_key = 'create-' || (id % 12)",
    "UPDATE jobs SET ready = 9 WHERE ripe_at IS NULL",
    "UPDATE jobs SET request_hash = x'00', priority = 77 - priority, capabilities = 'no' || id, "
    "queue = 'q' || id, turn = 't' || id, "
    "created_at = id, forked_from = 'x' || id, not_before = 5, wake_at = 6 - ifnull(wake_at, 1), "
    "ripe_at = 7, "
    "status = CASE status WHEN 'completed' THEN 'running' WHEN 'waiting' THEN 'queued' "
    "ELSE 'completed' END",
    "DELETE FROM heads",
    "DELETE FROM labels",
    "UPDATE summaries SET error = 'x', kind = 'x', cost_micros = 7, changed_at = 7, body = x'00'",
    "INSERT INTO summaries VALUES(9999, '', 'plan', 0, 0, x'00')",
    "INSERT INTO labels VALUES(1, 0, 'not', 'so'), (9999, 0, 'of', 'nobody')",
    "INSERT INTO heads VALUES(9999, 1, 1, 1, 1, x'00')",
    "UPDATE commits SET first_seq = 0, last_seq = 'x', prev = id, jump = 12, blobs = x'aabb'",
};

void expect_rebuilt(std::uint64_t seed, PlanBook& plans, std::set<std::string>& statuses) {
  SCOPED_TRACE(fmt::format("seed {}", seed));
  const Folder folder;
  const std::string path = folder / "a.db";
  make_history(seed, plans, path);
  const Dump before = dump(path);
  {
    Database db = expect_ok(Database::open({.path = path, .read_only = true}));
    for (std::string& status : texts(db, "SELECT DISTINCT status FROM jobs")) {
      statuses.insert(std::move(status));
    }
  }
  const runtime::RebuildResult unchanged = rebuild(path, true);
  EXPECT_EQ(rebuild_text(unchanged), "") << "the rows that the runtime wrote follow from the logs";
  EXPECT_GT(unchanged.jobs, 0U);

  run_sql(path, kDamage);
  const Dump damaged = dump(path);
  EXPECT_NE(damaged, before);
  const runtime::RebuildResult compared = rebuild(path, true);
  EXPECT_EQ(compared.differing_jobs, unchanged.jobs);
  EXPECT_EQ(dump(path), damaged) << "a comparison writes nothing";

  const runtime::RebuildResult rebuilt = rebuild(path);
  EXPECT_EQ(rebuilt.differing_jobs, unchanged.jobs);
  EXPECT_EQ(rebuilt.refused_jobs, 0U) << rebuild_text(rebuilt);
  const Dump after = dump(path);
  for (const auto& [table, rows] : before) EXPECT_EQ(after.at(table), rows) << table;
  EXPECT_EQ(rebuild_text(rebuild(path)), "") << "a second rebuild changes nothing";
}

AE_TEST("rebuild/the rows of random jobs are rebuilt from their logs, byte for byte") {
  PlanBook plans;
  std::set<std::string> statuses;
  for (std::uint64_t seed = 1; seed <= 8; ++seed) expect_rebuilt(seed, plans, statuses);
  for (const char* status : {"queued", "running", "waiting", "parked", "completed"}) {
    EXPECT_TRUE(statuses.contains(status)) << status;
  }
}

AE_TEST_SLOW("rebuild/the rows of many random worlds are rebuilt from their logs") {
  PlanBook plans;
  std::set<std::string> statuses;
  for (std::uint64_t seed = 9; seed <= 200; ++seed) expect_rebuilt(seed, plans, statuses);
  EXPECT_EQ(statuses.size(), 7U);
}

AE_TEST("rebuild/one job can be rebuilt alone, and an uncommitted rebuild changes nothing") {
  PlanBook plans;
  const Folder folder;
  const std::string path = folder / "a.db";
  make_history(1, plans, path);
  const Dump before = dump(path);
  run_sql(path, {"UPDATE jobs SET status = 'parked', wake_at = 4, priority = priority + 1"});
  const Dump damaged = dump(path);
  {
    auto store = store::open_sqlite_rebuild({.path = path, .compare_only = false, .job = {}});
    ASSERT_TRUE(store);
    const auto job = (*store)->next_job();
    ASSERT_TRUE(job && *job);
    const auto log = (*store)->read(**job);
    ASSERT_TRUE(log);
    const BlobSource blobs = [&](const Hash& hash) { return (*store)->blob(hash); };
    const auto projection = runtime::project(*log, blobs, plans.cache());
    ASSERT_TRUE(projection);
    const auto rows = (*store)->reconcile(*projection, kNow);
    ASSERT_TRUE(rows);
    EXPECT_FALSE(rows->empty());
  }
  EXPECT_EQ(dump(path), damaged);

  const runtime::RebuildResult one = rebuild(path, false, "job-3");
  EXPECT_EQ(one.jobs, 1U);
  EXPECT_EQ(one.differing_jobs, 1U);
  const auto row_of = [](const Dump& all, const std::string& job) {
    for (const std::string& row : all.at("jobs")) {
      if (row.find(fmt::format("job_id='{}'", job)) != row.npos) return row;
    }
    return std::string();
  };
  const Dump after = dump(path);
  EXPECT_EQ(row_of(after, "job-3"), row_of(before, "job-3"));
  for (const char* other : {"job-2", "job-4"}) {
    EXPECT_EQ(row_of(after, other), row_of(damaged, other));
  }
  EXPECT_EQ(rebuild(path, false, "nobody").jobs, 0U);
}

// A log without its end must not get a row that hides the loss.
AE_TEST("rebuild/a log without its end or a commit is refused and keeps its rows") {
  PlanBook plans;
  const Folder folder;
  const std::string path = folder / "a.db";
  make_history(2, plans, path);
  run_sql(path, {"DELETE FROM commits WHERE id = (SELECT last_commit FROM heads WHERE job = 1)",
                 "UPDATE commits SET body = substr(body, 1, 20) WHERE id = (SELECT min(id) FROM "
                 "commits WHERE job = 2)"});
  const Dump cut = dump(path);
  const runtime::RebuildResult made = rebuild(path);
  EXPECT_EQ(made.refused_jobs, 2U);
  EXPECT_EQ(made.differing_jobs, 0U) << rebuild_text(made);
  for (const auto& [job, error] : made.refused) EXPECT_EQ(error.code, Code::log_corrupt);
  EXPECT_EQ(dump(path), cut);
}

AE_TEST("rebuild/a rebuild needs to own the store, a comparison does not") {
  PlanBook plans;
  const Folder folder;
  const std::string path = folder / "a.db";
  make_history(3, plans, path);
  const auto owner = store::open_sqlite_rebuild({.path = path, .compare_only = false, .job = {}});
  ASSERT_TRUE(owner);
  const auto second = store::open_sqlite_rebuild({.path = path, .compare_only = false, .job = {}});
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, Code::store_locked);
  EXPECT_TRUE(store::open_sqlite_rebuild({.path = path, .compare_only = true, .job = {}}));
  const auto none = store::open_sqlite_rebuild({.path = folder / "b.db"});
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, Code::not_found);
  EXPECT_FALSE(std::filesystem::exists(folder / "b.db"));
}

}  // namespace
}  // namespace ae::sim
