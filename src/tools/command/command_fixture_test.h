// Fixture for command tools: a loop, secrets, and real programs under real supervisors.
#pragma once

#include <fcntl.h>
#include <fmt/core.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <utility>

#include "testing/permit.h"
#include "testing/test.h"
#include "tools/command/command_tool.h"
#include "tools/command/proc.h"

namespace ae::tools::command_test {

using namespace std::chrono_literals;

class TestLoop final : public async::Loop {
 public:
  void post(async::Task task) override {
    const std::scoped_lock lock(mutex_);
    tasks_.push_back(std::move(task));
    wake_.notify_one();
  }
  async::TimerId after(Duration delay, async::Task task) override {
    const std::scoped_lock lock(mutex_);
    timers_.emplace(++last_, std::pair(boot_now() + delay, std::move(task)));
    return last_;
  }
  void cancel(async::TimerId timer) override {
    const std::scoped_lock lock(mutex_);
    timers_.erase(timer);
  }
  std::size_t timers() {
    const std::scoped_lock lock(mutex_);
    return timers_.size();
  }
  // Runs until `done` or for `most`; returns whether `done` was true in time.
  template <class Done>
  bool run_until(Done done, Duration most = 20s) {
    const Duration end = boot_now() + most;
    while (!done()) {
      if (boot_now() >= end) return false;
      std::unique_lock lock(mutex_);
      wake_.wait_for(lock, 5ms, [&] { return !tasks_.empty(); });
      async::Task task;
      if (!tasks_.empty()) {
        task = std::move(tasks_.front());
        tasks_.pop_front();
      } else {
        for (auto it = timers_.begin(); it != timers_.end(); ++it) {
          if (it->second.first > boot_now()) continue;
          task = std::move(it->second.second);
          timers_.erase(it);
          break;
        }
      }
      lock.unlock();
      if (task) task();
    }
    return true;
  }

 private:
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<async::Task> tasks_;
  std::map<async::TimerId, std::pair<Duration, async::Task>> timers_;
  async::TimerId last_ = 0;
};

class TestSecrets final : public SecretSource {
 public:
  std::map<std::string, std::string, std::less<>> values;
  Result<Secret> get(std::string_view name) override {
    const auto found = values.find(name);
    if (found == values.end()) return fail(Code::secret_missing, "set " + std::string(name));
    return Secret(found->second);
  }
};

struct Folder {
  std::string path = "/tmp/aetheris-command-XXXXXX";
  Folder() { EXPECT_NE(::mkdtemp(path.data()), nullptr); }
  ~Folder() { EXPECT_EQ(std::system(("rm -rf " + path).c_str()), 0); }
  std::string operator/(std::string_view name) const { return fmt::format("{}/{}", path, name); }
};

inline std::string read_text_file(const std::string& path) {
  std::ifstream in(path);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

inline bool is_alive(pid_t pid) {
  const auto entry = process_entry(pid);
  return entry && !entry->ended;
}

inline bool wait_until_gone(pid_t pid, Duration most) {
  const Duration end = boot_now() + most;
  while (is_alive(pid)) {
    if (boot_now() >= end) return false;
    std::this_thread::sleep_for(5ms);
  }
  return true;
}

// Waits until a program has written its process id to this file.
inline pid_t read_pid_file(const std::string& path) {
  const Duration end = boot_now() + 10s;
  while (boot_now() < end) {
    const std::string text = read_text_file(path);
    if (text.ends_with('\n')) return static_cast<pid_t>(std::stol(text));
    std::this_thread::sleep_for(5ms);
  }
  ADD_FAILURE() << "no process id in " << path;
  return -1;
}

inline Value sh(const std::string& script) {
  return Value::object({{"command", Value::array({"/bin/sh", "-c", script})}});
}

struct CommandFixture {
  TestLoop loop;
  TestSecrets secrets;
  Processes processes{loop};
  std::unique_ptr<CommandTool> tool;
  std::optional<Outcome> outcome;

  void make(const Value& definition) {
    auto made = CommandTool::make(definition, {loop, processes, secrets});
    ASSERT_TRUE(made.has_value()) << made.error().message;
    tool = *std::move(made);
  }
  static Call call(Value args = Value::object({})) {
    Call c;
    c.job = JobId("job-1");
    c.key = IdempotencyKey(std::string(64, 'e'));
    c.external_key = ExternalKey("aetheris:job-1:step:attempt");
    c.invocation = InvocationId("0123456789abcdef");
    c.args = std::move(args);
    c.timeout = 20s;
    c.send_within = 10s;
    return c;
  }
  void perform(Call c) {
    auto permit = testing::PermitForTests::make(c.invocation, c.try_no);
    tool->perform(std::move(permit), std::move(c), [this](Outcome o) {
      EXPECT_FALSE(outcome.has_value()) << "completed twice";
      outcome = std::move(o);
    });
    EXPECT_FALSE(outcome.has_value()) << "completed inside perform";
  }
  Outcome wait() {
    EXPECT_TRUE(loop.run_until([&] { return outcome.has_value(); }));
    EXPECT_EQ(loop.timers(), 0u);
    return outcome.value_or(Outcome{});
  }
  Outcome run(const Value& definition, Value args = Value::object({})) {
    make(definition);
    if (!tool) return {};
    perform(call(std::move(args)));
    return wait();
  }
};

}  // namespace ae::tools::command_test
