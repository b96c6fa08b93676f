// Context: the calls of a body as requests of its execution.
#include "routines/native/context.h"

#include <fmt/core.h>

#include <algorithm>
#include <set>

#include "base/ids.h"
#include "log/field_names.h"
#include "log/seal.h"
#include "plan/job_tools.h"
#include "routines/native/execution.h"
#include "routines/native/routine_end.h"

namespace ae::routines {
namespace {

constexpr Duration kDurationMax = std::chrono::days(36'500);
constexpr std::size_t kKeyBytesMax = 256;  // of the key of a wait, and of a channel

std::string_view or_default(const std::string& name, std::string_view otherwise) {
  return name.empty() ? otherwise : std::string_view(name);
}

Status check_duration(std::optional<Duration> duration) {
  if (!duration || (*duration >= Duration(0) && *duration <= kDurationMax)) return {};
  return fail(Code::input_invalid, "a duration is at most 36500 days, and not negative");
}

Status check_wait(const engine::NewWait& wait) {
  AE_TRY(check_duration(wait.lasts));
  AE_TRY(check_duration(wait.expires));
  if (wait.due_at && !is_representable(*wait.due_at)) {
    return fail(Code::input_invalid, "a time is in the years 0000 to 9999");
  }
  if (wait.key.size() > kKeyBytesMax || wait.channel.size() > kKeyBytesMax) {
    return fail(Code::input_invalid, "a key or channel has at most {} bytes", kKeyBytesMax);
  }
  AE_TRY(check_recordable(Value::array({wait.key, wait.channel}), 4 * kKeyBytesMax,
                          "a key or channel"));
  AE_TRY(check_recordable(Value::array({wait.question, wait.data}), kValueMax,
                          "a question with its data"));
  if (wait.type != engine::WaitType::message || !wait.channel.empty()) return {};
  return fail(Code::input_invalid, "a channel has a name");
}

}  // namespace

// ---------------------------------------------------------------- requests

Pending::Pending(Execution& execution, std::shared_ptr<Request> request)
    : execution_(execution.shared_from_this()), request_(std::move(request)) {}

Result<Value> Pending::get() const {
  if (error_) return std::unexpected(*error_);
  if (request_ == nullptr) return fail(Code::input_invalid, "there is no request to wait for");
  return execution_->await(*request_);
}

void Pending::cancel() const {
  if (request_ != nullptr) execution_->cancel(*request_);
}

const engine::Failure* Pending::failure() const {
  if (request_ == nullptr || !request_->outcome.failure) return nullptr;
  return &*request_->outcome.failure;
}

Pending Context::pending(Result<std::shared_ptr<Request>> request) {
  if (!request) return Pending(std::move(request).error());
  return {execution_, *std::move(request)};
}

Pending Context::request_call(engine::NodeKind kind, std::string_view tool, std::string_view name,
                              Value args, Function function, const RequestOptions& options) {
  return pending(execution_.request(*this, or_default(options.name, name), options.key,
                                    {.kind = kind,
                                     .tool = tool,
                                     .arguments = std::move(args),
                                     .options = options.call,
                                     .function = std::move(function)}));
}

Pending Context::request_wait(engine::NewWait wait, std::string_view name,
                              const RequestOptions& options) {
  if (Status possible = check_wait(wait); !possible) return Pending(std::move(possible).error());
  if (options.call.any())
    return Pending({Code::input_invalid, "options of a call do not apply to a wait"});
  return pending(execution_.request(*this, or_default(options.name, name), options.key,
                                    {.kind = engine::NodeKind::wait, .wait = std::move(wait)}));
}

Pending Context::later_run(std::string_view name, EffectClass effect, Value args, Function function,
                           const RequestOptions& options) {
  if (!function) return Pending({Code::input_invalid, "a run has a function"});
  return request_call(engine::NodeKind::tool, fmt::format("run:{}", engine::to_text(effect)), name,
                      std::move(args), std::move(function), options);
}

Pending Context::later_call(std::string_view tool, Value args, const RequestOptions& options) {
  return request_call(engine::NodeKind::tool, tool, tool, std::move(args), {}, options);
}

Pending Context::later_generate(std::string_view model, Value request,
                                const RequestOptions& options) {
  const std::string tool = model_tool_name(model);
  return request_call(engine::NodeKind::llm, tool, tool, std::move(request), {}, options);
}

Child Context::start(std::string_view agent, Value input, const StartOptions& options) {
  if (input.is_null()) input = Value::object({});
  Pending pending =
      request_call(engine::NodeKind::tool, engine::child_tool_name(agent, options.detached), agent,
                   std::move(input), {}, options.request);
  JobId id;
  if (pending.request_ != nullptr) id = execution_.child_id(pending.request_->position);
  return {std::move(pending), std::move(id)};
}

Pending Context::later_send(std::string_view job, const Recipient& to, Value payload,
                            const RequestOptions& options) {
  if (to.channel.empty() == to.key.empty()) {
    return Pending({Code::input_invalid, "send to a channel or to the key of a signal"});
  }
  const bool is_message = !to.channel.empty();
  return request_call(
      engine::NodeKind::tool, engine::kSendTool, "send",
      Value::object({{"job", job},
                     {field::payload, std::move(payload)},
                     {"to", is_message ? Value::object({{field::channel, to.channel}})
                                       : Value::object({{"key", to.key}})}}),
      {}, options);
}

Pending Context::later_sleep(Duration duration, const RequestOptions& options) {
  return request_wait({.type = engine::WaitType::timer, .lasts = duration}, "sleep", options);
}

Pending Context::later_until(Instant instant, const RequestOptions& options) {
  return request_wait({.type = engine::WaitType::timer, .due_at = instant}, field::until, options);
}

Pending Context::later_wait(const WaitSpec& spec) {
  if (spec.type == engine::WaitType::timer || spec.type == engine::WaitType::message) {
    return Pending({Code::input_invalid, "a wait is for a signal, a webhook or a human"});
  }
  const bool is_human = spec.type == engine::WaitType::human;
  return request_wait({.type = spec.type,
                       .key = spec.key,
                       .expires = spec.expires,
                       .accepts_data = is_human && spec.accepts_data,
                       .question = is_human ? spec.question : std::string(),
                       .data = is_human ? spec.data : Value()},
                      engine::to_text(spec.type), spec.options);
}

Pending Context::later_receive(std::string_view channel, std::optional<Duration> expires,
                               const RequestOptions& options) {
  return request_wait(
      {.type = engine::WaitType::message, .channel = std::string(channel), .expires = expires},
      "receive", options);
}

Result<Value> Context::run(std::string_view name, EffectClass effect, Value args, Function function,
                           const RequestOptions& options) {
  return later_run(name, effect, std::move(args), std::move(function), options).get();
}

Result<Value> Context::call(std::string_view tool, Value args, const RequestOptions& options) {
  return later_call(tool, std::move(args), options).get();
}

Result<Value> Context::generate(std::string_view model, Value request,
                                const RequestOptions& options) {
  return later_generate(model, std::move(request), options).get();
}

Status Context::send(std::string_view job, const Recipient& to, Value payload,
                     const RequestOptions& options) {
  AE_TRY(later_send(job, to, std::move(payload), options).get());
  return {};
}

Status Context::sleep(Duration duration, const RequestOptions& options) {
  AE_TRY(later_sleep(duration, options).get());
  return {};
}

Status Context::until(Instant instant, const RequestOptions& options) {
  AE_TRY(later_until(instant, options).get());
  return {};
}

Result<Value> Context::wait(const WaitSpec& spec) { return later_wait(spec).get(); }

Result<Value> Context::receive(std::string_view channel, std::optional<Duration> expires,
                               const RequestOptions& options) {
  return later_receive(channel, expires, options).get();
}

Result<Value> Context::approval(std::string_view question, const WaitSpec& spec) {
  WaitSpec decision = spec;
  decision.question = question;
  decision.type = engine::WaitType::human;
  if (decision.options.name.empty()) decision.options.name = "approval";
  return wait(decision);
}

Result<std::size_t> Context::first(std::span<const Pending> pending) {
  AE_TRY(execution_.check_caller());
  std::vector<std::shared_ptr<Request>> requests;
  for (std::size_t i = 0; i < pending.size(); ++i) {
    if (pending[i].error_) return i;
    if (pending[i].request_ == nullptr || pending[i].execution_.get() != &execution_) {
      return fail(Code::input_invalid, "there is no request to wait for");
    }
    requests.push_back(pending[i].request_);
  }
  return execution_.first(requests);
}

// ---------------------------------------------------------------- scopes

Result<Value> Context::scope(std::string_view name, const ScopeBody& body,
                             std::optional<std::uint64_t> number) {
  AE_ASSIGN(const Execution::BegunScope begun, execution_.begin_scope(*this, name, number));
  return run_closed(begun.request, begun.closed, body);
}

// A turn records {next: state} or {done: result}.
Result<Value> Context::loop(std::string_view name, Value state, const TurnBody& body) {
  AE_ASSIGN(const Execution::BegunLoop loop, execution_.begin_loop(*this, name));
  for (std::uint64_t number = loop.first_turn;; ++number) {
    const auto run_turn = [&](Context& inner) -> Result<Value> {
      AE_ASSIGN(Turn turn, body(inner, state, number));
      return Value::object({{turn.is_last ? "done" : "next", std::move(turn.value)}});
    };
    AE_ASSIGN(const Execution::BegunScope begun,
              execution_.begin_turn(*this, loop.position, number));
    AE_ASSIGN(const Value end, run_closed(begun.request, begun.closed, run_turn));
    if (const Value* const result = end.find("done")) return *result;
    state = end["next"];
  }
}

// `closed`: nullptr: its result is recorded.
Result<Value> Context::run_closed(const std::shared_ptr<Request>& request,
                                  const std::shared_ptr<ClosedScope>& closed,
                                  const ScopeBody& body) {
  if (closed != nullptr) {
    Context inner(execution_, closed->position, closed);
    try {
      execution_.end_scope(closed, body(inner));
    } catch (...) {
      // What a scope returns is recorded. An exception is no result, so the code ends with it.
      execution_.end_with_exception(std::current_exception());
      throw;
    }
  }
  return execution_.await(*request);
}

struct Context::MapRun {
  std::span<const Value> items;
  const ItemBody& body;
  const MapOptions& options;
  const std::string name, scope;
  std::size_t next = 0;
  std::vector<Value> results = std::vector<Value>(items.size());
  std::optional<Error> failure;  // of the first item that failed
  std::exception_ptr thrown;
};

Result<Value> Context::map_item(MapRun& map, std::size_t index) {
  const Value& item = map.items[index];
  if (map.options.fold) {
    return scope(map.name, [&](Context& inner) { return map.body(inner, item, index); }, index);
  }
  Context inner(execution_, fmt::format("{}/{}", map.scope, index), closed_);
  return map.body(inner, item, index);
}

// One thread of a map.
void Context::map_items(MapRun& map) {
  while (map.next < map.items.size() && !map.failure && !map.thrown) {
    const std::size_t index = map.next++;
    execution_.begin_branch();
    try {
      Result<Value> result = map_item(map, index);
      if (result) {
        map.results[index] = *std::move(result);
        continue;
      }
      if (!execution_.check_caller() || map.failure || map.thrown) return;
      if (map.options.collect_errors) {
        const engine::Failure failure = failure_of(result.error());
        map.results[index] = Value::object(
            {{field::error,
              Value::object({{field::code, failure.code}, {"message", failure.message}})}});
        continue;
      }
      map.failure = std::move(result).error();
    } catch (...) {
      if (map.failure || map.thrown) return;
      map.thrown = std::current_exception();
    }
    execution_.stop_other_branches();
  }
}

Result<std::vector<Value>> Context::map(std::string_view name, std::span<const Value> items,
                                        const ItemBody& body, const MapOptions& options) {
  std::string scope;
  if (!options.fold) {
    AE_ASSIGN(scope, execution_.branches_scope(*this, name));
  } else {
    AE_TRY(execution_.check_caller());
    scope = scope_.empty() ? std::string(name) : fmt::format("{}/{}", scope_, name);
  }
  MapRun map{.items = items,
             .body = body,
             .options = options,
             .name = std::string(name),
             .scope = std::move(scope)};
  const std::size_t threads =
      std::min({std::max<std::size_t>(options.parallel, 1), kBranchesMax, items.size()});
  std::vector<std::move_only_function<void()>> branches;
  branches.reserve(threads);
  for (std::size_t i = 0; i < threads; ++i) branches.emplace_back([&] { map_items(map); });
  execution_.run_branches(std::move(branches));
  AE_TRY(execution_.check_caller());
  if (map.thrown) std::rethrow_exception(map.thrown);
  if (map.failure) return std::unexpected(*std::move(map.failure));
  return std::move(map.results);
}

Result<RaceResult> Context::race(std::string_view name, std::span<const RaceBranch> branches) {
  std::set<std::string_view> names;
  for (const RaceBranch& branch : branches) {
    if (!engine::is_request_name(branch.name) || !names.insert(branch.name).second) {
      return fail(Code::input_invalid, "\"{}\" cannot be the name of a branch, or is used twice",
                  std::string_view(branch.name).substr(0, 100));
    }
  }
  if (branches.empty() || branches.size() > kBranchesMax) {
    return fail(Code::input_invalid, "a race has 1 to {} branches", kBranchesMax);
  }
  AE_ASSIGN(const std::string scope, execution_.branches_scope(*this, name));
  const RaceBranch* won = nullptr;
  Result<Value> result;
  std::exception_ptr thrown;
  std::vector<std::move_only_function<void()>> runs;
  runs.reserve(branches.size());
  for (const RaceBranch& branch : branches) {
    runs.emplace_back([&] {
      const std::string its_scope = fmt::format("{}/{}", scope, branch.name);
      Context inner(execution_, its_scope, closed_);
      Result<Value> its_result;
      std::exception_ptr its_exception;
      try {
        its_result = branch.body(inner);
      } catch (...) {
        its_exception = std::current_exception();
      }
      if (won != nullptr) return;
      won = &branch;
      result = std::move(its_result);
      thrown = std::move(its_exception);
      execution_.stop_other_branches();
    });
  }
  execution_.run_branches(std::move(runs));
  AE_TRY(execution_.check_caller());
  if (thrown) std::rethrow_exception(thrown);
  if (!result) return std::unexpected(std::move(result).error());
  return RaceResult{.won = won->name, .value = *std::move(result)};
}

// ---------------------------------------------------------------- values

Instant Context::now() { return execution_.now(*this); }
double Context::random() { return execution_.random(*this); }
std::string Context::uuid() { return execution_.uuid(*this); }
bool Context::patched(std::string_view id) { return execution_.patched(*this, id); }
Status Context::emit(std::string_view name, Value value) {
  return execution_.emit(*this, name, std::move(value), false);
}
Status Context::publish(std::string_view name, Value value) {
  return execution_.emit(*this, name, std::move(value), true);
}
const Value& Context::job() const { return execution_.job(); }
bool Context::is_replaying() const { return execution_.is_replaying(); }

}  // namespace ae::routines
