#include "engine/fork/fork_effects.h"

#include <algorithm>
#include <optional>

#include "log/field_names.h"

namespace ae::engine {
namespace {

// The state of an effect of the origin; nullopt = it did not happen.
std::optional<EffectState> effect_state(const ForkedJob& job, const std::string& id,
                                        std::uint64_t first_seq) {
  using enum EffectState;
  const auto committed_if = [](bool success) {
    return success ? std::optional(committed) : std::nullopt;
  };
  if (const Step* const known = job.now.find_step(StepId(id))) {
    const Step& step = *known;
    if (step.role != Role::node) return {};  // a compensation is listed with the step that it undid
    if (step.result_type == ResultType::compensated) return undone;
    const bool undo_unknown =
        step.undo != kNoStep && job.now.may_have_happened(job.now.steps[step.undo]);
    if (undo_unknown) return in_doubt;
    if (job.now.may_have_happened(step)) {
      const auto noted = job.now.noted.find(job.now.call_of(step).invocation.text);
      if (noted == job.now.noted.end()) return in_doubt;
      return committed_if(noted->second.resolution == "happened");
    }
    const bool success =
        step.call && !step.call->open && step.call->outcome == OutcomeKind::success;
    return committed_if(step.committed || success);
  }
  const auto left_unknown = [&](const State& state) {
    return std::ranges::any_of(state.earlier_unknown,
                               [&](const UnknownCall& call) { return call.step.text == id; });
  };
  // The fork lists it among its own unknown calls, or starts it again.
  if (left_unknown(job.now)) return left_unknown(job.then) ? std::nullopt : std::optional(in_doubt);
  // A later plan has no such step. The fork does not restart what was given up before it.
  if (!job.then.find_step(StepId(id)) && first_seq <= job.then.seq) return {};
  return committed_if(std::ranges::any_of(job.events, [&](const Event& event) {
    const auto* done = as<CommandCommitted>(event);
    return done != nullptr && done->step_id.text == id;
  }));
}

}  // namespace

std::vector<Value> effects_since(const ForkedJob& job) {
  // Keys and seq are null for imports of the origin.
  struct OriginEffect {
    const StepId& step;
    std::string_view node, tool, effect;
    EffectState state;
    Value external_key, idempotency_key, seq;
  };
  std::vector<Value> all;
  const auto add = [&](OriginEffect origin_effect) {
    Value item;
    for (const State* of : {&job.now, &job.then}) {
      const Step* const step = of->find_step(origin_effect.step);
      if (step != nullptr && step->item != kNoItem) item = std::uint64_t{step->item};
    }
    all.push_back(Value::object({{field::effect_class, origin_effect.effect},
                                 {field::external_key, origin_effect.external_key},
                                 {field::idempotency_key, origin_effect.idempotency_key},
                                 {"item", item},
                                 {field::node_id, origin_effect.node},
                                 {"seq", origin_effect.seq},
                                 {field::state, to_text(origin_effect.state)},
                                 {field::step_id, origin_effect.step.text},
                                 {"tool", origin_effect.tool}}));
  };
  for (const Step& step : job.now.steps) {  // imports of the origin
    if (!step.imported || !step.committed || job.imported.contains(step.id.text)) continue;
    const ToolPolicy& tool = job.now.tool_of(step);
    const Node& node = job.now.node_of(step);
    if ((node.kind == NodeKind::map || node.loop) && !step.is_part()) continue;
    if (tool.effect == EffectClass::read) continue;
    add({.step = step.id,
         .node = node.id,
         .tool = tool.name,
         .effect = to_text(tool.effect),
         .state = EffectState::committed});
  }
  for (const UnknownCall& call : job.now.earlier_unknown) {
    const Step* const step = job.now.find_step(call.step);  // also an import of the origin
    if (step == nullptr || job.imported.contains(call.step.text)) continue;
    add({.step = call.step,
         .node = call.node_id,
         .tool = call.tool,
         .effect = to_text(job.now.tool_of(*step).effect),
         .state = EffectState::in_doubt,
         .external_key = call.external_key.text,
         .idempotency_key = call.key.text});
  }
  for (const Event& event : job.events) {
    const auto* call = as<ToolInvocationStarted>(event);
    if (call == nullptr || call->try_no != 1) continue;
    if (call->effect_class == "read" || job.imported.contains(call->step_id.text)) continue;
    const auto state = effect_state(job, call->step_id.text, event.seq);
    if (!state) continue;
    add({.step = call->step_id,
         .node = call->node_id,
         .tool = call->tool_name,
         .effect = call->effect_class,
         .state = *state,
         .external_key = call->external_key.text,
         .idempotency_key = call->idempotency_key.text,
         .seq = event.seq});
  }
  return all;
}

}  // namespace ae::engine
