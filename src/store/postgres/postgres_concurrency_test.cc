// Several processes that use one store: claims, leases, keys and blobs.
#include <fmt/core.h>

#include <set>
#include <thread>

#include "store/postgres/postgres_fixture_test.h"

namespace ae::store {
namespace {

// Two processes that use one store, on the time of the test.
struct TwoProcesses {
  OwnSchema schema;
  PostgresFixture one{schema.name(), false}, two{schema.name(), false};

  TwoProcesses() {
    EXPECT_TRUE(one.open());
    EXPECT_TRUE(two.open());
  }
};

AE_TEST("postgres/two processes claim each job once") {
  const OwnSchema schema;
  PostgresFixture one(schema.name()), two(schema.name());
  ASSERT_TRUE(one.open());
  ASSERT_TRUE(two.open());
  constexpr int kJobs = 120;
  int pending = kJobs;
  for (int i = 0; i < kJobs; ++i) {
    one.store().commit(PostgresFixture::create(fmt::format("j{}", i)),
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
  for (const char* table : {"heads", "log_ends"}) {
    for (const bool has_limits : {false, true}) {
      const OwnSchema schema;
      PostgresFixture fixture(schema.name());
      ASSERT_TRUE(fixture.open());
      ASSERT_TRUE(fixture.commit(PostgresFixture::create("j0")));
      ASSERT_TRUE(fixture.commit(PostgresFixture::create("j1")));
      auto other = postgres::Connection::open({.url = server().url()});
      ASSERT_TRUE(other);
      other->add_unprepared("BEGIN");
      other->add_unprepared(
          fmt::format("SELECT 1 FROM {0}.{1} WHERE job = (SELECT number FROM {0}.jobs WHERE "
                      "job_id = 'j0') FOR UPDATE",
                      schema.name(), table));
      ASSERT_TRUE(other->run());
      const auto claim = [&](const std::string& attempt) {
        ClaimRequest request = conformance::ConformanceFixture::claim_request(attempt, 5);
        if (has_limits) request.queues = {{"default", 5}};
        return fixture.loop.await<Result<std::vector<Lease>>>(
            [&](auto done) { fixture.store().claim(request, std::move(done)); });
      };
      EXPECT_EQ(conformance::show(*claim("A")).substr(0, 2), "j1") << table;
      other->add_unprepared("ROLLBACK");
      ASSERT_TRUE(other->run());
      EXPECT_EQ(conformance::show(*claim("B")).substr(0, 2), "j0") << table;
    }
  }
}

// The claim of another process is under way: the commit waits for its row, and then the row has
// another attempt.
AE_TEST("postgres/a commit that waits for a claim is refused when the claim commits") {
  for (const bool claim_commits : {true, false}) {
    const OwnSchema schema;
    PostgresFixture fixture(schema.name());
    ASSERT_TRUE(fixture.open());
    ASSERT_TRUE(fixture.commit(PostgresFixture::create_claimed("j0")));
    ASSERT_TRUE(fixture.commit(PostgresFixture::append("j0", 2)));
    auto claim = postgres::Connection::open({.url = server().url()});
    ASSERT_TRUE(claim);
    for (const std::string& statement :
         {std::string("BEGIN"),
          fmt::format("UPDATE {}.heads SET attempt = 'B', epoch = 2", schema.name()),
          fmt::format("UPDATE {}.log_ends SET attempt = 'B'", schema.name())}) {
      claim->add_unprepared(statement);
    }
    ASSERT_TRUE(claim->run());
    std::optional<Result<CommitResult>> answer;
    fixture.store().commit(PostgresFixture::append("j0", 3),
                           [&](Result<CommitResult> result) { answer = std::move(result); });
    EXPECT_TRUE(fixture.loop.run_until([&] {
      return sql("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")[1].integer(
                 0, 0) > 0;
    })) << "the commit waits";
    EXPECT_FALSE(answer);
    claim->add_unprepared(claim_commits ? "COMMIT" : "ROLLBACK");
    ASSERT_TRUE(claim->run());
    ASSERT_TRUE(fixture.loop.run_until([&] { return answer.has_value(); }));
    if (claim_commits) {
      ASSERT_FALSE(*answer);
      EXPECT_EQ(answer->error().code, Code::stale_attempt);
    } else {
      EXPECT_TRUE(*answer);
    }
    EXPECT_EQ(fixture.load("j0")->row.last_seq, claim_commits ? 3U : 4U);
  }
}

AE_TEST("postgres/a process that lost its lease to another one cannot write") {
  TwoProcesses store;
  auto& [schema, one, two] = store;
  ASSERT_TRUE(one.commit(PostgresFixture::create_claimed("j0")));
  two.loop.advance(conformance::kLease);
  ASSERT_EQ(two.claim(1)->size(), 1u);
  Batch stale = PostgresFixture::append("j0", 2);
  stale.effects = {{InvocationId("i"), 1, "{}"}};
  EXPECT_EQ(one.commit(stale).error().code, Code::stale_attempt);
  EXPECT_TRUE(two.commit(PostgresFixture::append("j0", 2, conformance::fence("B0", 2))));
  EXPECT_TRUE(one.load("j0")->effects.empty());
}

// The commits of leased jobs that were requested together, each with the answer's code or "ok".
std::vector<std::string> answers_of(PostgresFixture& fixture, std::vector<Batch> batches) {
  std::vector<std::string> answers(batches.size());
  std::size_t pending = batches.size();
  for (std::size_t i = 0; i < batches.size(); ++i) {
    fixture.store().commit(std::move(batches[i]), [&, i](Result<CommitResult> answer) {
      answers[i] = answer ? (answer->is_duplicate ? "duplicate" : "ok")
                          : std::string(code_name(answer.error().code));
      --pending;
    });
  }
  EXPECT_TRUE(fixture.loop.run_until([&] { return pending == 0; }));
  return answers;
}

AE_TEST("postgres/commits of leased jobs that only append are written by one statement") {
  const OwnSchema schema;
  PostgresFixture fixture(schema.name());
  ASSERT_TRUE(fixture.open());
  std::vector<Batch> batches;
  for (int i = 0; i < 20; ++i) {
    const std::string job = fmt::format("j{}", i);
    ASSERT_TRUE(fixture.commit(PostgresFixture::create_claimed(job)));
    batches.push_back(PostgresFixture::append(job, 2));
  }
  EXPECT_EQ(answers_of(fixture, std::move(batches)), std::vector<std::string>(20, "ok"));
  EXPECT_EQ(fixture.store().stats().plain, 20u);
  for (int i = 0; i < 20; ++i) {
    const auto loaded = fixture.load(fmt::format("j{}", i));
    ASSERT_TRUE(loaded);
    EXPECT_EQ(loaded->row.last_seq, 3u);
    EXPECT_EQ(loaded->commits.size(), 2u);
    EXPECT_EQ(loaded->commits[1], conformance::sealed(fmt::format("j{}", i), 3, 1).bytes);
  }
}

// A plain commit leaves the row of its job as it is, so a commit that changes it is not plain.
AE_TEST("postgres/a commit that changes what lists search changes the row of its job") {
  const OwnSchema schema;
  PostgresFixture fixture(schema.name());
  ASSERT_TRUE(fixture.open());
  ASSERT_TRUE(fixture.commit(PostgresFixture::create_claimed("j0")));
  const auto row = [&] {
    const auto rows = sql("SELECT wake_at, pending, NOT ready AND ripe_at = lease_until FROM heads",
                          schema.name());
    EXPECT_TRUE(rows[1].boolean(0, 2)) << "the lease stays";
    return std::pair(rows[1].maybe_instant(0, 0), rows[1].integer(0, 1));
  };
  Batch timer = PostgresFixture::append("j0", 2);
  timer.row.wake_at = Instant{1000};
  timer.row.pending = 5;
  ASSERT_TRUE(fixture.commit(timer));
  EXPECT_EQ(row(), std::pair(std::optional(Instant{1000}), std::int64_t{5}));
  Batch same = PostgresFixture::append("j0", 3);
  same.row = timer.row;
  ASSERT_TRUE(fixture.commit(same));
  EXPECT_EQ(row(), std::pair(std::optional(Instant{1000}), std::int64_t{5}));
  ASSERT_TRUE(fixture.commit(PostgresFixture::append("j0", 4)));
  EXPECT_EQ(row(), std::pair(std::optional<Instant>(), std::int64_t{0}));
  EXPECT_EQ(fixture.store().stats().plain, 1U);
}

// The process whose lease expired has written the job before, so it takes the one statement.
AE_TEST("postgres/a process that claims a job again writes the row that others left") {
  TwoProcesses store;
  auto& [schema, one, two] = store;
  ASSERT_TRUE(one.commit(PostgresFixture::create_claimed("j0")));
  two.loop.advance(conformance::kLease);
  const auto taken = two.claim(1, "B");
  ASSERT_EQ(taken->size(), 1U);
  Batch timer = PostgresFixture::append("j0", 2, taken->at(0).fence);
  timer.row.wake_at = Instant{1000};
  ASSERT_TRUE(two.commit(timer));
  one.loop.advance(conformance::kLease * 2);
  const auto leases = one.claim(1, "C");
  ASSERT_EQ(leases->size(), 1U);
  ASSERT_TRUE(one.commit(PostgresFixture::append("j0", 3, leases->at(0).fence)));
  const auto rows = sql("SELECT wake_at FROM heads", schema.name());
  EXPECT_TRUE(rows[1].is_null(0, 0));
}

AE_TEST("postgres/a stale commit does not affect other commits of its group") {
  TwoProcesses store;
  auto& [schema, one, two] = store;
  for (const char* job : {"j0", "j1", "j2", "j3"})
    ASSERT_TRUE(one.commit(PostgresFixture::create_claimed(job)));
  two.loop.advance(conformance::kLease);
  ASSERT_EQ(two.claim(1)->size(), 1u);  // j0
  EXPECT_EQ(answers_of(one, {PostgresFixture::append("j0", 2), PostgresFixture::append("j1", 2),
                             PostgresFixture::append("j2", 1), PostgresFixture::append("j3", 2)}),
            (std::vector<std::string>{"stale_attempt", "ok", "sequence_conflict", "ok"}));
  EXPECT_EQ(one.load("j0")->row.last_seq, 2u);
  EXPECT_EQ(one.load("j1")->row.last_seq, 3u);
  EXPECT_EQ(one.load("j2")->row.last_seq, 2u);
  EXPECT_EQ(one.load("j3")->row.last_seq, 3u);
  EXPECT_EQ(answers_of(one, {PostgresFixture::append("j1", 2), PostgresFixture::append("j3", 3)}),
            (std::vector<std::string>{"duplicate", "ok"}));
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
            fmt::format("j{}-{}-{}", me, round, which),
            {.agent = "a", .idempotency_key = fmt::format("k{}-{}", round, which)});
        b.sealed->blobs = {conformance::blob(fmt::format("v{}{}", round, which)),
                           conformance::blob(fmt::format("w{}{}", round, which))};
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
        PostgresFixture::create(fmt::format("j{}", i), {.agent = "a", .queue = "narrow"})));
  }
  std::vector<std::size_t> claimed(2);
  const auto work = [&](std::size_t me) {
    PostgresFixture& fixture = processes[me];
    for (int round = 0; round < 6; ++round) {
      ClaimRequest request =
          conformance::ConformanceFixture::claim_request(fmt::format("A{}{}", me, round), 2);
      request.queues = {{"narrow", 5}};
      const auto leases = fixture.loop.await<Result<std::vector<Lease>>>(
          [&](auto done) { fixture.store().claim(request, std::move(done)); });
      ASSERT_TRUE(leases) << leases.error().message;
      claimed[me] += leases->size();
      const auto one = fixture.loop.await<Result<std::optional<Lease>>>([&](auto done) {
        fixture.store().claim_job(JobId(fmt::format("j{}", 29 - round)), request, std::move(done));
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

}  // namespace
}  // namespace ae::store
