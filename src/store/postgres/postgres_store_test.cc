// The PostgreSQL driver: the conformance suite, and tests of concurrent processes.
#include <algorithm>
#include <set>
#include <thread>

#include "store/conformance_test.h"
#include "store/postgres/db_clock.h"
#include "store/postgres/hints.h"
#include "store/postgres/postgres_fixture_test.h"
#include "store/postgres/redaction.h"

namespace ae::store {
namespace {

class PostgresDriver final : public conformance::StoreDriver {
 public:
  explicit PostgresDriver(testing::TestLoop& loop) : loop_(loop) { restart(); }
  Store& store() override { return *store_; }
  void restart() override { open({}); }
  Store* fair_by(const std::string& label) override {
    open(label);
    return store_.get();
  }

 private:
  void open(std::optional<std::string> fair_by) {
    store_.reset();
    auto opened = PostgresStore::open({.url = server().url(),
                                       .loop = loop_,
                                       .schema = schema_.name(),
                                       .fair_by = std::move(fair_by),
                                       .clock = &loop_});
    AE_CHECK(opened.has_value(), opened.error().message);
    store_ = *std::move(opened);
  }

  testing::TestLoop& loop_;
  OwnSchema schema_;
  std::unique_ptr<PostgresStore> store_;
};

[[maybe_unused]] const bool registered = conformance::register_conformance(
    "store_postgres",
    [](testing::TestLoop& loop) { return std::make_unique<PostgresDriver>(loop); });

AE_TEST("postgres/leases use the database's clock") {
  const OwnSchema schema;
  PostgresFixture fixture(schema.name());
  ASSERT_TRUE(fixture.open());
  const auto database_now = [] {
    return sql("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")[1].instant(0, 0);
  };
  const Instant before = database_now();
  const auto born = fixture.commit(PostgresFixture::create_claimed("j0"));
  ASSERT_TRUE(born);
  const Instant after = database_now();
  EXPECT_GE(born->lease->lease_until, before + conformance::kLease);
  EXPECT_LE(born->lease->lease_until, after + conformance::kLease);
  // The estimate is never ahead of the database, and only slightly behind.
  const Instant store_time = fixture.store().now();
  EXPECT_LE(store_time, database_now());
  EXPECT_GE(store_time, before);
  EXPECT_FALSE(fixture.store().owned());
  ASSERT_TRUE(fixture.commit(PostgresFixture::create("j1")));
  const auto leases = fixture.claim(5);
  ASSERT_TRUE(leases);
  ASSERT_EQ(leases->size(), 1u);
  EXPECT_EQ(fixture.load("j1")->row.lease_until, leases->at(0).lease_until);
}

// A clock with settable time, to simulate a suspended machine.
class ScriptedClock final : public async::SteadyClock {
 public:
  Duration since_start() override { return time; }
  Duration time{};
};

Instant at_ms(std::int64_t ms) { return Instant{ms * 1000}; }

AE_TEST("postgres/the clock estimate is never ahead of the database and follows it back") {
  using std::chrono::milliseconds;
  ScriptedClock steady;
  postgres::DatabaseClock clock(steady);
  const auto on_response = [&](std::int64_t database_ms, int sent_ms, int received) {
    steady.shows = milliseconds(received);
    clock.on_response(at_ms(database_ms), milliseconds(sent_ms));
  };
  on_response(5000, 100'000, 100'010);
  EXPECT_EQ(clock.now(), at_ms(5000));
  EXPECT_EQ(clock.latest(), at_ms(5010));
  on_response(5019, 100'018, 100'020);  // a faster response is more exact
  EXPECT_EQ(clock.now(), at_ms(5019));
  EXPECT_EQ(clock.latest(), at_ms(5021));
  on_response(5025, 100'020, 100'040);  // a slow response is consistent with the estimate
  EXPECT_EQ(clock.now(), at_ms(5039));
  EXPECT_EQ(clock.latest(), at_ms(5045));
  on_response(3000, 100'050, 100'052);  // set back
  EXPECT_EQ(clock.now(), at_ms(3000));
  EXPECT_EQ(clock.latest(), at_ms(3002));
  on_response(2990, 100'045, 100'055);  // requested earlier: less exact for `latest`
  EXPECT_EQ(clock.latest(), at_ms(3005));
}

// A lease of 30 s is claimed; the machine is suspended for an hour at one point between the claim
// and the send. Wherever that is, the check for remaining time must fail.
AE_TEST("postgres/a suspended machine never sends after its lease has expired") {
  using std::chrono::seconds;
  constexpr int kPoints = 6;
  for (const bool has_estimate : {false, true}) {
    for (int suspended_at = 0; suspended_at <= kPoints; ++suspended_at) {
      ScriptedClock steady;
      steady.shows = seconds(100);
      std::int64_t database = 5000;  // in seconds; never suspended
      int point = 0;
      const auto pass = [&](int span) {
        steady.shows += seconds(span);
        database += span;
      };
      const auto maybe_suspend = [&] {
        if (++point == suspended_at) pass(3600);
      };
      postgres::DatabaseClock clock(steady);
      const auto request_time = [&](bool suspends) {
        const Duration sent_at = clock.before_request();
        if (suspends) maybe_suspend();  // before the request arrives
        const Instant database_time = at_ms(database * 1000);
        if (suspends) maybe_suspend();  // before the response arrives
        clock.on_response(database_time, sent_at);
        return database_time;
      };
      if (has_estimate) request_time(false);
      const Instant lease_until = request_time(true) + seconds(30);  // the claim
      maybe_suspend();                                               // before the declaration
      request_time(true);                                            // the declaration
      maybe_suspend();                                               // before the send
      const bool may_send = clock.latest() < lease_until;
      const bool lease_holds = at_ms(database * 1000) < lease_until;
      // Only a suspend before the database granted the lease does not shorten it.
      EXPECT_EQ(lease_holds, suspended_at <= 1) << suspended_at;
      EXPECT_TRUE(!may_send || lease_holds) << suspended_at << " " << has_estimate;
      EXPECT_TRUE(may_send || suspended_at != 0) << "without a suspend it may send";
      EXPECT_LE(clock.now(), at_ms(database * 1000)) << suspended_at;
      EXPECT_GE(clock.latest(), at_ms(database * 1000)) << suspended_at;
    }
  }
}

AE_TEST("postgres/query plans can be renewed before any call") {
  const OwnSchema schema;
  PostgresFixture fixture(schema.name());
  PostgresOptions options = fixture.options();
  options.plan_max_age = std::chrono::milliseconds(0);
  ASSERT_TRUE(fixture.open(options));
  for (const std::string id : {"j0", "j1", "j2"}) {
    ASSERT_TRUE(fixture.commit(PostgresFixture::create(id)));
    ASSERT_EQ(fixture.claim(1)->size(), 1u);
    ASSERT_TRUE(fixture.commit(PostgresFixture::append(id, 2, conformance::fence("B0", 1))));
    EXPECT_EQ(fixture.load(id)->commits.size(), 2u);
    EXPECT_FALSE(fixture.query()->empty());
  }
}

AE_TEST("postgres/two processes claim each job once") {
  const OwnSchema schema;
  PostgresFixture one(schema.name()), two(schema.name());
  ASSERT_TRUE(one.open());
  ASSERT_TRUE(two.open());
  constexpr int kJobs = 120;
  int pending = kJobs;
  for (int i = 0; i < kJobs; ++i) {
    one.store().commit(PostgresFixture::create("j" + std::to_string(i)),
                       [&](Result<CommitResult> answer) {
                         EXPECT_TRUE(answer);
                         --pending;
                       });
  }
  ASSERT_TRUE(one.loop.run_until([&] { return pending == 0; }));
  std::vector<std::string> claimed[2];
  const auto claim_all = [](PostgresFixture& fixture, std::vector<std::string>& into) {
    for (;;) {
      const auto leases = fixture.claim(7);
      ASSERT_TRUE(leases);
      if (leases->empty()) return;
      for (const Lease& lease : *leases) {
        into.push_back(lease.job.text);
        EXPECT_EQ(lease.fence.epoch, 1u);
      }
    }
  };
  std::thread other([&] { claim_all(two, claimed[1]); });
  claim_all(one, claimed[0]);
  other.join();
  std::set<std::string> all(claimed[0].begin(), claimed[0].end());
  all.insert(claimed[1].begin(), claimed[1].end());
  EXPECT_EQ(claimed[0].size() + claimed[1].size(), std::size_t{kJobs});
  EXPECT_EQ(all.size(), std::size_t{kJobs});
}

AE_TEST("postgres/a claim does not wait for a job locked by another transaction") {
  const OwnSchema schema;
  PostgresFixture fixture(schema.name());
  ASSERT_TRUE(fixture.open());
  ASSERT_TRUE(fixture.commit(PostgresFixture::create("j0")));
  ASSERT_TRUE(fixture.commit(PostgresFixture::create("j1")));
  auto other = postgres::Connection::open({.url = server().url()});
  ASSERT_TRUE(other);
  other->add_unprepared("BEGIN");
  other->add_unprepared("SELECT 1 FROM " + schema.name() +
                        ".heads WHERE job = (SELECT number FROM " + schema.name() +
                        ".jobs WHERE job_id = 'j0') FOR UPDATE");
  ASSERT_TRUE(other->run());
  EXPECT_EQ(conformance::show(*fixture.claim(5)).substr(0, 2), "j1");
  other->add_unprepared("ROLLBACK");
  ASSERT_TRUE(other->run());
  EXPECT_EQ(conformance::show(*fixture.claim(5)).substr(0, 2), "j0");
}

AE_TEST("postgres/a process that lost its lease to another one cannot write") {
  const OwnSchema schema;
  PostgresFixture one(schema.name(), false), two(schema.name(), false);
  ASSERT_TRUE(one.open());
  ASSERT_TRUE(two.open());
  ASSERT_TRUE(one.commit(PostgresFixture::create_claimed("j0")));
  two.loop.advance(conformance::kLease);
  ASSERT_EQ(two.claim(1)->size(), 1u);
  Batch stale = PostgresFixture::append("j0", 2);
  stale.effects = {{InvocationId("i"), 1, "{}"}};
  EXPECT_EQ(one.commit(stale).error().code, Code::stale_attempt);
  EXPECT_TRUE(two.commit(PostgresFixture::append("j0", 2, conformance::fence("B0", 2))));
  EXPECT_TRUE(one.load("j0")->effects.empty());
}

// Creates with one key, and jobs with the same blobs in opposite orders, from two processes
// concurrently.
AE_TEST("postgres/concurrent creates with the same keys and blobs succeed, one per key") {
  const OwnSchema schema;
  PostgresFixture processes[2] = {PostgresFixture(schema.name()), PostgresFixture(schema.name())};
  for (PostgresFixture& fixture : processes) ASSERT_TRUE(fixture.open());
  constexpr int kRounds = 12;
  std::vector<std::string> answers_of[2];
  const auto work = [&](int me) {
    PostgresFixture& fixture = processes[me];
    for (int round = 0; round < kRounds; ++round) {
      int pending = 4;
      std::vector<std::string> answers(4);
      for (int k = 0; k < 4; ++k) {
        const int which = me == 0 ? k : 3 - k;
        Batch b = PostgresFixture::create(
            "j" + std::to_string(me) + "-" + std::to_string(round) + "-" + std::to_string(which),
            {.agent = "a",
             .idempotency_key = "k" + std::to_string(round) + "-" + std::to_string(which)});
        b.sealed->blobs = {conformance::blob("v" + std::to_string(round) + std::to_string(which)),
                           conformance::blob("w" + std::to_string(round) + std::to_string(which))};
        fixture.store().commit(std::move(b), [&, which](Result<CommitResult> answer) {
          EXPECT_TRUE(answer) << (answer ? "" : answer.error().message);
          if (answer) {
            answers[static_cast<std::size_t>(which)] =
                answer->existing ? answer->existing->text : "mine";
          }
          --pending;
        });
      }
      EXPECT_TRUE(fixture.loop.run_until([&] { return pending == 0; }));
      answers_of[me].insert(answers_of[me].end(), answers.begin(), answers.end());
    }
  };
  std::thread other([&] { work(1); });
  work(0);
  other.join();
  ASSERT_EQ(answers_of[0].size(), answers_of[1].size());
  for (std::size_t i = 0; i < answers_of[0].size(); ++i) {
    EXPECT_NE(answers_of[0][i] == "mine", answers_of[1][i] == "mine")
        << i << ": exactly one of them created it";
  }
  EXPECT_EQ(processes[0].query({.limit = 1000})->size(), std::size_t{kRounds} * 4);
}

AE_TEST("postgres/a queue limit holds across concurrent processes") {
  const OwnSchema schema;
  PostgresFixture processes[2] = {PostgresFixture(schema.name()), PostgresFixture(schema.name())};
  for (PostgresFixture& fixture : processes) ASSERT_TRUE(fixture.open());
  for (int i = 0; i < 30; ++i) {
    ASSERT_TRUE(processes[0].commit(
        PostgresFixture::create("j" + std::to_string(i), {.agent = "a", .queue = "narrow"})));
  }
  std::vector<std::size_t> claimed(2);
  const auto work = [&](std::size_t me) {
    PostgresFixture& fixture = processes[me];
    for (int round = 0; round < 6; ++round) {
      ClaimRequest request = conformance::ConformanceFixture::claim_request(
          "A" + std::to_string(me) + std::to_string(round), 2);
      request.queues = {{"narrow", 5}};
      const auto leases = fixture.loop.await<Result<std::vector<Lease>>>(
          [&](auto done) { fixture.store().claim(request, std::move(done)); });
      ASSERT_TRUE(leases) << leases.error().message;
      claimed[me] += leases->size();
      const auto one = fixture.loop.await<Result<std::optional<Lease>>>([&](auto done) {
        fixture.store().claim_job(JobId("j" + std::to_string(29 - round)), request,
                                  std::move(done));
      });
      ASSERT_TRUE(one) << one.error().message;
      claimed[me] += one->has_value() ? 1 : 0;
    }
  };
  std::thread other([&] { work(1); });
  work(0);
  other.join();
  EXPECT_EQ(claimed[0] + claimed[1], 5u);
}

// One process deletes a blob that another is about to reference: the blob exists for that other
// job.
AE_TEST("postgres/a blob dropped while another job stores it is kept for that job") {
  const OwnSchema schema;
  PostgresFixture processes[2] = {PostgresFixture(schema.name()), PostgresFixture(schema.name())};
  for (PostgresFixture& fixture : processes) ASSERT_TRUE(fixture.open());
  for (int round = 0; round < 20; ++round) {
    const std::string n = std::to_string(round);
    const Blob value = conformance::blob("value " + n);
    Batch first = PostgresFixture::create("a" + n);
    first.row.status = "completed";
    first.sealed->blobs = {value};
    ASSERT_TRUE(processes[0].commit(first));
    Redaction drop{.job = JobId("a" + n)};
    drop.commits = {{.first_seq = 1,
                     .expected_hash = sha256(first.sealed->bytes),
                     .bytes = "left",
                     .blobs = {}}};
    drop.audit = {.at = {}, .by = "me", .act = "redact", .job = drop.job, .detail = {}};
    Batch second = PostgresFixture::create("b" + n);
    second.sealed->blobs = {value};
    std::thread other([&] { EXPECT_TRUE(processes[1].commit(second)); });
    const auto dropped = processes[0].loop.await<Result<void>>(
        [&](auto done) { processes[0].store().redact(drop, std::move(done)); });
    other.join();
    ASSERT_TRUE(dropped) << dropped.error().message;
    ASSERT_EQ(processes[0].load("b" + n)->blobs.size(), 1u) << n;
    ASSERT_TRUE(processes[0].load("a" + n)->blobs.empty());
  }
}

Redaction redaction_of(const std::string& id, const SealedBatch& stored) {
  Redaction drop{.job = JobId(id)};
  drop.commits = {{.first_seq = stored.first_seq,
                   .expected_hash = sha256(stored.bytes),
                   .bytes = "left",
                   .blobs = {}}};
  drop.audit = {.at = {}, .by = "me", .act = "redact", .job = drop.job, .detail = {}};
  return drop;
}

// The commits are read and the blobs are not: reading them waits for a lock that the redaction
// holds to its end.
AE_TEST("postgres/a load during a redaction returns the redacted job") {
  const OwnSchema schema;
  PostgresFixture fixture(schema.name());
  ASSERT_TRUE(fixture.open());
  Batch job = PostgresFixture::create("j0");
  job.row.status = "completed";
  job.sealed->blobs = {conformance::blob("value")};
  ASSERT_TRUE(fixture.commit(job));
  auto other = postgres::Connection::open({.url = server().url()});
  ASSERT_TRUE(other);
  ASSERT_TRUE(postgres::prepare_session(*other, {.schema = schema.name()}));
  other->add_unprepared("BEGIN");
  other->add_unprepared("LOCK TABLE blobs IN ACCESS EXCLUSIVE MODE");
  ASSERT_TRUE(other->run());
  std::optional<Result<LoadedJob>> read;
  fixture.store().load(JobId("j0"), 1, [&](Result<LoadedJob> loaded) { read = std::move(loaded); });
  const auto waits = [&] {
    return sql("SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'blobs'::regclass",
               schema.name())[1]
               .integer(0, 0) > 0;
  };
  while (!waits()) std::this_thread::yield();
  const auto dropped = postgres::redact(*other, redaction_of("j0", *job.sealed));
  ASSERT_TRUE(dropped && *dropped);
  ASSERT_TRUE(fixture.loop.run_until([&] { return read.has_value(); }));
  ASSERT_TRUE(*read) << read->error().message;
  EXPECT_EQ((*read)->commits, std::vector<std::string>{"left"});
  EXPECT_TRUE((*read)->blobs.empty());

  Batch damaged = PostgresFixture::create("j1");
  damaged.sealed->blobs = {conformance::blob("another")};
  ASSERT_TRUE(fixture.commit(damaged));
  sql("DELETE FROM blobs", schema.name());
  const auto found = fixture.load("j1");
  ASSERT_TRUE(found) << "a missing blob is reported when the commit is decoded";
  EXPECT_EQ(found->commits.size(), 1u);
  EXPECT_TRUE(found->blobs.empty());
}

// Number of references that are in `value_uses` but in no commit, or the other way round, compared
// with an index built from all commits.
std::int64_t wrong_uses(const std::string& schema) {
  const std::string fresh =
      "SELECT job, substring(blobs FROM 1 + 32 * n FOR 32) AS hash FROM commits CROSS JOIN LATERAL "
      "generate_series(0, length(blobs) / 32 - 1) AS n WHERE blobs IS NOT NULL";
  const std::string listed = "SELECT job, hash FROM value_uses";
  return sql("SELECT count(*) FROM ((" + fresh + " EXCEPT " + listed + ") UNION ALL (" + listed +
                 " EXCEPT " + fresh + ")) AS wrong",
             schema)[1]
      .integer(0, 0);
}

AE_TEST("postgres/a redaction keeps exactly the blobs that are still referenced") {
  const OwnSchema schema;
  PostgresFixture fixture(schema.name());
  ASSERT_TRUE(fixture.open());
  Batch born = PostgresFixture::create_claimed("j0");
  born.sealed->blobs = {conformance::blob("own"), conformance::blob("twice"),
                        conformance::blob("shared")};
  ASSERT_TRUE(fixture.commit(born));
  Batch more = PostgresFixture::append("j0", 2);
  more.sealed->blobs = {conformance::blob("twice")};
  more.row.status = "completed";
  more.release = true;
  ASSERT_TRUE(fixture.commit(more));
  Batch other = PostgresFixture::create("j1");
  other.sealed->blobs = {conformance::blob("shared")};
  other.row.status = "completed";
  ASSERT_TRUE(fixture.commit(other));
  const auto redact = [&](const Redaction& drop) {
    return fixture.loop.await<Result<void>>(
        [&](auto done) { fixture.store().redact(drop, std::move(done)); });
  };
  const auto stored = [&] {
    const auto rows =
        sql("SELECT convert_from(bytes, 'UTF8') FROM blobs ORDER BY 1", schema.name());
    std::string all;
    for (int i = 0; i < rows[1].size(); ++i) all += rows[1].text(i, 0) + " ";
    return all;
  };
  EXPECT_EQ(wrong_uses(schema.name()), 0);
  ASSERT_TRUE(redact(redaction_of("j0", *born.sealed)));
  EXPECT_EQ(stored(), "shared twice ");
  EXPECT_EQ(wrong_uses(schema.name()), 0);
  // An obsolete reference left by an older version does not count.
  Batch last = PostgresFixture::create("j2");
  last.sealed->blobs = {conformance::blob("last")};
  last.row.status = "completed";
  ASSERT_TRUE(fixture.commit(last));
  sql("INSERT INTO value_uses SELECT other.number, hash FROM value_uses, jobs AS ours, jobs AS "
      "other WHERE ours.job_id = 'j2' AND ours.number = value_uses.job AND other.job_id = 'j1'",
      schema.name());
  EXPECT_EQ(wrong_uses(schema.name()), 1);
  ASSERT_TRUE(redact(redaction_of("j2", *last.sealed)));
  EXPECT_EQ(stored(), "shared twice ");
}

std::string erasure_report(PostgresFixture& fixture) {
  const auto residual_copies = fixture.loop.await<Result<std::vector<ResidualCopy>>>(
      [&](auto done) { fixture.store().erase_dropped_values(std::move(done)); });
  if (!residual_copies) return residual_copies.error().message;
  std::string all;
  for (const ResidualCopy& copy : *residual_copies) all += copy.where + ": " + copy.why + "\n";
  return all;
}

AE_TEST("postgres/erasure rewrites tables and reports a blocked one instead of waiting") {
  const OwnSchema schema;
  PostgresFixture fixture(schema.name());
  PostgresOptions options = fixture.options();
  ASSERT_TRUE(fixture.open(options));
  const auto file = [&] {
    return sql("SELECT pg_relation_filenode('commits')::bigint", schema.name())[1].integer(0, 0);
  };
  const std::int64_t before = file();
  ASSERT_TRUE(fixture.commit(PostgresFixture::create("j0")));
  EXPECT_FALSE(erasure_report(fixture).contains("old rows"));
  EXPECT_NE(file(), before) << "the table was rewritten";
  // A long read of a table, as by pg_dump.
  auto other = postgres::Connection::open({.url = server().url()});
  ASSERT_TRUE(other);
  other->add_unprepared("SET search_path = " + schema.name());
  other->add_unprepared("BEGIN");
  other->add_unprepared("LOCK TABLE commits IN ACCESS SHARE MODE");
  ASSERT_TRUE(other->run());
  std::optional<Result<std::vector<ResidualCopy>>> residual_copies;
  fixture.store().erase_dropped_values([&](auto answer) { residual_copies = std::move(answer); });
  for (int i = 1; !residual_copies; ++i)
    ASSERT_TRUE(fixture.commit(PostgresFixture::create("j" + std::to_string(i))));
  ASSERT_TRUE(*residual_copies) << residual_copies->error().message;
  ASSERT_EQ((*residual_copies)->size(), 2u);
  EXPECT_EQ((**residual_copies)[1].where,
            "old rows in the pages of \"" + schema.name() + "\".commits");
  other->add_unprepared("COMMIT");
  ASSERT_TRUE(other->run());
  EXPECT_FALSE(erasure_report(fixture).contains("old rows"));
  // Rows that an older transaction still sees are not removed.
  other->add_unprepared("BEGIN ISOLATION LEVEL REPEATABLE READ");
  other->add_unprepared("SELECT 1");
  ASSERT_TRUE(other->run());
  EXPECT_TRUE(erasure_report(fixture).contains("process " + std::to_string(other->backend_pid())));
  other->add_unprepared("COMMIT");
  ASSERT_TRUE(other->run());
  options.rewrite_bytes = 8192;
  ASSERT_TRUE(fixture.open(options));
  EXPECT_TRUE(erasure_report(fixture).contains("too large"));
}

AE_TEST("postgres/a new fairness label changes no ended job") {
  const OwnSchema schema;
  PostgresFixture fixture(schema.name());
  ASSERT_TRUE(fixture.open());
  for (const char* status : {"queued", "waiting", "completed", "failed", "cancelled"}) {
    Batch job = PostgresFixture::create(status, {.labels = {{"tenant", "red"}}});
    job.row.status = status;
    ASSERT_TRUE(fixture.commit(job));
  }
  const auto rows = [&] {
    return sql("SELECT status, turn, ctid::text FROM heads ORDER BY status", schema.name());
  };
  const auto before = rows();
  PostgresOptions options = fixture.options();
  options.fair_by = "tenant";
  ASSERT_TRUE(fixture.open(options));
  const auto after = rows();
  ASSERT_EQ(after[1].size(), 5);
  for (int i = 0; i < 5; ++i) {
    const std::string status = after[1].text(i, 0);
    const bool is_unended = status == "queued" || status == "waiting";
    EXPECT_EQ(after[1].text(i, 1), is_unended ? "red" : "") << status;
    EXPECT_EQ(after[1].text(i, 2) != before[1].text(i, 2), is_unended) << status;
  }
}

AE_TEST("postgres/concurrent commits are grouped into few transactions") {
  const OwnSchema schema;
  PostgresFixture fixture(schema.name());
  ASSERT_TRUE(fixture.open());
  int pending = 1000;
  for (int i = 0; i < 1000; ++i) {
    fixture.store().commit(PostgresFixture::create("j" + std::to_string(i)),
                           [&](Result<CommitResult> answer) {
                             EXPECT_TRUE(answer);
                             --pending;
                           });
  }
  ASSERT_TRUE(fixture.loop.run_until([&] { return pending == 0; }));
  EXPECT_EQ(fixture.store().stats().writes, 1000u);
  EXPECT_LT(fixture.store().stats().groups, 100u);
}

AE_TEST("postgres/a large batch and a long log are stored and loaded unchanged") {
  const OwnSchema schema;
  PostgresFixture fixture(schema.name());
  ASSERT_TRUE(fixture.open());
  Batch b = PostgresFixture::create_claimed("j0");
  b.sealed->bytes.append(3u << 20, 'x');
  b.sealed->blobs.push_back({sha256("big"), std::string(16u << 20, 'b')});
  ASSERT_TRUE(fixture.commit(b));
  for (std::uint64_t seq = 2; seq < 8; ++seq) {
    Batch more = PostgresFixture::append("j0", seq);
    more.sealed->bytes.append(1u << 20, 'y');
    ASSERT_TRUE(fixture.commit(more));
    EXPECT_TRUE(fixture.commit(more)->is_duplicate);
  }
  const auto loaded = fixture.load("j0");
  ASSERT_EQ(loaded->commits.size(), 7u);
  EXPECT_EQ(loaded->commits[0], b.sealed->bytes);
  EXPECT_EQ(loaded->blobs.at(0).bytes.size(), 16u << 20);
}

AE_TEST("postgres/text that cannot be stored is refused without affecting other commits") {
  const OwnSchema schema;
  PostgresFixture fixture(schema.name());
  ASSERT_TRUE(fixture.open());
  Batch bad =
      PostgresFixture::create("j0", {.agent = "a", .labels = {{"k", std::string("a\0b", 3)}}});
  EXPECT_EQ(fixture.commit(bad).error().code, Code::input_invalid);
  // A batch that only the server can refuse is refused alone.
  Batch worse = PostgresFixture::create("j1", {.agent = "a", .labels = {{"k", "\xff"}}});
  std::string answers;
  for (Batch batch : {PostgresFixture::create("j2"), worse, PostgresFixture::create("j3")}) {
    fixture.store().commit(std::move(batch), [&](Result<CommitResult> answer) {
      answers += conformance::show(answer) + ";";
    });
  }
  ASSERT_TRUE(fixture.loop.run_until([&] { return std::ranges::count(answers, ';') == 3; }));
  EXPECT_EQ(answers, "seq 2;unavailable;seq 2;");
}

AE_TEST("postgres/a read-only store reads the commits of others and refuses writes") {
  const OwnSchema schema;
  PostgresFixture owner(schema.name()), reader(schema.name() + "x");
  PostgresOptions reading = reader.options();
  reading.read_only = true;
  EXPECT_EQ(reader.open(reading).error().code, Code::not_found) << "and creates no tables";
  EXPECT_EQ(reader.open(reading).error().code, Code::not_found);
  reading.schema = schema.name();
  ASSERT_TRUE(owner.open());
  ASSERT_TRUE(owner.commit(PostgresFixture::create_claimed("j0")));
  ASSERT_TRUE(reader.open(reading));
  EXPECT_EQ(reader.load("j0")->row.claim, conformance::fence("A", 1));
  EXPECT_EQ(reader.commit(PostgresFixture::append("j0", 2)).error().code, Code::unavailable);
  ASSERT_TRUE(owner.commit(PostgresFixture::append("j0", 2)));
  EXPECT_EQ(reader.load("j0")->row.last_seq, 3u);
}

AE_TEST("postgres/calls made before the store closes are answered") {
  const OwnSchema schema;
  PostgresFixture fixture(schema.name());
  ASSERT_TRUE(fixture.open());
  int answers = 0;
  for (int i = 0; i < 100; ++i) {
    fixture.store().commit(
        PostgresFixture::create("j" + std::to_string(i)),
        [&](Result<CommitResult> answer) { answers += answer.has_value() ? 1 : 0; });
  }
  fixture.close();
  fixture.loop.run_ready();
  EXPECT_EQ(answers, 100);
}

// ---------------------------------------------------------------- hints

AE_TEST("hint/other processes' claimable jobs and inbox entries are announced, own ones are not") {
  const OwnSchema schema;
  PostgresFixture one(schema.name()), two(schema.name());
  ASSERT_TRUE(one.open());
  ASSERT_TRUE(two.open());
  std::vector<std::string> hints[2];
  const auto listen = [](PostgresFixture& fixture, std::vector<std::string>& into) {
    fixture.store().on_hint([&into](const Hint& hint) {
      into.push_back(hint.inbox_of ? hint.inbox_of->text.string()
                     : hint.needs  ? "claim for " + hint.needs->agent
                                   : "claim");
    });
  };
  listen(one, hints[0]);
  listen(two, hints[1]);
  ASSERT_TRUE(one.commit(PostgresFixture::create_claimed("held")));
  ASSERT_TRUE(one.commit(PostgresFixture::append("held", 2)));  // no hint
  ASSERT_TRUE(one.commit(PostgresFixture::create("free")));
  ASSERT_TRUE(two.loop.run_until([&] { return !hints[1].empty(); }));
  EXPECT_EQ(hints[1], std::vector<std::string>{"claim for a"});
  const auto put_result = two.loop.await<Result<void>>([&](auto done) {
    two.store().put_inbox(JobId("held"), {.id = "s", .request = "{}"}, std::move(done));
  });
  ASSERT_TRUE(put_result);
  ASSERT_TRUE(one.loop.run_until([&] { return !hints[0].empty(); }));
  EXPECT_EQ(hints[0], std::vector<std::string>{"held"});
  EXPECT_EQ(hints[1].size(), 1u);
}

AE_TEST("hint/a claimable job is announced with its requirements in bounded texts") {
  using postgres::parse_hint;
  postgres::HintBatch hints;
  EXPECT_TRUE(hints.empty());
  hints.add_claimable("a\nb", {"gpu", "\"eu\""});
  hints.add_claimable("a\nb", {"gpu", "\"eu\""});
  hints.add_inbox(JobId("j"));
  ASSERT_EQ(hints.texts().size(), 2U);
  const Hint claim = parse_hint(hints.texts()[0]);
  ASSERT_TRUE(claim.needs && !claim.inbox_of);
  EXPECT_EQ(claim.needs->agent, "a\nb");
  EXPECT_EQ(claim.needs->capabilities, (std::vector<std::string>{"gpu", "\"eu\""}));
  EXPECT_EQ(parse_hint(hints.texts()[1]).inbox_of, JobId("j"));
  hints.add_claimable("a", std::vector<std::string>(64, std::string(64, 'x')));
  hints.add_claimable("another", {});
  EXPECT_EQ(hints.texts(), (std::vector<std::string>{"claim", "inbox j"})) << "too long for a hint";
  postgres::HintBatch many;
  for (std::size_t i = 0; i <= postgres::kHintKinds; ++i) {
    many.add_claimable("agent" + std::to_string(i), {});
  }
  EXPECT_EQ(many.texts(), std::vector<std::string>{"claim"});
  for (const char* text : {"claim", "claim ", "claim {", "claim 1", "claim {\"agent\":1}",
                           "claim {\"agent\":\"a\",\"capabilities\":[1]}", "something else"}) {
    EXPECT_FALSE(parse_hint(text).needs || parse_hint(text).inbox_of) << text;
  }
}

AE_TEST("hint/a job that ends or waits is announced to others, a step of a running one is not") {
  const OwnSchema schema;
  PostgresFixture one(schema.name()), two(schema.name());
  ASSERT_TRUE(one.open());
  ASSERT_TRUE(two.open());
  std::vector<std::string> hints[2];
  const auto listen = [](PostgresFixture& fixture, std::vector<std::string>& into) {
    fixture.store().on_hint([&into](const Hint& hint) {
      for (const JobId& job : hint.idle) into.push_back(job.text);
      if (hint.idle.empty()) into.push_back("else");
    });
  };
  listen(one, hints[0]);
  listen(two, hints[1]);
  for (const char* id : {"ends", "waits", "goes on"}) {
    ASSERT_TRUE(one.commit(PostgresFixture::create_claimed(id)));
  }
  const std::pair<const char*, const char*> ways[] = {
      {"goes on", "running"}, {"ends", "completed"}, {"waits", "waiting"}};
  for (const auto& [id, status] : ways) {
    Batch batch = PostgresFixture::append(id, 2);
    batch.row.status = status;
    batch.release = batch.row.status != "running";
    ASSERT_TRUE(one.commit(std::move(batch)));
  }
  one.loop.advance(std::chrono::milliseconds(100));
  ASSERT_TRUE(two.loop.run_until([&] { return hints[1].size() >= 2; }));
  EXPECT_EQ(hints[1], (std::vector<std::string>{"ends", "waits"}));
  one.loop.run_ready();
  EXPECT_EQ(hints[0], std::vector<std::string>{}) << "its own jobs are not announced to it";
}

AE_TEST("hint/any number of idle jobs is announced in bounded texts") {
  std::set<JobId> jobs;
  for (int i = 0; i < 300; ++i) jobs.emplace("job-" + std::to_string(i));
  const auto texts = postgres::idle_texts(jobs);
  EXPECT_GT(texts.size(), 1u);
  std::set<JobId> read;
  for (const std::string& text : texts) {
    EXPECT_LE(text.size(), postgres::kHintBytes);
    for (const JobId& job : postgres::parse_hint(text).idle) read.insert(job);
  }
  EXPECT_EQ(read, jobs);
}

AE_TEST("hint/a listener that lost its connection reconnects and reports a hint at once") {
  const OwnSchema schema;
  PostgresFixture one(schema.name()), two(schema.name());
  ASSERT_TRUE(one.open());
  ASSERT_TRUE(two.open());
  int hint_count = 0;
  one.store().on_hint([&](const Hint&) { ++hint_count; });
  sql("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'");
  ASSERT_TRUE(one.loop.run_until([&] { return hint_count == 1; })) << "hints may have been missed";
  ASSERT_TRUE(two.commit(PostgresFixture::create("j0")));
  ASSERT_TRUE(one.loop.run_until([&] { return hint_count == 2; }));
}

AE_TEST("postgres/a worker's announcement is visible to others until it expires") {
  const OwnSchema schema;
  PostgresFixture one(schema.name()), other(schema.name());
  ASSERT_TRUE(one.open());
  ASSERT_TRUE(other.open());
  const auto announcement_of = [&](const std::string& worker) -> std::string {
    const auto job_stats = other.loop.await<Result<JobStats>>(
        [&](auto done) { other.store().count_jobs(std::move(done)); });
    EXPECT_TRUE(job_stats);
    const auto found = job_stats->workers.find(worker);
    return found == job_stats->workers.end() ? "-" : found->second.announcement;
  };
  // Queries of one store are answered in order.
  const auto settled = [&] {
    EXPECT_TRUE(one.loop.await<Result<JobStats>>(
        [&](auto done) { one.store().count_jobs(std::move(done)); }));
  };
  one.store().announce("w1", "{\"n\":1}", std::chrono::hours(1));
  settled();
  EXPECT_EQ(announcement_of("w1"), "{\"n\":1}");
  one.store().announce("w1", "{\"n\":2}", std::chrono::hours(1));
  one.store().announce("w2", "late", Duration(0));
  settled();
  EXPECT_EQ(announcement_of("w1"), "{\"n\":2}");
  EXPECT_EQ(announcement_of("w2"), "-");
  one.store().announce("w1", "{}", Duration(0));
  settled();
  EXPECT_EQ(announcement_of("w1"), "-");
}

}  // namespace
}  // namespace ae::store
