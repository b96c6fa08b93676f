// Two processes: the worker is a child of ours, and says on a pipe when an attempt of a job was durable. Both read one
// steady clock. The worker polls once in five seconds: what comes sooner came by a hint.
#include "claim_latency.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "net/asio_loop.h"
#include "net/system.h"
#include "runtime/runtime.h"
#include "store/postgres/postgres_store.h"
#include "testing/postgres_server.h"
#include "tools/native/native.h"

namespace ae::bench {
namespace {

std::int64_t now_us() {
  return std::chrono::duration_cast<std::chrono::microseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

class Process final : public runtime::RuntimeObserver {
 public:
  // `says`: where job_running is said, with the time; -1: this one claims nothing.
  Process(const std::string& url, int says) : says_(says) {
    auto opened = store::PostgresStore::open({.url = url, .loop = loop_});
    if (!opened) {
      std::fprintf(stderr, "%s\n", opened.error().message.c_str());
      std::exit(1);
    }
    store_ = *std::move(opened);
    performers_.add("work", {std::make_unique<tools::NativeTool>(
                                 loop_, steady_, tools::native_functions().at("fill").function),
                             "0123456789abcdef"});
    runtime::RuntimeOptions options;
    options.worker = says < 0 ? "maker" : "worker";
    options.claims = says >= 0;
    options.poll = std::chrono::seconds(5);
    runtime_.emplace(runtime::World{loop_, steady_, chance_, *store_, performers_}, options, this);
    runtime_->start();
  }

  void work() { loop_.run(); }

  void make(const std::shared_ptr<const engine::Plan>& plan) {
    runtime::NewJobRequest request;
    request.agent = "bench";
    request.plan = plan;
    request.input = Value::object({});
    request.hold = false;
    runtime_->create(std::move(request), [this](Result<runtime::Created> made) {
      if (!made) {
        std::fprintf(stderr, "create: %s\n", made.error().message.c_str());
        std::exit(1);
      }
      loop_.stop();
    });
    loop_.run();
  }

 private:
  void on_events(const JobId&, const std::vector<Event>& events) override {
    for (const Event& event : events) {
      if (says_ < 0 || event.type != EventType::job_running) continue;
      const std::int64_t now = now_us();
      if (::write(says_, &now, sizeof now) != sizeof now) std::exit(1);
    }
  }

  const int says_;
  net::AsioLoop loop_;
  net::SystemClock clock_;
  net::BootClock steady_;
  net::SystemChance chance_;
  std::unique_ptr<store::Store> store_;
  runtime::Performers performers_;
  std::optional<runtime::Runtime> runtime_;
};

double percentile(std::vector<double> values, double p) {
  std::ranges::sort(values);
  return values[static_cast<std::size_t>(p * static_cast<double>(values.size() - 1))];
}

}  // namespace

void claim_latency_row(const std::shared_ptr<const engine::Plan>& plan, bool quick) {
  const testing::PostgresServer server;
  int pipe[2];
  if (::pipe(pipe) != 0) std::exit(1);
  const pid_t worker = ::fork();
  if (worker < 0) std::exit(1);
  if (worker == 0) {
    Process(server.url(), pipe[1]).work();
    ::_exit(0);
  }
  std::vector<double> ms, making;
  {
    Process maker(server.url(), -1);
    const int jobs = quick ? 50 : 500;
    for (int i = 0; i < jobs + 5; ++i) {
      const std::int64_t asked = now_us();
      maker.make(plan);
      const std::int64_t made = now_us();
      std::int64_t began = 0;
      if (::read(pipe[0], &began, sizeof began) != sizeof began) std::exit(1);
      ::usleep(5000);       // the job ends, and the worker is idle again
      if (i < 5) continue;  // the first ones make plans and caches
      making.push_back(static_cast<double>(made - asked) / 1000);
      ms.push_back(static_cast<double>(began - made) / 1000);
    }
  }
  ::kill(worker, SIGKILL);
  ::waitpid(worker, nullptr, 0);
  const double one = percentile(making, 0.5);
  std::printf(
      "\nclaim latency, PostgreSQL, two processes: from a job being durable in one until its "
      "attempt "
      "is durable in the other:\np50 %.2f ms, p99 %.2f ms, worst %.2f ms (%zu jobs; budget: p99 50 "
      "ms); making a job, one commit, p50 %.2f ms: ratio %.1f\n",
      percentile(ms, 0.5), percentile(ms, 0.99), percentile(ms, 1), ms.size(), one,
      percentile(ms, 0.5) / one);
}

}  // namespace ae::bench
