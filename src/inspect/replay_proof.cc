#include "inspect/replay_proof.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <utility>
#include <variant>

#include "base/hash.h"
#include "engine/code/code.h"
#include "engine/confirm/confirm.h"
#include "engine/heart/decide.h"
#include "engine/heart/evaluate.h"
#include "engine/loop/loop.h"
#include "engine/policy/policy.h"
#include "engine/replan/replan.h"
#include "engine/state/event_values.h"
#include "engine/values/recorded_value.h"
#include "inspect/field_json.h"
#include "inspect/ledger_proof.h"
#include "json/json.h"
#include "log/decisions.h"
#include "log/field_names.h"
#include "plan/model_calls.h"

namespace ae::engine {

const Step* ReplayProof::find(const State& state, const StepId& id) { return state.find_step(id); }

const Step* ReplayProof::find(const State& state, const std::optional<StepId>& id) {
  return id ? find(state, *id) : nullptr;
}

namespace {

// The number of outcomes in the log of this code.
std::int64_t outcomes_of(const Step& code) {
  return static_cast<std::int64_t>(code.code->outcomes.size());
}

}  // namespace

// A request has a position of its own, and is made after the scopes around it have begun.
std::string ReplayProof::check_event(const State& state, const NodeStarted& event) {
  const auto node = state.plan->by_id.find(event.node_id);
  if (!event.position || node == state.plan->by_id.end()) return {};
  const Step& code = state.steps[node->second];
  if (!code.code) return {};
  if (event.delivered == outcomes_of(code)) {
    return "states a number of outcomes that follows from the log";
  }
  const std::int64_t delivered = event.delivered.value_or(outcomes_of(code));
  const std::string_view position = *event.position;
  for (const auto kind : {NodeKind::tool, NodeKind::llm, NodeKind::wait, NodeKind::scope}) {
    if (find(state, state.request_step_id(code, position, kind))) {
      return "has the position of another request";
    }
  }
  for (std::size_t slash = position.find('/'); slash != position.npos && code.code->scopes > 0;
       slash = position.find('/', slash + 1)) {
    const Step* const scope =
        find(state, state.request_step_id(code, position.substr(0, slash), NodeKind::scope));
    if (scope && std::cmp_less(delivered, scope->request->delivered)) {
      return "is made before its scope began";
    }
  }
  return {};
}

// Only code and its scopes have a result of their own, and that of code satisfies the plan's schema.
std::string ReplayProof::check_event(const State& state, const NodeFinished& event) {
  const Step* step = find(state, event.step_id);
  if (!step) return {};
  if (step->request && is_scope(step->request->kind) && event.delivered) {
    std::int64_t last = static_cast<std::int64_t>(step->request->delivered);
    for_each_inside(state, *step, [&](std::uint32_t index) {
      last = std::max(last, static_cast<std::int64_t>(state.steps[index].request->delivered));
    });
    return check_stated_position(state.steps[step->node], last, *event.delivered);
  }
  if (!step->code) return {};
  const auto& schema = state.node_of(*step).code->output_schema;
  const bool is_checked = !event.error && schema && !event.result.erased;
  if (!is_checked) return {};
  return schema->check(event.result.value) ? "" : "is a result that the plan's schema refuses";
}

std::string ReplayProof::check_event(const State& state, const CommandEmitted& event) {
  commands_++;
  const Step* step = find(state, event.step_id);
  if (event.of) {
    const Step* of = find(state, *event.of);
    if (!of || !state.side_role(*of, event.step_id)) {
      return "is recorded where nothing is probed or undone";
    }
    return {};
  }
  if (!step || !is_requested(state, state.index_of(*step))) {
    return "is recorded where the plan has no command";
  }
  const ToolPolicy& tool = state.tool_of(*step);
  if (event.kind != (tool.child ? "workflow" : tool.is_model() ? "llm" : "tool")) {
    return "is a command of another kind than the plan's";
  }
  return {};
}

// A recorded value is one that the step's tool can yield for the plan's arguments.
std::string ReplayProof::check_recorded(const State& state, RecordedKind records,
                                        std::string_view effect_id, const Erasable& value) {
  if (const Step* code = find(state, StepId(effect_id.substr(0, effect_id.find(':'))));
      code != nullptr && code->code) {
    return check_code_value(records, effect_id.substr(code->id.text.view().size()));
  }
  const auto id = step_of_effect(effect_id, records);
  const std::uint32_t index = id ? state.index_of(*id) : kNoStep;
  if (index == kNoStep) return {};  // the jitter of a backoff, or not applicable
  const Step& step = state.steps[index];
  if (!is_requested(state, index) || state.tool_of(step).records != records) {
    return "is recorded where the plan has no such value";
  }
  // The arguments of code are in no event, unless they were to be approved.
  if (value.erased || (step.request && !step.approval)) return {};
  const auto arguments = requested_arguments(state, step);
  if (!arguments) return fmt::format("has a value, but {}", arguments.error().message);
  if (!check_recorded_args(records, *arguments) ||
      !is_possible_value(records, *arguments, value.value)) {
    return "has a value that its tool does not give";
  }
  const auto policy = evaluate_policy(state, &step, state.tool_of(step), *arguments);
  const PolicyAction action = policy ? policy->action : PolicyAction::require_approval;
  if (action == PolicyAction::deny) return "is recorded where a policy denies the step";
  const bool approved = step.approval && step.approval->state == ApprovalState::approved;
  return action == PolicyAction::allow || approved ? ""
                                                   : "is recorded where the step was not approved";
}

// Times and UUIDs of code have a name, its random numbers follow from one seed.
std::string ReplayProof::check_code_value(RecordedKind records, std::string_view suffix) {
  const std::string kind = fmt::format(":{}", to_text(records));
  const bool is_named =
      suffix.size() > kind.size() + 1 && suffix.starts_with(kind) && suffix[kind.size()] == ':';
  const bool is_right = records == RecordedKind::random ? suffix == kind : is_named;
  return is_right ? "" : "is recorded under another name than code gives it";
}

std::string ReplayProof::check_event(const State& state, const TimeRecorded& event) {
  return check_recorded(state, RecordedKind::time, event.effect_id, event.value);
}
std::string ReplayProof::check_event(const State& state, const RandomRecorded& event) {
  return check_recorded(state, RecordedKind::random, event.effect_id, event.value);
}
std::string ReplayProof::check_event(const State& state, const UuidRecorded& event) {
  return check_recorded(state, RecordedKind::uuid, event.effect_id, event.value);
}

namespace {

// The recorded outcome must be the one that the probe's answer yields, as checked by `matches`.
std::string check_probe(const State& state, const Step* step, const auto& matches) {
  if (!step || step->phase != StepPhase::probing) return {};
  const auto result = probe_result_of(state, *step, state.steps[step->probe].result);
  return result && matches(*result) ? "" : "is not what the probe's answer gives";
}

}  // namespace

std::string ReplayProof::check_probe_outcome(const State& state, const CommandCommitted& event) {
  return check_probe(state, find(state, event.step_id), [&](const Value& result) {
    return event.result.is_null() || event.result.value == result;
  });
}

std::string ReplayProof::check_probe_outcome(const State& state, const DecisionRecorded& event) {
  return check_probe(state, find(state, event.step_id), [&](const Value& result) {
    return or_empty(event.state) == (result.is_null() ? "not_happened" : "happened");
  });
}

std::string ReplayProof::check_event(const State& state, const ToolInvocationStarted& event) {
  const Step* step = find(state, event.step_id);
  if (!step || step->call) return {};  // LedgerProof checks that a retry sends the recorded call
  if (step->phase != StepPhase::ready || !state.has_tool(*step)) {
    return "is recorded where the plan has no call";
  }
  const ToolPolicy& tool = state.tool_of(*step);
  if (event.tool_name != tool.name) return "calls another tool than the plan's";
  if (event.effect_class != to_text(tool.effect)) {
    return "has another effect class than the plan's";
  }
  if (event.request_schema_hash && to_hex(*event.request_schema_hash) != tool.schema_digest) {
    return "names another schema than the plan's";
  }
  if (step->request && step->role == Role::node) return check_requested_call(state, *step, event);
  // The budget notice reports what was known at the decision, which may be less than what is known
  // here.
  const Step& loop = state.steps[step->node];
  const bool turn = (step->is_turn() || step->is_summary()) && loop.loop;
  const bool has_extras =
      turn && (state.budget.limits.soft > 0 || state.node_of(*step).loop->context);
  if (has_extras && event.arguments.erased) return {};
  if (turn) {
    if (auto error = check_extras(state, *step, event.arguments.value); !error.empty()) {
      return error;
    }
  }
  auto arguments = turn ? turn_arguments(state, *step, event.arguments.value)
                        : requested_arguments(state, *step);
  if (!arguments) return fmt::format("has arguments, but {}", arguments.error().message);
  // Without the blind, compare what is not erased.
  if (state.blind_erased ? event.arguments.erased || *arguments == event.arguments.value
                         : state.hash_of(*arguments) == to_hex(event.arguments_hash)) {
    return {};
  }
  return "has other arguments than the plan's expressions give";
}

// What was recorded with a turn or a summary, besides what follows from earlier events, is possible.
std::string ReplayProof::check_extras(const State& state, const Step& step,
                                      const Value& arguments) {
  const Step& loop = state.steps[step.node];
  if (step.is_summary()) {
    const auto from = maybe_int(arguments, "summarizes").value_or(0);
    const bool possible = from > 0 && from <= std::int64_t{step.turn} &&
                          may_begin_at(state, loop, step.turn, TurnExtras{.from = turn_at(from)});
    return possible ? "" : "summarizes what cannot be left out";
  }
  const TurnExtras extras = extras_of(arguments);
  // The notice can be checked only while the limits are known.
  if (!state.budget.erased && !is_notice(state, loop, extras.notice)) {
    return "gives its model a wrong budget notice";
  }
  if (!may_begin_at(state, loop, step.turn, extras)) return "leaves out what it may not";
  return is_given_summary(state, loop, extras) ? "" : "has another summary than its model gave";
}

Result<Value> ReplayProof::turn_arguments(const State& state, const Step& step,
                                          const Value& recorded) {
  const Step& loop = state.steps[step.node];
  if (!step.is_summary()) {
    return turn_arguments_of(state, loop, step.turn, extras_of(recorded));
  }
  return summary_arguments_of(state, loop, step.turn,
                              turn_at(maybe_int(recorded, "summarizes").value_or(0)));
}

// The code states the arguments of its calls. They satisfy the tool's schema, and they are those
// that were approved.
std::string ReplayProof::check_requested_call(const State& state, const Step& step,
                                              const ToolInvocationStarted& event) {
  const ToolPolicy& tool = state.tool_of(step);
  const bool edited = step.approval && !step.approval->edited_from.empty();
  const auto& requested = step.request->arguments_hash;
  if (requested && !edited && *requested != event.arguments_hash) {
    return "has other arguments than its request";
  }
  if (event.arguments.erased || !tool.args_schema) return {};
  return tool.args_schema->check(event.arguments.value)
             ? ""
             : "has arguments that the plan's schema refuses";
}

// The arguments that the plan's expressions yield, or those that an approver edited.
Result<Value> ReplayProof::requested_arguments(const State& state, const Step& step) {
  const bool edited = step.approval && (step.request || !step.approval->edited_from.empty());
  if (edited && !step.approval->used) return step.approval->arguments;
  return arguments_of(state, step);
}

// A successful result satisfies the plan's schema, or the event records that it does not.
std::string ReplayProof::check_event(const State& state, const ToolInvocationFinished& event) {
  const Step* step = find(state, event.step_id);
  if (!step || !step->call || event.outcome != "success" || event.late == true) return {};
  if (event.delivered) {
    if (auto error = check_given_early(state, *step, *event.delivered); !error.empty())
      return error;
  }
  const ToolPolicy& tool = state.tool_of(*step);
  if (hex_or_empty(event.response_schema_hash) != tool.result_digest) {
    return "names another schema than the plan's";
  }
  if (event.error || event.result.erased) return {};
  return check_schema(tool, event.result.value);
}

// Only the success of a function of the worker can be given before it is durable. In which position,
// the worker states.
std::string ReplayProof::check_given_early(const State& state, const Step& step,
                                           std::int64_t position) {
  if (!step.request || step.role != Role::node || !state.tool_of(step).function) {
    return "has a position, and is not the success of a function of code";
  }
  return check_stated_position(state.steps[step.node],
                               static_cast<std::int64_t>(step.request->delivered), position);
}

// A position in the order of delivery is stated only where it does not follow from the log; there it
// is the number of the outcomes before it, or higher. `last`: how many outcomes had been given when
// the newest request was made that it follows.
std::string ReplayProof::check_stated_position(const Step& code, std::int64_t last,
                                               std::int64_t position) {
  if (position == outcomes_of(code)) return "states a position that follows from the log";
  return position < last ? "is given before its request was made" : "";
}

std::string ReplayProof::check_schema(const ToolPolicy& tool, const Value& result) {
  if (!tool.result_schema) return {};
  return tool.result_schema->check(result) ? "" : "is a result that the plan's schema refuses";
}

std::string ReplayProof::check_event(const State& state, const CommandCommitted& event) {
  std::string error = check_probe_outcome(state, event);
  if (error.empty()) error = check_answer(state, event);
  if (error.empty()) error = check_all_changes(state, event);
  return error;
}

// The recorded model metadata matches the request and the answer.
std::string ReplayProof::check_answer(const State& state, const CommandCommitted& event) {
  const Step* step = find(state, event.step_id);
  if (step && step->call && !event.result_of &&
      !event.result.erased) {  // the result comes from an operator or a probe
    if (auto error = check_schema(state.tool_of(*step), event.result.value); !error.empty())
      return error;
  }
  if (!step || !step->call || step->call->erased || step->erased) return {};
  CommandCommitted expected;
  set_committed_answer(state.blind, state.tool_of(*step), step->call->arguments, step->result,
                       expected);
  const auto other = [](std::string_view field) {
    return fmt::format("has another {} than the call and its answer", field);
  };
  if (event.llm_provider != expected.llm_provider) return other(field::llm_provider);
  if (event.llm_model != expected.llm_model) return other(field::llm_model);
  if (event.llm_temperature != expected.llm_temperature) return other(field::llm_temperature);
  if (event.prompt_hash != expected.prompt_hash && !state.blind_erased)
    return other(field::prompt_hash);
  return event.usage == expected.usage ? "" : other(field::usage);
}

std::string ReplayProof::check_decision(const State& state, const Step& step,
                                        const BranchTaken& branch) {
  const Node& node = state.node_of(step);
  if (!node.when || step.branch) return {};
  auto expected = when_of(state, node);
  return expected && *expected == branch.taken ? "" : "is not what `when` gives";
}

std::string ReplayProof::check_decision(const State& state, const Step& step,
                                        const MapListed& map) {
  const Node& node = state.node_of(step);
  if (node.kind != NodeKind::map) return {};
  auto expected = over_of(state, node);
  return expected && *expected == map.list ? "" : "is not what `map` gives";
}

namespace {

// A choice without the texts sent to the model: the recorded texts are used in later requests, and
// another version may word them differently.
ToolChoice without_model_texts(ToolChoice choice) {
  if (choice.repair) choice.repair->clear();
  for (ChosenCall& call : choice.calls) {
    if (call.refused) call.refused->message.reset();
  }
  return choice;
}

}  // namespace

// A loop makes exactly the calls that the model's answer requests.
std::string ReplayProof::check_decision(const State& state, const Step& step,
                                        const ToolChosen& chosen) {
  if (!step.loop || step.loop->turns.empty()) return {};
  auto expected = tool_choice_of(state, step);
  const bool same = expected && !chosen.erased &&
                    without_model_texts(*std::move(expected)) == without_model_texts(chosen.choice);
  return same ? "" : "does not match the model's answer";
}

std::string ReplayProof::check_event(const State& state, const WaitOpened& event) {
  const Step* step = find(state, event.step_id);
  if (!step || state.node_of(*step).kind != NodeKind::wait) return {};
  const Node& node = state.node_of(*step);
  std::string key = step->id.text;
  if (node.wait_key) {
    auto named = wait_key_of(state, node);
    if (!named) return fmt::format("has a key, but {}", named.error().message);
    key = state.unique_wait_key(*named);
  }
  if (node.wait_channel) {
    auto channel = channel_of(state, node);
    if (!channel) return fmt::format("has a channel, but {}", channel.error().message);
    if (*channel != or_empty(event.channel)) return "has another channel than the plan's";
  }
  return key == event.correlation_key ? "" : "has another key than the plan's";
}

std::string ReplayProof::check_call(const State& state, const Step& step, const auto& call) {
  if (step.call || call.erased) return {};
  if (step.request && step.role == Role::node) {
    const bool same_hash =
        state.blind_erased || state.hash_of(call.arguments) == call.arguments_hash;
    return same_hash ? "" : "is about other arguments than those of its hash";
  }
  auto arguments = requested_arguments(state, step);
  if (!arguments) return fmt::format("is about a call, but {}", arguments.error().message);
  const bool same_hash = state.blind_erased || state.hash_of(*arguments) == call.arguments_hash;
  if (same_hash && *arguments == call.arguments) return {};
  return "is about other arguments than the plan's expressions give";
}

std::string ReplayProof::check_decision(const State& state, const Step& step,
                                        const ApprovalRequested& request) {
  return check_call(state, step, request);
}

std::string ReplayProof::check_decision(const State& state, const Step& step,
                                        const CallDenied& denial) {
  return check_call(state, step, denial);
}

std::string ReplayProof::check_event(const State& state, const DecisionRecorded& event) {
  if (event.kind == OutcomeDecided::kKind) return check_probe_outcome(state, event);
  const Step* step = find(state, event.step_id);
  const auto decision = decision_body(event);
  if (!step || !decision) return {};
  return std::visit([&](const auto& body) { return check_decision(state, *step, body); },
                    *decision);
}

namespace {

// Steps whose changes are checked: the result, and therefore the changes, are known.
bool has_known_changes(const Step* step) {
  if (!step || !step->call || step->call->outcome != OutcomeKind::success || step->failure) {
    return false;
  }
  return !step->erased && !step->call->erased;
}

}  // namespace

// The recorded changes are exactly what `changes` yields for the call's result, before its command
// is committed. A result in the command_committed itself (an operator's `happened`) is checked when
// that decision is made.
std::string ReplayProof::check_event(const State& state, const StateChanged& event) {
  const Step* step = find(state, event.step_id);
  if (!has_known_changes(step)) return {};
  const ExtractedChanges expected = changes_of(state, *step, step->result);
  const bool same =
      step->changed < expected.events.size() && expected.events[step->changed] == event;
  return same ? "" : "is not what `changes` gives";
}

std::string ReplayProof::check_all_changes(const State& state, const CommandCommitted& event) {
  const Step* step = find(state, event.step_id);
  if (!has_known_changes(step)) return {};
  const ExtractedChanges expected = changes_of(state, *step, step->result);
  return step->changed == expected.events.size() ? "" : "leaves out what its call changed";
}

// A new plan carries over exactly what both plans yield.
std::string ReplayProof::check_event(const State& state, const PlanGenerated& event) {
  const auto plan = Plan::compile(event.task_graph);
  if (!plan) return "holds no plan";
  if (has_code(*state.plan) || has_code(**plan)) return "replaces a plan, and one has code";
  const std::vector<std::string> dropped = event.drop.read_leniently();
  const DroppedNodes drop(dropped.begin(), dropped.end());
  // No limit, because an earlier build compared without one.
  const auto replan = replan_of(state, *plan, drop, std::numeric_limits<Work>::max());
  return replan && JsonOf(carried_list(state, *replan)) == event.carried
             ? ""
             : "does not carry what the two plans have in common";
}

std::string ReplayProof::check_event(const State& state, const JobCompleted& event) {
  const auto output = output_of(state);
  return output && *output == event.result.value ? "" : "is not what `output` gives";
}

// A loop that a fork imports unfinished must be a valid loop.
std::string ReplayProof::check_after(const State& state, const Event& event) {
  const auto* fork = as<ForkImported>(event);
  if (fork == nullptr || fork->results.erased) return {};
  for (const Node& node : state.plan->nodes) {
    const Step& step = state.steps[node.index];
    if (!step.loop) continue;
    if (auto error = find_invalid_turn(state, step); !error.empty())
      return fmt::format("{}: {}", event_label(event), error);
  }
  return {};
}

std::string ReplayProof::check_before(const State& state, const Event& event) {
  const std::string error =
      std::visit([&](const auto& body) { return check_event(state, body); }, event.body);
  return error.empty() ? error : fmt::format("{} {}", event_label(event), error);
}

}  // namespace ae::engine
