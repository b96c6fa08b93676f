// How a decision runs a code node: it admits what its routine requests, and ends it.
#include <fmt/core.h>

#include <algorithm>

#include "engine/code/code.h"
#include "engine/heart/decider.h"
#include "engine/heart/features.h"
#include "engine/heart/request.h"
#include "engine/heart/routine.h"
#include "log/field_names.h"
#include "log/park_until.h"
#include "schema/question.h"

namespace ae::engine {
namespace {

constexpr std::string_view kCancelled = "cancelled";
constexpr std::string_view kCancelledCall = "the code cancelled the call";

}  // namespace

const Routine* Decider::routine_of(const Step& step) const {
  if (context_.routines == nullptr) return nullptr;
  const auto found = context_.routines->find(step.node);
  return found == context_.routines->end() ? nullptr : &found->second;
}

// Does a routine still have code to run, or is none here? Then the job is not idle.
bool Decider::awaits_routine() const {
  return std::ranges::any_of(s_.routines, [&](std::uint32_t index) {
    const Routine* const routine = routine_of(s_.steps[index]);
    return routine == nullptr || !routine->is_live || !routine->has_settled;
  });
}

// A function of the worker is performed only once its routine has made the request again.
bool Decider::may_perform(const Step& step) const {
  if (!step.request || step.role != Role::node || !s_.tool_of(step).function) return true;
  const Routine* const routine = routine_of(step);
  return routine != nullptr && routine->is_live;
}

// Are as many tries of the code open as it may have?
bool Decider::is_code_full(const Node& node) const {
  const auto declared = opened_.find(node.index);
  const auto open = std::ranges::count_if(s_.calling, [&](std::uint32_t index) {
    return s_.steps[index].request && s_.steps[index].node == node.index;
  });
  return open + (declared == opened_.end() ? 0 : declared->second) >= node.code->parallel;
}

bool Decider::is_code_full(const Step& step) const {
  return step.request && is_code_full(s_.node_of(step));
}

void Decider::decide_routines() {
  for (const std::uint32_t index : s_.routines) {
    const Step& code = s_.steps[index];
    const Routine* const routine = routine_of(code);
    if (failed_ || decision_.release || is_full()) return;
    if (routine != nullptr && routine->divergence) {
      park_diverged_routine(code, *routine);
      continue;
    }
    if (routine == nullptr || !routine->is_live) continue;
    if (routine->end) {
      end_code(code, *routine);  // closes all its waits
      continue;
    }
    // The number of outcomes in the log when the next event is applied.
    std::uint64_t outcomes = code.code->outcomes.size();
    for (const std::string& position : routine->cancelled) {
      if (cancel_request(code, position)) outcomes++;
    }
    admit_requests(code, *routine, outcomes);
  }
}

// Does its code not need the outcome of this call any more?
bool Decider::is_cancelled(const Step& step) const {
  if (!step.request || step.role != Role::node) return false;
  const Routine* const routine = routine_of(step);
  return routine != nullptr && routine->is_live && routine->has_cancelled(step.request->position);
}

bool Decider::has_ended_code(const Step& step) const {
  const Routine* const routine = step.request ? routine_of(step) : nullptr;
  return routine != nullptr && routine->is_live && routine->end.has_value();
}

// Closes the wait or withdraws the call of this request, if it is in the log. True: it has its
// outcome now.
bool Decider::cancel_request(const Step& code, std::string_view position) {
  for (const NodeKind kind : {NodeKind::wait, NodeKind::tool, NodeKind::llm}) {
    const Step* const step = s_.find_step(s_.request_step_id(code, position, kind));
    if (step == nullptr) continue;
    if (kind != NodeKind::wait) return withdraw_call(*step);
    cancel_wait_of(*step);
  }
  return false;
}

void Decider::cancel_wait_of(const Step& step) {
  if (step.phase != StepPhase::waiting && step.phase != StepPhase::asking &&
      step.phase != StepPhase::questioned) {
    return;
  }
  if (const auto wait = s_.open_wait_of(step); wait != s_.waits.end()) {
    cancel_wait(wait->first, wait->second);
  }
}

// Nothing more of it is sent. An open try is awaited, and so is a call that may have happened: its
// outcome becomes known by the rules of its tool. True: it has its outcome now.
bool Decider::withdraw_call(const Step& step) {
  if (s_.may_have_happened(step)) return false;
  if (step.phase == StepPhase::ready || step.phase == StepPhase::backoff) {
    fail_cancelled(step);
    return true;
  }
  cancel_wait_of(step);  // for an approval, an answer to its tool, or the end of its child
  return false;
}

void Decider::fail_cancelled(const Step& step) { fail_step(step, kCancelled, kCancelledCall); }

// `outcomes`: in the log when the next event is applied.
void Decider::admit_requests(const Step& code, const Routine& routine, std::uint64_t outcomes) {
  bool has_no_room = false;
  for (const NewRequest& request : routine.requests) {
    if (is_full()) {
      limit_reached_ = true;
      return;
    }
    const StepId id = s_.request_step_id(code, request.position, request.kind);
    const Step* const known = s_.find_step(id);
    if (known != nullptr && (known->phase != StepPhase::ready || known->approval)) continue;
    // It had its outcome, and its step was dropped.
    if (known == nullptr && is_in_ended_scope(s_, code, request.position)) continue;
    if (request.kind == NodeKind::wait) {
      if (known != nullptr) continue;
      start_request(code, request, id, outcomes);
      if (!open_requested_wait(code, request, id)) outcomes++;
      continue;
    }
    if (routine.has_cancelled(request.position)) {
      if (known != nullptr) continue;  // cancel_request
      start_request(code, request, id, outcomes++);
      refuse_request(code, id, {std::string(kCancelled), Value(kCancelledCall)});
      continue;
    }
    has_no_room = has_no_room || is_code_full(s_.node_of(code)) || !has_room();
    if (!has_no_room && !admit_call(code, request, id, known, outcomes)) outcomes++;
  }
}

void Decider::start_request(const Step& code, const NewRequest& request, const StepId& id,
                            std::uint64_t outcomes) {
  NodeStarted started{.kind = to_text(request.kind),
                      .node_id = s_.node_of(code).id,
                      .position = request.position,
                      .step_id = id,
                      .try_no = 1};
  if (request.delivered != outcomes) {
    started.delivered = static_cast<std::int64_t>(request.delivered);
  }
  if (request.kind == NodeKind::tool || request.kind == NodeKind::llm) {
    started.tool_name = s_.plan->tools[request.tool].name;
  }
  emit(std::move(started));
}

void Decider::refuse_request(const Step& code, const StepId& id, RecordedError error) {
  emit(NodeFinished{.error = std::move(error),
                    .node_id = s_.node_of(code).id,
                    .result_type = "permanent_failure",
                    .step_id = id,
                    .try_no = 1});
}

// Can the call be made with these arguments?
Status Decider::check_call(const NewRequest& request) const {
  const ToolPolicy& tool = s_.plan->tools[request.tool];
  if (!request.arguments.is_object()) {
    return fail(Code::input_invalid, "the arguments must be a JSON object");
  }
  if (canonical_exceeds(request.arguments, kValueMax)) return too_large("the arguments");
  if (tool.args_schema) AE_TRY(tool.args_schema->check(request.arguments, &work_));
  AE_TRY(check_recorded_args(tool.records, request.arguments));
  AE_TRY(check_options(request.options, tool));
  if (!always_allowed(s_, tool)) AE_TRY(evaluate_policy(s_, tool, request.arguments, &work_));
  return {};
}

// False: the request has its outcome, without a call.
bool Decider::admit_call(const Step& code, const NewRequest& request, const StepId& id,
                         const Step* known, std::uint64_t outcomes) {
  const Node& node = s_.node_of(code);
  if (const Status possible = check_call(request); !possible) {
    if (known == nullptr) start_request(code, request, id, outcomes);
    refuse_request(code, id, recorded_error(possible.error()));
    return false;
  }
  if (!may_fit_budget(s_.plan->tools[request.tool])) return true;
  Declaration next{.step = id,
                   .node = node,
                   .tool = request.tool,
                   .args = request.arguments,
                   .known = known,
                   .path = fmt::format("{}/{}", s_.path_of(code), request.position),
                   .chosen = true,
                   .options = &request.options};
  if (!fits_budget(next, next.args)) return true;
  if (known == nullptr) start_request(code, request, id, outcomes);
  return !begin_call(std::move(next));
}

// False: the request has its outcome, because its wait cannot be opened.
bool Decider::open_requested_wait(const Step& code, const NewRequest& request, const StepId& id) {
  const NewWait& wait = request.wait;
  const std::string key = wait.key.empty() ? id.text.string() : s_.unique_wait_key(wait.key);
  const bool used = s_.waits.contains(key) || s_.closed_waits.contains(key) || keys_.contains(key);
  if (used || is_reserved_key(key)) {
    refuse_request(
        code, id,
        recorded_error(
            {Code::correlation_key_reused,
             fmt::format(
                 "the key \"{}\" was used before in this job, or is one of the "
                 "runtime's own (resolve/…, approval/…, input/…#n, job/…); make keys differ",
                 key)}));
    return false;
  }
  if (wait.question.size() > kQuestionMessageMax || canonical_exceeds(wait.data, kQuestionMax)) {
    refuse_request(code, id,
                   recorded_error({Code::payload_too_large,
                                   fmt::format("a question has at most {} KiB, and its data {} KiB",
                                               kQuestionMessageMax >> 10, kQuestionMax >> 10)}));
    return false;
  }
  WaitOpened opened{.channel = none_if_empty(wait.channel),
                    .correlation_key = key,
                    .node_id = s_.node_of(code).id,
                    .step_id = id,
                    .wait_type = std::string(to_text(wait.type))};
  if (wait.accepts_data) opened.answer_type = "data";
  if (wait.type == WaitType::human) {
    if (!wait.question.empty()) opened.question_text = Value(wait.question);
    if (!wait.data.is_null()) opened.question_data = wait.data;
  }
  if (wait.type == WaitType::timer) {
    opened.due_at = cap_at_deadline(wait.due_at ? *wait.due_at
                                                : context_.now + wait.lasts.value_or(Duration(0)));
  }
  if (wait.expires) opened.expires_at = cap_at_deadline(context_.now + *wait.expires);
  keys_.insert(key);
  emit(std::move(opened));
  const WaitRules rules{.type = wait.type, .accepts_data = wait.accepts_data};
  deliver_early_answer({.node_id = s_.node_of(code).id, .step_id = id}, rules, key, wait.channel);
  return true;
}

// The code has returned: its open waits are closed and its calls awaited, then it ends.
void Decider::end_code(const Step& code, const Routine& routine) {
  const RoutineEnd& end = *routine.end;
  if (end.exception && !s_.node_of(code).code->fail_on_exception) {
    return park_failed_routine(code, routine);
  }
  for (const auto& [key, wait] : s_.waits) {
    const Step& step = s_.steps[wait.step];
    if (step.node == code.node && step.request && !wait.resolve) cancel_wait(key, wait);
  }
  if (!decision_.events.empty()) return;
  std::vector<std::uint32_t> scopes;  // that did not end
  for (std::uint32_t i = 0; i < s_.steps.size(); ++i) {
    const Step& step = s_.steps[i];
    if (step.node == code.node && step.request && step.phase == StepPhase::running)
      scopes.push_back(i);
  }
  if (code.code->open > scopes.size()) return;
  for (auto scope = scopes.rbegin(); scope != scopes.rend(); ++scope) {
    fail_step(s_.steps[*scope], "cancelled", "the code ended inside of the scope");
  }
  if (!scopes.empty()) return;
  if (end.exception) {
    return fail_step(code, "exception", end.exception->text("message"));
  }
  if (end.failure) return fail_step(code, end.failure->code, end.failure->message);
  const CodeSpec& spec = *s_.node_of(code).code;
  Status possible = canonical_exceeds(end.result, kValueMax) ? too_large("the result") : Status();
  if (possible && spec.output_schema) possible = spec.output_schema->check(end.result, &work_);
  if (!possible) {
    return fail_step(code, code_name(Code::tool_output_invalid), possible.error().message);
  }
  emit_of(code, NodeFinished{.result = end.result, .result_type = "pure", .try_no = 1});
}

void Decider::park_diverged_routine(const Step& code, const Routine& routine) {
  if (!decision_.events.empty() || s_.has_live_call()) return;
  // Its divergence is recorded, and its driver starts another one.
  if (routine.falls_back && code.code->was_tried(routine.version)) return;
  emit_of(code, RoutineDiverged{.detail = *routine.divergence,
                                .version = none_if_empty(routine.version)});
  if (routine.falls_back) return;
  emit(JobParked{.reason = std::string(code_name(Code::non_determinism)),
                 .until = park_until::kVersion});
  decision_.release = true;
}

// Other code may continue: what is open stays open, and calls in flight are awaited.
void Decider::park_failed_routine(const Step& code, const Routine& routine) {
  if (!decision_.events.empty() || s_.has_live_call() || awaits_routine()) return;
  emit_of(code, RoutineFailed{.error = *routine.end->exception,
                              .version = none_if_empty(routine.version)});
  emit(JobParked{.reason = "routine_failed", .until = park_until::kVersion});
  decision_.release = true;
}

// Nothing can happen to the job any more, and its code has not ended.
void Decider::park_stalled_routine() {
  emit(JobParked{.reason = "routine_stalled", .until = park_until::kVersion});
  decision_.release = true;
}

}  // namespace ae::engine
