// How events change the state of a code node: its requests, the order of their outcomes, and the
// values that it recorded.
#include <algorithm>
#include <utility>

#include "engine/code/code.h"
#include "engine/state/applier.h"

namespace ae::engine {
namespace {

std::optional<NodeKind> request_kind_of(std::string_view text) {
  for (const auto kind :
       {NodeKind::tool, NodeKind::llm, NodeKind::wait, NodeKind::scope, NodeKind::turn}) {
    if (to_text(kind) == text) return kind;
  }
  return std::nullopt;
}

}  // namespace

// Have as many turns of its loop ended as its number?
bool Applier::is_next_turn(const CodeProgress& code, std::string_view position) {
  const auto turn = turn_at(position);
  if (!turn) return false;
  const auto loop = code.loops.find(turn->loop);
  return turn->number == (loop == code.loops.end() ? 0 : loop->second.ended);
}

Step* Applier::next_request(Step& code, const NodeStarted& event) {
  if (!code.code || !event.kind || !event.position) return nullptr;
  const auto kind = request_kind_of(event.kind->view());
  const std::string& position = *event.position;
  CodeProgress& progress = *code.code;
  const auto outcomes = static_cast<std::int64_t>(progress.outcomes.size());
  const std::int64_t delivered = event.delivered.value_or(outcomes);
  if (!kind || !is_position(position) || delivered < 0 || delivered > outcomes ||
      (*kind == NodeKind::turn && !is_next_turn(progress, position)) ||
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
  progress.outcomes.finalize(static_cast<std::uint64_t>(delivered));
  progress.tried.clear();
  if (is_scope(*kind)) progress.scopes++;
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

// The outcome of a request takes its place in the order. `named`: where the event names one.
Status Applier::add_outcome(Step& request, std::optional<std::int64_t> named) {
  CodeProgress& progress = *s_.steps[request.node].code;
  if (request.request->ended) return corrupt_event("the request has an outcome");
  std::optional<std::uint64_t> position;
  if (named) {
    position = static_cast<std::uint64_t>(*named);
    if (*named < 0 || !progress.outcomes.may_add(*position)) {
      return corrupt_event("another outcome was delivered there");
    }
  }
  request.request->ended = true;
  if (!is_scope(request.request->kind)) {
    progress.outcomes.add(index_of(request), position);
    return {};
  }
  // The routine was given it when the scope ended.
  const std::uint64_t given = position.value_or(progress.outcomes.size());
  progress.outcomes.add(index_of(request), given);
  progress.outcomes.finalize(given + 1);
  if (request.request->kind == NodeKind::turn) turn_ended(progress, request, given);
  return {};
}

void Applier::turn_ended(CodeProgress& code, const Step& turn, std::uint64_t position) {
  CodeLoop& loop = code.loops[std::string(turn_at(turn.request->position)->loop)];
  loop = {.ended = loop.ended + 1,
          .delivered = turn.request->delivered,
          .position = position,
          .result = turn.result,
          .failure = turn.failure,
          .erased = turn.erased};
}

Status Applier::request_finished(Step& step) {
  CodeProgress& progress = *s_.steps[step.node].code;
  progress.open--;
  if (!step.committed && !s_.may_have_happened(step)) {
    step.call.reset();
    step.approval.reset();
  }
  if (is_scope(step.request->kind)) {
    std::vector<std::uint32_t> folded;
    if (step.request->kind == NodeKind::turn) folded.push_back(index_of(step));
    for_each_inside(s_, step, [&](std::uint32_t index) { folded.push_back(index); });
    for (const std::uint32_t index : folded) fold_request(s_.steps[index]);
    progress.outcomes.forget(folded, step.request->delivered);
    forget_inside(progress, step.request->position);
  } else if (is_in_ended_scope(s_, s_.steps[step.node], step.request->position)) {
    fold_request(step);
    progress.outcomes.forget({index_of(step)}, step.request->delivered);
  }
  return {};
}

// A later routine is given the result of the scope around it. The request is needed only to undo it,
// or while it is unknown.
void Applier::fold_request(Step& step) {
  if (!std::exchange(step.request->folded, true)) s_.folded_steps++;
  const bool calls = step.tool != kNoTurn;
  if (step.phase != StepPhase::done || (calls && step.committed && s_.tool_of(step).compensate)) {
    return;
  }
  step.result = Value();
  step.failure.reset();
  if (step.barrier || (calls && !step.committed && !s_.may_have_happened(step))) step.call.reset();
}

// What code recorded inside of a scope that has ended is not needed again.
void Applier::forget_inside(CodeProgress& progress, std::string_view scope) {
  const auto erase = [](auto& map, const std::string& prefix) {
    auto at = map.lower_bound(prefix);
    while (at != map.end() && at->first.starts_with(prefix)) at = map.erase(at);
  };
  const std::string inside = std::string(scope) + '/';
  for (const std::string_view kind : {"time:", "uuid:"}) {
    erase(progress.values, std::string(kind) + inside);
  }
  progress.emitted.erase(std::string(scope));
  erase(progress.emitted, inside);
  erase(progress.loops, inside);
}

Status Applier::code_value_recorded(Step& code, std::string_view name, const Erasable& value) {
  if (code.phase != StepPhase::running) return corrupt_event("the code does not run");
  if (!value.erased && !is_code_value(name, value.value)) {
    return corrupt_event("code records no such value");
  }
  if (s_.ending) return corrupt_event("nothing starts in a job that ends");
  if (s_.status != JobStatus::running) return corrupt_event("no worker holds the job");
  if (is_in_ended_scope(s_, code, scope_of_value(name))) {
    return corrupt_event("its scope has ended");
  }
  if (!code.code->values.emplace(name, value.value).second) {
    return corrupt_event("the value was recorded before");
  }
  return {};
}

Status Applier::apply(const PatchDecided& patch, const DecisionRecorded&, Step* step) {
  if (step == nullptr || !step->code) return corrupt_event("no such code");
  return code_value_recorded(*step, "patch:" + patch.patch, Value(patch.value));
}

// A trial has made all recorded requests: the job is bound to its version from here on.
Status Applier::apply(const VersionMoved& moved, const DecisionRecorded&, Step* step) {
  if (step == nullptr || !step->code || step->phase != StepPhase::running) {
    return corrupt_event("no such code");
  }
  if (s_.ending) return corrupt_event("nothing starts in a job that ends");
  if (s_.status != JobStatus::running) return corrupt_event("no worker holds the job");
  CodeProgress& code = *step->code;
  if (moved.from != code.version || moved.to == code.version || moved.requests < 0) {
    return corrupt_event("the code does not run under that version");
  }
  code.version = moved.to;
  code.tried.clear();
  return {};
}

Status Applier::apply(const RoutineStarted& event) {
  const Step* const code = step(event.step_id);
  if (code == nullptr || !code->code) return corrupt_event("no such code");
  if (or_empty(event.version) != code->code->version) {
    return corrupt_event("no decision moved the job to this version");
  }
  code->code->may_repeat = false;
  code->code->worker.reset();
  if (event.code_worker) {
    code->code->worker =
        WorkerName{.key = or_empty(event.code_worker_key), .name = *event.code_worker};
  }
  return {};
}

Status Applier::apply(const RoutineDiverged& event) {
  version_tried(event.step_id, event.version);
  return {};
}

Status Applier::apply(const RoutineFailed& event) {
  version_tried(event.step_id, event.version);
  return {};
}

// The version did not fit: it is not tried again by itself before the job goes on.
void Applier::version_tried(const StepId& code, const std::optional<std::string>& version) {
  Step* const found = step(code);
  if (found == nullptr || !found->code) return;
  found->code->may_repeat = false;
  if (found->code->was_tried(or_empty(version))) return;
  std::vector<std::string>& tried = found->code->tried;
  if (tried.size() >= CodeProgress::kVersionsTriedMax) tried.erase(tried.begin());
  tried.emplace_back(or_empty(version));
}

void Applier::may_repeat_versions() {
  for (const std::uint32_t node : s_.routines) {
    if (const auto& code = s_.steps[node].code) code->may_repeat = true;
  }
}

Status Applier::apply(const ValueEmitted& event) {
  Step* const code = step(event.step_id);
  if (code == nullptr || !code->code || code->phase != StepPhase::running) {
    return corrupt_event("no such code");
  }
  const std::string scope = or_empty(event.scope);
  if (is_in_ended_scope(s_, *code, scope + '/')) return corrupt_event("its scope has ended");
  std::uint64_t& emitted = code->code->emitted[scope];
  if (event.value_number != static_cast<std::int64_t>(emitted + 1)) {
    return corrupt_event("emitted values count 1, 2, 3");
  }
  emitted++;
  return {};
}

}  // namespace ae::engine
