#include "inspect/replay_proof.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/hash.h"
#include "engine/confirm/confirm.h"
#include "engine/heart/decide.h"
#include "engine/heart/evaluate.h"
#include "engine/heart/judge.h"
#include "engine/heart/recorded_value.h"
#include "engine/loop/loop.h"
#include "engine/replan/replan.h"
#include "inspect/ledger_proof.h"
#include "json/json.h"
#include "log/redacted.h"
#include "plan/model_calls.h"

namespace ae::engine {

std::string ReplayProof::emitted(const State& state, const Event& event) {
  commands_++;
  const Step* step = step_of(state, event);
  if (event.payload.find("of")) {
    auto of = state.by_id.find(StepId(std::string(event.payload.text("of"))));
    const StepId id(std::string(event.payload.text("step_id")));
    if (of == state.by_id.end() || !state.side_role(state.steps[of->second], id)) {
      return "is recorded where nothing is probed or undone";
    }
    return {};
  }
  if (!step || !asks_for(state, state.by_id.at(step->id))) {
    return "is recorded where the plan has no command";
  }
  const bool model = state.tool_of(*step).is_model();
  if (event.payload.text("kind") != (model ? "llm" : "tool")) {
    return "is a command of another kind than the plan's";
  }
  return {};
}

// A recorded value is one that the step's tool may give for the arguments of the plan.
std::string ReplayProof::recorded(const State& state, const Event& event) {
  const Records records = records_of(event.type);
  const auto id = step_of_effect(event.payload.text("effect_id"), records);
  const auto known = id ? state.by_id.find(*id) : state.by_id.end();
  if (known == state.by_id.end())
    return {};  // the jitter of a back-off, or nothing that can be applied
  const Step& step = state.steps[known->second];
  if (!asks_for(state, known->second) || state.tool_of(step).records != records) {
    return "is recorded where the plan has no such value";
  }
  if (is_erased(event, "value")) return {};
  const auto arguments = asked_arguments(state, step);
  if (!arguments) return "has a value, but " + arguments.error().message;
  if (!takes(records, *arguments) || !may_give(records, *arguments, event.payload["value"])) {
    return "has a value that its tool does not give";
  }
  const auto said = judge(state, &step, state.tool_of(step), *arguments);
  const PolicyAction action = said ? said->action : PolicyAction::require_approval;
  if (action == PolicyAction::deny) return "is recorded where a policy denies the step";
  const bool approved = step.approval && step.approval->state == ApprovalState::approved;
  return action == PolicyAction::allow || approved ? ""
                                                   : "is recorded where the step was not approved";
}

// What a probe says is what its answer gives.
std::string ReplayProof::probe_says(const State& state, const Event& event) {
  const Step* step = step_of(state, event);
  if (!step || step->phase != StepPhase::probing) return {};
  auto result = happened_of(state, *step, state.steps[step->probe].result);
  if (!result) return "is not what the probe's answer gives";
  if (event.type == EventType::command_committed) {
    const Value* said = event.payload.find("result");
    return !said || *said == *result ? "" : "is not what the probe's answer gives";
  }
  const std::string_view says = result->is_null() ? "not_happened" : "happened";
  return event.payload.text("state") == says ? "" : "is not what the probe's answer gives";
}

std::string ReplayProof::started(const State& state, const Event& event) {
  const Step* step = step_of(state, event);
  if (!step || step->call) return {};  // a later try sends what is recorded: the ledger's proof
  if (step->phase != StepPhase::ready) return "is recorded where the plan has no call";
  const ToolPolicy& tool = state.tool_of(*step);
  if (event.payload.text("tool_name") != tool.name) return "calls another tool than the plan's";
  if (event.payload.text("effect_class") != to_text(tool.effect)) {
    return "has another effect class than the plan's";
  }
  const std::string_view schema = event.payload.text("request_schema_hash");
  if (!schema.empty() && schema != tool.schema_digest)
    return "names another schema than the plan's";
  // What is told of the budget is what was known when it was decided, which may be less than what is known here.
  const Value& notice = event.payload["arguments"]["notice"];
  const bool turn = step->is_turn() && state.steps[step->node].loop;
  if (turn && state.budget.limits.soft > 0 && is_erased(event, "arguments")) return {};
  // How much was left can be told while the limits are known.
  if (turn && !state.budget.erased && !is_notice(state, state.steps[step->node], notice)) {
    return "gives its model a wrong budget notice";
  }
  auto arguments = turn ? turn_arguments_of(state, state.steps[step->node], step->turn, notice)
                        : asked_arguments(state, *step);
  if (!arguments) return "has arguments, but " + arguments.error().message;
  // Without the blind, what is still there is compared itself.
  if (state.blind_gone ? is_erased(event, "arguments") || *arguments == event.payload["arguments"]
                       : state.hash_of(*arguments) == event.payload.text("arguments_hash")) {
    return {};
  }
  return "has other arguments than the plan's expressions give";
}

// What the plan's expressions give, or what the person made of it who approved the call.
Result<Value> ReplayProof::asked_arguments(const State& state, const Step& step) {
  const bool edited = step.approval && !step.approval->edited_from.empty();
  if (edited && !step.approval->used) return step.approval->arguments;
  return arguments_of(state, step);
}

// A success is what the plan's schema lets its tool give, or is said to break it.
std::string ReplayProof::finished(const State& state, const Event& event) {
  const Value& p = event.payload;
  const Step* step = step_of(state, event);
  if (!step || p.text("outcome") != "success" || p["late"] == Value(true)) return {};
  const ToolPolicy& tool = state.tool_of(*step);
  if (p.text("response_schema_hash") != tool.result_digest) {
    return "names another schema than the plan's";
  }
  if (!p["error"].is_null() || is_erased(event, "result")) return {};
  return fits(tool, p["result"]);
}

std::string ReplayProof::fits(const ToolPolicy& tool, const Value& result) {
  if (!tool.result_schema) return {};
  return tool.result_schema->check(result) ? "" : "is a result that the plan's schema refuses";
}

// What is said of a model is what was asked and answered.
std::string ReplayProof::committed(const State& state, const Event& event) {
  const Step* step = step_of(state, event);
  if (step && !event.payload.find("result_of") &&
      !is_erased(event, "result")) {  // a person or a probe says what it gave
    if (auto wrong = fits(state.tool_of(*step), event.payload["result"]); !wrong.empty()) {
      return wrong;
    }
  }
  if (!step || !step->call || step->call->erased || step->erased) return {};
  const EventBody body = body_of(event);
  if (!std::holds_alternative<CommandCommitted>(body)) return "is damaged";
  const auto& recorded = std::get<CommandCommitted>(body);
  const CommandCommitted expected =
      committed_answer(state.blind, state.tool_of(*step), step->call->arguments, step->result);
  const auto other = [](std::string_view field) {
    return "has another " + std::string(field) + " than the call and its answer";
  };
  if (recorded.llm_provider != expected.llm_provider) return other("llm_provider");
  if (recorded.llm_model != expected.llm_model) return other("llm_model");
  if (recorded.llm_temperature != expected.llm_temperature) return other("llm_temperature");
  if (recorded.prompt_hash != expected.prompt_hash && !state.blind_gone)
    return other("prompt_hash");
  return recorded.usage == expected.usage ? "" : other("usage");
}

std::string ReplayProof::branch(const State& state, const Event& event) {
  const Step* step = step_of(state, event);
  if (!step) return {};
  const Node& node = state.node_of(*step);
  const Value& recorded = event.payload["payload"];
  if (node.when && !step->branch) {
    auto now = when_of(state, node);
    return now && Value(*now) == recorded ? "" : "is not what `when` gives";
  }
  if (node.kind != NodeKind::map) return {};
  auto now = over_of(state, node);
  return now && *now == recorded ? "" : "is not what `map` gives";
}

namespace {

// A choice without the words that a model is told: what they say is recorded, and what is told later follows from that. Another
// version may say the same in other words.
Value without_words(const Value& choice) {
  Value bare = choice;
  if (choice["repair"].is_string()) bare = bare.with("repair", true);
  if (!choice["calls"].is_array()) return bare;
  std::vector<Value> calls;
  for (const Value& call : choice["calls"].items()) {
    const Value* refused = call.find("refused");
    calls.push_back(refused != nullptr ? call.with("refused", (*refused)["code"]) : call);
  }
  return bare.with("calls", Value::array(std::move(calls)));
}

}  // namespace

// A loop does what the model's answer asked for, and no more.
std::string ReplayProof::choice(const State& state, const Event& event) {
  const Step* step = step_of(state, event);
  if (!step || !step->loop || step->loop->turns.empty()) return {};
  auto now = choice_of(state, *step);
  const Value& said = event.payload["payload"];
  return now && without_words(*now) == without_words(said)
             ? ""
             : "is not what the model's answer asks for";
}

std::string ReplayProof::wait(const State& state, const Event& event) {
  const Step* step = step_of(state, event);
  if (!step || state.node_of(*step).kind != NodeKind::wait) return {};
  const Node& node = state.node_of(*step);
  std::string key = step->id.text;
  if (node.wait_key) {
    auto named = wait_key_of(state, node);
    if (!named) return "has a key, but " + named.error().message;
    key = state.key_of_wait(*named);
  }
  if (node.wait_channel) {
    auto channel = channel_of(state, node);
    if (!channel) return "has a channel, but " + channel.error().message;
    if (*channel != event.payload.text("channel")) return "has another channel than the plan's";
  }
  return key == event.payload.text("correlation_key") ? "" : "has another key than the plan's";
}

// A person was asked about, or a policy denied, the call that the plan's expressions give.
std::string ReplayProof::request(const State& state, const Event& event) {
  const Step* step = step_of(state, event);
  const Value& asked = event.payload["payload"];
  if (!step || step->call || is_erased(event, "payload")) return {};
  auto arguments = asked_arguments(state, *step);
  if (!arguments) return "is about a call, but " + arguments.error().message;
  const bool same_hash =
      state.blind_gone || state.hash_of(*arguments) == asked.text("arguments_hash");
  if (same_hash && *arguments == asked["arguments"]) return {};
  return "is about other arguments than the plan's expressions give";
}

// What a call changed is what its `changes` give of its result, all of it, before its command is committed. A result that
// stands in the command_committed itself (somebody said that it happened) is looked at there, by whoever says it.
std::string ReplayProof::changed(const State& state, const Event& event) {
  const Step* step = step_of(state, event);
  if (!step || !step->call || step->call->outcome != OutcomeKind::success || step->failure)
    return {};
  if (step->erased || step->call->erased) return {};
  const Extracted expected = changes_of(state, *step, step->result);
  if (event.type == EventType::command_committed) {
    return step->changed == expected.events.size() ? "" : "leaves out what its call changed";
  }
  const bool same = step->changed < expected.events.size() &&
                    EventBody(expected.events[step->changed]) == body_of(event);
  return same ? "" : "is not what `changes` gives";
}

// What another plan carries is what both plans give.
std::string ReplayProof::plan(const State& state, const Event& event) {
  const auto plan = Plan::compile(event.payload["task_graph"]);
  if (!plan) return "holds no plan";
  Dropped drop;
  if (event.payload["drop"].is_array()) {
    for (const Value& one : event.payload["drop"].items()) {
      if (one.is_string()) drop.insert(one.as_string());
    }
  }
  // An earlier build compared without a limit.
  const auto replan = replan_of(state, *plan, drop, std::numeric_limits<Work>::max());
  return replan && carried_list(state, *replan) == event.payload["carried"]
             ? ""
             : "does not carry what the two plans have in common";
}

// What a fork brings in of a loop that goes on is such a loop.
std::string ReplayProof::after(const State& state, const Event& event) {
  if (event.type != EventType::fork_imported || is_erased(event, "results")) return {};
  for (const Node& node : state.plan->nodes) {
    const Step& step = state.steps[node.index];
    if (!step.loop) continue;
    if (auto wrong = unfit_turns(state, step); !wrong.empty()) return at(event) + ": " + wrong;
  }
  return {};
}

std::string ReplayProof::before(const State& state, const Event& event) {
  std::string wrong;
  switch (event.type) {
    case EventType::command_emitted:
      wrong = emitted(state, event);
      break;
    case EventType::time_recorded:
    case EventType::random_recorded:
    case EventType::uuid_recorded:
      wrong = recorded(state, event);
      break;
    case EventType::tool_invocation_started:
      wrong = started(state, event);
      break;
    case EventType::tool_invocation_finished:
      wrong = finished(state, event);
      break;
    case EventType::command_committed:
      wrong = probe_says(state, event);
      if (wrong.empty()) wrong = committed(state, event);
      if (wrong.empty()) wrong = changed(state, event);
      break;
    case EventType::decision_recorded:
      if (event.payload.text("kind") == "branch") wrong = branch(state, event);
      if (event.payload.text("kind") == "tool_choice") wrong = choice(state, event);
      if (event.payload.text("kind") == "in_doubt") wrong = probe_says(state, event);
      if (const std::string_view said = event.payload.text("state");
          event.payload.text("kind") == "approval" && (said == "requested" || said == "denied")) {
        wrong = request(state, event);
      }
      break;
    case EventType::state_changed:
      wrong = changed(state, event);
      break;
    case EventType::wait_opened:
      wrong = wait(state, event);
      break;
    case EventType::plan_generated:
      wrong = plan(state, event);
      break;
    case EventType::job_completed:
      if (auto output = output_of(state); !output || !(*output == event.payload["result"])) {
        wrong = "is not what `output` gives";
      }
      break;
    default:
      break;
  }
  return wrong.empty() ? wrong : at(event) + " " + wrong;
}

}  // namespace ae::engine
