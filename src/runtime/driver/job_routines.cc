#include "runtime/driver/job_routines.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <utility>

#include "engine/code/code.h"
#include "engine/code/request_code.h"
#include "runtime/code_offers.h"

namespace ae::runtime {
namespace {

// A worker offers the code, and did not start it.
std::unexpected<Error> not_started(const World& world, const engine::State& state,
                                   const engine::Step& code, const std::string& version) {
  const engine::OfferedCode offered = offered_code(world, state, code.node);
  const bool is_away = std::ranges::find(offered.away, version) != offered.away.end();
  return fail(Code::needs_version, "no worker here {} the code of the agent \"{}\"{}{}",
              is_away ? "is connected with" : "has room for", state.node_of(code).code->agent,
              version.empty() ? "" : ", version " + version,
              is_away ? ": its connection is lost" : "");
}

}  // namespace

tools::Tool* JobRoutines::functions_of(std::uint32_t node,
                                       const Boxed<engine::WorkerName>& worker) const {
  const auto found = running_.find(node);
  if (found == running_.end() || found->second.routine == nullptr) return nullptr;
  routines::Routine& routine = *found->second.routine;
  return worker == Boxed<engine::WorkerName>(routine.worker()) ? &routine.functions() : nullptr;
}

// A routine has settled when it has nothing to do, and was given all that the log holds.
const engine::Routines& JobRoutines::wanted(const engine::State& state) {
  for (const auto& [node, running] : running_) {
    const auto& code = state.steps[node].code;
    wanted_[node].has_settled =
        running.routine == nullptr ||
        (running.has_settled && code && running.delivered == code->outcomes.size());
  }
  for (auto& [node, wants] : wanted_) {
    if (!wants.divergence) continue;
    wants.falls_back = engine::has_fallback(
        state, node, wants.version, offered_code(world_, state, node), world_.code_versions);
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
  drop_replaced(durable);
  AE_TRY(start_missing(job, durable));
  forget_admitted(durable);
  give_outcomes(durable);
  return {};
}

// Its divergence is in the log, and another version is started instead.
void JobRoutines::drop_replaced(const engine::State& durable) {
  std::vector<std::uint32_t> replaced;
  for (const auto& [node, wants] : wanted_) {
    if (wants.falls_back && durable.steps[node].code->was_tried(wants.version))
      replaced.push_back(node);
  }
  for (const std::uint32_t node : replaced) drop(node);
}

Status JobRoutines::start_missing(const JobId& job, const engine::State& durable) {
  for (const std::uint32_t node : durable.routines) {
    if (running_.contains(node)) continue;
    const engine::Step& code = durable.steps[node];
    std::optional<Duration> again_in;
    Result<std::string> version = choose_code_version(world_, durable, node, again_in);
    if (again_in) callbacks_.on_version_wait(*again_in);
    if (!version) return std::unexpected(version.error());
    engine::CodeRecord record = engine::record_of(durable, code);
    const std::size_t requests = record.requests.size();
    auto routine = world_.routines->start({.job = job,
                                           .node = node,
                                           .plan = durable.plan,
                                           .path = durable.path_of(code),
                                           .version = *version,
                                           .is_trial = *version != code.code->version,
                                           .input = durable.input,
                                           .job_value = durable.job_root,
                                           .blind = durable.blind,
                                           .is_blind_erased = durable.blind_erased,
                                           .record = std::move(record),
                                           .client = this});
    if (routine == nullptr) {
      return not_started(world_, durable, code, *version);
    }
    wanted_[node] = {.version = *version};
    running_.emplace(node, Running{.routine = std::move(routine),
                                   .version = *std::move(version),
                                   .requests = requests,
                                   .given = code.code->outcomes.size(),
                                   .given_early = {}});
  }
  return {};
}

void JobRoutines::forget_admitted(const engine::State& durable) {
  for (auto& [node, wants] : wanted_) {
    const engine::Step& code = durable.steps[node];
    std::erase_if(wants.requests, [&](const engine::NewRequest& request) {
      const engine::Step* const step =
          durable.find_step(durable.request_step_id(code, request.position, request.kind));
      if (step == nullptr) return engine::is_in_ended_scope(durable, code, request.position);
      return step->phase != engine::StepPhase::ready || step->approval;
    });
    std::erase_if(wants.cancelled, [&](const std::string& position) {
      for (const auto kind :
           {engine::NodeKind::wait, engine::NodeKind::tool, engine::NodeKind::llm}) {
        const engine::Step* const step =
            durable.find_step(durable.request_step_id(code, position, kind));
        if (step != nullptr) return step->phase == engine::StepPhase::done;
      }
      return engine::is_in_ended_scope(durable, code, position);
    });
  }
}

void JobRoutines::give_outcomes(const engine::State& durable) {
  for (auto& [node, running] : running_) {
    if (running.routine == nullptr) continue;
    const auto& outcomes = durable.steps[node].code->outcomes;
    std::vector<engine::Delivery> deliveries;
    std::uint64_t given = outcomes.size();
    for (const auto& [number, index] : outcomes.since(running.given)) {
      const engine::Step& step = durable.steps[index];
      if (running.given_early.contains(step.id)) continue;
      if (is_scope(step.request->kind)) continue;  // it ended the scope itself
      // The success of a remote call is in the log before its step is finished.
      if (step.phase != engine::StepPhase::done) {
        given = number;
        break;
      }
      deliveries.push_back(engine::delivery_of(durable, step));
    }
    running.given = given;
    // Those that the log has before this number were passed now.
    std::set<StepId> open;
    for (const auto& [number, index] : outcomes.since(given)) open.insert(durable.steps[index].id);
    std::erase_if(running.given_early, [&](const StepId& id) {
      const engine::Step* const step = durable.find_step(id);
      return step == nullptr || (step->request->ended && !open.contains(id));
    });
    if (!deliveries.empty()) running.routine->deliver(std::move(deliveries));
  }
}

Result<std::vector<EventBody>> JobRoutines::events_of(const engine::State& state,
                                                      const ObservedAdvance& observed) const {
  const engine::Step& code = state.steps[observed.node];
  std::vector<EventBody> events;
  const routines::Advance& advance = observed.advance;
  const auto running = running_.find(observed.node);
  const auto wants = wanted_.find(observed.node);
  // A trial that throws at the frontier does not move the job; what its other branches do after
  // that is not recorded either.
  const bool has_thrown =
      (advance.end && advance.end->exception) ||
      (wants != wanted_.end() && wants->second.end && wants->second.end->exception);
  const bool fails = has_thrown && !state.node_of(code).code->fail_on_exception &&
                     running != running_.end() && running->second.version != code.code->version;
  if (fails) return events;
  if (observed.starts && running != running_.end()) {
    const Running& routine = running->second;
    events = engine::routine_started_events(
        state, code,
        {.version = routine.version,
         .requests = routine.requests,
         .worker = routine.routine ? routine.routine->worker() : std::nullopt});
  }
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

void JobRoutines::drop_all() {
  while (!running_.empty()) drop(running_.begin()->first);
}

void JobRoutines::fail_routine(std::uint32_t node, const Error& why) {
  const auto running = running_.find(node);
  if (running == running_.end()) return;
  running->second.routine.reset();
  wanted_[node] = {.version = running->second.version,
                   .is_live = true,
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
