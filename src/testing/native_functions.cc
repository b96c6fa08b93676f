#include "testing/native_functions.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <expected>
#include <mutex>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>

namespace ae::testing {
namespace {

using tools::Call;
using tools::NativeFailure;
using tools::RunContext;
using Answer = std::expected<Value, NativeFailure>;

constexpr std::size_t kFillMax = 64u << 20;  // largest text of `fill`

NativeFailure failure_from_args(const Value& args, bool unknown) {
  return {.code = std::string(args.text("code", "native_error")),
          .message = std::string(args.text("message", "as the arguments asked")),
          .retryable = args["retryable"] == Value(true),
          .unknown = unknown};
}

Answer fill(const Call& call, RunContext&) {
  const Value& bytes = call.args["bytes"];
  if (!bytes.is_integer() || bytes.as_int() < 0 ||
      bytes.as_int() > static_cast<std::int64_t>(kFillMax)) {
    return std::unexpected(
        NativeFailure{.code = "request_invalid", .message = "fill: bytes must be 0 to 67108864"});
  }
  return Value::object({{"text", std::string(static_cast<std::size_t>(bytes.as_int()), 'x')}});
}

constexpr std::int64_t kNapMax = 24 * 3600 * 1000;  // ms

Answer nap(const Call& call, RunContext& context) {
  const auto number = [&](std::string_view key, std::int64_t otherwise) {
    const Value& n = call.args[key];
    return n.is_null() ? otherwise : n.is_integer() ? n.as_int() : -1;
  };
  const std::int64_t most = number("ms", -1), every = number("report_ms", kNapMax);
  if (most < 0 || most > kNapMax || every < 1 || every > kNapMax) {
    return std::unexpected(NativeFailure{
        .code = "request_invalid", .message = "nap: ms must be 0 to 86400000, report_ms from 1"});
  }
  // A deaf function gets a token that is never stopped.
  const std::stop_token stop =
      call.args["deaf"] == Value(true) ? std::stop_token() : context.stop();
  std::mutex mutex;
  std::condition_variable_any wake;
  std::unique_lock lock(mutex);
  for (std::int64_t slept = 0; slept < most;) {
    const std::int64_t next = std::min(every, most - slept);
    wake.wait_for(lock, stop, std::chrono::milliseconds(next), [] { return false; });
    if (stop.stop_requested()) {
      return std::unexpected(NativeFailure{.code = "cut_off", .message = "woken up"});
    }
    slept += next;
    context.progress(Value::object({{"done_ms", slept}}));
  }
  return Value::object({{"slept_ms", most}});
}

}  // namespace

tools::NativeFunctions native_functions() {
  tools::NativeFunctions functions = tools::built_in_functions();
  functions["fill"] = {.function = fill, .runs_inline = true};
  functions["fail"] = {.function = [](const Call& call, RunContext&) -> Answer {
                         return std::unexpected(failure_from_args(call.args, false));
                       },
                       .runs_inline = true};
  functions["doubt"] = {.function = [](const Call& call, RunContext&) -> Answer {
                          return std::unexpected(failure_from_args(call.args, true));
                        },
                        .runs_inline = true};
  functions["nap"] = {.function = nap};
  return functions;
}

}  // namespace ae::testing
