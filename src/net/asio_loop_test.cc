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

AE_TEST("boot_clock/it is the clock of the kernel that counts suspend") {
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

AE_TEST("loop/tasks of one thread run in their order, those of a task after it") {
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

AE_TEST("loop/posts from many threads all run, each thread's in order") {
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

AE_TEST("loop/timers fire in the order of their times, equal ones in the order they were made") {
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

AE_TEST("loop/a timer without delay fires, never inside after, and cannot starve the others") {
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

AE_TEST("loop/a forgotten timer never fires, also when forgotten by one that fires with it") {
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

AE_TEST("loop/a stop ends the run after the current task, the rest runs in the next run") {
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

AE_TEST("loop/a stop before the run makes it return at once") {
  AsioLoop loop;
  loop.stop();
  loop.run();
}

AE_TEST("loop/what never ran is dropped with the loop") {
  auto token = std::make_shared<int>(0);
  {
    AsioLoop loop;
    loop.post([token] { FAIL(); });
    loop.after(1h, [token] { FAIL(); });
  }
  EXPECT_EQ(token.use_count(), 1);
}

AE_TEST("loop/SIGTERM and SIGINT are heard on the loop, again and again") {
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

AE_TEST("system/a test sets the clock of a running process, and no timer minds") {
  std::string folder = std::filesystem::temp_directory_path() / "aetheris-clock-XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const std::string path = folder + "/offset";
  ASSERT_EQ(setenv(kClockOffsetFile, path.c_str(), 1), 0);
  SystemClock clock;
  ASSERT_EQ(unsetenv(kClockOffsetFile), 0);
  SystemClock machine;
  const auto ahead = [&] { return clock.now() - machine.now(); };
  EXPECT_LT(std::chrono::abs(ahead()), 60s) << "there is no such file";
  for (const std::int64_t days : {1, -1, 30'000, -30'000}) {
    std::ofstream(path) << days * 24 * 3600 * 1'000'000;
    EXPECT_LT(std::chrono::abs(ahead() - std::chrono::hours(24 * days)), 60s) << days;
    AsioLoop loop;
    loop.after(1ms, [&] { loop.stop(); });
    loop.run();
  }
  std::ofstream(path) << "soon";
  EXPECT_LT(std::chrono::abs(ahead()), 60s) << "it is no number";
  std::filesystem::remove_all(folder);
}

// In a child process: it ends by a signal, or with 0 if the loop stops.
int ended_by(const std::vector<int>& while_busy, const std::vector<int>& after) {
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

AE_TEST("loop/one signal leaves the end to the program") { EXPECT_EQ(ended_by({SIGTERM}, {}), 0); }

AE_TEST("loop/a second signal that a busy loop cannot take ends the process at once") {
  EXPECT_EQ(ended_by({SIGTERM, SIGINT}, {}), 128 + SIGINT);
  EXPECT_EQ(ended_by({SIGINT, SIGTERM}, {}), 128 + SIGTERM);
  EXPECT_EQ(ended_by({SIGTERM, SIGTERM}, {}), 128 + SIGTERM);
}

AE_TEST_SLOW(
    "loop/a second signal ends a process whose loop is busy with the first within a second") {
  EXPECT_EQ(ended_by({SIGTERM}, {SIGINT}), 128 + SIGINT);
  EXPECT_EQ(ended_by({SIGTERM}, {SIGINT, SIGTERM}), 128 + SIGTERM);
}

AE_TEST("system/clocks go on and chance does not repeat") {
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
