// Two processes: the worker is a child process and writes an event to a pipe when an attempt of a
// job is durable. Both read the same steady clock. The worker polls every five seconds: earlier
// claims are caused by a notification.
#include "claim_latency.h"

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <functional>
#include <string_view>
#include <vector>

#include "figures.h"
#include "plans.h"
#include "testing/postgres_server.h"
#include "worker_process.h"

namespace ae::bench {
namespace {

using Kind = WorkerEvent::Kind;

// `start` makes a job ready and waits until that is durable; the worker writes `running`, then
// `completed` when the job has completed.
void latency_row(std::string_view row, int pipe, int times, const std::function<void()>& before,
                 const std::function<void()>& start) {
  std::vector<double> ms, request_ms;
  for (int i = 0; i < times + 5; ++i) {
    before();
    const std::int64_t started_at = now_us();
    start();
    const std::int64_t durable = now_us();
    const std::int64_t began = await_event(pipe, Kind::running);
    await_event(pipe, Kind::completed);
    ::usleep(5000);       // until the claim that finds nothing has ended
    if (i < 5) continue;  // the first ones fill plans and caches
    request_ms.push_back(static_cast<double>(durable - started_at) / 1000);
    ms.push_back(static_cast<double>(began - durable) / 1000);
  }
  print_row(row, {{"times", times},
                  {"p50_ms", percentile(ms, 0.5)},
                  {"p99_ms", percentile(ms, 0.99)},
                  {"worst_ms", percentile(ms, 1)},
                  {"request_p50_ms", percentile(request_ms, 0.5)},
                  {"ratio", percentile(ms, 0.5) / percentile(request_ms, 0.5)}});
}

}  // namespace

void claim_latency_rows(bool quick) {
  const testing::PostgresServer server;
  int pipe[2];
  if (::pipe(pipe) != 0) std::exit(1);
  const pid_t worker = ::fork();
  if (worker < 0) std::exit(1);
  if (worker == 0) {
    WorkerProcess process({.url = server.url(), .event_pipe = pipe[1]});
    process.start();
    process.run();
    ::_exit(0);
  }
  {
    WorkerProcess maker({.url = server.url()});
    maker.start();
    const int times = quick ? 50 : 500;
    const auto chain = chain_plan(1), waits = signal_plan();
    latency_row("claim", pipe[0], times, [] {}, [&] { maker.create_jobs(chain); });
    JobId waiting;
    const auto park = [&] {
      waiting = maker.create_jobs(waits);
      await_event(pipe[0], Kind::waiting);
      ::usleep(5000);
    };
    latency_row("signal", pipe[0], times, park, [&] { maker.signal(waiting, "go"); });
  }
  ::kill(worker, SIGKILL);
  ::waitpid(worker, nullptr, 0);
}

}  // namespace ae::bench
