// NativeTool: a C++ function as a tool.
//
// A function runs on a thread of an Executor and may block. At its deadline, or if it reports
// nothing for longer than its heartbeat, the call ends with `timeout` without waiting for the
// thread; what the function returns later is a late result (SPEC §6). Only functions that promise
// to return immediately run on the loop. Outcomes: a value is success, a NativeFailure is a
// definite failure unless `unknown` is set, an exception is unknown. Threads: the loop's; functions
// run on other threads, several at once. See docs/decisions/0022-native-threads.md.
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
  bool unknown = false;  // there may have been an effect
};

// The context of a running function. Threads: any, while the function runs.
class RunContext {
 public:
  virtual ~RunContext() = default;
  // Stopped when the call has ended before the function returned. The function should then return
  // soon, with its actual result. Callbacks of the token run on the loop and must not block. Never
  // stopped for a function that runs on the loop.
  virtual std::stop_token stop() const = 0;
  // Reports progress, at most kProgressMax bytes of JSON. A larger report only counts as a
  // heartbeat.
  virtual void progress(Value report) = 0;
};

using NativeFunction =
    std::function<std::expected<Value, NativeFailure>(const Call&, RunContext& context)>;

struct NativeFunctionEntry {
  NativeFunction function;
  // The function promises to return immediately for all arguments and runs on the loop: switching
  // to a thread and back costs more than the call. A function that breaks the promise blocks the
  // process.
  bool runs_inline = false;
};

// Runs functions. Threads: the loop's.
class Executor {
 public:
  virtual ~Executor() = default;
  // Runs `work` on another thread as soon as one is free, which may be never. False: the queue is
  // full and `work` was dropped.
  virtual bool run(async::Task work) = 0;
};

class NativeTool final : public Tool {
 public:
  struct Options {
    Executor* executor = nullptr;  // borrowed; null: on the loop, as a task of its own
    Duration heartbeat{};          // ends the call after this time without a report; zero: no limit
    std::size_t output_max = kOutputMax;  // bytes of JSON; a larger result is an invalid output
  };
  // Borrows `loop` and `clock`.
  NativeTool(async::Loop& loop, async::SteadyClock& clock, NativeFunction function,
             Options options);
  NativeTool(async::Loop& loop, async::SteadyClock& clock, NativeFunction function)
      : NativeTool(loop, clock, std::move(function), Options()) {}
  // Answers the calls in flight. A running function continues, without access to the tool or the
  // loop.
  ~NativeTool() override;
  void perform(Permit permit, Call call, async::Done<Outcome> done) override;
  void abandon(const InvocationId& invocation, std::uint32_t try_no) override;

 private:
  struct Run;
  struct InFlightCall;
  struct WaitingCall;
  struct State;
  std::shared_ptr<State> state_;
};

using NativeFunctions = std::map<std::string, NativeFunctionEntry, std::less<>>;  // by name

// The functions of every program: `echo` returns its arguments.
NativeFunctions built_in_functions();

}  // namespace ae::tools
