// AsioLoop, SystemClock and SystemRandom.
#include "net/asio_loop.h"

#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "net/system.h"
#include "testing/test.h"

namespace ae::net {
namespace {

using namespace std::chrono_literals;

AE_TEST("boot_clock/since_start() returns CLOCK_BOOTTIME") {
  const auto kernel = [] {
    timespec t{};
    EXPECT_EQ(clock_gettime(CLOCK_BOOTTIME, &t), 0);
    return Duration(std::int64_t{t.tv_sec} * 1'000'000 + t.tv_nsec / 1000);
  };
  BootClock clock;
  const Duration before = kernel(), shows = clock.since_start(), after = kernel();
  EXPECT_LE(before, shows);
  EXPECT_LE(shows, after);
}

AE_TEST("loop/tasks posted by one thread run in order, nested ones after the current task") {
  AsioLoop loop;
  std::vector<int> seen;
  loop.post([&] {
    seen.push_back(1);
    loop.post([&] {
      seen.push_back(3);
      loop.stop();
    });
    EXPECT_EQ(seen.size(), 1u);
  });
  loop.post([&] { seen.push_back(2); });
  loop.run();
  EXPECT_EQ(seen, (std::vector{1, 2, 3}));
}

AE_TEST("loop/tasks posted by many threads all run, in order per thread") {
  AsioLoop loop;
  constexpr int kThreads = 4, kEach = 5000;
  std::vector<int> next(kThreads, 0);
  int left = kThreads * kEach;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kEach; ++i) {
        loop.post([&, t, i] {
          EXPECT_EQ(next[static_cast<std::size_t>(t)]++, i);
          if (--left == 0) loop.stop();
        });
      }
    });
  }
  loop.run();
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(left, 0);
}

AE_TEST("loop/timers fire in order of expiry, then of creation") {
  AsioLoop loop;
  std::vector<int> seen;
  loop.after(4ms, [&] { seen.push_back(3); });
  loop.after(1ms, [&] { seen.push_back(1); });
  loop.after(1ms, [&] { seen.push_back(2); });
  loop.after(6ms, [&] { loop.stop(); });
  const Duration begin = BootClock().since_start();
  loop.run();
  EXPECT_EQ(seen, (std::vector{1, 2, 3}));
  EXPECT_GE(BootClock().since_start() - begin, 6ms);
}

AE_TEST("loop/a timer without delay fires later and does not starve other tasks") {
  AsioLoop loop;
  int rounds = 0;
  std::move_only_function<void()> again = [&] {
    ++rounds;
    loop.after(-1s, [&] { again(); });
  };
  again();
  EXPECT_EQ(rounds, 1);
  loop.after(3ms, [&] { loop.post([&] { loop.stop(); }); });
  loop.run();
  EXPECT_GT(rounds, 1);
}

AE_TEST("loop/a cancelled timer never fires, also if cancelled by a timer of the same expiry") {
  AsioLoop loop;
  bool fired = false;
  async::TimerId second = 0;
  const async::TimerId first = loop.after(1ms, [&] { fired = true; });
  loop.after(1ms, [&] { loop.cancel(second); });
  second = loop.after(1ms, [&] { fired = true; });
  loop.cancel(first);
  loop.cancel(first);
  loop.cancel(12345);
  loop.after(3ms, [&] { loop.stop(); });
  loop.run();
  EXPECT_FALSE(fired);
}

AE_TEST("loop/stop() ends run() after the current task, the other tasks run in the next run()") {
  AsioLoop loop;
  std::vector<int> seen;
  loop.post([&] {
    seen.push_back(1);
    loop.stop();
  });
  loop.post([&] { seen.push_back(2); });
  loop.run();
  EXPECT_EQ(seen, (std::vector{1}));
  loop.post([&] {
    seen.push_back(3);
    loop.stop();
  });
  loop.run();
  EXPECT_EQ(seen, (std::vector{1, 2, 3}));
}

AE_TEST("loop/stop() before run() makes run() return immediately") {
  AsioLoop loop;
  loop.stop();
  loop.run();
}

AE_TEST("loop/pending tasks and timers are destroyed with the loop") {
  auto token = std::make_shared<int>(0);
  {
    AsioLoop loop;
    loop.post([token] { FAIL(); });
    loop.after(1h, [token] { FAIL(); });
  }
  EXPECT_EQ(token.use_count(), 1);
}

AE_TEST("loop/SIGTERM and SIGINT are delivered on the loop each time") {
  AsioLoop loop;
  std::vector<int> seen;
  loop.on_signals([&](int signal) {
    seen.push_back(signal);
    if (seen.size() == 1) raise(SIGINT);
    if (seen.size() == 2) loop.stop();
  });
  raise(SIGTERM);
  loop.run();
  EXPECT_EQ(seen, (std::vector{SIGTERM, SIGINT}));
}

AE_TEST("system/the clock offset file changes the clock of a running process, but no timers") {
  std::string folder = std::filesystem::temp_directory_path() / "aetheris-clock-XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const std::string path = folder + "/offset";
  ASSERT_EQ(setenv(kClockOffsetFile, path.c_str(), 1), 0);
  SystemClock clock;
  ASSERT_EQ(unsetenv(kClockOffsetFile), 0);
  SystemClock machine;
  const auto ahead = [&] { return clock.now() - machine.now(); };
  EXPECT_LT(std::chrono::abs(ahead()), 60s) << "the file does not exist";
  for (const std::int64_t days : {1, -1, 30'000, -30'000}) {
    std::ofstream(path) << days * 24 * 3600 * 1'000'000;
    EXPECT_LT(std::chrono::abs(ahead() - std::chrono::hours(24 * days)), 60s) << days;
    AsioLoop loop;
    loop.after(1ms, [&] { loop.stop(); });
    loop.run();
  }
  std::ofstream(path) << "soon";
  EXPECT_LT(std::chrono::abs(ahead()), 60s) << "not a number";
  std::filesystem::remove_all(folder);
}

// In a child process: it ends by a signal, or with 0 if the loop stops.
int exit_code(const std::vector<int>& while_busy, const std::vector<int>& after) {
  const pid_t child = fork();
  if (child == 0) {
    AsioLoop loop;
    loop.on_signals([&](int) {
      for (const int signal : after) raise(signal);
      if (after.empty()) loop.stop();
      if (!after.empty()) std::this_thread::sleep_for(10s);  // busy: takes no signals
    });
    for (const int signal : while_busy) raise(signal);
    loop.run();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

AE_TEST("loop/the first signal does not end the process") {
  EXPECT_EQ(exit_code({SIGTERM}, {}), 0);
}

AE_TEST("loop/a second signal ends the process at once if the first is not handled yet") {
  EXPECT_EQ(exit_code({SIGTERM, SIGINT}, {}), 128 + SIGINT);
  EXPECT_EQ(exit_code({SIGINT, SIGTERM}, {}), 128 + SIGTERM);
  EXPECT_EQ(exit_code({SIGTERM, SIGTERM}, {}), 128 + SIGTERM);
}

AE_TEST_SLOW("loop/a second signal ends a process whose loop is busy with the first") {
  EXPECT_EQ(exit_code({SIGTERM}, {SIGINT}), 128 + SIGINT);
  EXPECT_EQ(exit_code({SIGTERM}, {SIGINT, SIGTERM}), 128 + SIGTERM);
}

AE_TEST("system/clocks advance and random values do not repeat") {
  SystemClock clock;
  EXPECT_GT(clock.now().us, 1'700'000'000'000'000);
  BootClock boot;
  const Duration a = boot.since_start();
  EXPECT_GE(boot.since_start(), a);
  SystemRandom random;
  std::set<std::uint64_t> seen;
  for (int i = 0; i < 1000; ++i) seen.insert(random.next());
  EXPECT_EQ(seen.size(), 1000u);
}

}  // namespace
}  // namespace ae::net
