// Outages of PostgreSQL: the server dies, is unreachable, restarts or blocks. Confirmed writes
// remain, and failures are reported.
#include <arpa/inet.h>
#include <fmt/core.h>
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

#include "store/postgres/postgres_fixture_test.h"

namespace ae::store {
namespace {

// A caller that retries as store.h requires until the commit is done, and counts the errors.
struct RetryingWriter {
  PostgresFixture& fixture;
  int unavailable = 0, unknown = 0;

  Result<CommitResult> commit(const Batch& batch) {
    for (;;) {
      auto answer = fixture.commit(batch);
      if (answer) return answer;
      const Code code = answer.error().code;
      if (code == Code::unavailable) {
        ++unavailable;
      } else if (code == Code::unknown_outcome) {
        ++unknown;
      } else {
        return answer;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));  // waits for the server
    }
  }
};

bool contains(const std::string& text, const std::string& part) { return text.contains(part); }

// The store's backends are terminated repeatedly while a log is written. Each commit is stored
// once.
AE_TEST("outage/terminated backends lose no commit and duplicate none") {
  const OwnSchema schema;
  PostgresFixture fixture(schema.name());
  ASSERT_TRUE(fixture.open());
  auto admin =
      postgres::Connection::open({.url = server().url("postgres", "&application_name=admin")});
  ASSERT_TRUE(admin);
  RetryingWriter persistent{fixture};
  ASSERT_TRUE(persistent.commit(PostgresFixture::create_claimed("j0")));
  constexpr std::uint64_t kCommits = 100;
  for (std::uint64_t seq = 2; seq < kCommits; ++seq) {
    std::optional<Result<CommitResult>> first;
    fixture.store().commit(PostgresFixture::append("j0", seq),
                           [&](Result<CommitResult> answer) { first = std::move(answer); });
    if (seq % 5 == 0) {
      admin->add_unprepared(
          "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
          "WHERE application_name = 'aetheris'");
      ASSERT_TRUE(admin->run());
    }
    ASSERT_TRUE(fixture.loop.run_until([&] { return first.has_value(); }));
    if (*first) continue;
    const auto answer = persistent.commit(PostgresFixture::append("j0", seq));
    ASSERT_TRUE(answer) << answer.error().message;
  }
  EXPECT_GT(fixture.store().stats().reconnects, 5u);
  const auto loaded = fixture.load("j0");
  ASSERT_TRUE(loaded);
  ASSERT_EQ(loaded->commits.size(), kCommits - 1);
  for (std::uint64_t seq = 2; seq < kCommits; ++seq) {
    EXPECT_EQ(loaded->commits[seq - 1], PostgresFixture::append("j0", seq).sealed->bytes);
  }
}

// The server is killed as in a power loss while many jobs write, and restarts.
AE_TEST("outage/a killed server loses no confirmed commit") {
  const OwnSchema schema;
  PostgresFixture fixture(schema.name());
  ASSERT_TRUE(fixture.open());
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
    const std::string id = fmt::format("j{}", j);
    if (job.confirmed >= 40) {
      --working;
      return;
    }
    Batch batch = job.confirmed == 0 ? PostgresFixture::create_claimed(id)
                                     : PostgresFixture::append(id, job.confirmed);
    const std::uint64_t last = batch.sealed->last_seq;
    fixture.store().commit(std::move(batch), [&, j, last](Result<CommitResult> answer) {
      Job& committed_job = jobs[static_cast<std::size_t>(j)];
      if (answer) {
        EXPECT_EQ(answer->last_seq, last);
        committed_job.confirmed = last;
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
  const std::uint64_t kills = testing::are_slow_tests_enabled() ? 5 : 1;
  for (std::uint64_t kill = 1; kill <= kills; ++kill) {
    ASSERT_TRUE(fixture.loop.run_until([&] { return total >= kill * 100; }));
    server().stop(SIGQUIT);
    const int before = unavailable + unknown;
    ASSERT_TRUE(fixture.loop.run_until([&] { return unavailable + unknown > before; }));
    server().start();
  }
  ASSERT_TRUE(fixture.loop.run_until([&] { return working == 0; }));
  EXPECT_GT(unavailable + unknown, 0);
  for (int j = 0; j < kJobs; ++j) {
    const std::string id = fmt::format("j{}", j);
    const auto loaded = fixture.load(id);
    ASSERT_TRUE(loaded) << loaded.error().message;
    EXPECT_EQ(loaded->row.last_seq, jobs[static_cast<std::size_t>(j)].confirmed);
    ASSERT_EQ(loaded->commits.size(), loaded->row.last_seq - 1);
    for (std::uint64_t seq = 2; seq < loaded->row.last_seq; ++seq) {
      EXPECT_EQ(loaded->commits[seq - 1], PostgresFixture::append(id, seq).sealed->bytes);
    }
  }
}

AE_TEST("outage/every call returns unavailable while the server is down and succeeds afterwards") {
  const OwnSchema schema;
  PostgresFixture fixture(schema.name());
  ASSERT_TRUE(fixture.open());
  ASSERT_TRUE(fixture.commit(PostgresFixture::create_claimed("j0")));
  server().stop(SIGINT);
  EXPECT_EQ(fixture.commit(PostgresFixture::append("j0", 2)).error().code, Code::unavailable);
  EXPECT_EQ(fixture.load("j0").error().code, Code::unavailable);
  EXPECT_EQ(fixture.query().error().code, Code::unavailable);
  const auto claimed = fixture.claim(1);
  EXPECT_EQ(claimed.error().code, Code::unavailable) << claimed.error().message;
  EXPECT_EQ(PostgresStore::open(fixture.options()).error().code, Code::unavailable);
  server().start();
  RetryingWriter persistent{fixture};
  EXPECT_FALSE(persistent.commit(PostgresFixture::append("j0", 2))->is_duplicate);
  // Its connection may still report the outage.
  auto loaded = fixture.load("j0");
  for (int wait = 0; !loaded && wait < 1000; ++wait) {
    EXPECT_EQ(loaded.error().code, Code::unavailable);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    loaded = fixture.load("j0");
  }
  ASSERT_TRUE(loaded) << loaded.error().message;
  EXPECT_EQ(loaded->row.last_seq, 3u);
}

AE_TEST("outage/a server restart between two calls causes no error") {
  const OwnSchema schema;
  PostgresFixture fixture(schema.name());
  ASSERT_TRUE(fixture.open());
  ASSERT_TRUE(fixture.commit(PostgresFixture::create_claimed("j0")));
  server().stop(SIGINT);
  server().start();
  EXPECT_TRUE(fixture.commit(PostgresFixture::append("j0", 2)));
  EXPECT_TRUE(fixture.load("j0"));
  EXPECT_TRUE(fixture.claim(1));
}

// A TCP proxy that can stop forwarding while its connections stay open.
class TcpProxy {
 public:
  enum class Mode { open, shut, swallow_commits, withhold_syncs };

  TcpProxy() {
    listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address = loopback(0);
    socklen_t size = sizeof address;
    AE_CHECK(::bind(listener_, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
             ::listen(listener_, 16) == 0 &&
             ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) == 0);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { run(); });
  }
  ~TcpProxy() {
    stop_ = true;
    thread_.join();
    for (const auto& [client, at_server] : pairs_) {
      ::close(client);
      ::close(at_server);
    }
    ::close(listener_);
  }
  TcpProxy(const TcpProxy&) = delete;
  TcpProxy& operator=(const TcpProxy&) = delete;

  std::string url() const {
    return fmt::format("postgres://aetheris@127.0.0.1:{}/postgres", port_);
  }
  // Applies to existing and new connections.
  std::atomic<Mode> mode = Mode::open;
  std::atomic<int> commits_swallowed = 0, syncs_withheld = 0;

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
      std::vector<pollfd> pollfds{{.fd = listener_, .events = POLLIN, .revents = 0}};
      for (const auto& [client, at_server] : pairs_) {
        pollfds.push_back({.fd = client, .events = POLLIN, .revents = 0});
        pollfds.push_back({.fd = at_server, .events = POLLIN, .revents = 0});
      }
      if (mode == Mode::shut) pollfds.resize(1);
      if (::poll(pollfds.data(), pollfds.size(), 5) <= 0) continue;
      for (std::size_t i = 1; i < pollfds.size(); ++i) {
        if (pollfds[i].revents != 0) forward((i - 1) / 2, i % 2 == 1);
      }
      if (pollfds[0].revents != 0) accept();
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
    const bool commits = text.contains(std::string_view("\0commit\0", 8)) ||
                         text.contains(std::string_view("\0put_plain_commits\0", 19));
    if (to_server && mode == Mode::swallow_commits && commits) {
      silent_.insert(client);
      ++commits_swallowed;
    }
    if (!to_server && silent_.contains(client)) return;
    ssize_t forwarded = size;
    if (to_server && mode == Mode::withhold_syncs && commits &&
        text.ends_with(std::string_view("S\0\0\0\4", 5))) {
      forwarded -= 5;
      ++syncs_withheld;
    }
    AE_CHECK(::write(to_server ? at_server : client, bytes, static_cast<std::size_t>(forwarded)) ==
             forwarded);
  }

  int listener_ = -1, port_ = 0;
  std::vector<std::pair<int, int>> pairs_;
  std::set<int> silent_;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

AE_TEST("outage/a commit whose response is lost is unknown, and a duplicate when repeated") {
  const OwnSchema schema;
  TcpProxy proxy;
  PostgresFixture fixture(schema.name());
  PostgresOptions options = fixture.options();
  options.url = proxy.url();
  options.response_timeout = std::chrono::milliseconds(200);
  ASSERT_TRUE(fixture.open(options));
  ASSERT_TRUE(fixture.commit(PostgresFixture::create_claimed("j0")));
  Batch in_a_transaction = PostgresFixture::append("j0", 2);
  in_a_transaction.effects = {{InvocationId("i"), 1, "{}"}};
  const Batch as_one_statement = PostgresFixture::append("j0", 3);
  int lost = 0;
  for (const Batch& batch : {in_a_transaction, as_one_statement}) {
    proxy.mode = TcpProxy::Mode::swallow_commits;
    EXPECT_EQ(fixture.commit(batch).error().code, Code::unknown_outcome);
    EXPECT_EQ(proxy.commits_swallowed, ++lost);
    proxy.mode = TcpProxy::Mode::open;
    const auto again = fixture.commit(batch);
    ASSERT_TRUE(again) << again.error().message;
    EXPECT_TRUE(again->is_duplicate);
  }
  EXPECT_EQ(fixture.load("j0")->commits.size(), 3u);
}

// A commit in a transaction of several round trips: the network is silent at the first one.
AE_TEST("outage/a silent network times out as unavailable without changes") {
  const OwnSchema schema;
  TcpProxy proxy;
  PostgresFixture fixture(schema.name());
  PostgresOptions options = fixture.options();
  options.url = proxy.url();
  options.response_timeout = std::chrono::milliseconds(200);
  options.connect_timeout = std::chrono::milliseconds(2000);
  ASSERT_TRUE(fixture.open(options));
  ASSERT_TRUE(fixture.commit(PostgresFixture::create_claimed("j0")));
  Batch batch = PostgresFixture::append("j0", 2);
  batch.effects = {{InvocationId("i"), 1, "{}"}};
  proxy.mode = TcpProxy::Mode::shut;
  EXPECT_EQ(fixture.commit(batch).error().code, Code::unavailable);
  proxy.mode = TcpProxy::Mode::open;
  RetryingWriter persistent{fixture};
  EXPECT_FALSE(persistent.commit(batch)->is_duplicate);
}

AE_TEST("outage/a silent network leaves a commit of one statement unknown") {
  const OwnSchema schema;
  TcpProxy proxy;
  PostgresFixture fixture(schema.name());
  PostgresOptions options = fixture.options();
  options.url = proxy.url();
  options.response_timeout = std::chrono::milliseconds(200);
  options.connect_timeout = std::chrono::milliseconds(2000);
  ASSERT_TRUE(fixture.open(options));
  ASSERT_TRUE(fixture.commit(PostgresFixture::create_claimed("j0")));
  proxy.mode = TcpProxy::Mode::shut;
  EXPECT_EQ(fixture.commit(PostgresFixture::append("j0", 2)).error().code, Code::unknown_outcome);
  proxy.mode = TcpProxy::Mode::open;
  RetryingWriter persistent{fixture};
  ASSERT_TRUE(persistent.commit(PostgresFixture::append("j0", 2)));
  EXPECT_EQ(fixture.load("j0")->commits.size(), 2u);
}

AE_TEST("outage/another store at the same address is not written to") {
  const OwnSchema schema;
  PostgresFixture fixture(schema.name());
  ASSERT_TRUE(fixture.open());
  ASSERT_TRUE(fixture.commit(PostgresFixture::create_claimed("j0")));
  const std::string id =
      sql("SELECT value FROM meta WHERE key = 'store_id'", schema.name())[1].text(0, 0);
  sql("UPDATE meta SET value = 'another' WHERE key = 'store_id'", schema.name());
  sql("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
      "WHERE application_name = 'aetheris' AND pid <> pg_backend_pid()");
  const auto refused = fixture.commit(PostgresFixture::append("j0", 2));
  EXPECT_EQ(refused.error().code, Code::unavailable);
  EXPECT_PRED2(contains, refused.error().message, "another store");
  sql(fmt::format("UPDATE meta SET value = '{}' WHERE key = 'store_id'", id), schema.name());
}

// Makes the server wait for a standby at each commit.
class PendingCommit {
 public:
  PendingCommit() { set("'nobody'"); }
  ~PendingCommit() { set("''"); }
  // The process id of the store's backend that waits for the standby; 0 = none.
  static std::int64_t waiting() {
    for (int i = 0; i < 2000; ++i) {
      const auto found = sql(
          "SELECT coalesce(max(pid), 0)::bigint FROM pg_stat_activity WHERE wait_event = 'SyncRep' "
          "AND application_name = 'aetheris'");
      if (found[1].integer(0, 0) != 0) return found[1].integer(0, 0);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));  // waits for the server
    }
    return 0;
  }
  static void stop_waiting(const char* how, std::int64_t pid) {
    sql(fmt::format("SELECT {}({})", how, pid));
  }

 private:
  static void set(const std::string& names) {
    auto connection = postgres::Connection::open({.url = server().url()});
    AE_CHECK(connection.has_value());
    connection->add_unprepared("ALTER SYSTEM SET synchronous_standby_names = " + names);
    AE_CHECK(connection->run().has_value());
    sql("SELECT pg_reload_conf()");
    const std::string expected = names == "''" ? "" : "nobody";
    while (sql("SELECT current_setting('synchronous_standby_names')")[1].text(0, 0) != expected) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
};

// A commit that is stored on the primary alone does not count as confirmed.
AE_TEST("outage/a commit with a cancelled standby wait is unknown, and its retry waits again") {
  const OwnSchema schema;
  PostgresFixture fixture(schema.name());
  ASSERT_TRUE(fixture.open());
  ASSERT_TRUE(fixture.commit(PostgresFixture::create_claimed("j0")));
  std::string answers;
  const auto send = [&] {
    fixture.store().commit(PostgresFixture::append("j0", 2), [&](Result<CommitResult> answer) {
      answers += conformance::show(answer) + ";";
    });
  };
  {
    const PendingCommit standby;
    send();
    std::int64_t waits = PendingCommit::waiting();
    ASSERT_NE(waits, 0);
    PendingCommit::stop_waiting("pg_cancel_backend", waits);
    ASSERT_TRUE(fixture.loop.run_until([&] { return !answers.empty(); }));
    EXPECT_EQ(answers, "unknown_outcome;");
    EXPECT_EQ(fixture.load("j0")->row.last_seq, 3U) << "it is stored";
    send();
    waits = PendingCommit::waiting();
    ASSERT_NE(waits, 0) << "a duplicate waits for the standby too";
    fixture.loop.run_ready();
    EXPECT_EQ(answers, "unknown_outcome;");
  }
  ASSERT_TRUE(fixture.loop.run_until([&] { return std::ranges::count(answers, ';') == 2; }));
  EXPECT_EQ(answers, "unknown_outcome;seq 3 repeated;");
}

AE_TEST("outage/a claim that is cancelled or terminated while it waits for a standby is unknown") {
  const OwnSchema schema;
  PostgresFixture fixture(schema.name());
  ASSERT_TRUE(fixture.open());
  for (const char* id : {"j0", "j1"}) ASSERT_TRUE(fixture.commit(PostgresFixture::create(id)));
  const PendingCommit standby;
  for (const char* how : {"pg_cancel_backend", "pg_terminate_backend"}) {
    std::optional<Result<std::vector<Lease>>> claimed;
    fixture.store().claim(conformance::ConformanceFixture::claim_request(how),
                          [&](Result<std::vector<Lease>> answer) { claimed = std::move(answer); });
    const std::int64_t waits = PendingCommit::waiting();
    ASSERT_NE(waits, 0);
    PendingCommit::stop_waiting(how, waits);
    ASSERT_TRUE(fixture.loop.run_until([&] { return claimed.has_value(); }));
    EXPECT_EQ(claimed->error().code, Code::unknown_outcome) << how;
  }
}

// The server has committed and answered, and then terminates the connection, which it reports with
// an error code.
AE_TEST("outage/a redaction committed before its connection is lost is unknown") {
  const OwnSchema schema;
  TcpProxy proxy;
  PostgresFixture fixture(schema.name());
  PostgresOptions options = fixture.options();
  options.url = proxy.url();
  ASSERT_TRUE(fixture.open(options));
  ASSERT_TRUE(fixture.commit(PostgresFixture::create("j0")));
  const SealedBatch before = conformance::sealed("j0", 1, 2);
  Redaction redaction{.job = JobId("j0"), .commits = {}, .effects = {}, .audit = {}};
  redaction.commits.push_back(
      {.first_seq = 1, .expected_hash = sha256(before.bytes), .bytes = "less", .blobs = {}});
  redaction.audit.act = "redact";
  const auto redact = [&](std::optional<Result<void>>& answer) {
    fixture.store().redact(redaction, [&](Result<void> result) { answer = std::move(result); });
  };
  proxy.mode = TcpProxy::Mode::withhold_syncs;
  std::optional<Result<void>> first;
  redact(first);
  while (proxy.syncs_withheld == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  proxy.mode = TcpProxy::Mode::open;
  const auto body = [&] { return sql("SELECT body FROM commits", schema.name())[1].text(0, 0); };
  for (int i = 0; i < 2000 && body() != "less"; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // waits for the server
  }
  ASSERT_EQ(body(), "less") << "it is committed and not yet answered";
  // Blocks reconnects: a retry would find the commit.
  sql("UPDATE meta SET value = 'not ' || value WHERE key = 'store_id'", schema.name());
  sql("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
      "WHERE application_name = 'aetheris' AND pid <> pg_backend_pid()");
  ASSERT_TRUE(fixture.loop.run_until([&] { return first.has_value(); }));
  EXPECT_EQ(first->error().code, Code::unknown_outcome) << first->error().message;
  sql("UPDATE meta SET value = substring(value FROM 5) WHERE key = 'store_id'", schema.name());
  std::optional<Result<void>> again;
  for (int i = 0; i < 200 && !(again && *again); ++i) {
    again.reset();
    redact(again);
    ASSERT_TRUE(fixture.loop.run_until([&] { return again.has_value(); }));
    if (!*again) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_TRUE(*again) << "a repeated redaction succeeds";
  EXPECT_EQ(sql("SELECT count(*) FROM audit", schema.name())[1].integer(0, 0), 1)
      << "and is written once";
}

// A row is locked for longer than the timeout: the write to its job fails, the others of the group
// succeed.
AE_TEST_SLOW("outage/a lock that is never released blocks only its own job") {
  const OwnSchema schema;
  PostgresFixture fixture(schema.name());
  ASSERT_TRUE(fixture.open());
  for (const char* id : {"j0", "j1", "j2"})
    ASSERT_TRUE(fixture.commit(PostgresFixture::create_claimed(id)));
  auto other = postgres::Connection::open({.url = server().url()});
  ASSERT_TRUE(other);
  other->add_unprepared("BEGIN");
  other->add_unprepared(fmt::format(
      "SELECT 1 FROM {0}.log_ends WHERE job = (SELECT number FROM {0}.jobs WHERE job_id = "
      "'j1') FOR UPDATE",
      schema.name()));
  ASSERT_TRUE(other->run());
  std::string answers;
  for (const char* id : {"j0", "j1", "j2"}) {
    fixture.store().commit(PostgresFixture::append(id, 2), [&](Result<CommitResult> answer) {
      answers += conformance::show(answer) + ";";
    });
  }
  ASSERT_TRUE(fixture.loop.run_until([&] { return std::ranges::count(answers, ';') == 3; }));
  EXPECT_EQ(answers, "seq 3;unavailable;seq 3;");
}

// A process is suspended in the middle of a transaction: the server ends the transaction, and
// others continue.
AE_TEST_SLOW("outage/a suspended process loses its locks within 15 seconds") {
  const OwnSchema schema;
  PostgresFixture fixture(schema.name());
  ASSERT_TRUE(fixture.open());
  ASSERT_TRUE(fixture.commit(PostgresFixture::create_claimed("j0")));
  auto stopped = postgres::Connection::open({.url = server().url()});
  ASSERT_TRUE(stopped);
  ASSERT_TRUE(postgres::prepare_session(*stopped, {.schema = schema.name()}));
  stopped->add_unprepared("BEGIN");
  stopped->add_unprepared("SELECT 1 FROM log_ends FOR UPDATE");
  ASSERT_TRUE(stopped->run());
  EXPECT_EQ(fixture.commit(PostgresFixture::append("j0", 2)).error().code, Code::unavailable);
  RetryingWriter persistent{fixture};
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_FALSE(persistent.commit(PostgresFixture::append("j0", 2))->is_duplicate);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(15));
  stopped->add_unprepared("COMMIT");
  EXPECT_TRUE(stopped->run().error().connection_lost);
}

}  // namespace
}  // namespace ae::store
