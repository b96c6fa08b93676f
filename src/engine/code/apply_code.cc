// How events change the state of a code node: its requests, the order of their outcomes, and the
// values that it recorded.
#include <algorithm>
#include <utility>

#include "engine/code/code.h"
#include "engine/state/applier.h"

namespace ae::engine {
namespace {

std::optional<NodeKind> request_kind_of(std::string_view text) {
  for (const auto kind : {NodeKind::tool, NodeKind::llm, NodeKind::wait, NodeKind::scope}) {
    if (to_text(kind) == text) return kind;
  }
  return std::nullopt;
}

}  // namespace

Step* Applier::next_request(Step& code, const NodeStarted& event) {
  if (!code.code || !event.kind || !event.position) return nullptr;
  const auto kind = request_kind_of(event.kind->view());
  const std::string& position = *event.position;
  CodeProgress& progress = *code.code;
  const auto outcomes = static_cast<std::int64_t>(progress.outcomes.size());
  const std::int64_t delivered = event.delivered.value_or(outcomes);
  if (!kind || !is_position(position) || delivered < 0 || delivered > outcomes ||
      event.step_id != s_.request_step_id(code, position, *kind) ||
      has_request_at(s_, code, position) || is_in_ended_scope(s_, code, position)) {
    return nullptr;
  }
  std::uint32_t tool = kNoTurn;
  if (*kind == NodeKind::tool || *kind == NodeKind::llm) {
    const auto& granted = s_.node_of(code).code->tools;
    const auto found = std::ranges::find_if(granted, [&](std::uint32_t index) {
      return s_.plan->tools[index].name == or_empty(event.tool_name);
    });
    if (found == granted.end()) return nullptr;
    tool = *found;
    if (s_.plan->tools[tool].is_model() != (*kind == NodeKind::llm)) return nullptr;
  }
  progress.open++;
  if (*kind == NodeKind::scope) progress.scopes++;
  Step& request = new_part(code, event.step_id);  // invalidates `code`
  request.phase = StepPhase::ready;
  request.tool = tool;
  request.request = std::make_unique<CodeRequest>();
  request.request->position = position;
  request.request->kind = *kind;
  request.request->delivered = static_cast<std::uint64_t>(delivered);
  return &request;
}

// A code node finishes when all its requests have, a scope when those inside of it have outcomes.
bool Applier::may_finish_code(const NodeFinished& event, const Step& step) const {
  if (event.result_of || (event.error && !event.result.is_null())) return false;
  if (step.code) return step.code->open == 0;
  bool open = false;
  for_each_inside(s_, step,
                  [&](std::uint32_t index) { open = open || !s_.steps[index].request->ended; });
  return !open;
}

// The outcome of a request takes its place in the order. `position`: where the event names one.
Status Applier::add_outcome(Step& request, std::optional<std::int64_t> position) {
  CodeProgress& progress = *s_.steps[request.node].code;
  if (request.request->ended) return corrupt_event("the request has an outcome");
  if (position) {
    const auto before = static_cast<std::int64_t>(progress.outcomes.size());
    if (*position < 0 || *position > before ||
        !progress.positions.insert(static_cast<std::uint64_t>(*position)).second) {
      return corrupt_event("another outcome was delivered there");
    }
    request.request->position_of_outcome = static_cast<std::uint64_t>(*position);
  }
  request.request->ended = true;
  progress.outcomes.push_back(index_of(request));
  return {};
}

Status Applier::request_finished(Step& step) {
  s_.steps[step.node].code->open--;
  if (!step.committed && !s_.may_have_happened(step)) {
    step.call.reset();
    step.approval.reset();
  }
  if (step.request->kind == NodeKind::scope) {
    for_each_inside(s_, step, [&](std::uint32_t index) { fold_request(s_.steps[index]); });
  } else if (is_in_ended_scope(s_, s_.steps[step.node], step.request->position)) {
    fold_request(step);
  }
  return {};
}

// A later routine is given the result of the scope around it. The request is needed only to undo it.
void Applier::fold_request(Step& step) {
  const bool calls = step.tool != kNoTurn;
  if (step.phase != StepPhase::done || (calls && step.committed && s_.tool_of(step).compensate)) {
    return;
  }
  step.result = Value();
  step.failure.reset();
  if (step.barrier || (calls && !step.committed && !s_.may_have_happened(step))) step.call.reset();
}

Status Applier::code_value_recorded(Step& code, std::string_view name, const Erasable& value) {
  if (code.phase != StepPhase::running) return corrupt_event("the code does not run");
  if (!value.erased && !is_code_value(name, value.value)) {
    return corrupt_event("code records no such value");
  }
  if (s_.ending) return corrupt_event("nothing starts in a job that ends");
  if (s_.status != JobStatus::running) return corrupt_event("no worker holds the job");
  if (!code.code->values.emplace(name, value.value).second) {
    return corrupt_event("the value was recorded before");
  }
  return {};
}

Status Applier::apply(const PatchDecided& patch, const DecisionRecorded&, Step* step) {
  if (step == nullptr || !step->code) return corrupt_event("no such code");
  return code_value_recorded(*step, "patch:" + patch.patch, Value(patch.value));
}

Status Applier::apply(const ValueEmitted& event) {
  Step* const code = step(event.step_id);
  if (code == nullptr || !code->code || code->phase != StepPhase::running) {
    return corrupt_event("no such code");
  }
  std::uint64_t& emitted = code->code->emitted[or_empty(event.scope)];
  if (event.value_number != static_cast<std::int64_t>(emitted + 1)) {
    return corrupt_event("emitted values count 1, 2, 3");
  }
  emitted++;
  return {};
}

}  // namespace ae::engine
