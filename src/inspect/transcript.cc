// Transcript: applies each event to the state, then adds the event's entries.
#include "inspect/transcript.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <variant>

#include "engine/heart/recorded_value.h"
#include "engine/loop/loop.h"
#include "engine/state/view_values.h"
#include "inspect/conversation.h"
#include "inspect/field_json.h"
#include "inspect/view.h"
#include "json/json.h"
#include "log/decisions.h"
#include "log/field_names.h"
#include "plan/model_calls.h"

namespace ae::engine {

class Transcript {
 public:
  Transcript(const JobId& job, const TranscriptPage& page, PlanSource plans)
      : page_(page), plans_(std::move(plans)) {
    s_.job = job;
  }
  Status add(const Event& event);
  Value take();

 private:
  using Members = std::vector<Member>;

  void add_event(const Event& event);
  void add(std::string_view kind, std::string_view step_id, Members members);
  // The value; null if it was erased, and then `as` is listed in the entry's `redacted`.
  Value value(const Erasable& field, std::string_view as);
  Value error(const std::optional<RecordedError>& error);
  const Step* step(std::string_view id) const;
  Value call_id_of(const Step* step);

  // Each overload adds the entries of an event of its type.
  void add_entries(const JobCreated& event);
  void add_entries(const PlanGenerated& event);
  void add_entries(const ForkImported& event);
  void add_entries(const ToolInvocationStarted& event);
  void add_entries(const ToolInvocationFinished& event);
  void add_entries(const CommandCommitted& event);
  void add_entries(const DecisionRecorded& event);
  void add_entries(const NodeFinished& event);
  void add_entries(const WaitOpened& event);
  void add_entries(const WaitCompleted& event);
  void add_entries(const AgentMessage& event);
  void add_entries(const TimeRecorded& event) {
    add_recorded_value(RecordedKind::time, event.effect_id, event.value);
  }
  void add_entries(const RandomRecorded& event) {
    add_recorded_value(RecordedKind::random, event.effect_id, event.value);
  }
  void add_entries(const UuidRecorded& event) {
    add_recorded_value(RecordedKind::uuid, event.effect_id, event.value);
  }
  void add_entries(const OutcomeNoted& event);
  void add_entries(const JobCompleted& event);
  void add_entries(const JobFailed& event);
  void add_entries(const JobCancelled& event);
  void add_entries(const auto&) {}

  void add_imported_turn(const ForkImported& fork, const ForkEntry& entry);
  void add_imported_call(const ForkImported& fork, const ForkEntry& entry);
  void add_imported_arguments(const ForkImported& fork, const ForkEntry& entry);
  void add_messages(std::string_view step_id, const Value& arguments);
  void add_request(std::string_view step_id, const Value* arguments, bool first);
  struct AnswerInfo {
    std::string_view model;
    const Value& answer;
    std::string_view outcome = "success";
    bool late = false;
  };
  void add_answer(std::string_view step_id, const AnswerInfo& info, Members more = {});
  void add_tool_choice(std::string_view step_id, const ToolChoice& choice);
  void add_decision(const DecisionRecorded& event, const ToolChosen& chosen);
  // A request for an approval, a denial, an answer.
  template <class Approval>
    requires(Approval::kKind == ApprovalRequested::kKind)
  void add_decision(const DecisionRecorded& event, const Approval& approval);
  void add_decision(const DecisionRecorded& event, const OutcomeDecided&) { add_outcome(event); }
  void add_decision(const DecisionRecorded& event, const ResendDecided&) { add_outcome(event); }
  void add_decision(const DecisionRecorded& event, const BudgetExceeded&) { add_budget(event); }
  void add_decision(const DecisionRecorded& event, const BudgetRaised&) { add_budget(event); }
  void add_decision(const DecisionRecorded&, const auto&) {}
  void add_outcome(const DecisionRecorded& event);
  void add_budget(const DecisionRecorded& event);
  void add_approval_end(const WaitCompleted& event, ApprovalState state);
  void add_recorded_value(RecordedKind records, std::string_view effect_id, const Erasable& value);
  void note_error(std::string_view step_id, const std::string& node_id, std::string_view code);
  void add_end(std::string_view status, Members members);

  // A call; the key in `calls_` is its invocation.
  struct Call {
    std::string step_id, node_id, tool;
  };
  // A success or a resolution whose command_committed has not been read yet.
  struct Uncommitted {
    std::size_t entry;  // its index on the page, or kNotOnPage
    Value usage;        // of an answer: as the answer reports it
  };
  static constexpr std::size_t kNotOnPage = SIZE_MAX;
  void update(std::size_t entry, Members members);
  void count(const Value& usage);

  const TranscriptPage page_;
  const PlanSource plans_;
  State s_;                       // after the current event
  const Event* event_ = nullptr;  // the current event
  std::vector<Value> redacted_;   // of the current entry
  bool imported_ = false;         // the current event imports from another job
  std::vector<Value> entries_;
  std::size_t added_ = kNotOnPage;  // the last entry
  std::size_t bytes_ = 0;           // of all entries
  std::size_t of_event_ = 0;        // entries of the current event on the page
  bool full_ = false, more_ = false;
  std::unordered_map<std::string, Call> calls_;
  std::unordered_map<std::string, Uncommitted> answered_, resolved_;  // by step
  // Answer of a turn, by its step, until the tool choice
  std::unordered_map<std::string, Value> answers_;
  // Ids of a turn's calls, by its step
  std::unordered_map<std::string, std::vector<Value>> call_ids_;
  std::map<std::pair<std::string, std::int64_t>, std::string> turns_;  // step, by node and turn
  // Last error code that an entry has, by step and by "/node"
  std::unordered_map<std::string, std::string> errors_;
  std::unordered_set<std::string> called_;  // steps whose tool was called
  std::uint64_t answers_count_ = 0, tool_calls_ = 0, repeated_ = 0, input_ = 0, output_ = 0,
                total_ = 0;
  std::optional<std::uint64_t> cost_;
};

namespace {

bool is_model(std::string_view tool) { return tool.starts_with(kModelToolPrefix); }
std::string_view model_of(std::string_view tool) { return tool.substr(kModelToolPrefix.size()); }

std::uint64_t positive_or_zero(const Value& value) {
  return value.is_integer() && value.as_int() > 0 ? static_cast<std::uint64_t>(value.as_int()) : 0;
}

// The results that a fork imports; null: erased.
const Value& available_results(const ForkImported& fork) {
  static const Value none{};
  return fork.results.erased ? none : fork.results.value;
}

}  // namespace

// ---------------------------------------------------------------- entries

const Step* Transcript::step(std::string_view id) const {
  const auto found = s_.by_id.find(StepId{std::string(id)});
  return found == s_.by_id.end() ? nullptr : &s_.steps[found->second];
}

void Transcript::add(std::string_view kind, std::string_view step_id, Members members) {
  std::vector<Value> redacted = std::exchange(redacted_, {});
  added_ = kNotOnPage;
  if (event_->seq <= page_.after || more_) return;
  if (full_ && of_event_ == 0) {
    more_ = true;
    return;
  }
  const Step* of = step_id.empty() ? nullptr : step(step_id);
  Value node_id = or_null(node_of(*event_));
  if (of != nullptr && node_id.is_null()) node_id = s_.node_of(*of).id;
  const auto place = [&](std::uint32_t Step::* member, std::uint32_t none) {
    return of != nullptr && of->*member != none ? number(of->*member) : Value();
  };
  members.emplace_back(field::at, to_text(event_->created_at));
  members.emplace_back("imported", imported_);
  members.emplace_back("item", place(&Step::item, kNoItem));
  members.emplace_back(field::kind, kind);
  members.emplace_back(field::node_id, std::move(node_id));
  members.emplace_back("path", of != nullptr ? Value(s_.path_of(*of)) : Value());
  members.emplace_back("redacted", Value::array(std::move(redacted)));
  members.emplace_back("role", of != nullptr ? Value(to_text(of->role)) : Value());
  members.emplace_back("seq", number(event_->seq));
  members.emplace_back(field::step_id, or_null(step_id));
  members.emplace_back("turn", place(&Step::turn, kNoTurn));
  members.emplace_back("turn_call", place(&Step::nth, kNoTurn));
  Value entry = Value::object(std::move(members));
  bytes_ += canonical(entry).size();
  if (bytes_ > page_.bytes_max && entries_.size() > of_event_) {
    entries_.resize(entries_.size() - of_event_);
    more_ = true;
    return;
  }
  added_ = entries_.size();
  entries_.push_back(std::move(entry));
  of_event_++;
  full_ = entries_.size() >= page_.limit || bytes_ >= page_.bytes_max;
}

void Transcript::update(std::size_t entry, Members members) {
  if (entry >= entries_.size()) return;
  Value& changed = entries_[entry];
  for (auto& [name, value] : members) {
    bytes_ += canonical(value).size();
    changed = changed.with(name, std::move(value));
  }
  full_ = full_ || bytes_ >= page_.bytes_max;
}

Value Transcript::value(const Erasable& field, std::string_view as) {
  if (!field.erased) return field.value;
  redacted_.emplace_back(as);
  return {};
}

Value Transcript::error(const std::optional<RecordedError>& error) {
  if (!error || !error->message.erased) return field_json(error);
  redacted_.emplace_back("error.message");
  return field_json(error).with("message", Value());
}

// ---------------------------------------------------------------- job, plans, origin

void Transcript::add_entries(const JobCreated& event) {
  add(field::input, {}, {{field::input, value(event.input, field::input)}});
}

void Transcript::add_entries(const PlanGenerated& event) {
  if (event_->seq == 2) return;
  std::vector<Value> nodes;
  const Value& graph = event.task_graph["nodes"];
  for (std::size_t i = 0; graph.is_array() && i < graph.size(); ++i) {
    nodes.push_back(graph.items()[i]["id"]);
  }
  add("plan", {},
      {{"nodes", Value::array(std::move(nodes))},
       {"plan_number", number(s_.plan_number)},
       {field::planned_by, field_json(event.planned_by)}});
}

void Transcript::add_entries(const ForkImported& event) {
  const auto entries = record_list_from_json<ForkEntry>(event.commands);
  if (!entries) return;
  imported_ = true;
  for (const ForkEntry& entry : *entries) {
    if (entry.turn && !entry.turn_call) {
      add_imported_turn(event, entry);
    } else {
      add_imported_call(event, entry);
    }
  }
  imported_ = false;
  answers_.clear();
}

void Transcript::add_imported_turn(const ForkImported& fork, const ForkEntry& entry) {
  const std::string id = entry.step_id.text;
  const Value none{};
  const bool erased = fork.results.erased;
  const Value& results = available_results(fork);
  const Value& arguments = results[id + "/arguments"];
  const Value* answer = erased ? &none : results.find(id);
  if (answer == nullptr || (!erased && !arguments.is_object())) return;
  turns_[{entry.node_id, *entry.turn}] = id;
  add_request(id, erased ? nullptr : &arguments, *entry.turn == 0);
  if (erased) redacted_.emplace_back("text");
  add_answer(id, {.model = or_empty(entry.tool), .answer = *answer});
  if (entry.choice) add_tool_choice(id, *entry.choice);
}

void Transcript::add_imported_call(const ForkImported& fork, const ForkEntry& entry) {
  const std::string id = entry.step_id.text;
  const Value none{};
  const bool erased = fork.results.erased && entry.tool;
  const Value* result = erased ? &none : available_results(fork).find(id);
  if (entry.skipped == true || result == nullptr || entry.over == true) return;
  const std::string_view tool = or_empty(entry.tool);
  const Value& failure = (*result)[field::error];
  const bool failed = result->is_object() && result->size() == 1 && failure.is_object() &&
                      entry.result_type && entry.result_type->ends_with("failure");
  if (is_model(tool) && !failed) {
    if (erased) redacted_.emplace_back("text");
    return add_answer(id, {.model = tool, .answer = *result});
  }
  if (entry.turn && entry.turn_call) add_imported_arguments(fork, entry);
  if (erased) redacted_.emplace_back(field::result);
  add(field::result, id,
      {{field::definite, Value()},
       {field::duration_us, Value()},
       {field::error, failed ? failure : Value()},
       {field::late, false},
       {field::outcome, failed ? "failure" : "success"},
       {field::result, failed ? Value() : *result},
       {"tool", or_null(tool)},
       {field::try_, Value()}});
}

// The arguments of a loop's call: from the answer of its turn, or as edited by an approval.
void Transcript::add_imported_arguments(const ForkImported& fork, const ForkEntry& entry) {
  const std::string id = entry.step_id.text;
  const auto turn = turns_.find({entry.node_id, *entry.turn});
  const Value none{};
  const Value& calls = turn == turns_.end() ? none : answers_[turn->second]["tool_calls"];
  const auto nth = static_cast<std::size_t>(*entry.turn_call);
  const Value call = calls.is_array() && nth < calls.size() ? calls.items()[nth] : Value();
  const Value* edited = available_results(fork).find(id + "/edited");
  if (fork.results.erased) {
    for (const char* name : {field::arguments, "call_id"}) redacted_.emplace_back(name);
  }
  add("tool_call", id,
      {{field::arguments, edited != nullptr ? *edited : call[field::arguments]},
       {"call_id", call["id"]},
       {field::effect_class, Value()},
       {"refused", Value()},
       {"tool", field_json(entry.tool)},
       {field::try_, Value()}});
}

// ---------------------------------------------------------------- calls

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

void Transcript::add_entries(const ToolInvocationStarted& event) {
  const std::string& id = event.step_id.text;
  const std::string& tool = event.tool_name;
  calls_.try_emplace(event.invocation_id.text, Call{id, event.node_id, tool});
  if (!is_model(tool)) {
    tool_calls_++;
    if (!called_.insert(id).second) repeated_++;
    const Value arguments = value(event.arguments, field::arguments);
    return add("tool_call", id,
               {{field::arguments, arguments},
                {"call_id", call_id_of(step(id))},
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
    const Value& usage = event.usage.is_object() ? event.usage : answer.mapped().usage;
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
  const Value result = value(recorded, field::result);
  add(field::result, of->text,
      {{field::definite, Value()},
       {field::duration_us, Value()},
       {field::error, Value()},
       {field::late, false},
       {field::outcome, "success"},
       {field::result, result},
       {"tool", recorded_step != nullptr ? Value(s_.tool_of(*recorded_step).name)
                                         : Value(to_text(records))},
       {field::try_, Value()}});
}

// ---------------------------------------------------------------- decisions and waits

template <class Approval>
  requires(Approval::kKind == ApprovalRequested::kKind)
void Transcript::add_decision(const DecisionRecorded& event, const Approval& approval) {
  if (approval.erased) redacted_.emplace_back(field::arguments);
  Value arguments, expires_at;
  if constexpr (requires { approval.arguments; }) arguments = approval.arguments;
  if constexpr (requires { approval.expires_at; }) expires_at = field_json(approval.expires_at);
  add("approval", step_of(*event_),
      {{field::arguments, arguments},
       {field::by, field_json(event.by)},
       {field::expires_at, expires_at},
       {field::note, field_json(event.reason)},
       {field::state, or_empty(event.state)},
       {"tool", or_null(approval.tool)}});
}

void Transcript::add_approval_end(const WaitCompleted& event, ApprovalState state) {
  add("approval", event.step_id.text,
      {{field::arguments, Value()},
       {field::by, field_json(event.by)},
       {field::expires_at, Value()},
       {field::note, Value()},
       {field::state, to_text(state)},
       {"tool", Value()}});
}

void Transcript::add_entries(const DecisionRecorded& event) {
  const auto decision = decision_body(event);
  if (!decision) return;
  std::visit([&](const auto& body) { add_decision(event, body); }, *decision);
}

// The loop's decision about the answer of a turn.
void Transcript::add_decision(const DecisionRecorded&, const ToolChosen& chosen) {
  const auto call = calls_.find(chosen.choice.of.text);
  if (call != calls_.end()) add_tool_choice(call->second.step_id, chosen.choice);
}

void Transcript::add_budget(const DecisionRecorded& event) {
  const Value payload = value(event.payload, field::payload);
  add(field::budget, step_of(*event_),
      {{field::by, field_json(event.by)},
       {field::note, field_json(event.reason)},
       {field::payload, payload},
       {field::state, field_json(event.state)}});
}

void Transcript::add_outcome(const DecisionRecorded& event) {
  const std::string id(step_of(*event_));
  add(field::resolution, id,
      {{field::by, field_json(event.by)},
       {field::note, field_json(event.reason)},
       {field::resolution, field_json(event.state)},
       {field::result, Value()}});
  if (event.state == "happened") resolved_[id] = {added_, {}};
}

void Transcript::add_entries(const OutcomeNoted& event) {
  const Value result = value(event.result, field::result);
  const Value note = value(event.note, field::note);
  add(field::resolution, event.step_id.text,
      {{field::result, result},
       {field::by, field_json(event.by)},
       {field::note, note},
       {field::resolution, event.resolution}});
}

void Transcript::note_error(std::string_view step_id, const std::string& node_id,
                            std::string_view code) {
  errors_[std::string(step_id)] = code;
  errors_["/" + node_id] = code;
}

void Transcript::add_entries(const NodeFinished& event) {
  const std::string& id = event.step_id.text;
  if (event.skipped == true) return add(field::skipped, id, {});
  if (!event.error) return;
  // Maps and loops fail with the error of a part.
  const Step* of = step(id);
  const bool part = of != nullptr && of->is_part();
  const std::string known = errors_[part ? id : "/" + event.node_id];
  note_error(id, event.node_id, event.error->code);
  if (known == event.error->code) return;
  const Value failure = error(event.error);
  add("failed", id, {{field::error, failure}});
}

void Transcript::add_entries(const WaitOpened& event) {
  const std::string& key = event.correlation_key;
  for (const char* ours : {"approval/", "resolve/", "input/"}) {
    if (key.starts_with(ours)) return;  // covered by other entries
  }
  add("wait", event.step_id.text,
      {{field::channel, field_json(event.channel)},
       {field::correlation_key, key},
       {field::due_at, field_json(event.due_at)},
       {field::expires_at, field_json(event.expires_at)},
       {field::wait_type, event.wait_type}});
}

void Transcript::add_entries(const WaitCompleted& event) {
  const std::string& key = event.correlation_key;
  if (key.starts_with("resolve/")) return;
  if (key.starts_with("approval/")) {
    if (event.outcome == "timed_out") return add_approval_end(event, ApprovalState::expired);
    if (event.outcome == "cancelled") return add_approval_end(event, ApprovalState::withdrawn);
    return;
  }
  const Value payload = value(event.payload, field::payload);
  add("reply", event.step_id.text,
      {{field::by, field_json(event.by)},
       {field::correlation_key, key},
       {field::outcome, event.outcome},
       {field::payload, payload},
       {field::wait_type, event.wait_type}});
}

void Transcript::add_entries(const AgentMessage& event) {
  const Value payload = value(event.payload, field::payload);
  add("received", {},
      {{field::payload, payload},
       {field::by, field_json(event.by)},
       {field::channel, or_null(event.channel)},
       {field::correlation_key, field_json(event.correlation_key)}});
}

// `members`: the present ones of by, error, reason and result.
void Transcript::add_end(std::string_view status, Members members) {
  for (const char* name : {field::by, field::error, field::reason, field::result}) {
    if (std::ranges::find(members, name, &Member::first) == members.end()) {
      members.emplace_back(name, Value());
    }
  }
  members.emplace_back("status", status);
  add("end", {}, std::move(members));
}

void Transcript::add_entries(const JobCompleted& event) {
  add_end("completed", {{field::result, value(event.result, field::result)}});
}

void Transcript::add_entries(const JobFailed& event) {
  const Value message = value(event.error, "error.message");
  add_end("failed",
          {{field::error, Value::object({{field::code, event.code}, {"message", message}})}});
}

void Transcript::add_entries(const JobCancelled& event) {
  add_end("cancelled",
          {{field::by, field_json(event.by)}, {field::reason, field_json(event.reason)}});
}

// ---------------------------------------------------------------- dispatch

void Transcript::add_event(const Event& event) {
  event_ = &event;
  of_event_ = 0;
  redacted_.clear();
  std::visit([this](const auto& body) { add_entries(body); }, event.body);
}

Status Transcript::add(const Event& event) {
  AE_TRY(apply(s_, event, plans_));
  add_event(event);
  return {};
}

Value Transcript::take() {
  for (const auto& [step_id, answer] : std::exchange(answered_, {})) count(answer.usage);
  const Value job = job_view(s_);
  const Value next = more_ ? entries_.back()["seq"] : Value();
  return Value::object({{field::agent, s_.agent},
                        {"ended", is_terminal(s_.status)},
                        {"entries", Value::array(std::move(entries_))},
                        {field::error, job[field::error]},
                        {field::forked_from, s_.forked_from},
                        {"id", s_.job.text},
                        {"next", next},
                        {"seq", number(s_.seq)},
                        {"status", to_text(s_.status)},
                        {"totals", Value::object({{"answers", number(answers_count_)},
                                                  {"cost_micros", cost_ ? number(*cost_) : Value()},
                                                  {"input_tokens", number(input_)},
                                                  {"output_tokens", number(output_)},
                                                  {"repeated", number(repeated_)},
                                                  {"tool_calls", number(tool_calls_)},
                                                  {"total_tokens", number(total_)}})}});
}

TranscriptBuilder::TranscriptBuilder(const JobId& job, const TranscriptPage& page, PlanSource plans)
    : transcript_(std::make_unique<Transcript>(job, page, std::move(plans))) {}
TranscriptBuilder::~TranscriptBuilder() = default;
Status TranscriptBuilder::add(const Event& event) { return transcript_->add(event); }
Value TranscriptBuilder::take() && { return transcript_->take(); }

}  // namespace ae::engine
