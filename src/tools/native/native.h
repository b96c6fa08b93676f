// Native tools: a C++ function behind the Tool interface.
//
// The function runs on the loop, in a turn of its own, never inside perform. What it returns decides (SPEC §6): a
// value is success, a NativeFailure is a definite failure unless it says unknown, an exception is unknown.
// Threads: the loop's. A function that blocks, blocks the loop.
#pragma once

#include <expected>
#include <functional>
#include <map>
#include <memory>
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

using NativeFunction = std::function<std::expected<Value, NativeFailure>(const Call&)>;

class NativeTool final : public Tool {
 public:
  // Borrows both seams. A result beyond `output_max` bytes of JSON is an invalid output.
  NativeTool(async::Loop& loop, async::SteadyClock& clock, NativeFunction function,
             std::size_t output_max = kOutputMax);
  ~NativeTool() override;
  void perform(Permit permit, Call call, async::Done<Outcome> done) override;
  void abandon(const InvocationId& invocation, std::uint32_t try_no) override;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

// The functions that every runtime has, by name:
//   echo   returns its arguments
//   fill   {bytes} returns {text} of about that many bytes, for benchmarks and limits
//   fail   {code?, message?, retryable?} fails, for sure
//   doubt  {code?, message?} may or may not have happened
std::map<std::string, NativeFunction, std::less<>> native_functions();

}  // namespace ae::tools
