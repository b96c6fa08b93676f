// A C++ function behind the Tool interface.
#include "tools/native/native.h"

#include <exception>
#include <set>
#include <utility>

#include "core/json.h"

namespace ae::tools {
namespace {

constexpr std::size_t kFillMax = 64u << 20;  // bytes that `fill` makes at most
constexpr std::size_t kMessageMax = 4096;    // bytes of a function's own error message

using Key = std::pair<InvocationId, std::uint32_t>;

Outcome not_sent(std::string message) {
  Outcome outcome;
  outcome.kind = OutcomeKind::failure;
  outcome.definite = true;
  outcome.retryable = true;
  outcome.error_code = "not_sent";
  outcome.error_message = std::move(message);
  return outcome;
}

Outcome unknown(std::string_view message) {
  Outcome outcome;
  outcome.kind = OutcomeKind::unknown;
  outcome.error_code = "native_error";
  outcome.error_message = printable(message.substr(0, kMessageMax), Lines::keep);
  return outcome;
}

Outcome failed(const NativeFailure& failure) {
  Outcome outcome;
  outcome.kind = failure.unknown ? OutcomeKind::unknown : OutcomeKind::failure;
  outcome.definite = !failure.unknown;
  outcome.retryable = failure.retryable;
  outcome.error_code = failure.code;
  outcome.error_message =
      printable(std::string_view(failure.message).substr(0, kMessageMax), Lines::keep);
  return outcome;
}

// A lower bound of the canonical size, without writing it.
std::size_t size_at_least(const Value& value) {
  std::size_t size = 1;
  if (value.is_string()) size += value.as_string().size();
  if (value.is_array()) {
    for (const Value& item : value.items()) size += size_at_least(item);
  }
  if (value.is_object()) {
    for (const auto& [key, member] : value.members())
      size += key.size() + 3 + size_at_least(member);
  }
  return size;
}

Outcome succeeded(Value result, std::size_t output_max) {
  Outcome outcome;
  outcome.kind = OutcomeKind::success;
  if (size_at_least(result) > output_max) {
    const std::string text = canonical(result);
    outcome.invalid = invalid_output(
        "the result is larger than " + std::to_string(output_max) + " bytes", text, text.size());
    return outcome;
  }
  outcome.result = std::move(result);
  return outcome;
}

// The one line that calls a function of others: what it throws ends here.
Outcome run(const NativeFunction& function, const Call& call, std::size_t output_max) {
  try {
    auto answer = function(call);
    return answer ? succeeded(*std::move(answer), output_max) : failed(answer.error());
  } catch (const std::exception& e) {
    return unknown(std::string("the function threw: ") + e.what());
  } catch (...) {
    return unknown("the function threw something that is no std::exception");
  }
}

NativeFailure asked_for(const Value& args, bool unknown) {
  return {.code = std::string(args.text("code", "native_error")),
          .message = std::string(args.text("message", "as the arguments asked")),
          .retryable = args["retryable"] == Value(true),
          .unknown = unknown};
}

std::expected<Value, NativeFailure> fill(const Call& call) {
  const Value& bytes = call.args["bytes"];
  if (!bytes.is_integer() || bytes.as_int() < 0 ||
      bytes.as_int() > static_cast<std::int64_t>(kFillMax)) {
    return std::unexpected(
        NativeFailure{.code = "request_invalid", .message = "fill: bytes must be 0 to 67108864"});
  }
  return Value::object({{"text", std::string(static_cast<std::size_t>(bytes.as_int()), 'x')}});
}

}  // namespace

struct NativeTool::State {
  async::Loop& loop;
  async::SteadyClock& clock;
  NativeFunction function;
  std::size_t output_max;
  std::set<Key> waiting;  // posted, not begun
};

NativeTool::NativeTool(async::Loop& loop, async::SteadyClock& clock, NativeFunction function,
                       std::size_t output_max)
    : state_(new State{loop, clock, std::move(function), output_max, {}}) {}

NativeTool::~NativeTool() { state_->waiting.clear(); }

void NativeTool::perform(Permit permit, Call call, async::Done<Outcome> done) {
  const Key key{call.invocation, call.try_no};
  AE_CHECK(state_->waiting.insert(key).second, call.invocation.text);
  const Duration begin = state_->clock.since_start();
  // The state is shared with the turn to come, which may find the tool gone.
  state_->loop.post([state = state_, permit = std::move(permit), call = std::move(call), key, begin,
                     done = std::move(done)]() mutable {
    if (state->waiting.erase(key) == 0) return done(not_sent("withdrawn before it began"));
    const Duration sent = state->clock.since_start();
    if (sent - begin >= call.send_within) return done(not_sent("it was too late to begin"));
    std::move(permit).use(call.invocation, call.try_no);
    Outcome outcome = run(state->function, call, state->output_max);
    outcome.took = state->clock.since_start() - sent;
    done(std::move(outcome));
  });
}

void NativeTool::abandon(const InvocationId& invocation, std::uint32_t try_no) {
  state_->waiting.erase({invocation, try_no});
}

std::map<std::string, NativeFunction, std::less<>> native_functions() {
  std::map<std::string, NativeFunction, std::less<>> functions;
  functions["echo"] = [](const Call& call) { return call.args; };
  functions["fill"] = fill;
  functions["fail"] = [](const Call& call) -> std::expected<Value, NativeFailure> {
    return std::unexpected(asked_for(call.args, false));
  };
  functions["doubt"] = [](const Call& call) -> std::expected<Value, NativeFailure> {
    return std::unexpected(asked_for(call.args, true));
  };
  return functions;
}

}  // namespace ae::tools
