#include "engine/loop/loop.h"

#include <fmt/core.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "engine/heart/evaluate.h"
#include "engine/heart/features.h"
#include "engine/state/event_values.h"
#include "json/json.h"
#include "log/field_names.h"
#include "log/seal.h"
#include "schema/answer_json.h"

namespace ae::engine {
namespace {

RefusedCall tool_failure(Code code, std::string message) {
  return {std::string(code_name(code)), std::move(message)};
}

// A prefix of whole characters.
std::string truncate(std::string text, std::size_t most) {
  if (text.size() <= most) return text;
  while (most > 0 && (static_cast<unsigned char>(text[most]) & 0xc0U) == 0x80U) most--;
  text.resize(most);
  return text;
}

constexpr std::size_t kAmountMax = 32;  // digits of what is left

// As text, so that users and models see amounts in the units of the agents file.
Value remaining_budget(const Budget& budget, Limit limit) {
  const std::uint64_t most = *budget.limits.max_of(limit);
  const std::uint64_t left = most - std::min(most, amount_of(budget.spent, limit));
  const auto shown = [&](std::uint64_t n) {
    return limit == Limit::cost ? cost_text(n) : std::to_string(n);
  };
  return Value::object({{"left", shown(left)}, {field::of, shown(most)}});
}

std::string names_of(const Plan& plan, const LoopSpec& spec) {
  std::string names;
  for (const std::uint32_t tool : spec.tools) {
    names += (names.empty() ? "" : ", ") + plan.tools[tool].name;
  }
  return names.empty() ? "none" : names;
}

// Why a call is not made; nullopt: it is made.
std::optional<RefusedCall> refusal_of(const State& state, const LoopSpec& spec, const Value& call,
                                      std::size_t nth, Work* work) {
  const Plan& plan = *state.plan;
  const auto granted = std::ranges::find_if(
      spec.tools, [&](std::uint32_t tool) { return plan.tools[tool].name == call.text("name"); });
  if (granted == spec.tools.end()) {
    return tool_failure(Code::tool_not_granted,
                        fmt::format("there is no such tool that you may call; there are: {}",
                                    names_of(plan, spec)));
  }
  if (nth >= kTurnCallsMax) {
    return tool_failure(Code::payload_too_large,
                        "at most 128 calls of one answer are made; ask for the others again");
  }
  const Value& arguments = call[field::arguments];
  if (!arguments.is_object()) {
    const std::string_view why = call.text("invalid");  // as it was recorded with the answer
    const std::string detail = why.empty() ? "" : fmt::format(": {}", why);
    return tool_failure(Code::input_invalid,
                        fmt::format("the arguments must be a JSON object{}", detail));
  }
  const ToolPolicy& tool = plan.tools[*granted];
  if (canonical_exceeds(arguments, kValueMax)) {
    return tool_failure(Code::payload_too_large, "the arguments are too long");
  }
  if (tool.args_schema) {
    if (auto fits = tool.args_schema->check(arguments, work); !fits) {
      return tool_failure(fits.error().code, fits.error().message);
    }
  }
  if (auto fits = check_recorded_args(tool.records, arguments); !fits) {
    return tool_failure(fits.error().code, fits.error().message);
  }
  if (auto policy_decision = evaluate_policy(state, tool, arguments, work); !policy_decision) {
    return tool_failure(policy_decision.error().code, policy_decision.error().message);
  }
  return std::nullopt;
}

// The last answer of a node with turns as JSON: valid by its schema, and
// for a planner a valid plan.
Result<Value> parse_final_answer(const Plan& plan, const Node& node, const Value& answer,
                                 Work* work) {
  AE_ASSIGN(Value json, parse_answer_json(*node.loop->schema, answer, work));
  if (node.kind != NodeKind::planner || !is_planner_only(plan)) return json;
  if (auto made = plan_from_answer(plan, answer); !made) {
    return fail(Code::plan_invalid, "makes no plan: {}", made.error().message);
  }
  return json;
}

// The recorded arguments of a turn. `opening`: the messages that it begins with.
Value stored_arguments(const LoopSpec& spec, const MessageChain& chain, const Value& opening,
                       const TurnExtras& extras) {
  std::vector<Member> arguments(spec.settings.members().begin(), spec.settings.members().end());
  if (!opening.is_null()) arguments.emplace_back("messages", opening);
  if (extras.notice.is_object()) arguments.emplace_back("notice", extras.notice);
  if (extras.from > 0) arguments.emplace_back("from", std::uint64_t{extras.from});
  if (!extras.summary.empty()) arguments.emplace_back("summary", extras.summary);
  arguments.emplace_back("conversation", to_hex(chain.hash));
  arguments.emplace_back("said", chain.count);
  if (!spec.tools_digest.empty()) arguments.emplace_back("tools", spec.tools_digest);
  if (spec.schema) arguments.emplace_back("schema", spec.schema_digest);
  return Value::object(std::move(arguments));
}

// The messages of a turn that the one before it did not have.
std::vector<Value> messages_added_by(const State& state, const Step& loop, std::uint32_t turn,
                                     const Value& opening, const Value& notice) {
  std::vector<Value> messages;
  if (turn > 0) messages = messages_after(state, loop, turn - 1);
  append_all(opening, messages);
  if (notice.is_object()) messages.push_back(notice_message(notice));
  return messages;
}

// The messages that the next turn begins with.
Result<Value> next_opening_of(const State& state, const Step& loop, std::uint32_t turn,
                              Work* work) {
  if (turn == 0) return opening_messages_of(state, state.node_of(loop), work);
  return opening_of(state, loop, turn);
}

Result<ToolChoice> tool_choice_at(const State& state, const Step& loop, std::size_t turn,
                                  std::uint32_t before, Work* work);

// Is this an answer in our format?
Status check_answer(const Value& answer) {
  const Value& text = answer["text"];
  const Value& calls = answer["tool_calls"];
  const bool named =
      calls.is_null() || (calls.is_array() && std::ranges::all_of(calls.items(), [](auto& call) {
                            return !call.text("name").empty();
                          }));
  if (answer.is_object() && (text.is_null() || text.is_string()) && named) return {};
  return fail(Code::tool_output_invalid, "what the model answered is no answer of a model");
}

}  // namespace

std::size_t turns_max(const State& state, const Step& loop) {
  const LoopProgress& progress = *loop.loop;
  return std::size_t{progress.exchange_turn} + state.node_of(loop).loop->max_turns +
         progress.repairs;
}

bool may_begin_turn(const State& state, const Step& loop) {
  const LoopProgress& progress = *loop.loop;
  if (progress.failure || progress.active > 0) return false;
  if (progress.turns.empty()) return true;
  const LoopTurn& newest = progress.turns.back();
  if (progress.interrupted && !newest.message) return false;
  return newest.chosen && (newest.repair || newest.message || !newest.calls.empty()) &&
         progress.next == newest.calls.size() && progress.turn_count() < turns_max(state, loop);
}

Value notice_of(const State& state, const Step& loop) {
  // Its model gets only the prompt of the plan.
  if (state.node_of(loop).kind != NodeKind::loop) return {};
  const Budget& budget = state.budget;
  std::vector<Member> notice;
  for (const Limit limit : kCountedLimits) {
    if (!budget.is_soft_limit_reached(limit) || loop.loop->noticed_limits.contains(limit)) continue;
    notice.emplace_back(to_text(limit), remaining_budget(budget, limit));
  }
  return notice.empty() ? Value() : Value::object(std::move(notice));
}

bool is_notice(const State& state, const Step& loop, const Value& notice) {
  if (notice.is_null()) return true;
  if (!notice.is_object() || notice.size() == 0) return false;
  const Value now = notice_of(state, loop);
  return std::ranges::all_of(notice.members(), [&](const Member& entry) {
    const Value* low = now.find(entry.first);
    const std::string_view left = entry.second.text("left");
    return low != nullptr && entry.second.size() == 2 && !left.empty() &&
           left.size() <= kAmountMax && left.find_first_not_of("0123456789.") == left.npos &&
           entry.second[field::of] == (*low)[field::of];
  });
}

std::uint64_t turn_tokens_of(const State& state, const Step& loop, std::uint32_t turn,
                             const Value& arguments) {
  if (const auto from = maybe_int(arguments, "summarizes")) {
    const auto messages = summary_messages_of(state, loop, turn, turn_at(*from));
    return estimate_input_tokens(Value::object({{"messages", Value::array(messages)}}));
  }
  TurnExtras extras = extras_of(arguments);
  const Value& opening = arguments["messages"];
  if (extras.from > 0) {
    const ContextStart start =
        context_start_of(state, loop, extras.from, std::move(extras.summary));
    return request_tokens_of(state, loop,
                             request_messages_of(state, loop, turn, start, opening, extras.notice));
  }
  const std::vector<Value> added = messages_added_by(state, loop, turn, opening, extras.notice);
  if (turn == 0) return request_tokens_of(state, loop, added);
  const Step& before = step_of_turn(state, loop, turn - 1);
  std::uint64_t tokens = before.call
                             ? before.call->reserved.input_tokens
                             : turn_tokens_of(state, loop, turn - 1, before.imported->arguments);
  for (const Value& message : added) tokens += estimate_tokens(message);
  return tokens;
}

Result<NextTurn> next_turn_of(const State& state, const Step& loop, std::uint32_t turn,
                              Work* work) {
  NextTurn next{.extras = {.notice = notice_of(state, loop)}};
  if (!state.node_of(loop).loop->context) return next;
  AE_ASSIGN(const Value opening, next_opening_of(state, loop, turn, work));
  AE_ASSIGN(ContextAction action,
            context_action_of(state, loop, turn, opening, next.extras.notice));
  if (action.summarizes) {
    next.summarize = action.from;
  } else {
    next.extras.from = action.from;
    next.extras.summary = std::move(action.summary);
  }
  return next;
}

Result<Value> turn_arguments_of(const State& state, const Step& loop, std::uint32_t turn,
                                const TurnExtras& extras, Work* work) {
  const LoopProgress& progress = *loop.loop;
  AE_ASSIGN(const Value opening, next_opening_of(state, loop, turn, work));
  MessageChain chain;
  if (extras.from > 0) {
    const ContextStart start = context_start_of(state, loop, extras.from, extras.summary);
    chain.append(request_messages_of(state, loop, turn, start, opening, extras.notice));
  } else {
    if (turn > 0) {
      const auto before = hash_from_hex(progress.conversation);
      if (!before) return fail(Code::log_corrupt, "what was said before is not known");
      chain = {.hash = *before, .count = progress.message_count};
    }
    chain.append(messages_added_by(state, loop, turn, opening, extras.notice));
  }
  if (chain.count > kConversationMax) {
    return fail(Code::turns_limit, "the conversation has more than 10,000 messages");
  }
  return stored_arguments(*state.node_of(loop).loop, chain, opening, extras);
}

const InvocationId& answer_of(const Step& turn) {
  return turn.call ? turn.call->id : turn.imported->invocation;
}

Result<ToolChoice> tool_choice_of(const State& state, const Step& loop, Work* work) {
  return tool_choice_at(state, loop, loop.loop->turn_count() - 1, loop.loop->repairs, work);
}

namespace {

// `before`: earlier turns with a repair.
Result<ToolChoice> tool_choice_at(const State& state, const Step& loop, std::size_t turn,
                                  std::uint32_t before, Work* work) {
  const LoopSpec& spec = *state.node_of(loop).loop;
  const Step& turn_step = step_of_turn(state, loop, static_cast<std::uint32_t>(turn));
  AE_TRY(check_answer(turn_step.result));
  ToolChoice choice{.of = answer_of(turn_step), .turn = static_cast<std::int64_t>(turn)};
  const Value& wanted = turn_step.result["tool_calls"];
  for (std::size_t nth = 0; nth < wanted.size(); ++nth) {
    const Value& call = wanted.items()[nth];
    choice.calls.push_back({.id = call_id_of(call, turn, nth),
                            .name = std::string(call.text("name")),
                            .refused = refusal_of(state, spec, call, nth, work)});
  }
  if (choice.calls.empty() && before < spec.repairs && is_repairable(turn_step.result)) {
    if (const auto json =
            parse_final_answer(*state.plan, state.node_of(loop), turn_step.result, work);
        !json) {
      choice.repair = truncate(json.error().message, kRepairMax);
    }
  }
  return choice;
}

// Does the recorded choice follow from the answer? Error messages may differ between versions.
bool is_chosen(const State& state, const LoopTurn& turn, const ToolChoice& choice) {
  const std::vector<ChosenCall>& calls = choice.calls;
  if (calls.size() != turn.calls.size() || turn.repair.has_value() != choice.repair.has_value()) {
    return false;
  }
  for (std::size_t nth = 0; nth < calls.size(); ++nth) {
    const LoopCall& call = turn.calls[nth];
    const bool refused = calls[nth].refused.has_value();
    if (call.id != or_empty(calls[nth].id) || call.refused.has_value() != refused) return false;
    if (refused && call.refused->code != calls[nth].refused->code) return false;
    if (!refused && state.plan->tools[call.tool].name != or_empty(calls[nth].name)) return false;
  }
  return true;
}

// Were the imported calls of a turn made with the arguments in its answer, or
// as edited by the approver?
bool matches_answer(const State& state, const Step& loop, std::uint32_t turn) {
  const auto& calls = loop.loop->turn(turn).calls;
  for (std::uint32_t nth = 0; nth < calls.size(); ++nth) {
    if (calls[nth].step == kNoStep) continue;
    const Step& step = state.steps[calls[nth].step];
    if (!step.imported || step.imported->arguments_hash.empty()) continue;
    const Value& sent =
        calls[nth].edited ? *calls[nth].edited : requested_arguments_of(state, loop, turn, nth);
    if (!state.blind_erased && state.hash_of(sent) != step.imported->arguments_hash) return false;
  }
  return true;
}

}  // namespace

std::string find_invalid_turn(const State& state, const Step& loop) {
  const LoopSpec& spec = *state.node_of(loop).loop;
  MessageChain chain;
  std::uint32_t repairs = 0;
  for (std::uint32_t turn = 0; turn < loop.loop->turn_count(); ++turn) {
    const LoopTurn& of = loop.loop->turn(turn);
    const Step& turn_step = state.steps[of.step];
    if (!turn_step.imported) break;
    const Value& arguments = turn_step.imported->arguments;
    const std::string named = fmt::format("turn {} of node \"{}\" ", turn, state.node_of(loop).id);
    const TurnExtras extras = extras_of(arguments);
    const Value opening = opening_of(state, loop, turn);
    if (extras.from > 0) {
      chain = {};
      chain.append(sent_messages_of(state, loop, turn));
    } else {
      chain.append(messages_added_by(state, loop, turn, opening, extras.notice));
    }
    if (!(stored_arguments(spec, chain, opening, extras) == arguments) ||
        !(state.blind_erased || turn_step.imported->arguments_hash.empty() ||
          state.hash_of(arguments) == turn_step.imported->arguments_hash)) {
      return fmt::format("{}does not follow from the messages before it", named);
    }
    if (!of.chosen) continue;
    const auto choice = tool_choice_at(state, loop, turn, repairs, nullptr);
    if (!choice || !is_chosen(state, of, *choice) || !matches_answer(state, loop, turn)) {
      return fmt::format("{}does not match the model's answer", named);
    }
    repairs = of.message ? 0 : repairs + (of.repair ? 1 : 0);
  }
  return {};
}

const Value& requested_arguments_of(const State& state, const Step& loop, std::uint32_t turn,
                                    std::uint32_t nth) {
  static const Value kNone{};
  const Value& calls = step_of_turn(state, loop, turn).result["tool_calls"];
  return calls.is_array() && nth < calls.size() ? calls.items()[nth][field::arguments] : kNone;
}

Result<Value> loop_result_of(const State& state, const Step& loop, Work* work) {
  const Node& node = state.node_of(loop);
  const std::uint32_t turns = loop.loop->turn_count();
  const Value& answer = step_of_turn(state, loop, turns - 1).result;
  Value json;
  const bool has_json = node.loop->schema && !loop.loop->interrupted;
  if (has_json) {
    auto read = parse_final_answer(*state.plan, node, answer, work);
    if (!read)
      return std::unexpected(std::move(read).error().with_context("the model's last answer"));
    json = *std::move(read);
  }
  if (node.kind != NodeKind::loop) return answer.with("json", std::move(json));
  std::vector<Member> result{{"text", answer.text("text")},
                             {"turns", static_cast<std::uint64_t>(turns)}};
  for (const char* name : {"finish_reason", "refusal"}) {
    if (const Value* value = answer.find(name)) result.emplace_back(name, *value);
  }
  if (loop.loop->interrupted) result.emplace_back("interrupted", true);
  if (has_json) result.emplace_back("json", std::move(json));
  return Value::object(std::move(result));
}

Result<Value> sent_request(const State& state, const Step& step) {
  const Value& recorded = step.call->arguments;
  const Step& loop = state.steps[step.node];
  if ((!step.is_turn() && !step.is_summary()) || !loop.loop) return recorded;
  const LoopSpec& spec = *state.node_of(step).loop;
  const auto summarized = maybe_int(recorded, "summarizes").value_or(0);
  std::vector<Value> messages =
      step.is_summary() ? summary_messages_of(state, loop, step.turn, turn_at(summarized))
                        : sent_messages_of(state, loop, step.turn);
  MessageChain chain;
  chain.append(messages);
  if (to_hex(chain.hash) != recorded.text("conversation")) {
    return fail(Code::log_corrupt,
                "turn {} of node \"{}\" was declared with another conversation than its log holds",
                step.turn, state.node_of(step).id);
  }
  if (step.is_summary()) {
    std::vector<Member> request{{"messages", Value::array(std::move(messages))}};
    for (const char* name : {"model", "temperature", "max_tokens"}) {
      if (const Value* value = recorded.find(name)) request.emplace_back(name, *value);
    }
    return Value::object(std::move(request));
  }
  std::vector<Member> request(spec.settings.members().begin(), spec.settings.members().end());
  request.emplace_back("messages", Value::array(std::move(messages)));
  if (!spec.tools.empty()) request.emplace_back("tools", spec.tool_definitions);
  if (spec.schema) request.emplace_back("schema", spec.schema_source);
  if (spec.repairs > 0) request.emplace_back("repair", true);
  return Value::object(std::move(request));
}

}  // namespace ae::engine
