// Transcript: calls of tools and models, their answers, the calls that an answer requests, and the
// values that are recorded without a call.
#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/children/children.h"
#include "engine/loop/loop.h"
#include "engine/state/view_values.h"
#include "engine/values/recorded_value.h"
#include "inspect/conversation.h"
#include "inspect/field_json.h"
#include "inspect/transcript_internal.h"
#include "log/field_names.h"
#include "plan/model_calls.h"

namespace ae::engine {
namespace {

std::uint64_t positive_or_zero(const Value& value) {
  return value.is_integer() && value.as_int() > 0 ? static_cast<std::uint64_t>(value.as_int()) : 0;
}

}  // namespace

// The messages of a model call that no earlier entry has: the prompt and the budget notice.
void Transcript::add_messages(std::string_view step_id, const Value& arguments) {
  const auto add_message = [&](const Value& message, MessageOrigin origin) {
    add("message", step_id,
        {{"content", message["content"]}, {"from", message["role"]}, {"origin", to_text(origin)}});
  };
  const Value& prompt = arguments["messages"];
  for (std::size_t i = 0; prompt.is_array() && i < prompt.size(); ++i) {
    add_message(prompt.items()[i], MessageOrigin::prompt);
  }
  if (arguments["notice"].is_object())
    add_message(notice_message(arguments["notice"]), MessageOrigin::budget);
}

// The arguments of a model call; nullptr: erased. `first`: they contain the prompt; those of a
// later turn contain at most a notice.
void Transcript::add_request(std::string_view step_id, const Value* arguments, bool first) {
  if (arguments != nullptr) return add_messages(step_id, *arguments);
  if (!first) return;
  redacted_.emplace_back("content");
  add("message", step_id,
      {{"content", Value()}, {"from", "user"}, {"origin", to_text(MessageOrigin::prompt)}});
}

bool Transcript::has_ended_child(const Step* of) const {
  return of != nullptr && of->call && of->call->questions && s_.awaits_child(*of) &&
         of->call->questions->answers.find(kChildAnswer) != nullptr;
}

Value Transcript::child_of_call(const Step* of) const {
  if (of == nullptr || of->role != Role::node || !s_.has_tool(*of)) return {};
  const auto& child = s_.tool_of(*of).child;
  if (!child) return {};
  Value status;
  if (child->detached) {
    status = "detached";
  } else if (has_ended_child(of)) {
    status = of->call->questions->answers[kChildAnswer].text("status", "ended");
  }
  return Value::object(
      {{field::agent, child->agent}, {"id", engine::child_of(s_, *of).text}, {"status", status}});
}

void Transcript::add_entries(const ToolInvocationStarted& event) {
  const std::string& id = event.step_id.text;
  const std::string& tool = event.tool_name;
  calls_.try_emplace(event.invocation_id.text, Call{id, event.node_id, tool});
  if (!is_model(tool)) {
    if (has_ended_child(step(id))) return;  // the entry of the first try shows the child
    const Value child = child_of_call(step(id));
    if (child.is_object()) children_.try_emplace(id, event_->created_at);
    tool_calls_++;
    if (!called_.insert(id).second) repeated_++;
    const Value arguments = value(event.arguments, field::arguments);
    return add("tool_call", id,
               {{field::arguments, arguments},
                {"call_id", call_id_of(step(id))},
                {"child", child},
                {field::effect_class, event.effect_class},
                {"refused", Value()},
                {"tool", tool},
                {field::try_, event.try_no}});
  }
  const Step* of = step(id);
  const bool turn = of != nullptr && of->is_turn();
  if (turn) turns_[{event.node_id, of->turn}] = id;
  const Value* const arguments = event.arguments.erased ? nullptr : &event.arguments.value;
  if (event.try_no == 1) add_request(id, arguments, !turn || of->turn == 0);
  add("model_call", id, {{"model", model_of(tool)}, {field::try_, event.try_no}});
}

// The id that the model gave a call in its answer.
Value Transcript::call_id_of(const Step* of) {
  if (of == nullptr || !of->is_loop_call()) return {};
  const auto turn = turns_.find({s_.node_of(*of).id, of->turn});
  const auto choice = turn == turns_.end() ? call_ids_.end() : call_ids_.find(turn->second);
  if (choice == call_ids_.end() || of->nth >= choice->second.size()) return {};
  const Value& id = choice->second[of->nth];
  if (id.is_null()) redacted_.emplace_back("call_id");  // the choice was erased
  return id;
}

void Transcript::count(const Value& usage) {
  const std::uint64_t in = positive_or_zero(usage["input_tokens"]);
  const std::uint64_t out = positive_or_zero(usage["output_tokens"]);
  const std::uint64_t both = positive_or_zero(usage["total_tokens"]);
  answers_count_++;
  input_ += in;
  output_ += out;
  total_ += both != 0 ? both : in + out;
  if (usage["cost_micros"].is_integer()) {
    cost_ = cost_.value_or(0) + positive_or_zero(usage["cost_micros"]);
  }
}

void Transcript::add_answer(std::string_view step_id, const AnswerInfo& info, Members more) {
  const Value& answer = info.answer;
  const bool ok = info.outcome == "success";
  const Step* const of = step(step_id);
  Value usage = ok ? answer[field::usage] : Value();
  if (ok && info.late) {  // it is not committed
    if (of != nullptr) usage = with_cost(s_.tool_of(*of), std::move(usage));
    count(usage);
  }
  if (ok && !info.late && of != nullptr && of->is_turn()) answers_[std::string(step_id)] = answer;
  if (imported_) {
    for (const char* name : {field::definite, field::duration_us, field::error, field::try_}) {
      more.emplace_back(name, Value());
    }
    more.emplace_back(field::late, false);
  }
  more.emplace_back("answered_by", ok && info.late ? answer["model"] : Value());
  more.emplace_back("cost_micros", usage["cost_micros"]);
  more.emplace_back("finish_reason", answer["finish_reason"]);
  more.emplace_back("model", is_model(info.model) ? Value(model_of(info.model)) : Value());
  more.emplace_back(field::outcome, info.outcome);
  more.emplace_back("refusal", answer["refusal"]);
  more.emplace_back("text", answer["text"]);
  more.emplace_back("tool_calls", answer["tool_calls"]);
  more.emplace_back(field::usage, usage);
  add("answer", step_id, std::move(more));
  if (ok && !info.late && !imported_) answered_[std::string(step_id)] = {added_, std::move(usage)};
}

// Adds model and usage of an answer, and the result of a call that an operator or a probe resolved.
void Transcript::add_entries(const CommandCommitted& event) {
  const std::string& id = event.step_id.text;
  if (auto answer = answered_.extract(id)) {
    const Value& usage =
        event.usage.json().is_object() ? event.usage.json() : answer.mapped().usage;
    count(usage);
    update(answer.mapped().entry, {{"answered_by", field_json(event.llm_model)},
                                   {"cost_micros", usage["cost_micros"]},
                                   {field::usage, usage}});
  }
  if (auto resolution = resolved_.extract(id)) {
    const bool erased = event.result.erased;
    update(resolution.mapped().entry,
           {{"redacted",
             Value::array(erased ? std::vector<Value>{field::result} : std::vector<Value>())},
            {field::result, erased ? Value() : event.result.value}});
  }
}

void Transcript::add_entries(const ToolInvocationFinished& event) {
  const std::string& id = event.step_id.text;
  const std::string& outcome = event.outcome;
  const auto known = calls_.find(event.invocation_id.text);
  const Call call = known == calls_.end() ? Call() : known->second;
  const std::string_view tool = call.tool;
  const bool late = event.late == true;
  Members members{{field::definite, event.definite == true},
                  {field::duration_us, field_json(event.duration_us)},
                  {field::late, late},
                  {field::try_, event.try_no}};
  if (event.error) note_error(id, call.node_id, event.error->code);
  if (is_model(tool)) {
    const Value answer = value(event.result, "text");
    members.emplace_back(field::error, error(event.error));
    const AnswerInfo info{.model = tool, .answer = answer, .outcome = outcome, .late = late};
    return add_answer(id, info, std::move(members));
  }
  const Step* const of = step(id);
  const bool awaits_child = of != nullptr && s_.awaits_child(*of);
  if (awaits_child && !late && outcome == "input_required") return;  // it is created
  // A try to record its end that is tried again.
  if (awaits_child && !late && has_ended_child(of) && !event.external_id) return;
  if (awaits_child && event.external_id) {
    if (const auto started = children_.extract(id)) {
      const Duration took = event_->created_at - started.mapped();
      std::ranges::find(members, field::duration_us, &Member::first)->second =
          Value(std::int64_t{took.count()});
    }
  }
  // Of a refused creation there is no child.
  const bool has_child = awaits_child ? of->call && of->call->questions : outcome == "success";
  members.emplace_back("child", has_child ? child_of_call(of) : Value());
  const Value result = value(event.result, field::result);
  members.emplace_back(field::error, error(event.error));
  members.emplace_back(field::outcome, outcome);
  members.emplace_back(field::result, outcome == "input_required" ? Value() : result);
  members.emplace_back("tool", tool);
  add(field::result, id, std::move(members));
  const Value& requests = result["requests"];
  if (outcome != "input_required" || !requests.is_object()) return;
  for (const auto& [key, request] : requests.members()) {
    add("question", id,
        {{"message", request["message"]},
         {"mode", request["mode"]},
         {"schema", request["schema"]},
         {"tool", tool},
         {"url", request["url"]}});
  }
}

// The refused calls of an answer, and the repair message for an unusable answer.
void Transcript::add_tool_choice(std::string_view step_id, const ToolChoice& choice) {
  const std::string id(step_id);
  const auto found = answers_.find(id);
  const Value answer = found == answers_.end() ? Value() : found->second;
  if (!imported_) answers_.erase(id);
  const Value& requested = answer["tool_calls"];
  std::vector<Value>& ids = call_ids_[id];
  ids.clear();
  for (std::size_t nth = 0; nth < choice.calls.size(); ++nth) {
    const ChosenCall& call = choice.calls[nth];
    ids.push_back(field_json(call.id));
    if (!call.refused) continue;
    const bool known = requested.is_array() && nth < requested.size();
    const Value request = known ? requested.items()[nth] : Value();
    if (answer.is_null()) redacted_.emplace_back(field::arguments);
    if (!call.id) {  // the choice was erased
      for (const char* name : {"call_id", "refused.message", "tool"}) redacted_.emplace_back(name);
    }
    add("tool_call", step_id,
        {{field::arguments,
          request.find("malformed") != nullptr ? request["malformed"] : request[field::arguments]},
         {"call_id", field_json(call.id)},
         {"child", Value()},
         {field::effect_class, Value()},
         {"refused", field_json(call.refused)},
         {"tool", field_json(call.name)},
         {field::try_, Value()}});
  }
  if (choice.repair) {
    const std::string& why = *choice.repair;  // "": erased
    const Value message = repair_message(why);
    if (why.empty()) redacted_.emplace_back("content");
    add("message", step_id,
        {{"content", why.empty() ? Value() : message["content"]},
         {"from", message["role"]},
         {"origin", to_text(MessageOrigin::repair)}});
  }
}

void Transcript::add_recorded_value(RecordedKind records, std::string_view effect_id,
                                    const Erasable& recorded) {
  const auto of = step_of_effect(effect_id, records);
  if (!of) return;
  const Step* recorded_step = step(of->text);
  if (recorded_step != nullptr && !s_.has_tool(*recorded_step)) return;  // a value of code
  const Value result = value(recorded, field::result);
  add(field::result, of->text,
      {{"child", Value()},
       {field::definite, Value()},
       {field::duration_us, Value()},
       {field::error, Value()},
       {field::late, false},
       {field::outcome, "success"},
       {field::result, result},
       {"tool", recorded_step != nullptr ? Value(s_.tool_of(*recorded_step).name)
                                         : Value(to_text(records))},
       {field::try_, Value()}});
}

}  // namespace ae::engine
