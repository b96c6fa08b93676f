#include "routines/native/native_job_test.h"

#include <fmt/core.h>

#include <algorithm>

#include "engine/heart/ingest.h"
#include "testing/permit.h"

namespace ae::routines::testing {

NativeJob::NativeJob(NativeWorld& world, std::shared_ptr<const engine::Plan> of,
                     std::string_view input, std::string_view id)
    : JobLog(std::move(of), id), world_(world) {
  now = world_.loop.now();
  engine::NewJobEvents job{.agent = "agent",
                           .input = json(input),
                           .execution_version = "v1",
                           .plan = plan.get(),
                           .blind = std::string(32, 'b'),
                           .now = now};
  add(engine::job_events(job));
  commit();
  claim();
}

NativeJob::NativeJob(NativeWorld& world, const NativeJob& other, std::size_t events)
    : JobLog(other.plan, other.state.job.text), world_(world) {
  log.assign(other.log.begin(), other.log.begin() + static_cast<std::ptrdiff_t>(events));
  now = std::max(other.now, world_.loop.now());
  state = folded(events);
  commits = {events};
  attempts_ = other.attempts_ + 1;
  claim();
}

// ---------------------------------------------------------------- what happens to it

void NativeJob::claim() {
  if (state.status == engine::JobStatus::running || state.status == engine::JobStatus::queued) {
    add({engine::running_event(AttemptId(fmt::format("attempt-{}", ++attempts_)), state.epoch + 1,
                               "worker", {})});
  }
  decide_all();
}

void NativeJob::crash() {
  lose_routine();
  log.resize(commits.back());
  state = folded(log.size());
  claim();
}

void NativeJob::lose_routine() {
  routine_.reset();
  routines_.clear();
  remote.clear();
  in_flight_.clear();
  generation_++;
}

bool NativeJob::is_idle() const {
  if (routine_ == nullptr) return true;
  return in_flight_.empty() && !routines_.empty() && routines_.begin()->second.has_settled;
}

void NativeJob::run() {
  ASSERT_TRUE(world_.loop.run_until([this] { return is_over() || is_idle(); })) << log_text();
}

void NativeJob::run_to_end(const std::function<std::size_t(std::size_t)>& choose) {
  for (run(); !is_over() && !::testing::Test::HasFatalFailure(); run()) {
    std::vector<engine::ControlRequest> answers;
    for (const auto& [key, wait] : state.waits) {
      if (wait.type != engine::WaitType::timer) answers.push_back(answer_of(key, wait));
    }
    const std::size_t timers = state.next_due() ? 1 : 0;
    const std::size_t all = remote.size() + answers.size() + timers;
    ASSERT_GT(all, 0u) << log_text();
    const int generation = generation_;
    const std::size_t chosen = choose(all);
    if (generation != generation_) continue;  // the process has died meanwhile
    if (chosen < remote.size()) {
      const std::string position = remote[chosen].position;
      const Value args = remote[chosen].args;
      if (args["fails"] == Value(true)) {
        answer(position,
               {.kind = OutcomeKind::failure, .definite = true, .error_code = "http_400"});
      } else {
        answer(position, {.kind = OutcomeKind::success, .result = args});
      }
    } else if (chosen < remote.size() + timers) {
      after(std::max(*state.next_due() - now, Duration(0)));
    } else {
      request(answers[chosen - remote.size() - timers]);
    }
  }
}

// A call with an unknown outcome has happened; a human approves.
engine::ControlRequest NativeJob::answer_of(const std::string& key, const engine::Wait& wait) {
  const engine::Step& step = state.steps[wait.step];
  if (wait.resolve) {
    return {.by = "someone",
            .body = engine::ResolveRequest{.idempotency_key = state.key_of(step).text,
                                           .resolution = "happened",
                                           .result = step.call->arguments}};
  }
  return {.id = fmt::format("signal-{}", ++signals_),
          .body = engine::SignalRequest{.correlation_key = key,
                                        .payload = json("{'decision': 'approve'}")}};
}

void NativeJob::answer(std::string_view position, std::string_view result) {
  answer(position, {.kind = OutcomeKind::success, .result = json(result)});
}

void NativeJob::answer(std::string_view position, const Outcome& outcome) {
  const auto call = std::ranges::find(remote, position, &RemoteCall::position);
  ASSERT_NE(call, remote.end()) << position << "\n" << log_text();
  const std::uint32_t step = state.index_of(call->step);
  remote.erase(call);
  add(engine::record_outcome(state, step, outcome, now));
  decide_all();
}

void NativeJob::request(const engine::ControlRequest& control) {
  auto applied = engine::apply_request(state, control, context());
  ASSERT_TRUE(applied.has_value()) << applied.error().message << "\n" << log_text();
  add(applied->events);
  if (state.status == engine::JobStatus::queued) return claim();
  decide_all();
}

void NativeJob::signal(std::string_view position, std::string_view payload) {
  request({.id = fmt::format("signal-{}", ++signals_),
           .body = engine::SignalRequest{.correlation_key = wait_key(position),
                                         .payload = json(payload)}});
}

void NativeJob::message(std::string_view channel, std::string_view payload) {
  request(
      {.id = fmt::format("message-{}", ++signals_),
       .body = engine::MessageRequest{.channel = std::string(channel), .payload = json(payload)}});
}

void NativeJob::after(Duration by) {
  world_.advance(by);
  now = world_.loop.now();
  const auto due = state.next_due();
  if (due && *due <= now) return request({.body = engine::TimersRequest{}});
  decide_all();
}

// ---------------------------------------------------------------- what the test looks at

const engine::Step* NativeJob::find(std::string_view position) const {
  for (const auto kind : {engine::NodeKind::tool, engine::NodeKind::llm, engine::NodeKind::wait,
                          engine::NodeKind::scope}) {
    const StepId id = state.request_step_id(state.steps[0], position, kind);
    if (const auto* step = state.find_step(id)) return step;
  }
  return nullptr;
}

std::string NativeJob::wait_key(std::string_view position) const {
  const engine::Step* const step = find(position);
  AE_CHECK(step != nullptr && step->wait_key, log_text());
  return *step->wait_key;
}

std::vector<std::string> NativeJob::positions() const {
  std::vector<std::string> positions;
  for (const NodeStarted& started : all<NodeStarted>()) {
    if (started.position) positions.push_back(*started.position);
  }
  return positions;
}

// ---------------------------------------------------------------- its driver

engine::DecisionContext NativeJob::context() {
  return {.now = now,
          .lease_until = now + 30s,
          .jitter_seed = 7,
          .entropy = {1, 2, 3, 4},
          .execution_version = &execution_version_,
          .routines = &routines_};
}

void NativeJob::decide_all() {
  std::optional<engine::DecisionCursor> from;
  std::vector<StepId> performs;
  while (!is_terminal(state.status)) {
    update_settled();
    engine::Decision decision = engine::decide(state, context(), {}, from ? &*from : nullptr);
    from = decision.unfinished;
    if (decision.events.empty() && from) continue;
    if (decision.events.empty()) break;
    add(decision.events);
    performs.insert(performs.end(), decision.perform.begin(), decision.perform.end());
    if (decision.release) break;
  }
  if (!commit_all()) return;
  if (is_terminal(state.status)) return lose_routine();
  for (const StepId& id : performs) perform(id);
  if (state.status != engine::JobStatus::running) {
    if (!keeps_routine) lose_routine();
    return;
  }
  if (routine_ == nullptr && !state.routines.empty()) start_routine();
  deliver();
}

// A routine that was not given all outcomes has not settled.
void NativeJob::update_settled() {
  if (routines_.empty() || state.routines.empty()) return;
  routines_[0].has_settled = settled_ && delivered_ == state.steps[0].code->outcomes.size();
}

// False: the process has died, and another one runs the job.
bool NativeJob::commit_all() {
  if (commits_left && log.size() > commits.back() && --*commits_left < 0) {
    commits_left.reset();
    crash();
    return false;
  }
  commit();
  return true;
}

void NativeJob::start_routine() {
  given_.clear();
  for (const auto& place : state.steps[0].code->outcomes.places()) given_.insert(place.step);
  routine_ = world_.routines->start({.job = state.job,
                                     .node = 0,
                                     .plan = plan,
                                     .input = state.input,
                                     .job_value = state.job_root,
                                     .blind = state.blind,
                                     .record = engine::record_of(state, state.steps[0]),
                                     .client = this});
  AE_CHECK(routine_ != nullptr, "no routine was started");
  routines_[0] = {};
  settled_ = false;
}

void NativeJob::deliver() {
  if (routine_ == nullptr || state.routines.empty()) return;
  std::vector<engine::Delivery> outcomes;
  for (const auto& [number, index] : state.steps[0].code->outcomes.since(0)) {
    if (given_.insert(index).second) {
      outcomes.push_back(engine::delivery_of(state, state.steps[index]));
    }
  }
  if (outcomes.empty()) return;
  routine_->deliver(std::move(outcomes));
}

void NativeJob::perform(const StepId& id) {
  const engine::Step& step = *state.find_step(id);
  if (state.tool_of(step).function) return perform_function(id);
  remote.push_back({.step = id,
                    .position = step.request->position,
                    .tool = state.tool_of(step).name,
                    .args = step.call->arguments});
}

void NativeJob::perform_function(const StepId& id) {
  const engine::Step& step = *state.find_step(id);
  const engine::Invocation& invocation = *step.call;
  tools::Call call;
  call.job = state.job;
  call.tool = invocation.tool;
  call.position = step.request->position;
  call.args = invocation.arguments;
  call.key = invocation.key;
  call.external_key = invocation.external_key;
  call.invocation = invocation.id;
  call.try_no = invocation.try_no;
  call.timeout = state.timeout_of(step);
  call.send_within = 10s;
  call.on_late_outcome = [this](Outcome outcome) { late.push_back(std::move(outcome)); };
  auto permit = ae::testing::PermitForTests::make(call.invocation, call.try_no);
  in_flight_.insert(id);
  routine_->functions().perform(std::move(permit), std::move(call),
                                [this, id, generation = generation_](const Outcome& outcome) {
                                  if (generation != generation_)
                                    return forgotten.push_back(outcome);
                                  in_flight_.erase(id);
                                  const std::uint32_t index = state.index_of(id);
                                  if (outcome.delivered) given_.insert(index);
                                  add(engine::record_outcome(state, index, outcome, now));
                                  if (!is_recording_) decide_all();
                                });
}

// ---------------------------------------------------------------- of its routine

void NativeJob::on_advance(std::uint32_t node, Advance advance) {
  AE_CHECK(!divergence && !lost && node == 0, "a call after the last one");
  advances++;
  is_recording_ = true;
  for (FunctionEnd& end : advance.functions) end.done(std::move(end.outcome));
  is_recording_ = false;
  const auto events = engine::record_advance(state, state.steps[0], advance.recorded);
  AE_CHECK(events.has_value(), events ? "" : events.error().message);
  add(*events);
  for (const auto& item : advance.recorded.items) {
    if (const auto* ended = std::get_if<engine::Advance::ScopeEnded>(&item)) {
      given_.insert(state.index_of(find(ended->position)->id));
    }
  }
  engine::Routine& routine = routines_[0];
  routine.is_live = true;
  settled_ = advance.has_settled;
  delivered_ = advance.delivered;
  for (engine::NewRequest& made : advance.requests) routine.requests.push_back(std::move(made));
  for (std::string& position : advance.cancelled) routine.cancelled.push_back(std::move(position));
  if (advance.end) routine.end = std::move(advance.end);
  decide_all();
}

void NativeJob::on_diverged(std::uint32_t, Divergence found) {
  AE_CHECK(!divergence && !lost, "a call after the last one");
  divergence = std::move(found);
}

void NativeJob::on_lost(std::uint32_t, Error why) { lost = std::move(why); }

void NativeJob::on_refused(std::uint32_t, Error why) { AE_CHECK(false, why.message); }

}  // namespace ae::routines::testing
