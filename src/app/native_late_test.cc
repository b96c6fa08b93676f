// Native functions with a late downstream, and kill -9: each at_most_once call takes effect at most
// once.
//
// A child process runs jobs on a real store. Its function `act` sends a request to this process,
// which applies it up to timeout + grace/2 later, whatever happens to the child. The child is
// killed at random times and restarted at once. Unknown outcomes are resolved by a probe, or by an
// operator who sends `not_happened` as soon as it is accepted.
#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <queue>
#include <random>
#include <set>
#include <string>
#include <thread>

#include "json/json.h"
#include "net/asio_loop.h"
#include "net/system.h"
#include "runtime/scheduler/runtime.h"
#include "store/postgres/postgres_store.h"
#include "store/sqlite/sqlite_store.h"
#include "testing/postgres_server.h"
#include "testing/test.h"
#include "tools/native/native.h"
#include "tools/native/native_pool.h"

namespace ae::app {
namespace {

using namespace std::chrono_literals;
using Steady = std::chrono::steady_clock;

constexpr std::uint32_t kCalls = 1000, kKills = 8;
constexpr Duration kTimeout = 800ms, kGrace = 1s, kEffectDelayMax = kTimeout + kGrace / 2;
constexpr const char* kVersion16 = "0123456789abcdef";
// The child reads its folder and its store from these variables.
constexpr const char* kFolder = "AETHERIS_NATIVE_LATE_FOLDER";
constexpr const char* kStore = "AETHERIS_NATIVE_LATE_STORE";

// Shared memory of both processes; arrays are indexed by the number of the job.
struct SharedCounters {
  std::atomic<std::uint32_t> wanted, created, refused, accepted;
  std::array<std::atomic<std::uint32_t>, kCalls> requests, effects, completed;
};
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

SharedCounters& shared_in(const std::string& folder) {
  const int file = ::open((folder + "/shared").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  AE_CHECK(file >= 0 && ::ftruncate(file, sizeof(SharedCounters)) == 0);
  void* page = ::mmap(nullptr, sizeof(SharedCounters), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  AE_CHECK(page != MAP_FAILED);
  ::close(file);
  return *static_cast<SharedCounters*>(page);
}

std::uint32_t number_in(const Value& args) {
  return static_cast<std::uint32_t>(args["n"].as_int());
}
JobId job_of(std::uint32_t number) { return JobId(fmt::format("j{}", number)); }
bool uses_probe(std::uint32_t number) { return number % 2 == 0; }
// Its first request never takes effect, so it is retried.
bool is_lost(std::uint32_t number) { return number / 2 % 4 == 0; }

// ---------------------------------------------------------------- the downstream, in the parent

// Receives requests, and applies each after its own delay.
class Downstream {
 public:
  Downstream(const std::string& folder, SharedCounters& shared)
      : shared_(shared), requests_(::open((folder + "/requests").c_str(), O_RDWR | O_CLOEXEC)) {
    AE_CHECK(requests_ >= 0);
    thread_ = std::jthread([this](const std::stop_token& stop) { serve(stop); });
  }
  ~Downstream() {
    thread_ = {};
    ::close(requests_);
  }
  Downstream(const Downstream&) = delete;
  Downstream& operator=(const Downstream&) = delete;

 private:
  using Due = std::pair<Steady::time_point, std::uint32_t>;

  void serve(const std::stop_token& stop) {
    std::priority_queue<Due, std::vector<Due>, std::greater<>> due;
    std::mt19937_64 rng(7);
    while (!stop.stop_requested()) {
      while (!due.empty() && due.top().first <= Steady::now()) {
        shared_.effects[due.top().second]++;
        due.pop();
      }
      pollfd wait{.fd = requests_, .events = POLLIN, .revents = 0};
      if (::poll(&wait, 1, 5) != 1) continue;
      std::uint32_t number = 0;
      AE_CHECK(::read(requests_, &number, sizeof number) == sizeof number);
      if (shared_.requests[number]++ == 0 && is_lost(number)) continue;
      const auto last = std::chrono::duration_cast<std::chrono::microseconds>(kEffectDelayMax);
      std::uniform_int_distribution<long> any(0, last.count());
      const std::array<long, 3> delays = {0, any(rng), last.count()};
      due.emplace(Steady::now() + std::chrono::microseconds(delays[rng() % 3]), number);
    }
  }

  SharedCounters& shared_;
  const int requests_;
  std::jthread thread_;
};

// ---------------------------------------------------------------- the child that is killed

std::shared_ptr<const engine::Plan> plan_of(std::uint32_t number) {
  const std::string policy =
      R"("grace":"1s","dedupe_window":"24h","version":"0123456789abcdef","retry":{"max_attempts":5,)"
      R"("initial_backoff":"50ms","max_backoff":"1s","multiplier":2,"retry_on":["connect"]})";
  const std::string on_in_doubt = uses_probe(number)
                                      ? R"("on_in_doubt":"probe","probe":{"tool":"find","args":)"
                                        R"({"n":"${ .args.n }"},"happened":"${ .result.found }"},)"
                                      : R"("on_in_doubt":"park",)";
  auto graph = parse_json(
      R"({"schema":1,"nodes":[{"id":"a","kind":"tool","tool":"act","args":{"n":)" +
      std::to_string(number) + R"(}}],"tools":{"act":{"effect":"at_most_once",)" + on_in_doubt +
      R"("timeout":"800ms",)" + policy +
      R"(},"find":{"effect":"read","on_in_doubt":"resend","timeout":"5s",)" + policy + "}}}");
  AE_CHECK(graph.has_value(), graph ? "" : graph.error().message);
  auto plan = engine::Plan::compile(*graph);
  AE_CHECK(plan.has_value(), plan ? "" : plan.error().message);
  return *plan;
}

class Child {
 public:
  Child(const std::string& folder, const std::string& url)
      : shared_(shared_in(folder)),
        requests_(::open((folder + "/requests").c_str(), O_WRONLY | O_CLOEXEC)) {
    AE_CHECK(requests_ >= 0);
    open_store(folder, url);
    add("act", [this](const tools::Call& call, tools::RunContext& running) -> Answer {
      const std::uint32_t number = number_in(call.args);
      AE_CHECK(::write(requests_, &number, sizeof number) == sizeof number);
      while (shared_.effects[number] == 0) {
        if (running.stop().stop_requested()) {
          return std::unexpected(tools::NativeFailure{.message = "stopped", .unknown = true});
        }
        std::this_thread::sleep_for(5ms);
      }
      return call.args;
    });
    add("find", [this](const tools::Call& call, tools::RunContext&) -> Answer {
      const bool found = shared_.effects[number_in(call.args)] > 0;
      return Value::object({{"found", found ? call.args : Value()}});
    });
    runtime_.emplace(runtime::World{loop_, steady_, random_, *store_, tool_registry_},
                     runtime::RuntimeOptions{
                         .worker = fmt::format("w{}", ::getpid()), .lease = 2s, .poll = 100ms},
                     nullptr);
  }

  // Runs until it is killed.
  void run() {
    runtime_->start();
    create(shared_.created);
    loop_.run();
  }

 private:
  using Answer = std::expected<Value, tools::NativeFailure>;

  void open_store(const std::string& folder, const std::string& url) {
    if (url.empty()) {
      auto opened =
          store::SqliteStore::open({.path = folder + "/store.db", .loop = loop_, .clock = clock_});
      AE_CHECK(opened.has_value(), opened ? "" : opened.error().message);
      store_ = *std::move(opened);
    } else {
      auto opened = store::PostgresStore::open({.url = url, .loop = loop_});
      AE_CHECK(opened.has_value(), opened ? "" : opened.error().message);
      store_ = *std::move(opened);
    }
  }
  void add(const char* name, tools::NativeFunction function) {
    tool_registry_.add(
        name, {std::make_unique<tools::NativeTool>(loop_, steady_, std::move(function),
                                                   tools::NativeTool::Options{.executor = &pool_}),
               kVersion16});
  }

  // Creates one job after the other, then sends the operator's answers. The previous child may have
  // created the job.
  void create(std::uint32_t number) {
    if (number == shared_.wanted) return resolve_next(0);
    runtime::NewJobRequest request;
    request.job = job_of(number);
    request.agent = "agent";
    request.plan = plan_of(number);
    runtime_->create(std::move(request), [this, number](const Result<runtime::CreateResult>& made) {
      AE_CHECK(made.has_value() || made.error().code == Code::already_exists,
               made ? "" : made.error().message);
      shared_.created = number + 1;
      create(number + 1);
    });
  }

  // An operator checks the downstream for each call with an unknown outcome, and never waits until
  // it is settled.
  void resolve_next(std::uint32_t number) {
    while (number < shared_.created && shared_.completed[number] > 0) number++;
    if (number >= shared_.created) {
      loop_.after(20ms, [this] { resolve_next(0); });
      return;
    }
    runtime_->read(job_of(number), [this, number](Result<runtime::Runtime::JobSnapshot> read) {
      AE_CHECK(read.has_value(), read ? "" : read.error().message);
      const engine::State& state = read->state;
      if (engine::is_terminal(state.status)) {
        AE_CHECK(state.status == engine::JobStatus::completed);
        shared_.completed[number] = 1;
      } else if (state.status == engine::JobStatus::parked &&
                 state.steps[0].phase == engine::StepPhase::in_doubt) {
        return answer(number, state.key_of(state.steps[0]).text);
      }
      resolve_next(number + 1);
    });
  }
  void answer(std::uint32_t number, std::string key) {
    const bool happened = shared_.effects[number] > 0;
    engine::ResolveRequest request{.idempotency_key = std::move(key),
                                   .resolution = happened ? "happened" : "not_happened"};
    if (happened) request.result = Value::object({{"n", std::uint64_t{number}}});
    runtime_->submit_request(job_of(number), {.by = "operator", .body = std::move(request)},
                             [this, number, happened](const Result<Value>& result) {
                               if (!happened) (result ? shared_.accepted : shared_.refused)++;
                               resolve_next(number + 1);
                             });
  }

  SharedCounters& shared_;
  const int requests_;
  net::AsioLoop loop_;
  net::BootClock steady_;
  net::SystemClock clock_;
  net::SystemRandom random_;
  std::unique_ptr<store::Store> store_;
  tools::NativeThreadPool pool_{{.threads = 64}};
  runtime::ToolRegistry tool_registry_;
  std::optional<runtime::Runtime> runtime_;
};

// ---------------------------------------------------------------- the parent

pid_t start(const std::string& folder, const std::string& url) {
  const std::string filter =
      fmt::format("--gtest_filter={}.{}",
                  ::testing::UnitTest::GetInstance()->current_test_info()->test_suite_name(),
                  ::testing::UnitTest::GetInstance()->current_test_info()->name());
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child != 0) return child;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);
  if (std::freopen("/dev/null", "w", stdout) == nullptr) ::_exit(1);
  ::setenv(kFolder, folder.c_str(), 1);
  ::setenv(kStore, url.c_str(), 1);
  ::execl("/proc/self/exe", "native_late", filter.c_str(), static_cast<char*>(nullptr));
  ::_exit(1);
}

void kill(pid_t child) {
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, WNOHANG), 0) << "the child exited by itself: " << status;
  ::kill(child, SIGKILL);
  ASSERT_EQ(::waitpid(child, &status, 0), child);
}

// False: timed out.
bool wait_until(const std::function<bool()>& condition, std::chrono::seconds timeout) {
  const auto deadline = Steady::now() + timeout;
  while (!condition()) {
    if (Steady::now() > deadline) return false;
    std::this_thread::sleep_for(10ms);
  }
  return true;
}

void at_most_once(const std::string& url) {
  if (const char* folder = std::getenv(kFolder)) {
    Child(folder, std::getenv(kStore)).run();
    return;
  }
  std::string folder = (std::filesystem::temp_directory_path() / "aetheris-native-XXXXXX").string();
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  ASSERT_EQ(::mkfifo((folder + "/requests").c_str(), 0600), 0);
  SharedCounters& shared = shared_in(folder);
  {
    const Downstream downstream(folder, shared);
    std::mt19937_64 rng(11);
    pid_t child = start(folder, url);
    for (std::uint32_t kills = 1; kills <= kKills; ++kills) {
      shared.wanted = kCalls * kills / kKills;
      kill(child);
      child = start(folder, url);
      ASSERT_TRUE(wait_until([&] { return shared.created == shared.wanted; }, 120s));
      std::this_thread::sleep_for(std::chrono::milliseconds(50 + rng() % 1150));
      kill(child);
      child = start(folder, url);
    }
    const bool ended = wait_until(
        [&] {
          return std::ranges::all_of(shared.completed, [](const auto& one) { return one > 0; });
        },
        600s);
    EXPECT_TRUE(ended);
    std::this_thread::sleep_for(kEffectDelayMax +
                                500ms);  // for requests in flight at the downstream
    kill(child);
  }
  std::uint32_t requests = 0, effects = 0;
  for (std::size_t number = 0; number < kCalls; ++number) {
    EXPECT_EQ(shared.effects[number], 1u)
        << "job " << number << (number % 2 == 0 ? ", probe" : ", operator");
    requests += shared.requests[number];
    effects += shared.effects[number];
  }
  EXPECT_GT(requests, kCalls) << "no call was repeated, so this checks nothing";
  EXPECT_GT(shared.accepted, 0u);
  // On a shared store the lease of a dead process expires about when its calls settle.
  if (url.empty()) {
    EXPECT_GT(shared.refused, 0u) << "no answer was too early, so this checks nothing";
  }
  std::printf("%u requests, %u effects; not_happened: %u accepted, %u too early\n", requests,
              effects, shared.accepted.load(), shared.refused.load());
  std::filesystem::remove_all(folder);
}

AE_TEST_SLOW("native late/on SQLite a function with a late downstream takes effect at most once") {
  at_most_once("");
}

AE_TEST_SLOW(
    "native late/on PostgreSQL a function with a late downstream takes effect at most once") {
  if (std::getenv(kFolder) != nullptr) return at_most_once("");
  const ae::testing::PostgresServer server;
  at_most_once(server.url());
}

}  // namespace
}  // namespace ae::app
