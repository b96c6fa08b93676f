#include "routines/native/functions.h"

#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "json/json.h"
#include "log/seal.h"
#include "routines/native/values.h"
#include "tools/output.h"

namespace ae::routines {
namespace {

using Key = std::pair<InvocationId, std::uint32_t>;

// The summary that replaces a result that cannot be recorded.
Value invalid_result(const Value& result, const Error& error) {
  const std::string text = error.code == Code::payload_too_large ? canonical(result) : "";
  return tools::invalid_output(error.message, text, text.size());
}

std::expected<Value, FunctionFailure> perform_observed(const Function& function,
                                                       const tools::Call& call,
                                                       FunctionCall& its_call,
                                                       const FunctionObserver& observer) {
  if (!observer) return function(call.args, its_call);
  const FunctionEnded on_end = observer(call);
  try {
    auto result = function(call.args, its_call);
    on_end(result);
    return result;
  } catch (const std::exception& thrown) {
    on_end(std::unexpected(
        FunctionFailure{.code = "exception", .message = thrown.what(), .unknown = true}));
    throw;
  }
}

}  // namespace

// The functions of the calls that are not at their end. Shared with the threads that run them.
struct Functions::Calls {
  std::shared_ptr<const Function> take_function(const Key& key) {
    const std::scoped_lock lock(mutex);
    auto node = functions.extract(key);
    return node.empty() ? nullptr : std::move(node.mapped());
  }
  // The outcome of a call, with what its function found out about its result.
  Outcome complete(const Key& key, Outcome outcome) {
    const std::scoped_lock lock(mutex);
    if (outcome.error_code == "not_sent") functions.erase(key);  // no thread will take it
    if (auto node = invalid_results.extract(key); !node.empty()) {
      if (outcome.kind == OutcomeKind::success) outcome.invalid = std::move(node.mapped());
    }
    return outcome;
  }

  std::mutex mutex;
  // Guarded by mutex.
  std::map<Key, std::shared_ptr<const Function>> functions;  // that have not begun
  std::map<Key, Value> invalid_results;                      // of functions that have returned
};

Functions::Functions(async::Loop& loop, async::SteadyClock& clock, tools::Executor* executor,
                     FunctionObserver observer)
    : calls_(std::make_shared<Calls>()),
      tool_(loop, clock,
            [calls = calls_, observer = std::move(observer)](
                const tools::Call& call,
                tools::RunContext& run) -> std::expected<Value, FunctionFailure> {
              const Key key{call.invocation, call.try_no};
              const auto function = calls->take_function(key);
              AE_CHECK(function != nullptr, call.invocation.text);
              FunctionCall its_call(call, run);
              auto result = perform_observed(*function, call, its_call, observer);
              if (!result) return result;
              const Status recordable = check_recordable(*result, kValueMax, "the result");
              if (recordable) return result;
              Value summary = invalid_result(*result, recordable.error());
              const std::scoped_lock lock(calls->mutex);
              calls->invalid_results.emplace(key, std::move(summary));
              return Value();
            },
            {.executor = executor, .output_max = kValueMax}) {}

void Functions::perform(std::shared_ptr<const Function> function, tools::Permit permit,
                        tools::Call call, async::Done<Outcome> done) {
  const Key key{call.invocation, call.try_no};
  {
    const std::scoped_lock lock(calls_->mutex);
    calls_->functions.emplace(key, std::move(function));
  }
  call.on_late_outcome = [calls = calls_, key,
                          late = std::move(call.on_late_outcome)](Outcome outcome) mutable {
    outcome = calls->complete(key, std::move(outcome));
    if (late) late(std::move(outcome));
  };
  tool_.perform(std::move(permit), std::move(call),
                [calls = calls_, key, done = std::move(done)](Outcome outcome) mutable {
                  done(calls->complete(key, std::move(outcome)));
                });
}

void Functions::abandon(const InvocationId& invocation, std::uint32_t try_no) {
  tool_.abandon(invocation, try_no);
}

}  // namespace ae::routines
