#include "runtime/driver/job_routines.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <utility>

#include "engine/code/request_code.h"

namespace ae::runtime {

tools::Tool* JobRoutines::functions_of(std::uint32_t node) const {
  const auto found = running_.find(node);
  if (found == running_.end() || found->second.routine == nullptr) return nullptr;
  return &found->second.routine->functions();
}

// A routine has settled when it has nothing to do, and was given all that the log holds.
const engine::Routines& JobRoutines::wanted(const engine::State& state) {
  for (const auto& [node, running] : running_) {
    const auto& code = state.steps[node].code;
    wanted_[node].has_settled =
        running.routine == nullptr ||
        (running.has_settled && code && running.delivered == code->outcomes.size());
  }
  return wanted_;
}

Status JobRoutines::on_durable(const JobId& job, const engine::State& durable) {
  std::vector<std::uint32_t> ended;
  for (const auto& [node, running] : running_) {
    if (!durable.routines.contains(node) || durable.ending) ended.push_back(node);
  }
  for (const std::uint32_t node : ended) drop(node);
  if (durable.status != engine::JobStatus::running || durable.ending) {
    lost_.reset();
    return {};
  }
  if (lost_) return std::unexpected(*std::exchange(lost_, std::nullopt));
  AE_TRY(start_missing(job, durable));
  forget_admitted(durable);
  give_outcomes(durable);
  return {};
}

Status JobRoutines::start_missing(const JobId& job, const engine::State& durable) {
  for (const std::uint32_t node : durable.routines) {
    if (running_.contains(node)) continue;
    const engine::Step& code = durable.steps[node];
    auto routine = provider_ == nullptr
                       ? nullptr
                       : provider_->start({.job = job,
                                           .node = node,
                                           .plan = durable.plan,
                                           .input = durable.input,
                                           .job_value = durable.job_root,
                                           .blind = durable.blind,
                                           .is_blind_erased = durable.blind_erased,
                                           .record = engine::record_of(durable, code),
                                           .client = this});
    if (routine == nullptr) {
      const engine::CodeSpec& spec = *durable.node_of(code).code;
      return fail(Code::needs_version, "no worker here runs the code of the agent \"{}\"{}",
                  spec.agent, spec.version.empty() ? "" : ", version " + spec.version);
    }
    running_.emplace(node, Running{.routine = std::move(routine),
                                   .given = code.code->outcomes.size(),
                                   .given_early = {}});
    wanted_[node] = {};
  }
  return {};
}

void JobRoutines::forget_admitted(const engine::State& durable) {
  for (auto& [node, wants] : wanted_) {
    const engine::Step& code = durable.steps[node];
    std::erase_if(wants.requests, [&](const engine::NewRequest& request) {
      const engine::Step* const step =
          durable.find_step(durable.request_step_id(code, request.position, request.kind));
      return step != nullptr && (step->phase != engine::StepPhase::ready || step->approval);
    });
    std::erase_if(wants.cancelled, [&](const std::string& position) {
      for (const auto kind :
           {engine::NodeKind::wait, engine::NodeKind::tool, engine::NodeKind::llm}) {
        const engine::Step* const step =
            durable.find_step(durable.request_step_id(code, position, kind));
        if (step != nullptr) return step->phase == engine::StepPhase::done;
      }
      return false;
    });
  }
}

void JobRoutines::give_outcomes(const engine::State& durable) {
  for (auto& [node, running] : running_) {
    if (running.routine == nullptr) continue;
    const auto& outcomes = durable.steps[node].code->outcomes;
    std::vector<engine::Delivery> deliveries;
    for (; running.given < outcomes.size(); ++running.given) {
      const engine::Step& step = durable.steps[outcomes[running.given]];
      if (running.given_early.erase(step.id) > 0) continue;
      if (step.request->kind == engine::NodeKind::scope) continue;  // it ended the scope itself
      // The success of a remote call is in the log before its step is finished.
      if (step.phase != engine::StepPhase::done) break;
      deliveries.push_back(engine::delivery_of(durable, step));
    }
    if (!deliveries.empty()) running.routine->deliver(std::move(deliveries));
  }
}

Result<std::vector<EventBody>> JobRoutines::events_of(const engine::State& state,
                                                      const ObservedAdvance& observed) const {
  const engine::Step& code = state.steps[observed.node];
  std::vector<EventBody> events;
  const engine::CodeSpec& spec = *state.node_of(code).code;
  if (observed.starts) {
    events.emplace_back(RoutineStarted{
        .attempt_id = state.attempt.text,
        .node_id = state.node_of(code).id,
        .step_id = code.id,
        .version = spec.version.empty() ? std::nullopt : std::optional(spec.version)});
  }
  const routines::Advance& advance = observed.advance;
  const auto wants = wanted_.find(observed.node);
  AE_TRY(engine::check_advance(
      state, code, advance.recorded, advance.requests,
      wants == wanted_.end() ? std::span<const engine::NewRequest>() : wants->second.requests));
  AE_ASSIGN(std::vector<EventBody> recorded, engine::record_advance(state, code, advance.recorded));
  const auto ended = std::ranges::count_if(advance.recorded.items, [](const auto& item) {
    return std::holds_alternative<engine::Advance::ScopeEnded>(item);
  });
  const std::size_t outcomes = code.code->outcomes.size() + static_cast<std::size_t>(ended);
  if (advance.delivered > outcomes) {
    return fail(Code::input_invalid, "an advance counts {} outcomes; the log has {}",
                advance.delivered, outcomes);
  }
  std::ranges::move(recorded, std::back_inserter(events));
  return events;
}

void JobRoutines::on_recorded(const engine::State& state, std::uint32_t node,
                              routines::Advance& advance) {
  const auto running = running_.find(node);
  if (running == running_.end()) return;
  engine::Routine& wants = wanted_[node];
  running->second.delivered = advance.delivered;
  running->second.has_settled = advance.has_settled;
  wants.is_live = true;
  std::ranges::move(std::exchange(advance.requests, {}), std::back_inserter(wants.requests));
  for (std::string& position : std::exchange(advance.cancelled, {})) {
    const bool is_known = engine::has_request_at(state, state.steps[node], position) ||
                          std::ranges::find(wants.requests, position,
                                            &engine::NewRequest::position) != wants.requests.end();
    if (is_known && !wants.has_cancelled(position)) wants.cancelled.push_back(std::move(position));
  }
  if (advance.end) wants.end = std::exchange(advance.end, std::nullopt);
}

void JobRoutines::on_recorded(const engine::Step& function) {
  const auto running = running_.find(function.node);
  if (running != running_.end()) running->second.given_early.insert(function.id);
}

bool JobRoutines::has_cancelled(const engine::Step& step) const {
  if (!step.request || step.role != engine::Role::node) return false;
  const auto wants = wanted_.find(step.node);
  return wants != wanted_.end() && wants->second.has_cancelled(step.request->position);
}

void JobRoutines::drop(std::uint32_t node) {
  if (running_.erase(node) == 0) return;
  wanted_.erase(node);
  callbacks_.on_dropped(node);
}

void JobRoutines::fail_routine(std::uint32_t node, const Error& why) {
  const auto running = running_.find(node);
  if (running == running_.end()) return;
  running->second.routine.reset();
  wanted_[node] = {.is_live = true,
                   .has_settled = true,
                   .end = engine::RoutineEnd{
                       .exception = Value::object({{"message", Value(why.message)},
                                                   {"name", Value(code_name(why.code))}})}};
  callbacks_.on_dropped(node);
}

void JobRoutines::clear() {
  running_.clear();
  wanted_.clear();
  lost_.reset();
}

void JobRoutines::on_advance(std::uint32_t node, routines::Advance advance) {
  for (routines::FunctionEnd& function : std::exchange(advance.functions, {})) {
    function.done(std::move(function.outcome));
  }
  const auto running = running_.find(node);
  if (running == running_.end()) return;
  const bool starts = !std::exchange(running->second.noted, true);
  callbacks_.on_advance({.node = node, .starts = starts, .advance = std::move(advance)});
}

void JobRoutines::on_lost(std::uint32_t node, Error why) {
  if (!running_.contains(node)) return;
  drop(node);
  lost_ = std::move(why);
  callbacks_.on_input();
}

void JobRoutines::on_refused(std::uint32_t node, Error why) {
  fail_routine(node, why);
  callbacks_.on_input();
}

void JobRoutines::on_diverged(std::uint32_t node, Divergence divergence) {
  if (!running_.contains(node)) return;
  wanted_[node].divergence = std::move(divergence);
  callbacks_.on_input();
}

}  // namespace ae::runtime
