// Function: performs a call of a code agent in this process: the function of one `run`, or one that
// is registered as a tool.
//
// Threads: a function runs on a thread of the pool of native functions, several at once.
#pragma once

#include <cstdint>
#include <expected>
#include <functional>
#include <stop_token>
#include <string_view>
#include <utility>

#include "json/value.h"
#include "tools/native/native.h"
#include "tools/tool.h"

namespace ae::routines {

// A failure of a function: definite (nothing happened), unless `unknown` is set.
using FunctionFailure = tools::NativeFailure;

// The call that a function performs. Threads: any, while the function runs.
class FunctionCall {
 public:
  FunctionCall(const tools::Call& call, tools::RunContext& run) : call_(call), run_(run) {}
  // Repeated by every try of the call; for the downstream, as its idempotency key.
  std::string_view key() const { return call_.external_key.text; }
  std::string_view execution_key() const { return call_.key.text; }
  std::uint32_t try_no() const { return call_.try_no; }
  // Stopped when the call has ended before the function returned, for example at its deadline.
  std::stop_token stop() const { return run_.stop(); }
  // For display, at most tools::kProgressMax bytes of JSON.
  void progress(Value report) { run_.progress(std::move(report)); }

 private:
  const tools::Call& call_;
  tools::RunContext& run_;
};

// Performs one try of a call, on a thread of the pool of native functions. An exception is an
// unknown outcome. It may still run when its routine is dropped: it owns what it uses.
using Function =
    std::function<std::expected<Value, FunctionFailure>(const Value& args, FunctionCall& call)>;

// Is given each try of a call before its function begins; what it returns is given the end. An
// exception is an unknown failure with the code `exception`. Threads: that of the function.
using FunctionEnded = std::function<void(const std::expected<Value, FunctionFailure>& end)>;
using FunctionObserver = std::function<FunctionEnded(const tools::Call& call)>;

}  // namespace ae::routines
