// What a durable step costs: steps per second, CPU and bytes per step, latency of a job alone; beside each figure of
// the embedded store the limit of raw SQLite doing the same writes, measured in the same run. Ratios count: the
// machine is noisy.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <thread>
#include <vector>

#include "claim_latency.h"
#include "core/json.h"
#include "net/asio_loop.h"
#include "net/http_client.h"
#include "net/http_server.h"
#include "net/system.h"
#include "raw_limit.h"
#include "runtime/runtime.h"
#include "store/memory/memory_store.h"
#include "store/sqlite/sqlite_store.h"
#include "tools/http/http_tool.h"
#include "tools/native/native.h"
#include "tools/secrets.h"

namespace ae::bench {
namespace {

using SteadyTime = std::chrono::steady_clock;

std::shared_ptr<const engine::Plan> chain_plan(int steps, std::string_view effect) {
  std::vector<Value> nodes;
  for (int i = 0; i < steps; ++i) {
    std::vector<Member> node{{"id", "s" + std::to_string(i)},
                             {"kind", "tool"},
                             {"tool", "work"},
                             {"args", Value::object({{"bytes", 200}, {"n", i}})}};
    if (i > 0) node.emplace_back("needs", Value::array({Value("s" + std::to_string(i - 1))}));
    nodes.push_back(Value::object(std::move(node)));
  }
  const Value tool = *parse_json(
      R"({"dedupe_window":"24h","effect":")" + std::string(effect) +
      R"(","grace":"30s","on_in_doubt":"resend","retry":{"initial_backoff":"200ms","max_attempts":1,)"
      R"("max_backoff":"10s","multiplier":2,"retry_on":["connect"]},"timeout":"30s",)"
      R"("version":"0123456789abcdef"})");
  auto plan = engine::Plan::compile(Value::object({{"nodes", Value::array(std::move(nodes))},
                                                   {"output", "${ .steps.s0 | length }"},
                                                   {"schema", 1},
                                                   {"tools", Value::object({{"work", tool}})}}));
  if (!plan) std::abort();
  return *plan;
}

std::shared_ptr<const engine::Plan> map_plan(int items) {
  const auto chain = chain_plan(1, "idempotent");
  const Value node = Value::object(
      {{"id", "each"},
       {"kind", "map"},
       {"over", "${ [range(" + std::to_string(items) + ")] }"},
       {"max_parallel", 1},
       {"do", Value::object({{"tool", "work"}, {"args", Value::object({{"bytes", 20}})}})}});
  auto plan = engine::Plan::compile(Value::object({{"nodes", Value::array({node})},
                                                   {"output", "${ .steps.each | length }"},
                                                   {"schema", 1},
                                                   {"tools", chain->task_graph["tools"]}}));
  if (!plan) {
    std::fprintf(stderr, "%s\n", plan.error().message.c_str());
    std::abort();
  }
  return *plan;
}

// A process in small: loop, store, tools, runtime; runs jobs of one plan, so many at a time.
class Bench : public runtime::RuntimeObserver {
 public:
  using MakeStore = std::function<std::unique_ptr<store::Store>(async::Loop&, async::Clock&)>;
  using MakeTool = std::function<std::unique_ptr<tools::Tool>(async::Loop&, async::SteadyClock&)>;

  Bench(const MakeStore& make_store, const MakeTool& make_tool) {
    store_ = make_store(loop_, clock_);
    performers_.add("work", {make_tool(loop_, steady_), "0123456789abcdef"});
    runtime::World world{loop_, steady_, chance_, *store_, performers_};
    runtime_ =
        std::make_unique<runtime::Runtime>(world, runtime::RuntimeOptions{.held_max = 1024}, this);
  }

  void run(std::shared_ptr<const engine::Plan> plan, int jobs, int in_flight) {
    plan_ = std::move(plan);
    to_start_ = jobs;
    to_end_ = jobs;
    for (int i = 0; i < in_flight; ++i) loop_.post([this] { start_one(); });
    loop_.run();
  }

  // Gaps between the durable steps of the last job, in milliseconds.
  std::vector<double> gaps;
  JobId last_job;
  async::Loop& loop() { return loop_; }
  runtime::Runtime& runtime() { return *runtime_; }
  void spin() { loop_.run(); }
  void halt() { loop_.stop(); }

 private:
  void start_one() {
    if (to_start_ == 0) return;
    to_start_--;
    runtime::NewJobRequest request;
    request.agent = "bench";
    request.plan = plan_;
    request.input = Value::object({});
    runtime_->create(std::move(request), [this](Result<runtime::Created> created) {
      if (!created) {
        std::fprintf(stderr, "create: %s\n", created.error().message.c_str());
        std::exit(1);
      }
      last_job = created->job;
    });
  }
  void on_events(const JobId&, const std::vector<Event>& events) override {
    const auto now = SteadyTime::now();
    for (const Event& event : events) {
      if (event.type != EventType::step_committed) continue;
      gaps.push_back(std::chrono::duration<double, std::milli>(now - last_).count());
    }
    last_ = now;
  }
  void on_released(const JobId& job, const std::optional<Error>& problem) override {
    if (problem) {
      std::fprintf(stderr, "%s: %s\n", job.text.c_str(), problem->message.c_str());
      std::exit(1);
    }
    if (--to_end_ == 0) {
      loop_.stop();
    } else {
      start_one();
    }
  }

  net::AsioLoop loop_;
  net::SystemClock clock_;
  net::BootClock steady_;
  net::SystemChance chance_;
  std::unique_ptr<store::Store> store_;
  runtime::Performers performers_;
  std::unique_ptr<runtime::Runtime> runtime_;
  std::shared_ptr<const engine::Plan> plan_;
  int to_start_ = 0, to_end_ = 0;
  SteadyTime::time_point last_;
};

std::unique_ptr<store::Store> memory_store(async::Loop& loop, async::Clock& clock) {
  return std::make_unique<store::MemoryStore>(loop, clock);
}

Bench::MakeStore sqlite_at(const std::string& path) {
  return [path](async::Loop& loop, async::Clock& clock) -> std::unique_ptr<store::Store> {
    auto opened = store::SqliteStore::open({.path = path, .loop = loop, .clock = clock});
    if (!opened) {
      std::fprintf(stderr, "%s\n", opened.error().message.c_str());
      std::exit(1);
    }
    return std::move(*opened);
  };
}

std::unique_ptr<tools::Tool> native_tool(async::Loop& loop, async::SteadyClock& clock) {
  return std::make_unique<tools::NativeTool>(loop, clock,
                                             tools::native_functions().at("fill").function);
}

double percentile(std::vector<double> values, double p) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  return values[static_cast<std::size_t>(p * static_cast<double>(values.size() - 1))];
}

std::uintmax_t bytes_of(const std::filesystem::path& path) {
  std::error_code error;
  const auto size = std::filesystem::file_size(path, error);
  return error ? 0 : size;
}

struct Figures {
  double per_second = 0, cpu_ms = 0, p50 = 0, p99 = 0;
};

Figures measure(Bench& bench, int jobs, int in_flight) {
  const double cpu = cpu_ms();
  const auto start = SteadyTime::now();
  bench.run(chain_plan(10, "idempotent"), jobs, in_flight);
  const std::chrono::duration<double> took = SteadyTime::now() - start;
  const double steps = jobs * 10.0;
  return {steps / took.count(), (cpu_ms() - cpu) / steps, percentile(bench.gaps, 0.5),
          percentile(bench.gaps, 0.99)};
}

int jobs_for(int in_flight, bool quick) { return (in_flight == 1 ? 200 : 3000) / (quick ? 10 : 1); }

void memory_table(bool quick) {
  std::printf(
      "durable steps in memory, 10 a job, native tool returning ~200 bytes at once (on the "
      "loop)\n");
  std::printf("%9s %12s %12s %9s %9s\n", "in flight", "steps/s", "CPU ms/step", "p50 ms", "p99 ms");
  for (const int in_flight : {1, 32, 256}) {
    Bench memory(memory_store, native_tool);
    const Figures m = measure(memory, jobs_for(in_flight, quick), in_flight);
    std::printf("%9d %12.0f %12.4f %9.3f %9.3f\n", in_flight, m.per_second, m.cpu_ms, m.p50, m.p99);
  }
}

// Beside each figure the limit: raw SQLite writing rows of the same size, so many to a transaction.
void sqlite_table(const std::filesystem::path& folder, bool quick) {
  std::printf(
      "\ndurable steps on SQLite, fsynced, 10 a job, native tool returning ~200 bytes at once (on "
      "the loop)\n");
  std::printf("%9s %12s %12s %12s %9s %9s %12s %12s %8s\n", "in flight", "steps/s", "CPU ms/step",
              "bytes/step", "p50 ms", "p99 ms", "raw steps/s", "raw CPU ms", "ratio");
  for (const int in_flight : {1, 32, 256}) {
    const int jobs = jobs_for(in_flight, quick);
    const auto path = folder / ("ours" + std::to_string(in_flight) + ".db");
    Figures s;
    {
      Bench sqlite(sqlite_at(path), native_tool);
      s = measure(sqlite, jobs, in_flight);
    }
    const double bytes = static_cast<double>(bytes_of(path)) / (jobs * 10.0);
    const RawResult raw = raw_sqlite(
        folder / ("raw" + std::to_string(in_flight) + ".db"), static_cast<std::size_t>(in_flight),
        static_cast<std::size_t>(jobs) * 10, static_cast<std::size_t>(bytes));
    std::printf("%9d %12.0f %12.4f %12.0f %9.3f %9.3f %12.0f %12.4f %8.2f\n", in_flight,
                s.per_second, s.cpu_ms, bytes, s.p50, s.p99, raw.steps_per_second,
                raw.cpu_ms_per_step, s.per_second / raw.steps_per_second);
  }
}

void http_row(const std::filesystem::path& folder, bool quick) {
  net::AsioLoop server_loop;
  net::HttpServer server(server_loop, [](net::HttpRequest, net::Responder responder) {
    std::move(responder).answer({.body = R"({"ok":true,"text":")" + std::string(180, 'x') + "\"}"});
  });
  auto port = server.listen_tcp("127.0.0.1", 0);
  if (!port) {
    std::fprintf(stderr, "%s\n", port.error().message.c_str());
    std::exit(1);
  }
  std::thread thread([&] { server_loop.run(); });
  {
    std::unique_ptr<net::HttpClient> client;
    tools::EnvironmentSecrets secrets;
    const std::string url = "http://127.0.0.1:" + std::to_string(*port) + "/work";
    Bench bench(sqlite_at(folder / "http.db"),
                [&](async::Loop& loop, async::SteadyClock& clock) -> std::unique_ptr<tools::Tool> {
                  client = std::make_unique<net::HttpClient>(loop);
                  static_cast<void>(clock);
                  auto tool =
                      tools::HttpTool::make(Value::object({{"method", "POST"}, {"url", url}}),
                                            {.loop = loop, .client = *client, .secrets = secrets});
                  if (!tool) {
                    std::fprintf(stderr, "%s\n", tool.error().message.c_str());
                    std::exit(1);
                  }
                  return std::move(*tool);
                });
    const Figures f = measure(bench, quick ? 30 : 300, 32);
    std::printf(
        "\nHTTP tool against a local server, sqlite, 32 in flight: %.0f steps/s, %.3f CPU ms/step "
        "(server included)\n",
        f.per_second, f.cpu_ms);
  }
  server_loop.stop();
  thread.join();
}

void map_row(const std::filesystem::path& folder, bool quick) {
  const int items = quick ? 2000 : 20000;
  Bench bench(sqlite_at(folder / "map.db"), native_tool);
  bench.run(map_plan(items), 1, 1);
  const auto tenth = static_cast<std::ptrdiff_t>(bench.gaps.size() / 10);
  const auto mean = [](auto first, auto last) {
    double sum = 0;
    for (auto it = first; it != last; ++it) sum += *it;
    return sum / static_cast<double>(last - first);
  };
  const double first = mean(bench.gaps.begin(), bench.gaps.begin() + tenth);
  const double last = mean(bench.gaps.end() - tenth, bench.gaps.end());
  std::printf(
      "\nmap of %d items, one at a time, sqlite: first tenth %.3f ms/step, last tenth %.3f "
      "ms/step, ratio %.2f\n",
      items, first, last, last / first);
  std::optional<std::size_t> events;
  double seconds = 0;
  bench.loop().post([&] {
    const auto start = SteadyTime::now();
    bench.runtime().read(bench.last_job, [&, start](Result<runtime::Runtime::Read> read) {
      seconds = std::chrono::duration<double>(SteadyTime::now() - start).count();
      if (read) events = read->events.size();
      bench.halt();
    });
  });
  bench.spin();
  if (!events) std::exit(1);
  std::printf("replay of that job (read, verify the chain, fold): %zu events, %.0f events/s\n",
              *events, static_cast<double>(*events) / seconds);
}

}  // namespace
}  // namespace ae::bench

// aetheris_bench [--quick] [memory|sqlite|http|map|claim]…      without names: all
int main(int argc, char** argv) {
  const std::vector<std::string_view> arguments(argv + 1, argv + argc);
  const auto said = [&](std::string_view word) {
    return std::ranges::find(arguments, word) != arguments.end();
  };
  const bool quick = said("--quick");
  const bool all = arguments.size() == (quick ? 1 : 0);
  std::string folder = std::filesystem::temp_directory_path() / "aetheris-bench-XXXXXX";
  if (!mkdtemp(folder.data())) return 1;
  if (all || said("memory")) ae::bench::memory_table(quick);
  if (all || said("sqlite")) ae::bench::sqlite_table(folder, quick);
  if (all || said("http")) ae::bench::http_row(folder, quick);
  if (all || said("map")) ae::bench::map_row(folder, quick);
  if (all || said("claim")) {
    ae::bench::claim_latency_row(ae::bench::chain_plan(1, "idempotent"), quick);
  }
  std::filesystem::remove_all(folder);
  return 0;
}
