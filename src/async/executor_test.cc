// Tests of InlineExecutor and compute.
#include "async/executor.h"

#include <string>
#include <vector>

#include "testing/test.h"

namespace ae::async::testing {
namespace {

// Records its destruction.
struct Traced {
  explicit Traced(std::vector<std::string>& into) : log(&into) {}
  Traced(Traced&& from) noexcept : log(std::exchange(from.log, nullptr)) {}
  ~Traced() {
    if (log != nullptr) log->emplace_back("work destroyed");
  }
  std::vector<std::string>* log;
};

AE_TEST("executor/the inline executor runs work, destroys it, and then continues, in one call") {
  InlineExecutor executor;
  std::vector<std::string> log;
  executor.run([&log, traced = Traced(log)](const std::stop_token&) { log.emplace_back("work"); },
               [&log] { log.emplace_back("then"); });
  EXPECT_EQ(log, (std::vector<std::string>{"work", "work destroyed", "then"}));
}

AE_TEST("executor/a computed result is passed to the continuation") {
  InlineExecutor executor;
  std::optional<std::string> seen;
  compute<std::string>(
      executor, [](const std::stop_token&) { return std::string("result"); },
      [&seen](std::string result) { seen = std::move(result); });
  EXPECT_EQ(seen, "result");
}

AE_TEST("executor/a shutdown or an abandoned request interrupts work") {
  std::stop_source process, client;
  const Interrupt interrupt{.stopping = process.get_token(), .abandoned = client.get_token()};
  EXPECT_FALSE(interrupt.requested());
  client.request_stop();
  EXPECT_TRUE(interrupt.requested());
  std::stop_source other;
  const Interrupt unwatched{.stopping = other.get_token(), .abandoned = {}};
  EXPECT_FALSE(unwatched.requested());
  other.request_stop();
  EXPECT_TRUE(unwatched.requested());
}

}  // namespace
}  // namespace ae::async::testing
