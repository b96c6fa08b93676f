// What the threads of a routine do: requests, waiting, closed scopes, branches.
#include "routines/native/execution.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "base/hash.h"
#include "json/json.h"
#include "log/field_names.h"
#include "log/seal.h"
#include "routines/native/routine_end.h"

namespace ae::routines {
namespace {

// The routine's thread that runs here.
struct Current {
  const Execution* execution = nullptr;
  RoutineThread* thread = nullptr;
};
thread_local Current t_current;

// The only place that calls the body of an agent; catches what it throws.
engine::RoutineEnd call_body(const AgentBody& body, Context& context, const Value& input) {
  try {
    Result<Value> result = body(context, input);
    if (!result) return {.failure = failure_of(result.error())};
    if (const Status possible = check_recordable(*result, kValueMax, "the result"); !possible) {
      return {.failure = failure_of({Code::tool_output_invalid, possible.error().message})};
    }
    return {.result = *std::move(result)};
  } catch (...) {
    return exception_end(std::current_exception());
  }
}

std::set<std::string> ended_scopes(const engine::CodeRecord& record) {
  std::set<std::string> ended;
  for (const engine::Delivery& outcome : record.deliveries) {
    if (is_scope(outcome.kind) && outcome.passed_over == 0) {
      ended.insert(outcome.position);
    }
  }
  return ended;
}

bool is_call(engine::NodeKind kind) {
  return kind == engine::NodeKind::tool || kind == engine::NodeKind::llm;
}

// Calls that the log holds without arguments and without an outcome.
std::set<std::string> without_call(const engine::CodeRecord& record) {
  std::set<std::string> waiting;
  for (const engine::RecordedRequest& request : record.requests) {
    if (is_call(request.kind) && !request.arguments_hash) waiting.insert(request.position);
  }
  for (const engine::Delivery& outcome : record.deliveries) waiting.erase(outcome.position);
  return waiting;
}

}  // namespace

Execution::Execution(Setup setup)
    : start_(std::move(setup.start)),
      body_(std::move(setup.body)),
      loop_(setup.loop),
      clock_(setup.clock),
      threads_(setup.threads),
      place_(std::move(setup.place)),
      turns_([this] { return deliver_next(); }),
      ended_scopes_(ended_scopes(start_.record)),
      without_call_(without_call(start_.record)),
      replay_(std::move(start_.record)),
      entropy_(setup.entropy) {
  set_time(setup.now);
}

bool Execution::begin() {
  const std::scoped_lock lock(mutex_);
  RoutineThread& main = turns_.add(nullptr);
  if (!spawn(main, [this] { run_body(); })) return false;
  turns_.go_on();
  return true;
}

// REQUIRES: the mutex is held.
bool Execution::spawn(RoutineThread& thread, std::move_only_function<void()> work) {
  const bool runs =
      threads_.run(place_, [self = shared_from_this(), &thread, work = std::move(work)]() mutable {
        t_current = {self.get(), &thread};
        {
          Lock lock(self->mutex_);
          self->turns_.begin(lock, thread);
        }
        work();
        work = nullptr;
        t_current = {};
        const std::scoped_lock lock(self->mutex_);
        self->turns_.end(thread);
      });
  if (!runs) turns_.remove(thread);
  return runs;
}

void Execution::run_body() {
  Context context(*this, "", nullptr);
  engine::RoutineEnd end = call_body(body_, context, start_.input);
  const std::scoped_lock lock(mutex_);
  end_ = forced_end_ ? std::move(*forced_end_) : std::move(end);
  advance_.end = end_;
  has_unsent_advance_ = has_unsent_advance_ || is_live_;
  drop_scope_ends();
}

// ---------------------------------------------------------------- calls of a Context

Error Execution::evicted(bool is_branch) const {
  if (forced_end_) return {Code::evicted, "the routine has failed; return this error"};
  if (is_branch) return {Code::evicted, "this branch is not needed any more; return this error"};
  return {Code::evicted, "the routine was dropped; return this error"};
}

// The routine ends so, whatever its body returns.
void Execution::force_end(engine::RoutineEnd end) {
  if (is_inert_ || forced_end_) return;
  forced_end_ = std::move(end);
  turns_.stop_all();
  turns_.go_on();
}

Result<RoutineThread*> Execution::caller() {
  if (t_current.execution != this) {
    constexpr std::string_view kMessage =
        "a Context was used on a thread that is not one of its routine; use map or race";
    force_end(exception_end("wrong_thread", kMessage));
    return fail(Code::input_invalid, std::string(kMessage));
  }
  RoutineThread* const self = t_current.thread;
  if (is_inert_ || forced_end_) return std::unexpected(evicted(false));
  if (self->is_stopped) return std::unexpected(evicted(true));
  return self;
}

Result<RoutineThread*> Execution::caller(const Context& context) {
  AE_ASSIGN(RoutineThread* const self, caller());
  if (self->closed == context.closed_.get()) return self;
  constexpr std::string_view kMessage =
      "the Context of another scope was used inside of a closed scope; use that of the scope";
  force_end(exception_end("wrong_scope", kMessage));
  return fail(Code::input_invalid, std::string(kMessage));
}

Status Execution::check_caller() {
  const std::scoped_lock lock(mutex_);
  AE_TRY(caller());
  return {};
}

void Execution::end_with_exception(std::exception_ptr thrown) {
  const std::scoped_lock lock(mutex_);
  if (caller()) force_end(exception_end(thrown));
}

Result<std::uint32_t> Execution::granted_tool(const Made& made) const {
  const engine::Plan& plan = *start_.plan;
  for (const std::uint32_t index : plan.nodes[start_.node].code->tools) {
    const engine::ToolPolicy& tool = plan.tools[index];
    if (tool.name != made.tool || tool.is_model() != (made.kind == engine::NodeKind::llm)) continue;
    if (made.function && !tool.function) break;
    return index;
  }
  return fail(Code::tool_not_granted, "the plan does not grant the tool \"{}\" to this agent",
              made.tool);
}

JobId Execution::child_id(std::string_view position) const {
  const StepId command =
      step_id(start_.job, start_.plan->decision, fmt::format("{}/{}", start_.path, position),
              engine::to_text(engine::NodeKind::tool));
  return child_job_id(start_.job, command);
}

Status Execution::check_arguments(const Made& made) const {
  if (!made.arguments.is_object()) {
    return fail(Code::input_invalid, "the arguments of \"{}\" must be a JSON object", made.tool);
  }
  return check_recordable(made.arguments, kValueMax,
                          fmt::format("the arguments of \"{}\"", made.tool));
}

Execution::MadeRequest Execution::request(const Context& context, std::string_view name,
                                          std::string_view key, Made made) {
  std::uint32_t tool = 0;
  std::optional<Hash> arguments_hash;
  Status possible = check_caller();
  if (possible && is_call(made.kind)) {  // without the mutex, which the loop takes, too
    AE_ASSIGN(tool, granted_tool(made));
    possible = check_arguments(made);
    // After the frontier every recorded request was made.
    if (possible && !is_live_ && !start_.is_blind_erased) {
      arguments_hash = blinded_digest(start_.blind, canonical(made.arguments));
    }
  }
  const std::scoped_lock lock(mutex_);
  AE_TRY(caller(context));
  AE_TRY(std::move(possible));
  AE_ASSIGN(std::string position, positions_.next(context.scope_, name, key));
  return add_request(context, std::move(position), std::move(made), tool, arguments_hash);
}

// REQUIRES: the mutex is held, and the position was not requested before.
Execution::MadeRequest Execution::add_request(const Context& context, std::string position,
                                              Made made, std::uint32_t tool,
                                              std::optional<Hash> arguments_hash) {
  std::size_t& open = context.closed_ ? context.closed_->open : open_outside_;
  if (open >= engine::kOpenRequestsMax) {
    return fail(Code::input_invalid, "a scope has at most {} requests without an outcome",
                engine::kOpenRequestsMax);
  }
  const engine::Replay::Match match = replay_.match({.position = position,
                                                     .kind = made.kind,
                                                     .tool = made.tool,
                                                     .arguments_hash = arguments_hash,
                                                     .wait = made.wait.type});
  if (match == engine::Replay::Match::diverged) {
    diverge(*replay_.divergence());
    return std::unexpected(evicted(false));
  }
  const bool is_new = match == engine::Replay::Match::is_new;
  if (is_scope(made.kind)) {
    if (is_new) {
      advance_.recorded.items.emplace_back(
          engine::Advance::ScopeBegun{.position = position,
                                      .delivered = replay_.delivered(),
                                      .is_turn = made.kind == engine::NodeKind::turn});
    }
  } else if (is_new || without_call_.contains(position)) {
    advance_.requests.push_back({.position = position,
                                 .kind = made.kind,
                                 .delivered = replay_.delivered(),
                                 .tool = tool,
                                 .arguments = std::move(made.arguments),
                                 .options = made.options,
                                 .wait = std::move(made.wait)});
  }
  auto request = std::make_shared<Request>();
  request->position = position;
  request->kind = made.kind;
  request->tool = tool;
  request->closed = context.closed_;
  request->branch = t_current.thread->branch;
  if (made.function) request->function = std::make_shared<const Function>(std::move(made.function));
  open++;
  open_.emplace(std::move(position), request);
  return request;
}

// REQUIRES: the mutex is held.
Result<Value> Execution::result_of(const Request& request) const {
  if (request.is_cancelled) {
    return fail(Code::input_invalid, "the request \"{}\" was cancelled", request.position);
  }
  const engine::Delivery& outcome = request.outcome;
  if (outcome.failure) return std::unexpected(error_of(*outcome.failure));
  if (outcome.timed_out) {
    return fail(Code::wait_expired, "there was no answer to \"{}\" before the wait expired",
                request.position);
  }
  if (outcome.rejected) {
    const std::string_view note = outcome.result.text(field::note);
    return fail(Code::rejected, "the answer to \"{}\" was no{}{}", request.position,
                note.empty() ? "" : ": ", note);
  }
  return outcome.result;
}

Result<Value> Execution::await(Request& request) {
  Lock lock(mutex_);
  AE_ASSIGN(RoutineThread* const self, caller());
  while (!request.delivered && !request.is_cancelled) {
    request.waiting.push_back(self);
    turns_.wait_for_outcome(lock, *self);
    std::erase(request.waiting, self);
    AE_TRY(caller());
  }
  return result_of(request);
}

Result<std::size_t> Execution::first(std::span<const std::shared_ptr<Request>> requests) {
  Lock lock(mutex_);
  AE_ASSIGN(RoutineThread* const self, caller());
  for (;;) {
    std::optional<std::size_t> first;
    bool is_any_open = false;
    for (std::size_t i = 0; i < requests.size(); ++i) {
      const Request& request = *requests[i];
      if (request.is_cancelled) continue;
      is_any_open = is_any_open || !request.delivered;
      if (request.delivered && (!first || request.delivered < requests[*first]->delivered)) {
        first = i;
      }
    }
    if (first) return *first;
    if (!is_any_open) return fail(Code::input_invalid, "there is no request to wait for");
    for (const auto& request : requests) request->waiting.push_back(self);
    turns_.wait_for_outcome(lock, *self);
    for (const auto& request : requests) std::erase(request->waiting, self);
    AE_TRY(caller());
  }
}

void Execution::cancel(Request& request) {
  const std::scoped_lock lock(mutex_);
  if (caller()) cancel_open(request);
}

// REQUIRES: the mutex is held. Changes open_.
void Execution::cancel_open(Request& request) {
  if (request.delivered || std::exchange(request.is_cancelled, true)) return;
  for (RoutineThread* const waiting : request.waiting) turns_.wake(*waiting);
  const std::size_t unsent = std::erase_if(advance_.requests, [&](const engine::NewRequest& made) {
    return made.position == request.position;
  });
  if (unsent == 0 || without_call_.contains(request.position)) {
    advance_.cancelled.push_back(request.position);
  } else {
    close(open_.find(request.position));  // as if it had not been made
  }
}

// ---------------------------------------------------------------- closed scopes and branches

Result<Execution::BegunScope> Execution::begin_scope(const Context& context, std::string_view name,
                                                     std::optional<std::uint64_t> number) {
  const std::scoped_lock lock(mutex_);
  AE_TRY(caller(context));
  AE_ASSIGN(std::string position, positions_.closed_scope(context.scope_, name, number));
  return begin_closed(context, std::move(position), engine::NodeKind::scope);
}

Result<Execution::BegunLoop> Execution::begin_loop(const Context& context, std::string_view name) {
  const std::scoped_lock lock(mutex_);
  AE_TRY(caller(context));
  AE_ASSIGN(std::string position, positions_.loop(context.scope_, name));
  const std::uint64_t first = replay_.first_turn(position).value_or(0);
  return BegunLoop{std::move(position), first};
}

Result<Execution::BegunScope> Execution::begin_turn(const Context& context, const std::string& loop,
                                                    std::uint64_t number) {
  const std::scoped_lock lock(mutex_);
  return begin_closed(context, fmt::format("{}/{}", loop, number), engine::NodeKind::turn);
}

// REQUIRES: the mutex is held.
Result<Execution::BegunScope> Execution::begin_closed(const Context& context, std::string position,
                                                      engine::NodeKind kind) {
  AE_ASSIGN(RoutineThread* const self, caller(context));
  AE_ASSIGN(auto request, add_request(context, position, {.kind = kind}, 0, {}));
  if (ended_scopes_.contains(position)) return BegunScope{std::move(request), nullptr};
  auto closed = std::make_shared<ClosedScope>();
  closed->position = std::move(position);
  closed->outer = self->closed;
  self->closed = closed.get();
  return BegunScope{std::move(request), std::move(closed)};
}

void Execution::end_scope(const std::shared_ptr<ClosedScope>& closed, const Result<Value>& result) {
  Status possible;
  if (result) possible = check_recordable(*result, kValueMax, "the result of the scope");
  const std::scoped_lock lock(mutex_);
  t_current.thread->closed = closed->outer;
  for (const auto& [position, request] : OpenRequests(open_)) {
    const bool is_wait = request->kind == engine::NodeKind::wait;
    if (is_wait && engine::is_inside(position, closed->position)) cancel_open(*request);
  }
  closed->has_returned = true;
  if (!result) {
    closed->failure = failure_of(result.error());
  } else if (!possible) {
    closed->failure = failure_of(possible.error());
  } else {
    closed->result = *result;
  }
  if (closed->open == 0) arrived_.emplace_back(closed);
}

Result<std::string> Execution::branches_scope(const Context& context, std::string_view name) {
  const std::scoped_lock lock(mutex_);
  AE_TRY(caller(context));
  return positions_.open_scope(context.scope_, name);
}

void Execution::run_branches(std::vector<std::move_only_function<void()>> branches) {
  Lock lock(mutex_);
  if (is_inert_) return;
  RoutineThread& self = *t_current.thread;
  const auto of_all = std::make_shared<const Branch>(self.branch);
  bool all_run = true;
  for (auto& branch : branches) {
    if (!all_run) break;
    RoutineThread& thread = turns_.add(&self);
    thread.branch = std::make_shared<const Branch>(of_all);
    all_run = spawn(thread, std::move(branch));
  }
  if (!all_run) lose({Code::unavailable, "no thread is left for a branch of the routine"});
  turns_.wait_for_threads(lock, self);
}

void Execution::begin_branch() {
  const std::scoped_lock lock(mutex_);
  RoutineThread& self = *t_current.thread;
  self.branch = std::make_shared<const Branch>(self.branch->outer);
}

void Execution::stop_other_branches() {
  const std::scoped_lock lock(mutex_);
  const RoutineThread& self = *t_current.thread;
  if (is_inert_ || forced_end_ || self.is_stopped) return;
  turns_.stop_below(*self.parent, &self);
  const Branch* const of_all = self.branch->outer.get();
  for (const auto& [position, request] : OpenRequests(open_)) {
    const Branch* branch = request->branch.get();
    while (branch != nullptr && branch != self.branch.get() && branch != of_all) {
      branch = branch->outer.get();
    }
    if (branch == of_all) cancel_open(*request);
  }
}

}  // namespace ae::routines
