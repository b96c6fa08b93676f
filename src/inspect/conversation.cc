#include "inspect/conversation.h"

#include <algorithm>
#include <span>
#include <string>
#include <utility>

#include "engine/loop/loop.h"
#include "engine/state/view_values.h"
#include "inspect/field_json.h"
#include "inspect/view_parts.h"
#include "log/field_names.h"

namespace ae::engine {

std::string_view to_text(MessageOrigin origin) {
  switch (origin) {
    case MessageOrigin::prompt:
      return "prompt";
    case MessageOrigin::summary:
      return "summary";
    case MessageOrigin::budget:
      return "budget";
    case MessageOrigin::answer:
      return "answer";
    case MessageOrigin::call:
      return "call";
    case MessageOrigin::repair:
      return "repair";
  }
  return {};
}

namespace {

bool is_container(const State& state, const Step& step) {
  return step.role == Role::node && !step.is_part() && state.node_of(step).loop != nullptr;
}

bool calls_model(const State& state, const Step& step) {
  if (step.role != Role::node || step.is_loop_call()) return false;
  if (is_container(state, step)) return true;
  const bool is_map = state.node_of(step).kind == NodeKind::map && !step.is_part();
  return !is_map && state.has_tool(step) && state.tool_of(step).is_model();
}

const Value& requested_calls(const Step& turn) {
  static const Value kNone = Value::array({});
  const Value& calls = turn.result["tool_calls"];
  return calls.is_array() ? calls : kNone;
}

// Its request was sent, here or in the origin of a fork.
bool has_request(const Step& turn) { return turn.call || turn.imported; }
bool is_over(const Step& step) { return step.phase == StepPhase::done; }

// The choice of a turn, recorded with its answer; nullptr: not recorded, or erased.
const ToolChoice* choice_of(const TraceRecord& record, const Step& turn) {
  if (!has_request(turn)) return nullptr;
  const auto choice = record.choices.find(answer_of(turn).text.string());
  return choice == record.choices.end() ? nullptr : &choice->second;
}

const StepSpan& span_of(const TraceRecord& record, const Step& step) {
  static const StepSpan kNone{};
  const auto span = record.steps.find(step.id.text.string());
  return span == record.steps.end() ? kNone : span->second;
}

// The state drops the calls of finished items and requests. The log has them.
const Value& arguments_of(const Step& turn, const StepSpan& span) {
  static const Value kNone{};
  if (has_request(turn)) return turn_arguments(turn);
  return span.started != nullptr ? span.started->arguments.value : kNone;
}

// The number of messages of a prompt. An erased request had at least one.
std::size_t prompt_size(const Value& arguments, bool is_erased) {
  const Value& prompt = arguments["messages"];
  return prompt.is_array() ? prompt.size() : is_erased ? 1 : 0;
}

Value error_value(const Step& step, const StepSpan& span) {
  if (!step.failure) return {};
  if (span.finished != nullptr && span.finished->error) return field_json(span.finished->error);
  return Value::object({{field::code, step.failure->code}, {"message", step.failure->message}});
}

}  // namespace

Result<Conversation> Conversation::of(const StepTree& tree, std::string_view step) {
  const State& state = tree.state();
  if (step.empty()) {
    const Step* first = nullptr;
    for (std::size_t i = 0; first == nullptr && state.plan && i < state.plan->nodes.size(); ++i) {
      if (calls_model(state, state.steps[i])) first = &state.steps[i];
    }
    return Conversation(tree, first);
  }
  AE_ASSIGN(const Step* const found, find_step(state, step));
  if (!calls_model(state, *found)) {
    return fail(Code::input_invalid, "step {} calls no model", step);
  }
  return Conversation(tree, found);
}

Conversation::Conversation(const StepTree& tree, const Step* step)
    : tree_(&tree), s_(&tree.state()), step_(step) {
  if (step == nullptr) return;
  if (is_container(*s_, *step)) {
    for (const Step* part : tree_->parts_of(*step)) {
      if (!part->is_summary()) turns_.push_back(part);
    }
  } else {
    turns_.push_back(step);
  }
  for (std::size_t turn = 0; turn < turns_.size(); ++turn) add_slots(turn);
}

// Does the turn answer the next message of a thread? Otherwise it repairs the answer before it. Of
// erased arguments that is not known; a message is more likely.
bool Conversation::begins_with_message(const Step& turn) const {
  if (!has_request(turn)) return false;
  if (turn.call && turn.call->erased) return s_->node_of(*step_).loop->thread;
  return turn_arguments(turn)["messages"].is_array();
}

void Conversation::add_slots(std::size_t turn) {
  const Step& step = *turns_[turn];
  if (!has_request(step)) return;
  const Value& arguments = turn_arguments(step);
  if (!arguments.text("summary").empty()) slots_.push_back({Origin::summary, turn, 0});
  const bool is_first = turn == 0 && (step.turn == kNoTurn || step.turn == 0);
  const std::size_t opening = prompt_size(arguments, is_first && step.call && step.call->erased);
  for (std::size_t nth = 0; nth < opening; ++nth) slots_.push_back({Origin::prompt, turn, nth});
  if (arguments["notice"].is_object()) slots_.push_back({Origin::budget, turn, 0});
  if (!is_over(step)) return;
  slots_.push_back({Origin::answer, turn, 0});
  if (step.failure || !step.is_turn()) return;
  const StepTree::Steps& begun = tree_->parts_of(step);
  const bool is_last = turn + 1 == turns_.size();
  const std::size_t calls = step.erased ? (begun.empty() ? 0 : begun.back()->nth + std::size_t{1})
                                        : requested_calls(step).size();
  for (std::size_t nth = 0; nth < calls; ++nth) {
    const auto of_call = std::ranges::find(begun, nth, [](const Step* one) { return one->nth; });
    // A call that has not begun was refused, if another turn followed.
    const bool is_answered = of_call != begun.end() ? is_over(**of_call) : !is_last;
    if (!is_answered) return;
    slots_.push_back({Origin::call, turn, nth});
  }
  if (calls == 0 && !is_last && !begins_with_message(*turns_[turn + 1])) {
    slots_.push_back({Origin::repair, turn, 0});
  }
}

bool Conversation::is_only_in_log() const {
  return turns_.size() == 1 && !has_request(*turns_[0]) && is_over(*turns_[0]) &&
         !turns_[0]->is_turn();
}

std::vector<Conversation::Slot> Conversation::logged_slots(const TraceRecord& record) const {
  const StepSpan& span = span_of(record, *turns_[0]);
  if (span.started == nullptr) return {};
  std::vector<Slot> slots;
  const std::size_t opening =
      prompt_size(span.started->arguments.value, span.started->arguments.erased);
  slots.reserve(opening + 1);
  for (std::size_t nth = 0; nth < opening; ++nth) slots.push_back({Origin::prompt, 0, nth});
  slots.push_back({Origin::answer, 0, 0});
  return slots;
}

std::span<const Conversation::Slot> Conversation::part_of(std::span<const Slot> all,
                                                          std::uint64_t after, std::size_t limit) {
  if (after >= all.size()) return {};
  return all.subspan(after, std::min(limit, all.size() - after));
}

const Step* Conversation::call_step(const Slot& slot) const {
  const StepTree::Steps& begun = tree_->parts_of(*turns_[slot.turn]);
  const auto found = std::ranges::find(begun, slot.nth, [](const Step* one) { return one->nth; });
  return found == begun.end() ? nullptr : *found;
}

std::vector<std::uint64_t> Conversation::seqs(const StepIndex& index, std::uint64_t after,
                                              std::size_t limit) const {
  std::vector<std::uint64_t> seqs;
  const auto add = [&](const Step& step) {
    const std::vector<std::uint64_t> of_step = seqs_of(*tree_, index, step);
    seqs.insert(seqs.end(), of_step.begin(), of_step.end());
  };
  if (is_only_in_log()) add(*turns_[0]);
  std::size_t last_turn = turns_.size();
  for (const Slot& slot : part_of(slots_, after, limit)) {
    if (std::exchange(last_turn, slot.turn) != slot.turn) add(*turns_[slot.turn]);
    const Step* const call = slot.origin == Origin::call ? call_step(slot) : nullptr;
    if (call != nullptr) add(*call);
  }
  return seqs;
}

void Conversation::add_answer(const Step& turn, const TraceRecord& record,
                              std::vector<Member>& members) const {
  const StepSpan& span = span_of(record, turn);
  const bool committed = span.committed != nullptr;
  // The state drops the results of finished items.
  const Value& answer = turn.result.is_null() ? span.result : turn.result;
  const Value& usage = committed && span.committed->usage.json().is_object()
                           ? span.committed->usage.json()
                           : answer[field::usage];
  members.emplace_back(field::arguments_hash, turn.call ? Value(to_hex(turn.call->arguments_hash))
                                              : span.started != nullptr
                                                  ? Value(to_hex(span.started->arguments_hash))
                                                  : Value());
  members.emplace_back("content", turn.erased ? Value() : answer["text"]);
  members.emplace_back("cost_micros", usage["cost_micros"]);
  members.emplace_back(field::error, error_value(turn, span));
  members.emplace_back("finish_reason", answer["finish_reason"]);
  members.emplace_back("model",
                       committed ? field_json(span.committed->llm_model) : answer["model"]);
  members.emplace_back("redacted", turn.erased);
  members.emplace_back("role", "assistant");
  members.emplace_back("tool_calls", answer["tool_calls"]);
  members.emplace_back(field::usage, usage);
}

void Conversation::add_call(const Slot& slot, const TraceRecord& record,
                            std::vector<Member>& members) const {
  const Step& turn = *turns_[slot.turn];
  const Step* const call = call_step(slot);
  const ToolChoice* const choice = choice_of(record, turn);
  const bool is_known = choice != nullptr && slot.nth < choice->calls.size();
  const ChosenCall chosen = is_known ? choice->calls[slot.nth] : ChosenCall();
  members.emplace_back("call_id", field_json(chosen.id));
  members.emplace_back("content", call == nullptr || call->erased ? Value() : call->result);
  members.emplace_back(field::error, call == nullptr ? field_json(chosen.refused)
                                                     : error_value(*call, span_of(record, *call)));
  members.emplace_back("redacted", call != nullptr && call->erased);
  members.emplace_back("role", "tool");
  members.emplace_back("turn_call", number(slot.nth));
}

Value Conversation::message(const Slot& slot, std::uint64_t n, const TraceRecord& record,
                            const StepIndex& index) const {
  const Step& turn = *turns_[slot.turn];
  const Step* const call = slot.origin == Origin::call ? call_step(slot) : nullptr;
  const Step& step = call != nullptr ? *call : turn;
  const StepSpan& span = span_of(record, step);
  const bool is_request = slot.origin == Origin::prompt || slot.origin == Origin::summary ||
                          slot.origin == Origin::budget;
  const IndexedStep* const indexed = index.find(step.id);
  const std::uint64_t begun = indexed != nullptr ? indexed->first_try_seq : 0;
  const std::uint64_t seq = is_request ? begun : span.finished_seq;
  std::optional<Instant> at = span.finished_at;
  if (is_request) at = span.tries.empty() ? std::nullopt : std::optional(span.tries[0].started_at);
  const StepSpan& of_turn = span_of(record, turn);
  Value invocation;
  if (has_request(turn)) {
    invocation = answer_of(turn).text;
  } else if (of_turn.started != nullptr) {
    invocation = of_turn.started->invocation_id.text;
  }
  std::vector<Member> members{{field::at, or_null(at)},
                              {field::invocation_id, std::move(invocation)},
                              {"n", number(n)},
                              {"origin", to_text(slot.origin)},
                              {"seq", seq > 0 ? number(seq) : Value()},
                              {field::step_id, step.id.text},
                              {"turn", turn.turn != kNoTurn ? number(turn.turn) : Value()}};
  const auto add_message = [&](const Value& message, bool redacted) {
    members.emplace_back("call_id", message["call_id"]);
    members.emplace_back("content", message["content"]);
    members.emplace_back("redacted", redacted);
    members.emplace_back("role", redacted ? Value("user") : message["role"]);
    members.emplace_back("tool_calls", message["tool_calls"]);
  };
  const Value& arguments = arguments_of(turn, of_turn);
  switch (slot.origin) {
    case Origin::prompt: {
      const Value& prompt = arguments["messages"];
      const bool known = prompt.is_array() && slot.nth < prompt.size();
      add_message(known ? prompt.items()[slot.nth] : Value(), !known);
      break;
    }
    case Origin::summary:
      add_message(summary_message(std::string(arguments.text("summary"))), false);
      break;
    case Origin::budget:
      add_message(notice_message(arguments["notice"]), false);
      break;
    case Origin::answer:
      add_answer(turn, record, members);
      break;
    case Origin::call:
      add_call(slot, record, members);
      break;
    case Origin::repair: {
      const ToolChoice* const choice = choice_of(record, turn);
      const std::string repair = choice != nullptr ? or_empty(choice->repair) : std::string();
      add_message(repair.empty() ? Value() : repair_message(repair), repair.empty());
      break;
    }
  }
  for (const char* name : {field::arguments_hash, "call_id", "cost_micros", field::error,
                           "finish_reason", "model", "tool_calls", "turn_call", field::usage}) {
    if (std::ranges::find(members, name, &Member::first) == members.end()) {
      members.emplace_back(name, Value());
    }
  }
  return Value::object(std::move(members));
}

Value Conversation::page(const TraceRecord& record, const StepIndex& index, std::uint64_t after,
                         std::size_t limit) const {
  std::vector<Value> messages, steps;
  std::uint64_t n = after;
  const std::vector<Slot> all = is_only_in_log() ? logged_slots(record) : slots_;
  for (const Slot& slot : part_of(all, after, limit))
    messages.push_back(message(slot, ++n, record, index));
  for (std::size_t i = 0; s_->plan && i < s_->plan->nodes.size(); ++i) {
    const Step& step = s_->steps[i];
    if (!calls_model(*s_, step)) continue;
    steps.push_back(
        Value::object({{field::node_id, s_->plan->nodes[i].id}, {field::step_id, step.id.text}}));
  }
  const bool is_live = step_ != nullptr && !is_over(*step_) && !is_terminal(s_->status);
  return Value::object(
      {{"live", is_live},
       {"messages", Value::array(std::move(messages))},
       {"next", n < all.size() && n > after ? number(n) : Value()},
       {field::node_id, step_ != nullptr ? Value(s_->node_of(*step_).id) : Value()},
       {field::position, step_ != nullptr ? position_of(*step_) : Value()},
       {field::step_id, step_ != nullptr ? Value(step_->id.text) : Value()},
       {"steps", Value::array(std::move(steps))}});
}

Result<const Step*> Conversation::turn(std::uint64_t number) const {
  for (const Step* turn : turns_) {
    if ((turn->turn == kNoTurn ? 0 : turn->turn) == number) return turn;
  }
  return fail(Code::not_found, "the conversation has no turn {}", number);
}

Result<Value> sent_request_view(const State& then, std::string_view step) {
  AE_ASSIGN(const Step* const turn, find_step(then, step));
  if (!turn->call) {
    return fail(Code::input_invalid, "this job did not send the request: its answer was imported");
  }
  const StepTree tree(then);
  bool erased = turn->call->erased;
  if (turn->is_turn()) {
    for (const Step* earlier : tree.parts_of(then.steps[turn->node])) {
      erased = erased || (earlier->call && earlier->call->erased) || earlier->erased;
      for (const Step* call : tree.parts_of(*earlier)) erased = erased || call->erased;
    }
  }
  if (erased) {
    return fail(Code::input_invalid, "a value of the request was erased from the log");
  }
  AE_ASSIGN(Value request, sent_request(then, *turn));
  return Value::object({{field::arguments, turn->call->arguments},
                        {field::arguments_hash, to_hex(turn->call->arguments_hash)},
                        {"request", std::move(request)},
                        {field::step_id, turn->id.text},
                        {"turn", turn->turn != kNoTurn ? number(turn->turn) : Value()}});
}

}  // namespace ae::engine
