// The PostgreSQL driver: the conformance suite, and what only a shared database can do wrong.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <functional>
#include <set>
#include <thread>

#include "store/conformance_test.h"
#include "store/postgres/db_clock.h"
#include "store/postgres/postgres_fixture_test.h"

namespace ae::store {
namespace {

class PostgresDriver final : public conformance::Driver {
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

// A caller that does what store.h asks of it, until it is done. How often it heard what is counted.
struct Persistent {
  Desk& desk;
  int unavailable = 0, unknown = 0;

  Result<Committed> commit(const Batch& batch) {
    for (;;) {
      auto answer = desk.commit(batch);
      if (answer) return answer;
      const Code code = answer.error().code;
      if (code == Code::unavailable) {
        ++unavailable;
      } else if (code == Code::unknown_outcome) {
        ++unknown;
      } else {
        return answer;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));  // a server is being waited for
    }
  }
};

bool holds(const std::string& text, const std::string& part) { return text.contains(part); }

AE_TEST("postgres/leases and timers go by the database's clock") {
  const OwnSchema schema;
  Desk desk(schema.name());
  ASSERT_TRUE(desk.open());
  const auto database_now = [] {
    return sql("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")[1].instant(0, 0);
  };
  const Instant before = database_now();
  const auto born = desk.commit(Desk::create_claimed("j0"));
  ASSERT_TRUE(born);
  const Instant after = database_now();
  EXPECT_GE(born->lease->lease_until, before + conformance::kLease);
  EXPECT_LE(born->lease->lease_until, after + conformance::kLease);
  // The estimate is never ahead of the database, and not far behind.
  const Instant ours = desk.store().now();
  EXPECT_LE(ours, database_now());
  EXPECT_GE(ours, before);
  EXPECT_FALSE(desk.store().owned());
  ASSERT_TRUE(desk.commit(Desk::create("j1")));
  const auto leases = desk.claim(5);
  ASSERT_TRUE(leases);
  ASSERT_EQ(leases->size(), 1u);
  EXPECT_EQ(desk.load("j1")->row.lease_until, leases->at(0).lease_until);
}

AE_TEST("postgres/an estimate of the database's clock is never ahead, and follows it back") {
  using postgres::DatabaseClock;
  DatabaseClock clock;
  const DatabaseClock::Steady::time_point start{std::chrono::seconds(100)};
  const auto at = [&](int ms) { return start + std::chrono::milliseconds(ms); };
  const auto in = [](std::int64_t ms) { return Instant{ms * 1000}; };
  clock.heard(in(5000), at(0), at(10));
  EXPECT_EQ(clock.now(at(10)), in(5000));
  clock.heard(in(5019), at(18), at(20));  // a faster answer knows better
  EXPECT_EQ(clock.now(at(20)), in(5019));
  clock.heard(in(5025), at(20), at(40));  // a slow one allows what we think
  EXPECT_EQ(clock.now(at(40)), in(5039));
  clock.heard(in(3000), at(50), at(52));  // set back
  EXPECT_EQ(clock.now(at(52)), in(3000));
}

AE_TEST("postgres/plans may be made anew before any call") {
  const OwnSchema schema;
  Desk desk(schema.name());
  PostgresOptions options = desk.options();
  options.plans_age = std::chrono::milliseconds(0);
  ASSERT_TRUE(desk.open(options));
  for (const std::string id : {"j0", "j1", "j2"}) {
    ASSERT_TRUE(desk.commit(Desk::create(id)));
    ASSERT_EQ(desk.claim(1)->size(), 1u);
    ASSERT_TRUE(desk.commit(Desk::append(id, 2, conformance::fence("B0", 1))));
    EXPECT_EQ(desk.load(id)->commits.size(), 2u);
    EXPECT_FALSE(desk.query()->empty());
  }
}

AE_TEST("postgres/two processes claim different jobs, and each job once") {
  const OwnSchema schema;
  Desk one(schema.name()), two(schema.name());
  ASSERT_TRUE(one.open());
  ASSERT_TRUE(two.open());
  constexpr int kJobs = 120;
  int left = kJobs;
  for (int i = 0; i < kJobs; ++i) {
    one.store().commit(Desk::create("j" + std::to_string(i)), [&](Result<Committed> answer) {
      EXPECT_TRUE(answer);
      --left;
    });
  }
  ASSERT_TRUE(one.loop.run_until([&] { return left == 0; }));
  std::vector<std::string> claimed[2];
  const auto claim_all = [](Desk& desk, std::vector<std::string>& into) {
    for (;;) {
      const auto leases = desk.claim(7);
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

AE_TEST("postgres/a job that another transaction has locked is not waited for by a claim") {
  const OwnSchema schema;
  Desk desk(schema.name());
  ASSERT_TRUE(desk.open());
  ASSERT_TRUE(desk.commit(Desk::create("j0")));
  ASSERT_TRUE(desk.commit(Desk::create("j1")));
  auto other = postgres::Connection::open({.url = server().url()});
  ASSERT_TRUE(other);
  other->add_once("BEGIN");
  other->add_once("SELECT 1 FROM " + schema.name() + ".heads WHERE job = (SELECT number FROM " +
                  schema.name() + ".jobs WHERE job_id = 'j0') FOR UPDATE");
  ASSERT_TRUE(other->run());
  EXPECT_EQ(conformance::show(*desk.claim(5)).substr(0, 2), "j1");
  other->add_once("ROLLBACK");
  ASSERT_TRUE(other->run());
  EXPECT_EQ(conformance::show(*desk.claim(5)).substr(0, 2), "j0");
}

AE_TEST("postgres/who lost its job to another process writes nothing more") {
  const OwnSchema schema;
  Desk one(schema.name(), false), two(schema.name(), false);
  ASSERT_TRUE(one.open());
  ASSERT_TRUE(two.open());
  ASSERT_TRUE(one.commit(Desk::create_claimed("j0")));
  two.loop.advance(conformance::kLease);
  ASSERT_EQ(two.claim(1)->size(), 1u);
  Batch stale = Desk::append("j0", 2);
  stale.effects = {{InvocationId("i"), 1, "{}"}};
  EXPECT_EQ(one.commit(stale).error().code, Code::stale_attempt);
  EXPECT_TRUE(two.commit(Desk::append("j0", 2, conformance::fence("B0", 2))));
  EXPECT_TRUE(one.load("j0")->effects.empty());
}

// Creates with one key, and jobs with the same values in opposite orders, from both sides at once.
AE_TEST("postgres/two processes that write the same keys and values both go through") {
  const OwnSchema schema;
  Desk desks[2] = {Desk(schema.name()), Desk(schema.name())};
  for (Desk& desk : desks) ASSERT_TRUE(desk.open());
  constexpr int kRounds = 12;
  std::vector<std::string> made[2];
  const auto work = [&](int me) {
    Desk& desk = desks[me];
    for (int round = 0; round < kRounds; ++round) {
      int left = 4;
      std::vector<std::string> answers(4);
      for (int k = 0; k < 4; ++k) {
        const int which = me == 0 ? k : 3 - k;
        Batch b = Desk::create(
            "j" + std::to_string(me) + "-" + std::to_string(round) + "-" + std::to_string(which),
            {.agent = "a",
             .idempotency_key = "k" + std::to_string(round) + "-" + std::to_string(which)});
        b.sealed->blobs = {conformance::blob("v" + std::to_string(round) + std::to_string(which)),
                           conformance::blob("w" + std::to_string(round) + std::to_string(which))};
        desk.store().commit(std::move(b), [&, which](Result<Committed> answer) {
          EXPECT_TRUE(answer) << (answer ? "" : answer.error().message);
          if (answer) {
            answers[static_cast<std::size_t>(which)] =
                answer->existing ? answer->existing->text : "mine";
          }
          --left;
        });
      }
      EXPECT_TRUE(desk.loop.run_until([&] { return left == 0; }));
      made[me].insert(made[me].end(), answers.begin(), answers.end());
    }
  };
  std::thread other([&] { work(1); });
  work(0);
  other.join();
  ASSERT_EQ(made[0].size(), made[1].size());
  for (std::size_t i = 0; i < made[0].size(); ++i) {
    EXPECT_NE(made[0][i] == "mine", made[1][i] == "mine") << i << ": one of them made it";
  }
  EXPECT_EQ(desks[0].query({.limit = 1000})->size(), std::size_t{kRounds} * 4);
}

AE_TEST("postgres/a queue's limit holds over processes that claim at once") {
  const OwnSchema schema;
  Desk desks[2] = {Desk(schema.name()), Desk(schema.name())};
  for (Desk& desk : desks) ASSERT_TRUE(desk.open());
  for (int i = 0; i < 30; ++i) {
    ASSERT_TRUE(
        desks[0].commit(Desk::create("j" + std::to_string(i), {.agent = "a", .queue = "narrow"})));
  }
  std::vector<std::size_t> claimed(2);
  const auto work = [&](std::size_t me) {
    Desk& desk = desks[me];
    for (int round = 0; round < 6; ++round) {
      ClaimRequest request =
          conformance::Rig::wish("A" + std::to_string(me) + std::to_string(round), 2);
      request.queues = {{"narrow", 5}};
      const auto leases = desk.loop.await<Result<std::vector<Lease>>>(
          [&](auto done) { desk.store().claim(request, std::move(done)); });
      ASSERT_TRUE(leases) << leases.error().message;
      claimed[me] += leases->size();
      const auto one = desk.loop.await<Result<std::optional<Lease>>>([&](auto done) {
        desk.store().claim_job(JobId("j" + std::to_string(29 - round)), request, std::move(done));
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

// One drops a value that another is about to name: it is there for whoever named it.
AE_TEST("postgres/a value that is dropped while another job takes it up is there for that job") {
  const OwnSchema schema;
  Desk desks[2] = {Desk(schema.name()), Desk(schema.name())};
  for (Desk& desk : desks) ASSERT_TRUE(desk.open());
  for (int round = 0; round < 20; ++round) {
    const std::string n = std::to_string(round);
    const Blob value = conformance::blob("value " + n);
    Batch first = Desk::create("a" + n);
    first.row.status = "completed";
    first.sealed->blobs = {value};
    ASSERT_TRUE(desks[0].commit(first));
    Redaction drop{.job = JobId("a" + n)};
    drop.commits = {
        {.first_seq = 1, .replaces = sha256(first.sealed->bytes), .bytes = "left", .blobs = {}}};
    drop.audit = {.at = {}, .by = "me", .act = "redact", .job = drop.job, .detail = {}};
    Batch second = Desk::create("b" + n);
    second.sealed->blobs = {value};
    std::thread other([&] { EXPECT_TRUE(desks[1].commit(second)); });
    const auto dropped = desks[0].loop.await<Result<void>>(
        [&](auto done) { desks[0].store().redact(drop, std::move(done)); });
    other.join();
    ASSERT_TRUE(dropped) << dropped.error().message;
    ASSERT_EQ(desks[0].load("b" + n)->blobs.size(), 1u) << n;
    ASSERT_TRUE(desks[0].load("a" + n)->blobs.empty());
  }
}

AE_TEST("postgres/what comes together is committed together") {
  const OwnSchema schema;
  Desk desk(schema.name());
  ASSERT_TRUE(desk.open());
  int left = 1000;
  for (int i = 0; i < 1000; ++i) {
    desk.store().commit(Desk::create("j" + std::to_string(i)), [&](Result<Committed> answer) {
      EXPECT_TRUE(answer);
      --left;
    });
  }
  ASSERT_TRUE(desk.loop.run_until([&] { return left == 0; }));
  EXPECT_EQ(desk.store().stats().writes, 1000u);
  EXPECT_LT(desk.store().stats().groups, 100u);
}

AE_TEST("postgres/a large batch and a long log go in and come out") {
  const OwnSchema schema;
  Desk desk(schema.name());
  ASSERT_TRUE(desk.open());
  Batch b = Desk::create_claimed("j0");
  b.sealed->bytes.append(3u << 20, 'x');
  b.sealed->blobs.push_back({sha256("big"), std::string(16u << 20, 'b')});
  ASSERT_TRUE(desk.commit(b));
  for (std::uint64_t seq = 2; seq < 8; ++seq) {
    Batch more = Desk::append("j0", seq);
    more.sealed->bytes.append(1u << 20, 'y');
    ASSERT_TRUE(desk.commit(more));
    EXPECT_TRUE(desk.commit(more)->repeated);
  }
  const auto loaded = desk.load("j0");
  ASSERT_EQ(loaded->commits.size(), 7u);
  EXPECT_EQ(loaded->commits[0], b.sealed->bytes);
  EXPECT_EQ(loaded->blobs.at(0).bytes.size(), 16u << 20);
}

AE_TEST("postgres/a text that cannot be kept is refused, and disturbs nobody") {
  const OwnSchema schema;
  Desk desk(schema.name());
  ASSERT_TRUE(desk.open());
  Batch bad = Desk::create("j0", {.agent = "a", .labels = {{"k", std::string("a\0b", 3)}}});
  EXPECT_EQ(desk.commit(bad).error().code, Code::input_invalid);
  // What only the server can refuse is refused alone.
  Batch worse = Desk::create("j1", {.agent = "a", .labels = {{"k", "\xff"}}});
  std::string answers;
  for (Batch batch : {Desk::create("j2"), worse, Desk::create("j3")}) {
    desk.store().commit(std::move(batch), [&](Result<Committed> answer) {
      answers += conformance::show(answer) + ";";
    });
  }
  ASSERT_TRUE(desk.loop.run_until([&] { return std::ranges::count(answers, ';') == 3; }));
  EXPECT_EQ(answers, "seq 2;unavailable;seq 2;");
}

AE_TEST("postgres/read-only sees what others wrote and writes nothing") {
  const OwnSchema schema;
  Desk owner(schema.name()), reader(schema.name() + "x");
  PostgresOptions reading = reader.options();
  reading.read_only = true;
  EXPECT_EQ(reader.open(reading).error().code, Code::not_found) << "and makes no tables";
  EXPECT_EQ(reader.open(reading).error().code, Code::not_found);
  reading.schema = schema.name();
  ASSERT_TRUE(owner.open());
  ASSERT_TRUE(owner.commit(Desk::create_claimed("j0")));
  ASSERT_TRUE(reader.open(reading));
  EXPECT_EQ(reader.load("j0")->row.claim, conformance::fence("A", 1));
  EXPECT_EQ(reader.commit(Desk::append("j0", 2)).error().code, Code::unavailable);
  ASSERT_TRUE(owner.commit(Desk::append("j0", 2)));
  EXPECT_EQ(reader.load("j0")->row.last_seq, 3u);
}

AE_TEST("postgres/what was asked before the store closes is written and answered") {
  const OwnSchema schema;
  Desk desk(schema.name());
  ASSERT_TRUE(desk.open());
  int answers = 0;
  for (int i = 0; i < 100; ++i) {
    desk.store().commit(Desk::create("j" + std::to_string(i)),
                        [&](Result<Committed> answer) { answers += answer.has_value() ? 1 : 0; });
  }
  desk.close();
  desk.loop.run_ready();
  EXPECT_EQ(answers, 100);
}

// ---------------------------------------------------------------- hints

AE_TEST("hint/what another process makes claimable or posts is said, our own is not") {
  const OwnSchema schema;
  Desk one(schema.name()), two(schema.name());
  ASSERT_TRUE(one.open());
  ASSERT_TRUE(two.open());
  std::vector<std::string> heard[2];
  const auto listen = [](Desk& desk, std::vector<std::string>& into) {
    desk.store().on_hint([&into](const Hint& hint) {
      into.push_back(hint.inbox_of ? hint.inbox_of->text : "claim");
    });
  };
  listen(one, heard[0]);
  listen(two, heard[1]);
  ASSERT_TRUE(one.commit(Desk::create_claimed("held")));
  ASSERT_TRUE(one.commit(Desk::append("held", 2)));  // says nothing
  ASSERT_TRUE(one.commit(Desk::create("free")));
  ASSERT_TRUE(two.loop.run_until([&] { return !heard[1].empty(); }));
  EXPECT_EQ(heard[1], std::vector<std::string>{"claim"});
  const auto posted = two.loop.await<Result<void>>([&](auto done) {
    two.store().put_inbox(JobId("held"), {.id = "s", .act = "{}"}, std::move(done));
  });
  ASSERT_TRUE(posted);
  ASSERT_TRUE(one.loop.run_until([&] { return !heard[0].empty(); }));
  EXPECT_EQ(heard[0], std::vector<std::string>{"held"});
  EXPECT_EQ(heard[1].size(), 1u);
}

AE_TEST("hint/a listener that lost its connection listens again and looks at once") {
  const OwnSchema schema;
  Desk one(schema.name()), two(schema.name());
  ASSERT_TRUE(one.open());
  ASSERT_TRUE(two.open());
  int heard = 0;
  one.store().on_hint([&](const Hint&) { ++heard; });
  sql("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'");
  ASSERT_TRUE(one.loop.run_until([&] { return heard == 1; })) << "anything may have been missed";
  ASSERT_TRUE(two.commit(Desk::create("j0")));
  ASSERT_TRUE(one.loop.run_until([&] { return heard == 2; }));
}

// ---------------------------------------------------------------- outages

// Every backend of the store is ended again and again while a log is written. Each commit is there once.
AE_TEST("outage/ended backends lose no commit and repeat none") {
  const OwnSchema schema;
  Desk desk(schema.name());
  ASSERT_TRUE(desk.open());
  auto admin =
      postgres::Connection::open({.url = server().url("postgres", "&application_name=admin")});
  ASSERT_TRUE(admin);
  Persistent persistent{desk};
  ASSERT_TRUE(persistent.commit(Desk::create_claimed("j0")));
  constexpr std::uint64_t kCommits = 100;
  for (std::uint64_t seq = 2; seq < kCommits; ++seq) {
    std::optional<Result<Committed>> first;
    desk.store().commit(Desk::append("j0", seq),
                        [&](Result<Committed> answer) { first = std::move(answer); });
    if (seq % 5 == 0) {
      admin->add_once(
          "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
          "WHERE application_name = 'aetheris'");
      ASSERT_TRUE(admin->run());
    }
    ASSERT_TRUE(desk.loop.run_until([&] { return first.has_value(); }));
    if (*first) continue;
    const auto answer = persistent.commit(Desk::append("j0", seq));
    ASSERT_TRUE(answer) << answer.error().message;
  }
  EXPECT_GT(desk.store().stats().reopened, 5u);
  const auto loaded = desk.load("j0");
  ASSERT_TRUE(loaded);
  ASSERT_EQ(loaded->commits.size(), kCommits - 1);
  for (std::uint64_t seq = 2; seq < kCommits; ++seq) {
    EXPECT_EQ(loaded->commits[seq - 1], Desk::append("j0", seq).sealed->bytes);
  }
}

// The server dies as in a power loss while many jobs write, and comes back.
AE_TEST("outage/a server that is killed loses nothing that it confirmed") {
  const OwnSchema schema;
  Desk desk(schema.name());
  ASSERT_TRUE(desk.open());
  constexpr int kJobs = 20;
  struct Job {
    std::uint64_t confirmed = 0, sent = 0;
    int answers = 0;
  };
  std::vector<Job> jobs(kJobs);
  int unknown = 0, unavailable = 0, working = kJobs;
  std::uint64_t total = 0;
  std::function<void(int)> step = [&](int j) {
    Job& job = jobs[static_cast<std::size_t>(j)];
    const std::string id = "j" + std::to_string(j);
    if (job.confirmed >= 40) {
      --working;
      return;
    }
    Batch batch = job.confirmed == 0 ? Desk::create_claimed(id) : Desk::append(id, job.confirmed);
    const std::uint64_t last = batch.sealed->last_seq;
    desk.store().commit(std::move(batch), [&, j, last](Result<Committed> answer) {
      Job& mine = jobs[static_cast<std::size_t>(j)];
      if (answer) {
        EXPECT_EQ(answer->last_seq, last);
        mine.confirmed = last;
        ++total;
      } else if (answer.error().code == Code::unknown_outcome) {
        ++unknown;
      } else {
        EXPECT_EQ(answer.error().code, Code::unavailable) << answer.error().message;
        ++unavailable;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      step(j);
    });
  };
  for (int j = 0; j < kJobs; ++j) step(j);
  const std::uint64_t kills = testing::slow_tests_wanted() ? 5 : 1;
  for (std::uint64_t kill = 1; kill <= kills; ++kill) {
    ASSERT_TRUE(desk.loop.run_until([&] { return total >= kill * 100; }));
    server().stop(SIGQUIT);
    const int before = unavailable + unknown;
    ASSERT_TRUE(desk.loop.run_until([&] { return unavailable + unknown > before; }));
    server().start();
  }
  ASSERT_TRUE(desk.loop.run_until([&] { return working == 0; }));
  EXPECT_GT(unavailable + unknown, 0);
  for (int j = 0; j < kJobs; ++j) {
    const std::string id = "j" + std::to_string(j);
    const auto loaded = desk.load(id);
    ASSERT_TRUE(loaded) << loaded.error().message;
    EXPECT_EQ(loaded->row.last_seq, jobs[static_cast<std::size_t>(j)].confirmed);
    ASSERT_EQ(loaded->commits.size(), loaded->row.last_seq - 1);
    for (std::uint64_t seq = 2; seq < loaded->row.last_seq; ++seq) {
      EXPECT_EQ(loaded->commits[seq - 1], Desk::append(id, seq).sealed->bytes);
    }
  }
}

AE_TEST("outage/while the server is away every call says so, and afterwards all goes on") {
  const OwnSchema schema;
  Desk desk(schema.name());
  ASSERT_TRUE(desk.open());
  ASSERT_TRUE(desk.commit(Desk::create_claimed("j0")));
  server().stop(SIGINT);
  EXPECT_EQ(desk.commit(Desk::append("j0", 2)).error().code, Code::unavailable);
  EXPECT_EQ(desk.load("j0").error().code, Code::unavailable);
  EXPECT_EQ(desk.query().error().code, Code::unavailable);
  const auto claimed = desk.claim(1);
  EXPECT_EQ(claimed.error().code, Code::unavailable) << claimed.error().message;
  EXPECT_EQ(PostgresStore::open(desk.options()).error().code, Code::unavailable);
  server().start();
  Persistent persistent{desk};
  EXPECT_FALSE(persistent.commit(Desk::append("j0", 2))->repeated);
  EXPECT_EQ(desk.load("j0")->row.last_seq, 3u);
}

AE_TEST("outage/a restart between two calls is not noticed") {
  const OwnSchema schema;
  Desk desk(schema.name());
  ASSERT_TRUE(desk.open());
  ASSERT_TRUE(desk.commit(Desk::create_claimed("j0")));
  server().stop(SIGINT);
  server().start();
  EXPECT_TRUE(desk.commit(Desk::append("j0", 2)));
  EXPECT_TRUE(desk.load("j0"));
  EXPECT_TRUE(desk.claim(1));
}

// A network between us and the server that stops forwarding while the connections stay.
class Gate {
 public:
  enum class Mode { open, shut, swallow_commits };

  Gate() {
    listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address = loopback(0);
    socklen_t size = sizeof address;
    AE_CHECK(::bind(listener_, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
             ::listen(listener_, 16) == 0 &&
             ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) == 0);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { run(); });
  }
  ~Gate() {
    stop_ = true;
    thread_.join();
    for (const auto& [client, at_server] : pairs_) {
      ::close(client);
      ::close(at_server);
    }
    ::close(listener_);
  }
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  std::string url() const {
    return "postgres://aetheris@127.0.0.1:" + std::to_string(port_) + "/postgres";
  }
  // Of the connections that there are and that come.
  std::atomic<Mode> mode = Mode::open;
  std::atomic<int> commits_swallowed = 0;

 private:
  static sockaddr_in loopback(int port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    return address;
  }
  void run() {
    while (!stop_) {
      std::vector<pollfd> wishes{{.fd = listener_, .events = POLLIN, .revents = 0}};
      for (const auto& [client, at_server] : pairs_) {
        wishes.push_back({.fd = client, .events = POLLIN, .revents = 0});
        wishes.push_back({.fd = at_server, .events = POLLIN, .revents = 0});
      }
      if (mode == Mode::shut) wishes.resize(1);
      if (::poll(wishes.data(), wishes.size(), 5) <= 0) continue;
      for (std::size_t i = 1; i < wishes.size(); ++i) {
        if (wishes[i].revents != 0) forward((i - 1) / 2, i % 2 == 1);
      }
      if (wishes[0].revents != 0) accept();
    }
  }
  void accept() {
    const int client = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    const int at_server = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const sockaddr_in address = loopback(server().port());
    AE_CHECK(::connect(at_server, reinterpret_cast<const sockaddr*>(&address), sizeof address) ==
             0);
    pairs_.emplace_back(client, at_server);
  }
  void forward(std::size_t which, bool to_server) {
    auto& [client, at_server] = pairs_[which];
    char bytes[65536];
    const ssize_t size = ::read(to_server ? client : at_server, bytes, sizeof bytes);
    if (size <= 0) {
      silent_.erase(client);
      ::shutdown(client, SHUT_RDWR);
      ::shutdown(at_server, SHUT_RDWR);
      ::close(std::exchange(client, -1));
      ::close(std::exchange(at_server, -1));
      return;
    }
    const std::string_view text(bytes, static_cast<std::size_t>(size));
    if (to_server && mode == Mode::swallow_commits &&
        text.contains(std::string_view("\0commit\0", 8))) {
      silent_.insert(client);
      ++commits_swallowed;
    }
    if (!to_server && silent_.contains(client)) return;
    AE_CHECK(::write(to_server ? at_server : client, bytes, static_cast<std::size_t>(size)) ==
             size);
  }

  int listener_ = -1, port_ = 0;
  std::vector<std::pair<int, int>> pairs_;
  std::set<int> silent_;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

AE_TEST("outage/a commit whose answer is lost is unknown, and there when it is sent again") {
  const OwnSchema schema;
  Gate gate;
  Desk desk(schema.name());
  PostgresOptions options = desk.options();
  options.url = gate.url();
  options.answer_within = std::chrono::milliseconds(200);
  ASSERT_TRUE(desk.open(options));
  ASSERT_TRUE(desk.commit(Desk::create_claimed("j0")));
  gate.mode = Gate::Mode::swallow_commits;
  EXPECT_EQ(desk.commit(Desk::append("j0", 2)).error().code, Code::unknown_outcome);
  EXPECT_EQ(gate.commits_swallowed, 1);
  gate.mode = Gate::Mode::open;
  const auto again = desk.commit(Desk::append("j0", 2));
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_TRUE(again->repeated);
  EXPECT_EQ(desk.load("j0")->commits.size(), 2u);
}

AE_TEST("outage/a network that is silent is given up, and nothing has changed") {
  const OwnSchema schema;
  Gate gate;
  Desk desk(schema.name());
  PostgresOptions options = desk.options();
  options.url = gate.url();
  options.answer_within = std::chrono::milliseconds(200);
  options.connect_within = std::chrono::milliseconds(2000);
  ASSERT_TRUE(desk.open(options));
  ASSERT_TRUE(desk.commit(Desk::create_claimed("j0")));
  gate.mode = Gate::Mode::shut;
  EXPECT_EQ(desk.commit(Desk::append("j0", 2)).error().code, Code::unavailable);
  gate.mode = Gate::Mode::open;
  Persistent persistent{desk};
  EXPECT_FALSE(persistent.commit(Desk::append("j0", 2))->repeated);
}

AE_TEST("outage/another store at the same address is not written to") {
  const OwnSchema schema;
  Desk desk(schema.name());
  ASSERT_TRUE(desk.open());
  ASSERT_TRUE(desk.commit(Desk::create_claimed("j0")));
  const std::string id =
      sql("SELECT value FROM meta WHERE key = 'store_id'", schema.name())[1].text(0, 0);
  sql("UPDATE meta SET value = 'another' WHERE key = 'store_id'", schema.name());
  sql("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
      "WHERE application_name = 'aetheris' AND pid <> pg_backend_pid()");
  const auto refused = desk.commit(Desk::append("j0", 2));
  EXPECT_EQ(refused.error().code, Code::unavailable);
  EXPECT_PRED2(holds, refused.error().message, "another store");
  sql("UPDATE meta SET value = '" + id + "' WHERE key = 'store_id'", schema.name());
}

// Somebody holds a row for longer than is waited: its job hears so, the others of the group go through.
AE_TEST_SLOW("outage/a lock that is not given back stops its job only") {
  const OwnSchema schema;
  Desk desk(schema.name());
  ASSERT_TRUE(desk.open());
  for (const char* id : {"j0", "j1", "j2"}) ASSERT_TRUE(desk.commit(Desk::create_claimed(id)));
  auto other = postgres::Connection::open({.url = server().url()});
  ASSERT_TRUE(other);
  other->add_once("BEGIN");
  other->add_once("SELECT 1 FROM " + schema.name() + ".heads WHERE job = (SELECT number FROM " +
                  schema.name() + ".jobs WHERE job_id = 'j1') FOR UPDATE");
  ASSERT_TRUE(other->run());
  std::string answers;
  for (const char* id : {"j0", "j1", "j2"}) {
    desk.store().commit(Desk::append(id, 2), [&](Result<Committed> answer) {
      answers += conformance::show(answer) + ";";
    });
  }
  ASSERT_TRUE(desk.loop.run_until([&] { return std::ranges::count(answers, ';') == 3; }));
  EXPECT_EQ(answers, "seq 3;unavailable;seq 3;");
}

}  // namespace
}  // namespace ae::store
