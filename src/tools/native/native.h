// Native tools: a C++ function behind the Tool interface.
//
// A function runs on a thread of an Executor, where it may take its time: at its deadline, or when it is silent for longer
// than it may, the call is answered `timeout`, and nobody waits for the thread. What the function says after that is a
// late result (SPEC §6). Only a function that promises to return at once runs on the loop. What it returns decides: a
// value is success, a NativeFailure is a definite failure unless it says unknown, an exception is unknown.
// Threads: the loop's; functions run on others, several at once. See docs/decisions/0022-native-threads.md.
#pragma once

#include <expected>
#include <functional>
#include <map>
#include <memory>
#include <stop_token>
#include <string>

#include "async/loop.h"
#include "tools/output.h"
#include "tools/tool.h"

namespace ae::tools {

struct NativeFailure {
  std::string code = "native_error";
  std::string message;
  bool retryable = false;
  bool unknown = false;  // it may have happened
};

// What a running function hears and says. Threads: any, while the function runs.
class RunContext {
 public:
  virtual ~RunContext() = default;
  // Stopped when nobody waits for the function any more: it should return soon, and say what is true. A callback of the
  // token runs on the loop and must not block. Never stopped for a function that runs on the loop.
  virtual std::stop_token stop() const = 0;
  // How far it is, in at most kProgressMax bytes of JSON; more is no more than a sign of life.
  virtual void progress(Value report) = 0;
};

using NativeFunction =
    std::function<std::expected<Value, NativeFailure>(const Call&, RunContext& running)>;

struct NativeFunctionEntry {
  NativeFunction function;
  // It promises to return at once, whatever its arguments are, and runs on the loop: a hop to a thread and back costs
  // more than the call. One that breaks the promise holds up everything.
  bool runs_inline = false;
};

// Where functions run. Threads: the loop's.
class Executor {
 public:
  virtual ~Executor() = default;
  // `work` runs on another thread as soon as one is free, perhaps never. False: too much waits already, nothing is done.
  virtual bool run(async::Task work) = 0;
};

class NativeTool final : public Tool {
 public:
  struct Options {
    Executor* executor = nullptr;  // borrowed; null: on the loop, in a turn of its own
    Duration heartbeat{};          // a silence that is longer ends the call; zero: it may be silent
    std::size_t output_max = kOutputMax;  // bytes of JSON; a larger result is an invalid output
  };
  // Borrows both seams.
  NativeTool(async::Loop& loop, async::SteadyClock& clock, NativeFunction function,
             Options options);
  NativeTool(async::Loop& loop, async::SteadyClock& clock, NativeFunction function)
      : NativeTool(loop, clock, std::move(function), Options()) {}
  // Calls under way are answered; a function that runs goes on alone, and touches nothing of ours.
  ~NativeTool() override;
  void perform(Permit permit, Call call, async::Done<Outcome> done) override;
  void abandon(const InvocationId& invocation, std::uint32_t try_no) override;

 private:
  struct Run;
  struct InFlightCall;
  struct State;
  std::shared_ptr<State> state_;
};

// The functions that every runtime has, by name:
//   echo   returns its arguments
//   fill   {bytes} returns {text} of about that many bytes, for benchmarks and limits
//   fail   {code?, message?, retryable?} fails, for sure
//   doubt  {code?, message?} may or may not have happened
//   nap    {ms, report_ms?, deaf?} sleeps, and reports {done_ms} now and then; cut off it wakes up, but not a deaf one.
//          For looking at deadlines and progress
std::map<std::string, NativeFunctionEntry, std::less<>> built_in_functions();

}  // namespace ae::tools
