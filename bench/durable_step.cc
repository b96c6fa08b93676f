// The cost of a durable step: steps per second, CPU and bytes per step, latency of a single job.
// Next to each figure of a store is the limit of the raw database with the same writes, measured in
// the same run. Only the ratios are meaningful, because the machine is noisy.
#include <fmt/core.h>
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
#include "figures.h"
#include "http_drive.h"
#include "net/asio_loop.h"
#include "net/http_client.h"
#include "net/http_server.h"
#include "net/system.h"
#include "plans.h"
#include "postgres_cost.h"
#include "raw_limit.h"
#include "runtime/scheduler/runtime.h"
#include "store/memory/memory_store.h"
#include "store/postgres/postgres_store.h"
#include "store/sqlite/sqlite_store.h"
#include "testing/native_functions.h"
#include "tools/http/http_tool.h"
#include "tools/native/native.h"
#include "tools/secrets.h"

namespace ae::bench {
namespace {

using SteadyTime = std::chrono::steady_clock;

// A minimal process: loop, store, tools, runtime; runs jobs of one plan, `in_flight` at a time.
class Bench : public runtime::RuntimeObserver {
 public:
  using StoreFactory = std::function<std::unique_ptr<store::Store>(async::Loop&, async::Clock&)>;
  using ToolFactory =
      std::function<std::unique_ptr<tools::Tool>(async::Loop&, async::SteadyClock&)>;

  Bench(const StoreFactory& make_store, const ToolFactory& make_tool) {
    store_ = make_store(loop_, clock_);
    tool_registry_.add("work", {make_tool(loop_, steady_), "0123456789abcdef"});
    runtime::World world{loop_, steady_, random_, *store_, tool_registry_};
    runtime_ = std::make_unique<runtime::Runtime>(
        world, runtime::RuntimeOptions{.leased_max = 1024}, this);
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
  void run_loop() { loop_.run(); }
  void stop_loop() { loop_.stop(); }

 private:
  void start_one() {
    if (to_start_ == 0) return;
    to_start_--;
    runtime::NewJobRequest request;
    request.agent = "bench";
    request.plan = plan_;
    request.input = Value::object({});
    runtime_->create(std::move(request), [this](Result<runtime::CreateResult> created) {
      if (!created) {
        std::fprintf(stderr, "create: %s\n", created.error().message.c_str());
        std::exit(1);
      }
      last_job = created->job;
    });
  }
  bool reads(EventType type) const override { return type == EventType::step_committed; }
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
      std::fprintf(stderr, "%s: %s\n", job.text.string().c_str(), problem->message.c_str());
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
  net::SystemRandom random_;
  std::unique_ptr<store::Store> store_;
  runtime::ToolRegistry tool_registry_;
  std::unique_ptr<runtime::Runtime> runtime_;
  std::shared_ptr<const engine::Plan> plan_;
  int to_start_ = 0, to_end_ = 0;
  SteadyTime::time_point last_;
};

std::unique_ptr<store::Store> memory_store(async::Loop& loop, async::Clock& clock) {
  return std::make_unique<store::MemoryStore>(loop, clock);
}

Bench::StoreFactory sqlite_at(const std::string& path) {
  return [path](async::Loop& loop, async::Clock& clock) -> std::unique_ptr<store::Store> {
    auto opened = store::SqliteStore::open({.path = path, .loop = loop, .clock = clock});
    if (!opened) {
      std::fprintf(stderr, "%s\n", opened.error().message.c_str());
      std::exit(1);
    }
    return std::move(*opened);
  };
}

Bench::StoreFactory postgres_at(const std::string& url) {
  return [url](async::Loop& loop, async::Clock&) -> std::unique_ptr<store::Store> {
    auto opened = store::PostgresStore::open({.url = url, .loop = loop});
    if (!opened) {
      std::fprintf(stderr, "%s\n", opened.error().message.c_str());
      std::exit(1);
    }
    return std::move(*opened);
  };
}

std::unique_ptr<tools::Tool> native_tool(async::Loop& loop, async::SteadyClock& clock) {
  return std::make_unique<tools::NativeTool>(loop, clock,
                                             testing::native_functions().at("fill").function);
}

std::uintmax_t bytes_of(const std::filesystem::path& path) {
  std::error_code error;
  const auto size = std::filesystem::file_size(path, error);
  return error ? 0 : size;
}

struct Cost {
  double per_second = 0, cpu_ms = 0, p50 = 0, p99 = 0;
};

// What the rows of stores run.
struct Load {
  bool quick = false;
  int only = 0;  // the number in flight to measure alone; 0 = each of kInFlight
  int job_steps = 10;
};

Cost measure(Bench& bench, int jobs, int in_flight, int job_steps = 10) {
  const double cpu = cpu_ms();
  const auto start = SteadyTime::now();
  bench.run(chain_plan(job_steps), jobs, in_flight);
  const std::chrono::duration<double> took = SteadyTime::now() - start;
  const double steps = static_cast<double>(jobs) * job_steps;
  return {steps / took.count(), (cpu_ms() - cpu) / steps, percentile(bench.gaps, 0.5),
          percentile(bench.gaps, 0.99)};
}

constexpr int kInFlight[] = {1, 32, 256};

// In one turn: as many steps whatever `job_steps` is, but enough jobs to be in flight.
int jobs_for(int in_flight, const Load& load, int turns) {
  const int steps = (in_flight == 1 ? 2000 : 30'000) / (load.quick ? 10 : 1) / turns;
  return load.job_steps == 10 ? steps / 10 : std::max(steps / load.job_steps, 2 * in_flight);
}

void memory_rows(const Load& load) {
  for (const int in_flight : kInFlight) {
    if (load.only != 0 && load.only != in_flight) continue;
    Bench memory(memory_store, native_tool);
    const int jobs = jobs_for(32, load, 1);
    const Cost m = measure(memory, jobs, in_flight, load.job_steps);
    print_row("memory", {{"in_flight", in_flight},
                         {"steps_per_second", m.per_second},
                         {"cpu_ms", m.cpu_ms},
                         {"p50_ms", m.p50},
                         {"p99_ms", m.p99}});
  }
}

// A store and its raw limit are measured in turns, because the speed of a machine varies from
// second to second: the ratio is the median of the turns, and the figures are their means.
constexpr int kTurns = 5;

struct Turns {
  Cost ours;
  RawResult raw;
  double ratio = 0;
};

// `measure_one`: a share of the jobs. `measure_raw`: as many steps on the bare database.
Turns measure_in_turns(int turns, const std::function<Cost()>& measure_one,
                       const std::function<RawResult(int turn)>& measure_raw) {
  Turns all;
  std::vector<double> ratios;
  double seconds = 0, raw_seconds = 0;  // of one step
  for (int turn = 0; turn < turns; ++turn) {
    const Cost one = measure_one();
    const RawResult raw = measure_raw(turn);
    ratios.push_back(one.per_second / raw.steps_per_second);
    seconds += 1 / one.per_second / turns;
    raw_seconds += 1 / raw.steps_per_second / turns;
    all.ours.cpu_ms += one.cpu_ms / turns;
    all.ours.p50 = one.p50;
    all.ours.p99 = one.p99;
    all.raw.cpu_ms_per_step += raw.cpu_ms_per_step / turns;
    all.raw.server_cpu_ms_per_step += raw.server_cpu_ms_per_step / turns;
  }
  all.ours.per_second = 1 / seconds;
  all.raw.steps_per_second = 1 / raw_seconds;
  all.ratio = percentile(ratios, 0.5);
  return all;
}

// Next to each figure the limit: raw SQLite writing rows of the same size, `in_flight` per
// transaction.
void sqlite_rows(const std::filesystem::path& folder, const Load& load) {
  for (const int in_flight : kInFlight) {
    if (load.only != 0 && load.only != in_flight) continue;
    const int turns = load.quick ? 1 : kTurns;
    const int jobs = jobs_for(in_flight, load, turns);
    const auto path = folder / fmt::format("ours{}.db", in_flight);
    double bytes = 0;
    int done = 0;
    const auto measure_one = [&] {
      Cost one;
      {
        Bench sqlite(sqlite_at(path), native_tool);
        one = measure(sqlite, jobs, in_flight, load.job_steps);
      }
      bytes = static_cast<double>(bytes_of(path)) /
              (static_cast<double>(++done) * jobs * load.job_steps);
      return one;
    };
    const auto measure_raw = [&](int turn) {
      return raw_sqlite(folder / fmt::format("raw{}-{}.db", in_flight, turn),
                        static_cast<std::size_t>(in_flight),
                        static_cast<std::size_t>(jobs) * static_cast<std::size_t>(load.job_steps),
                        static_cast<std::size_t>(bytes));
    };
    const Turns all = measure_in_turns(turns, measure_one, measure_raw);
    print_row("sqlite", {{"in_flight", in_flight},
                         {"steps_per_second", all.ours.per_second},
                         {"cpu_ms", all.ours.cpu_ms},
                         {"bytes", bytes},
                         {"p50_ms", all.ours.p50},
                         {"p99_ms", all.ours.p99},
                         {"raw_steps_per_second", all.raw.steps_per_second},
                         {"raw_cpu_ms", all.raw.cpu_ms_per_step},
                         {"ratio", all.ratio}});
  }
}

// The same with its own server; the CPU of the server's processes is measured separately.
void postgres_rows(const Load& load) {
  for (const int in_flight : kInFlight) {
    if (load.only != 0 && load.only != in_flight) continue;
    const testing::PostgresServer server = bench_server();
    const int turns = load.quick ? 1 : kTurns;
    const int jobs = jobs_for(in_flight, load, turns);
    const double turn_steps = static_cast<double>(jobs) * load.job_steps,
                 steps = turn_steps * turns;
    Bench bench(postgres_at(server.url()), native_tool);
    ServerCost used;  // by the steps of all turns
    const auto measure_one = [&] {
      const ServerCost before = server_cost(server);
      const Cost one = measure(bench, jobs, in_flight, load.job_steps);
      const ServerCost after = server_cost(server);
      used.cpu_ms += after.cpu_ms - before.cpu_ms;
      used.wal_bytes += after.wal_bytes - before.wal_bytes;
      used.table_bytes += after.table_bytes - before.table_bytes;
      used.index_bytes += after.index_bytes - before.index_bytes;
      used.body_bytes = after.body_bytes;
      return one;
    };
    const auto measure_raw = [&](int) {
      return raw_postgres(server, static_cast<std::size_t>(in_flight),
                          static_cast<std::size_t>(turn_steps),
                          static_cast<std::size_t>(used.body_bytes));
    };
    const Turns all = measure_in_turns(turns, measure_one, measure_raw);
    const double server_ms = used.cpu_ms / steps;
    print_row("postgres", {{"in_flight", in_flight},
                           {"steps_per_second", all.ours.per_second},
                           {"worker_cpu_ms", all.ours.cpu_ms},
                           {"server_cpu_ms", server_ms},
                           {"cpu_ms", all.ours.cpu_ms + server_ms},
                           {"table_bytes", used.table_bytes / steps},
                           {"index_bytes", used.index_bytes / steps},
                           {"wal_bytes", used.wal_bytes / steps},
                           {"p50_ms", all.ours.p50},
                           {"p99_ms", all.ours.p99},
                           {"raw_steps_per_second", all.raw.steps_per_second},
                           {"raw_cpu_ms", all.raw.cpu_ms_per_step + all.raw.server_cpu_ms_per_step},
                           {"ratio", all.ratio}});
  }
}

void http_tool_row(const std::filesystem::path& folder, bool quick) {
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
    const std::string url = fmt::format("http://127.0.0.1:{}/work", *port);
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
    const Cost f = measure(bench, quick ? 30 : 300, 32);
    print_row("http-tool",
              {{"in_flight", 32}, {"steps_per_second", f.per_second}, {"cpu_ms", f.cpu_ms}});
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
  std::optional<std::size_t> events;
  double seconds = 0;
  bench.loop().post([&] {
    const auto start = SteadyTime::now();
    bench.runtime().read(bench.last_job, [&, start](Result<runtime::Runtime::JobSnapshot> read) {
      seconds = std::chrono::duration<double>(SteadyTime::now() - start).count();
      if (read) events = read->events.size();
      bench.stop_loop();
    });
  });
  bench.run_loop();
  if (!events) std::exit(1);
  print_row("map", {{"items", items},
                    {"first_tenth_ms", first},
                    {"last_tenth_ms", last},
                    {"ratio", last / first},
                    {"replayed_events", static_cast<double>(*events)},
                    {"replayed_per_second", static_cast<double>(*events) / seconds}});
}

}  // namespace
}  // namespace ae::bench

// aetheris_bench [--quick] [--in-flight=1|32|256] [--job-steps=N] ROW…
//     prints rows of figures as JSON; bench/run.py calls it. --in-flight and --job-steps (of a job,
//     10): of memory, sqlite and postgres
// aetheris_bench drive ADDRESS PATH BODY CONNECTIONS REQUESTS FIRST RATE      (http_drive.h)
int main(int argc, char** argv) {
  using namespace ae::bench;
  const std::vector<std::string_view> arguments(argv + 1, argv + argc);
  if (!arguments.empty() && arguments[0] == "drive")
    return drive({arguments.begin() + 1, arguments.end()});
  const bool quick = std::ranges::find(arguments, "--quick") != arguments.end();
  Load load{.quick = quick};
  for (const std::string_view argument : arguments) {
    for (const auto& [option, value] :
         {std::pair("--in-flight=", &load.only), std::pair("--job-steps=", &load.job_steps)}) {
      if (argument.starts_with(option))
        *value = std::stoi(std::string(argument.substr(std::string_view(option).size())));
    }
  }
  std::string folder = std::filesystem::temp_directory_path() / "aetheris-bench-XXXXXX";
  if (!mkdtemp(folder.data())) return 1;
  const std::pair<std::string_view, std::function<void()>> rows[] = {
      {"memory", [&] { memory_rows(load); }},
      {"sqlite", [&] { sqlite_rows(folder, load); }},
      {"postgres", [&] { postgres_rows(load); }},
      {"workers", [&] { worker_rows(quick); }},
      {"claim", [&] { claim_latency_rows(quick); }},
      {"history", [&] { history_rows(quick); }},
      {"http-tool", [&] { http_tool_row(folder, quick); }},
      {"map", [&] { map_row(folder, quick); }},
  };
  for (const auto& [name, measure_it] : rows) {
    if (std::ranges::find(arguments, name) != arguments.end()) measure_it();
  }
  std::filesystem::remove_all(folder);
  return 0;
}
