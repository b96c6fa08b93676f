#include "engine/loop/loop.h"

#include <fmt/core.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "engine/heart/evaluate.h"
#include "engine/heart/features.h"
#include "json/json.h"
#include "log/field_names.h"
#include "log/seal.h"
#include "schema/answer_json.h"

namespace ae::engine {

// Stored, by its hash: the end of the conversation's chain.
Value repair_message(const std::string& why) {
  return Value::object({{"content", fmt::format("This answer cannot be used: it {}. Answer again, "
                                                "with JSON as it was asked for and nothing else.",
                                                why)},
                        {"role", "user"}});
}

// Stored, by its hash: the end of the conversation's chain.
Value notice_message(const Value& notice) {
  std::string text;
  for (const auto& [name, amount] : notice.members()) {
    std::string what = name;
    std::ranges::replace(what, '_', ' ');
    text += fmt::format("{}{} of {} {} left", text.empty() ? "budget: " : "; ", amount.text("left"),
                        amount.text(field::of), what);
  }
  return Value::object({{"content", fmt::format("{}. Come to an end before it is used up.", text)},
                        {"role", "user"}});
}

namespace {

// The end of the hash chain over messages, and their number.
struct Conversation {
  Hash hash = sha256("aetheris.conversation.v1");
  std::uint64_t message_count = 0;

  void append(const Value& message) {
    const Hash one = sha256(canonical(message));
    Sha256 next;
    next.add({reinterpret_cast<const char*>(hash.bytes.data()), hash.bytes.size()});
    next.add({reinterpret_cast<const char*>(one.bytes.data()), one.bytes.size()});
    hash = next.finish();
    message_count++;
  }
};

const Step& step_of_turn(const State& state, const Step& loop, std::size_t turn) {
  return state.steps[loop.loop->turns[turn].step];
}

std::string call_id(const Value& call, std::size_t turn, std::size_t nth) {
  const std::string id(call.text("id"));
  return id.empty() ? fmt::format("call_{}_{}", turn, nth) : id;
}

RefusedCall tool_failure(Code code, std::string message) {
  return {std::string(code_name(code)), std::move(message)};
}

Value failure_value(const Failure& failure) {
  return Value::object({{field::code, failure.code}, {"message", failure.message}});
}

Value assistant_message(const Value& answer, std::size_t turn) {
  std::vector<Member> message{{"content", answer.text("text")}, {"role", "assistant"}};
  if (const Value* blocks = answer.find("blocks")) message.emplace_back("blocks", *blocks);
  std::vector<Value> calls;
  const Value& tool_calls = answer["tool_calls"];
  for (std::size_t nth = 0; nth < tool_calls.size() && tool_calls.is_array(); ++nth) {
    const Value& one = tool_calls.items()[nth];
    std::vector<Member> call{{"id", call_id(one, turn, nth)}, {"name", one.text("name")}};
    const char* field = one.find("malformed") != nullptr ? "malformed" : field::arguments;
    call.emplace_back(field, one[field]);
    calls.push_back(Value::object(std::move(call)));
  }
  if (!calls.empty()) message.emplace_back("tool_calls", Value::array(std::move(calls)));
  return Value::object(std::move(message));
}

Value tool_message(const State& state, const LoopCall& call) {
  const Step* step = call.step == kNoStep ? nullptr : &state.steps[call.step];
  const Boxed<Failure>& failure = step ? step->failure : call.refused;
  std::vector<Member> message{{"call_id", call.id}, {"role", "tool"}};
  // The model must know that the arguments were edited.
  std::vector<Member> content;
  if (call.edited) content.emplace_back("edited_arguments", *call.edited);
  const Value result = step ? step->result : Value();
  if (failure) {
    content.emplace_back(field::error, failure_value(*failure));
    message.emplace_back(field::error, true);
  } else if (call.edited) {
    content.emplace_back(field::result, result);
  } else {
    message.emplace_back("content", result.is_string() ? result : Value(canonical(result)));
  }
  if (!content.empty()) {
    message.emplace_back("content", canonical(Value::object(std::move(content))));
  }
  return Value::object(std::move(message));
}

// A prefix of whole characters.
std::string truncate(std::string text, std::size_t most) {
  if (text.size() <= most) return text;
  while (most > 0 && (static_cast<unsigned char>(text[most]) & 0xc0U) == 0x80U) most--;
  text.resize(most);
  return text;
}

// Appends the messages of a turn: the answer, the result of each call in the requested order, and
// the repair message.
template <class AppendMessage>
void append_turn(const State& state, const Step& loop, std::size_t turn,
                 const AppendMessage& append) {
  append(assistant_message(step_of_turn(state, loop, turn).result, turn));
  const LoopTurn& over = loop.loop->turns[turn];
  for (const LoopCall& call : over.calls) append(tool_message(state, call));
  if (over.repair) append(repair_message(*over.repair));
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

// The messages that this turn begins with, besides its notice, as its arguments have them: the
// prompt, or the message of a thread. null = none. REQUIRES: not turn 0.
Value messages_before(const Step& loop, std::size_t turn) {
  const auto& message = loop.loop->turns[turn - 1].message;
  return message ? Value::array({thread_message(*message)}) : Value();
}

template <class AppendMessage>
void append_all(const Value& messages, const AppendMessage& append) {
  for (std::size_t i = 0; messages.is_array() && i < messages.size(); ++i) {
    append(messages.items()[i]);
  }
}

// The recorded arguments of a turn. `opening`: the messages that it begins with.
Value stored_arguments(const LoopSpec& spec, const Conversation& conversation, const Value& opening,
                       const Value& notice) {
  std::vector<Member> arguments(spec.settings.members().begin(), spec.settings.members().end());
  if (!opening.is_null()) arguments.emplace_back("messages", opening);
  if (notice.is_object()) arguments.emplace_back("notice", notice);
  arguments.emplace_back("conversation", to_hex(conversation.hash));
  arguments.emplace_back("said", conversation.message_count);
  if (!spec.tools_digest.empty()) arguments.emplace_back("tools", spec.tools_digest);
  if (spec.schema) arguments.emplace_back("schema", spec.schema_digest);
  return Value::object(std::move(arguments));
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
         progress.next == newest.calls.size() && progress.turns.size() < turns_max(state, loop);
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
  const LoopSpec& spec = *state.node_of(loop).loop;
  std::uint64_t tokens = 0;
  if (turn == 0) {
    std::vector<Member> opening{{"messages", arguments["messages"]}};
    if (!spec.tools.empty()) opening.emplace_back("tools", spec.tool_definitions);
    if (spec.schema) opening.emplace_back("schema", spec.schema_source);
    tokens = estimate_input_tokens(Value::object(std::move(opening)));
  } else {
    const Step& before = step_of_turn(state, loop, turn - 1);
    tokens = before.call ? before.call->reserved.input_tokens
                         : turn_tokens_of(state, loop, turn - 1, before.imported->arguments);
    const auto add = [&](const Value& message) { tokens += estimate_tokens(message); };
    append_turn(state, loop, turn - 1, add);
    append_all(arguments["messages"], add);
  }
  const Value& notice = arguments["notice"];
  return notice.is_object() ? tokens + estimate_tokens(notice_message(notice)) : tokens;
}

Result<Value> turn_arguments_of(const State& state, const Step& loop, std::uint32_t turn,
                                const Value& notice, Work* work) {
  const Node& node = state.node_of(loop);
  const LoopProgress& progress = *loop.loop;
  Conversation conversation;
  const auto append = [&](const Value& message) { conversation.append(message); };
  Value opening;
  if (turn == 0) {
    AE_ASSIGN(opening, opening_messages_of(state, node, work));
  } else {
    const auto before = hash_from_hex(progress.conversation);
    if (!before) return fail(Code::log_corrupt, "what was said before is not known");
    conversation = {.hash = *before, .message_count = progress.message_count};
    append_turn(state, loop, turn - 1, append);
    opening = messages_before(loop, turn);
  }
  append_all(opening, append);
  if (notice.is_object()) conversation.append(notice_message(notice));
  if (conversation.message_count > kConversationMax) {
    return fail(Code::turns_limit, "the conversation has more than 10,000 messages");
  }
  return stored_arguments(*node.loop, conversation, opening, notice);
}

const InvocationId& answer_of(const Step& turn) {
  return turn.call ? turn.call->id : turn.imported->invocation;
}

Result<ToolChoice> tool_choice_of(const State& state, const Step& loop, Work* work) {
  return tool_choice_at(state, loop, loop.loop->turns.size() - 1, loop.loop->repairs, work);
}

namespace {

// `before`: earlier turns with a repair.
Result<ToolChoice> tool_choice_at(const State& state, const Step& loop, std::size_t turn,
                                  std::uint32_t before, Work* work) {
  const LoopSpec& spec = *state.node_of(loop).loop;
  const Step& turn_step = step_of_turn(state, loop, turn);
  AE_TRY(check_answer(turn_step.result));
  ToolChoice choice{.of = answer_of(turn_step), .turn = static_cast<std::int64_t>(turn)};
  const Value& wanted = turn_step.result["tool_calls"];
  for (std::size_t nth = 0; nth < wanted.size(); ++nth) {
    const Value& call = wanted.items()[nth];
    choice.calls.push_back({.id = call_id(call, turn, nth),
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
  const auto& calls = loop.loop->turns[turn].calls;
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
  Conversation conversation;
  std::uint32_t repairs = 0;
  for (std::uint32_t turn = 0; turn < loop.loop->turns.size(); ++turn) {
    const LoopTurn& of = loop.loop->turns[turn];
    const Step& turn_step = state.steps[of.step];
    if (!turn_step.imported) break;
    const Value& arguments = turn_step.imported->arguments;
    const std::string named = fmt::format("turn {} of node \"{}\" ", turn, state.node_of(loop).id);
    const auto append = [&](const Value& message) { conversation.append(message); };
    const Value opening = turn == 0 ? arguments["messages"] : messages_before(loop, turn);
    if (turn > 0) append_turn(state, loop, turn - 1, append);
    append_all(opening, append);
    const Value& notice = arguments["notice"];
    if (notice.is_object()) append(notice_message(notice));
    if (!(stored_arguments(spec, conversation, opening, notice) == arguments) ||
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
  const std::size_t turns = loop.loop->turns.size();
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
  if (!step.is_turn() || !loop.loop) return recorded;
  const LoopSpec& spec = *state.node_of(step).loop;
  Conversation conversation;
  std::vector<Value> messages;
  const auto append = [&](Value message) {
    conversation.append(message);
    messages.push_back(std::move(message));
  };
  for (std::size_t turn = 0; turn <= step.turn; ++turn) {
    if (turn > 0) append_turn(state, loop, turn - 1, append);
    const Value& arguments = turn_arguments(step_of_turn(state, loop, turn));
    append_all(arguments["messages"], append);
    const Value& notice = arguments["notice"];
    if (notice.is_object()) append(notice_message(notice));
  }
  if (to_hex(conversation.hash) != recorded.text("conversation")) {
    return fail(Code::log_corrupt,
                "turn {} of node \"{}\" was declared with another conversation than its log holds",
                step.turn, state.node_of(step).id);
  }
  std::vector<Member> request(spec.settings.members().begin(), spec.settings.members().end());
  request.emplace_back("messages", Value::array(std::move(messages)));
  if (!spec.tools.empty()) request.emplace_back("tools", spec.tool_definitions);
  if (spec.schema) request.emplace_back("schema", spec.schema_source);
  if (spec.repairs > 0) request.emplace_back("repair", true);
  return Value::object(std::move(request));
}

}  // namespace ae::engine
