#include "postgres_cost.h"

#include <fmt/core.h>
#include <libpq-fe.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>
#include <vector>

#include "figures.h"
#include "plans.h"
#include "store/postgres/connection.h"
#include "worker_process.h"

namespace ae::bench {
namespace {

using store::postgres::Column;
using store::postgres::Connection;
using store::postgres::Rows;
using Kind = WorkerEvent::Kind;

[[noreturn]] void exit_with_error(const std::string& why) {
  std::fprintf(stderr, "%s\n", why.c_str());
  std::exit(1);
}

// Runs statements, each in its own transaction; returns the rows of the last.
Rows sql(const testing::PostgresServer& server, const std::vector<std::string>& statements) {
  auto connection =
      Connection::open({.url = server.url(), .response_timeout = std::chrono::minutes(10)});
  if (!connection) exit_with_error(connection.error().text());
  std::vector<Rows> answers;
  for (const std::string& statement : statements) {
    connection->add_unprepared(statement);
    auto ran = connection->run();
    if (!ran) exit_with_error(fmt::format("{}: {}", statement, ran.error().text()));
    answers = *std::move(ran);
  }
  return std::move(answers.back());
}

// From /proc: the CPU time of a process, and of its terminated children.
struct ProcStat {
  int parent = 0;
  double ms = 0, children_ms = 0;
};
ProcStat proc_stat(const std::string& pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string line;
  std::getline(file, line);
  std::istringstream rest(line.substr(std::min(line.rfind(')') + 1, line.size())));
  std::string skipped;
  ProcStat stat;
  rest >> skipped >> stat.parent;
  for (int field = 5; field < 14; ++field) rest >> skipped;
  double user = 0, system = 0, children_user = 0, children_system = 0;
  rest >> user >> system >> children_user >> children_system;
  const double tick_ms = 1000.0 / static_cast<double>(::sysconf(_SC_CLK_TCK));
  stat.ms = (user + system) * tick_ms;
  stat.children_ms = (children_user + children_system) * tick_ms;
  return stat;
}

double server_cpu_ms(pid_t postmaster) {
  const ProcStat postmaster_stat = proc_stat(std::to_string(postmaster));
  double ms = postmaster_stat.ms + postmaster_stat.children_ms;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != name.npos) continue;
    const ProcStat stat = proc_stat(name);
    if (stat.parent == postmaster) ms += stat.ms;
  }
  return ms;
}

PGresult* check_result(PGconn* connection, PGresult* result) {
  const ExecStatusType status = PQresultStatus(result);
  if (status != PGRES_COMMAND_OK && status != PGRES_TUPLES_OK && status != PGRES_PIPELINE_SYNC) {
    exit_with_error(fmt::format("libpq: {}", PQerrorMessage(connection)));
  }
  return result;
}

constexpr const char* kRawStep =
    "WITH w AS (SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bytea[], $4::bytea[]) "
    "AS w(job, seq, head, body)), "
    "u AS (UPDATE raw_heads h SET last_seq = w.seq, head = w.head FROM w "
    "WHERE h.job = w.job AND h.last_seq < w.seq RETURNING h.job) "
    "INSERT INTO raw_commits SELECT w.job, w.seq, w.body FROM w JOIN u USING (job)";

}  // namespace

testing::PostgresServer bench_server() {
  return testing::PostgresServer({"shared_buffers=256MB", "max_wal_size=2GB"});
}

ServerCost server_cost(const testing::PostgresServer& server) {
  const Rows rows =
      sql(server, {"SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint, "
                   "coalesce(sum(pg_table_size(c.oid)), 0)::bigint, "
                   "coalesce(sum(pg_indexes_size(c.oid)), 0)::bigint, "
                   "(SELECT coalesce(avg(length(body)), 0) FROM aetheris.commits)::bigint "
                   "FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
                   "WHERE n.nspname = 'aetheris' AND c.relkind = 'r'"});
  const auto number = [&](int column) { return static_cast<double>(rows.integer(0, column)); };
  return {.cpu_ms = server_cpu_ms(server.process()),
          .wal_bytes = number(0),
          .table_bytes = number(1),
          .index_bytes = number(2),
          .body_bytes = number(3)};
}

RawResult raw_postgres(const testing::PostgresServer& server, std::size_t group, std::size_t steps,
                       std::size_t row_bytes) {
  sql(server,
      {"DROP TABLE IF EXISTS raw_heads, raw_commits",
       "CREATE TABLE raw_heads(job bigint PRIMARY KEY, last_seq bigint NOT NULL, head bytea NOT "
       "NULL) WITH (fillfactor = 60)",
       "CREATE TABLE raw_commits(job bigint, first_seq bigint, body bytea, "
       "PRIMARY KEY(job, first_seq))",
       fmt::format("INSERT INTO raw_heads SELECT n, 0, ''::bytea FROM generate_series(1, {}) AS n",
                   group),
       "VACUUM ANALYZE raw_heads"});
  PGconn* connection = PQconnectdb(server.url().c_str());
  if (PQstatus(connection) != CONNECTION_OK) exit_with_error(PQerrorMessage(connection));
  PQclear(check_result(connection, PQprepare(connection, "step", kRawStep, 4, nullptr)));
  if (PQenterPipelineMode(connection) != 1) exit_with_error(PQerrorMessage(connection));
  const std::string body(row_bytes, 'x'), head(32, 'h');
  const double cpu = cpu_ms(), server_cpu = server_cpu_ms(server.process());
  const auto start = std::chrono::steady_clock::now();
  std::size_t done = 0;
  for (std::int64_t round = 1; done < steps; ++round, done += group) {
    Column jobs(Column::Type::integer), seqs(Column::Type::integer), heads(Column::Type::bytes),
        bodies(Column::Type::bytes);
    for (std::size_t i = 0; i < group; ++i) {
      jobs.add(static_cast<std::int64_t>(i + 1));
      seqs.add(round);
      heads.add(head);
      bodies.add(body);
    }
    const std::string parts[] = {jobs.encoded(), seqs.encoded(), heads.encoded(), bodies.encoded()};
    const char* values[4];
    int lengths[4], formats[4];
    for (int i = 0; i < 4; ++i) {
      values[i] = parts[i].data();
      lengths[i] = static_cast<int>(parts[i].size());
      formats[i] = 1;
    }
    if (PQsendQueryPrepared(connection, "step", 4, values, lengths, formats, 1) != 1 ||
        PQpipelineSync(connection) != 1) {
      exit_with_error(PQerrorMessage(connection));
    }
    for (bool synced = false; !synced;) {
      PGresult* result = PQgetResult(connection);
      if (result == nullptr) continue;
      synced = PQresultStatus(check_result(connection, result)) == PGRES_PIPELINE_SYNC;
      PQclear(result);
    }
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  const auto all = static_cast<double>(done);
  const RawResult result{all / took.count(), (cpu_ms() - cpu) / all,
                         (server_cpu_ms(server.process()) - server_cpu) / all};
  PQfinish(connection);
  return result;
}

namespace {

void worker_row(int workers, int jobs) {
  const testing::PostgresServer server = bench_server();
  int event[2], start_pipe[2];
  if (::pipe(event) != 0 || ::pipe(start_pipe) != 0) std::exit(1);
  std::vector<pid_t> children;
  for (int i = 0; i < workers; ++i) {
    const pid_t child = ::fork();
    if (child < 0) std::exit(1);
    if (child > 0) {
      children.push_back(child);
      continue;
    }
    WorkerProcess process(
        {.url = server.url(), .event_pipe = event[1], .poll = std::chrono::seconds(1)});
    write_event(event[1], Kind::ready);
    char byte = 0;
    if (::read(start_pipe[0], &byte, 1) != 1) ::_exit(1);
    process.start();
    process.run();
    ::_exit(0);
  }
  for (int i = 0; i < workers; ++i) await_event(event[0], Kind::ready);
  {
    WorkerProcess({.url = server.url()}).create_jobs(chain_plan(10), jobs);
  }
  rusage before{};
  getrusage(RUSAGE_CHILDREN, &before);
  const double server_cpu = server_cpu_ms(server.process());
  const std::int64_t start = now_us();
  if (::write(start_pipe[1], "gogo", static_cast<std::size_t>(workers)) != workers) std::exit(1);
  for (int i = 0; i < jobs; ++i) await_event(event[0], Kind::completed);
  const double steps = jobs * 10.0, seconds = static_cast<double>(now_us() - start) / 1e6;
  const double server_ms = server_cpu_ms(server.process()) - server_cpu;
  double worker_ms = 0;
  for (const pid_t child : children) worker_ms += proc_stat(std::to_string(child)).ms;
  for (const pid_t child : children) {
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
  }
  print_row("workers", {{"processes", workers},
                        {"steps_per_second", steps / seconds},
                        {"worker_cpu_ms", worker_ms / steps},
                        {"server_cpu_ms", server_ms / steps}});
}

// Inserts finished jobs directly in the database.
void add_history(const testing::PostgresServer& server, int jobs) {
  sql(server,
      {fmt::format(
           "INSERT INTO aetheris.jobs SELECT nextval('aetheris.job_numbers'), 'old' || n || '-' || "
           "nextval('aetheris.job_numbers'), 'bench', '', '\\x00'::bytea, 0, '{{}}', n "
           "FROM generate_series(1, {}) AS n",
           jobs),
       "INSERT INTO aetheris.heads SELECT number, 0, 1, NULL, NULL, NULL, NULL, false, "
       "'completed', NULL, NULL, 'default', '' FROM aetheris.jobs j "
       "WHERE NOT EXISTS (SELECT FROM aetheris.heads h WHERE h.job = j.number)",
       "INSERT INTO aetheris.log_ends SELECT number, NULL, 2, 0, '\\x00'::bytea "
       "FROM aetheris.jobs j "
       "WHERE NOT EXISTS (SELECT FROM aetheris.log_ends e WHERE e.job = j.number)",
       "INSERT INTO aetheris.commits SELECT h.job, 1, 2, NULL, decode(repeat('00', 800), 'hex') "
       "FROM aetheris.heads h "
       "WHERE NOT EXISTS (SELECT FROM aetheris.commits c WHERE c.job = h.job)",
       "VACUUM ANALYZE", "CHECKPOINT"});
}

struct ClaimCost {
  double claim_ms = 0, create_ms = 0;  // medians; creating a job is one commit
};

ClaimCost measure_claims(WorkerProcess& process, int times) {
  std::vector<double> ms, making;
  for (int i = 0; i < times; ++i) {
    const std::int64_t started_at = now_us();
    process.create_jobs(chain_plan(1));
    making.push_back(static_cast<double>(now_us() - started_at) / 1000);
    store::ClaimRequest request;
    request.worker = "bench";
    request.lease = std::chrono::hours(1);
    request.attempts.emplace_back(fmt::format("attempt-{}", now_us()));
    const std::int64_t start = now_us();
    process.await([&](const std::function<void()>& done) {
      process.store().claim(std::move(request),
                            [done](const Result<std::vector<store::Lease>>& leases) {
                              if (!leases || leases->size() != 1)
                                exit_with_error("nothing was claimed");
                              done();
                            });
    });
    ms.push_back(static_cast<double>(now_us() - start) / 1000);
  }
  return {percentile(ms, 0.5), percentile(making, 0.5)};
}

}  // namespace

void worker_rows(bool quick) {
  for (const int workers : {1, 2}) worker_row(workers, quick ? 300 : 3000);
}

void history_rows(bool quick) {
  const testing::PostgresServer server = bench_server();
  const int few = 1000, many = quick ? 100'000 : 1'000'000, times = quick ? 50 : 300;
  int history = 0;
  // Relative to the cost of a commit at that time: the speed of the disk changes from minute to
  // minute.
  std::vector<double> shares;
  for (const int finished : {few, many}) {
    {
      WorkerProcess({.url = server.url()}).create_jobs(chain_plan(1));
    }
    add_history(server, finished - history);
    history = finished;
    WorkerProcess process({.url = server.url()});  // its statements are planned for these tables
    measure_claims(process, 20);
    const ClaimCost cost = measure_claims(process, times);
    shares.push_back(cost.claim_ms / cost.create_ms);
    Figures figures{{"finished", finished},
                    {"claim_p50_ms", cost.claim_ms},
                    {"create_p50_ms", cost.create_ms},
                    {"claim_to_create", shares.back()}};
    if (finished == many) figures.emplace_back("ratio", shares.back() / shares.front());
    print_row("history", figures);
  }
}

}  // namespace ae::bench
