// How a decision records a time, random number or UUID: the value is drawn once, and is in the log
// before anything reads it. There is no call: no permit, no invocation, no unknown outcome.
#include "engine/heart/decider.h"
#include "engine/values/recorded_value.h"

namespace ae::engine {

// REQUIRES: it is approved.
void Decider::record_value(const Declaration& d) {
  const RecordedKind records = s_.plan->tools[d.tool].records;
  // Arguments from the plan were checked before. Those of a call that a model requested under an
  // earlier plan, of another tool with this name, were not.
  if (const auto valid = check_recorded_args(records, d.args); !valid) {
    emit(NodeFinished{.error = recorded_error(valid.error()),
                      .node_id = d.node.id,
                      .result_type = "permanent_failure",
                      .step_id = d.step,
                      .try_no = 1});
    return;
  }
  const std::string effect = effect_id(d.step, records);
  emit_command(d, effect);
  emit(make_recorded_event(records, effect, draw_value(records, d.args, context_, d.step)));
  commit_value(d.step, d.node.id);
  finish_value(d.step, d.node.id);
}

void Decider::commit_value(const StepId& step, std::string_view node) {
  emit(CommandCommitted{
      .command_id = step, .node_id = std::string(node), .result_of = step.text, .step_id = step});
}

void Decider::finish_value(const StepId& step, std::string_view node) {
  emit(NodeFinished{.node_id = std::string(node),
                    .result_of = step.text,
                    .result_type = "side_effect_committed",
                    .step_id = step,
                    .try_no = 1});
  emit(StepCommitted{.command_id = step, .node_id = std::string(node), .step_id = step});
}

}  // namespace ae::engine
