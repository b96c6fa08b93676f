#include "runtime/driver/job_routines.h"

#include <algorithm>
#include <utility>

namespace ae::runtime {

tools::Tool* JobRoutines::functions_of(std::uint32_t node) const {
  const auto found = running_.find(node);
  return found == running_.end() ? nullptr : &found->second.routine->functions();
}

Status JobRoutines::on_durable(const JobId& job, const engine::State& durable) {
  advances_.erase(advances_.begin(), advances_.begin() + static_cast<std::ptrdiff_t>(recorded_));
  recorded_ = 0;
  std::vector<std::uint32_t> ended;
  for (const auto& [node, running] : running_) {
    if (!durable.routines.contains(node) || durable.ending) ended.push_back(node);
  }
  for (const std::uint32_t node : ended) drop(node);
  if (durable.status != engine::JobStatus::running || durable.ending) return {};
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
      const engine::Step* const step =
          durable.find_step(durable.request_step_id(code, position, engine::NodeKind::wait));
      return step != nullptr && step->phase == engine::StepPhase::done;
    });
  }
}

void JobRoutines::give_outcomes(const engine::State& durable) {
  for (auto& [node, running] : running_) {
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
    if (deliveries.empty()) continue;
    if (wanted_[node].is_live) wanted_[node].has_settled = false;
    running.routine->deliver(std::move(deliveries));
  }
}

Result<std::vector<EventBody>> JobRoutines::take_events(const engine::State& state) {
  Pending& next = advances_.at(recorded_);
  const engine::Step& code = state.steps[next.node];
  std::vector<EventBody> events;
  const engine::CodeSpec& spec = *state.node_of(code).code;
  if (next.starts) {
    events.emplace_back(RoutineStarted{
        .attempt_id = state.attempt.text,
        .node_id = state.node_of(code).id,
        .step_id = code.id,
        .version = spec.version.empty() ? std::nullopt : std::optional(spec.version)});
  }
  AE_ASSIGN(std::vector<EventBody> recorded, engine::record_advance(state, code, next.recorded));
  recorded_++;
  std::ranges::move(recorded, std::back_inserter(events));
  return events;
}

void JobRoutines::on_recorded(const engine::Step& step) {
  const auto found = running_.find(step.node);
  if (found != running_.end()) found->second.given_early.insert(step.id);
}

void JobRoutines::drop(std::uint32_t node) {
  running_.erase(node);
  wanted_.erase(node);
  std::size_t kept = 0;
  for (std::size_t i = 0; i < advances_.size(); ++i) {
    if (advances_[i].node == node && i >= recorded_) continue;
    if (kept != i) advances_[kept] = std::move(advances_[i]);
    kept++;
  }
  advances_.resize(kept);
}

void JobRoutines::clear() {
  running_.clear();
  wanted_.clear();
  advances_.clear();
  recorded_ = 0;
  lost_.reset();
}

void JobRoutines::on_advance(std::uint32_t node, routines::Advance advance) {
  const auto running = running_.find(node);
  if (running == running_.end()) return;
  engine::Routine& wants = wanted_[node];
  wants.is_live = true;
  wants.has_settled = advance.has_settled;
  std::ranges::move(advance.requests, std::back_inserter(wants.requests));
  std::ranges::move(advance.cancelled, std::back_inserter(wants.cancelled));
  if (advance.end) wants.end = std::move(advance.end);
  const bool starts = !std::exchange(running->second.noted, true);
  if (starts || !advance.recorded.items.empty()) {
    advances_.push_back({.node = node, .recorded = std::move(advance.recorded), .starts = starts});
  }
  // Recorded before the rest of the advance, in the same commit.
  for (routines::FunctionEnd& function : advance.functions) {
    function.done(std::move(function.outcome));
  }
  on_input_();
}

void JobRoutines::on_lost(std::uint32_t node, Error why) {
  if (!running_.contains(node)) return;
  drop(node);
  lost_ = std::move(why);
  on_input_();
}

void JobRoutines::on_diverged(std::uint32_t node, Divergence divergence) {
  if (!running_.contains(node)) return;
  wanted_[node].divergence = std::move(divergence);
  on_input_();
}

}  // namespace ae::runtime
