// Each event is applied to the state, then adds its entries.
#include "engine/transcript.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "core/json.h"
#include "core/redacted.h"
#include "engine/applier.h"
#include "engine/loop.h"
#include "engine/model_calls.h"
#include "engine/recorded_value.h"
#include "engine/view.h"
#include "engine/view_values.h"

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

  void take(const Event& event);
  void add(std::string_view kind, std::string_view step_id, Members members);
  // A value field of the event; null when it was erased, and then the entry names it as `as`.
  Value value(std::string_view field, std::string_view as);
  Value error();
  const Step* step(std::string_view id) const;
  Value call_id_of(const Step* step);

  void created();
  void planned();
  void imported();
  void imported_turn(const Value& entry, const Value& results);
  void imported_call(const Value& entry, const Value& results);
  void imported_arguments(const Value& entry, const Value& results);
  void started();
  void finished();
  void messages(std::string_view step_id, const Value& arguments);
  void sent(std::string_view step_id, const Value* arguments, bool first);
  struct Answer {
    std::string_view model;
    const Value& answer;
    std::string_view outcome = "success";
    bool late = false;
  };
  void answered(std::string_view step_id, const Answer& got, Members more = {});
  void chosen(std::string_view step_id, const Value& choice);
  void decided();
  void approval(std::string_view state);
  void recorded(Records records);
  void committed();
  void note_error(std::string_view step_id, const std::string& node_id, std::string_view code);
  void node_finished();
  void wait_opened();
  void wait_completed();
  void ended(std::string_view status);

  // A call, by its invocation.
  struct Call {
    std::string step_id, node_id, tool;
  };
  // A success or a resolution whose command_committed has not come yet.
  struct Uncommitted {
    std::size_t entry;  // its index on the page, or kNotOnPage
    Value usage;        // of an answer: as the answer has it
  };
  static constexpr std::size_t kNotOnPage = SIZE_MAX;
  void change(std::size_t entry, Members members);
  void count(const Value& usage);

  const TranscriptPage page_;
  const PlanSource plans_;
  State s_;                       // after the event that is taken
  const Event* event_ = nullptr;  // that is taken
  std::vector<Value> redacted_;   // of the entry that is made
  bool imported_ = false;         // so it is of another job
  std::vector<Value> entries_;
  std::size_t added_ = kNotOnPage;  // the entry that was made last
  std::size_t bytes_ = 0;           // of the entries
  std::size_t of_event_ = 0;        // entries of this event that are on the page
  bool full_ = false, more_ = false;
  std::unordered_map<std::string, Call> calls_;
  std::unordered_map<std::string, Uncommitted> answered_, resolved_;  // by step
  std::unordered_map<std::string, Value>
      answers_;  // of a turn's step: its answer, until the choice
  std::unordered_map<std::string, std::vector<Value>> call_ids_;  // of a turn's step: its calls
  std::map<std::pair<std::string, std::int64_t>, std::string> turns_;  // node and turn: the step
  std::unordered_map<std::string, std::string>
      errors_;  // codes, by step and by "/node": the newest that an entry has
  std::unordered_set<std::string> called_;  // steps whose tool was called
  std::uint64_t answers_count_ = 0, tool_calls_ = 0, repeated_ = 0, input_ = 0, output_ = 0,
                total_ = 0;
  std::optional<std::uint64_t> cost_;
};

namespace {

bool is_model(std::string_view tool) { return tool.starts_with(kModelToolPrefix); }
std::string_view model_of(std::string_view tool) { return tool.substr(kModelToolPrefix.size()); }

std::uint64_t positive_of(const Value& value) {
  return value.is_integer() && value.as_int() > 0 ? static_cast<std::uint64_t>(value.as_int()) : 0;
}

std::string node_name(const Value& node_id) {
  return node_id.is_string() ? node_id.as_string() : std::string();
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
  Value node_id = event_->payload["node_id"];
  if (of != nullptr && node_id.is_null()) node_id = s_.node_of(*of).id;
  const auto place = [&](std::uint32_t Step::* member, std::uint32_t none) {
    return of != nullptr && of->*member != none ? number(of->*member) : Value();
  };
  members.emplace_back("at", to_text(event_->created_at));
  members.emplace_back("imported", imported_);
  members.emplace_back("item", place(&Step::item, kNoItem));
  members.emplace_back("kind", kind);
  members.emplace_back("node_id", std::move(node_id));
  members.emplace_back("path", of != nullptr ? Value(s_.path_of(*of)) : Value());
  members.emplace_back("redacted", Value::array(std::move(redacted)));
  members.emplace_back("role", of != nullptr ? Value(to_text(of->role)) : Value());
  members.emplace_back("seq", number(event_->seq));
  members.emplace_back("step_id", or_null(step_id));
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

void Transcript::change(std::size_t entry, Members members) {
  if (entry >= entries_.size()) return;
  Value& changed = entries_[entry];
  for (auto& [name, value] : members) {
    bytes_ += canonical(value).size();
    changed = changed.with(name, std::move(value));
  }
  full_ = full_ || bytes_ >= page_.bytes_max;
}

Value Transcript::value(std::string_view field, std::string_view as) {
  if (!is_erased(*event_, field)) return event_->payload[field];
  redacted_.emplace_back(as);
  return {};
}

Value Transcript::error() {
  const Value& error = event_->payload["error"];
  if (!is_erased(*event_, "error")) return error;
  redacted_.emplace_back("error.message");
  return error.with("message", Value());
}

// ---------------------------------------------------------------- the job, its plans, its origin

void Transcript::created() { add("input", {}, {{"input", value("input", "input")}}); }

void Transcript::planned() {
  if (event_->seq == 2) return;
  std::vector<Value> nodes;
  const Value& graph = event_->payload["task_graph"]["nodes"];
  for (std::size_t i = 0; graph.is_array() && i < graph.size(); ++i) {
    nodes.push_back(graph.items()[i]["id"]);
  }
  add("plan", {},
      {{"nodes", Value::array(std::move(nodes))},
       {"plan_number", number(s_.plan_number)},
       {"planned_by", event_->payload["planned_by"]}});
}

void Transcript::imported() {
  const Value& commands = event_->payload["commands"];
  const Value none{};
  const bool erased = is_erased(*event_, "results");
  const Value& results = erased ? none : event_->payload["results"];
  imported_ = true;
  for (std::size_t i = 0; commands.is_array() && i < commands.size(); ++i) {
    const Value& entry = commands.items()[i];
    if (entry["turn"].is_integer() && entry["turn_call"].is_null()) {
      imported_turn(entry, results);
    } else {
      imported_call(entry, results);
    }
  }
  imported_ = false;
  answers_.clear();
}

void Transcript::imported_turn(const Value& entry, const Value& results) {
  const std::string id(entry.text("step_id"));
  const Value none{};
  const bool erased = is_erased(*event_, "results");
  const Value& arguments = results[id + "/arguments"];
  const Value* answer = erased ? &none : results.find(id);
  if (answer == nullptr || (!erased && !arguments.is_object())) return;
  const std::int64_t turn = entry["turn"].as_int();
  turns_[{node_name(entry["node_id"]), turn}] = id;
  sent(id, erased ? nullptr : &arguments, turn == 0);
  if (erased) redacted_.emplace_back("text");
  answered(id, {.model = entry.text("tool"), .answer = *answer});
  chosen(id, entry["choice"]);
}

void Transcript::imported_call(const Value& entry, const Value& results) {
  const std::string id(entry.text("step_id"));
  const Value none{};
  const bool erased = is_erased(*event_, "results") && entry["tool"].is_string();
  const Value* given = erased ? &none : results.find(id);
  if (entry["skipped"] == Value(true) || given == nullptr || entry["over"] == Value(true)) return;
  const std::string_view tool = entry.text("tool");
  const Value& failure = (*given)["error"];
  const bool failed = given->is_object() && given->size() == 1 && failure.is_object() &&
                      entry.text("result_type").ends_with("failure");
  if (is_model(tool) && !failed) {
    if (erased) redacted_.emplace_back("text");
    return answered(id, {.model = tool, .answer = *given});
  }
  if (entry["turn_call"].is_integer()) imported_arguments(entry, results);
  if (erased) redacted_.emplace_back("result");
  add("result", id,
      {{"definite", Value()},
       {"duration_us", Value()},
       {"error", failed ? failure : Value()},
       {"late", false},
       {"outcome", failed ? "failure" : "success"},
       {"result", failed ? Value() : *given},
       {"tool", or_null(tool)},
       {"try", Value()}});
}

// The arguments of a loop's call: as in the answer of its turn, or as an approval edited them.
void Transcript::imported_arguments(const Value& entry, const Value& results) {
  const std::string id(entry.text("step_id"));
  const auto turn = turns_.find({node_name(entry["node_id"]), entry["turn"].as_int()});
  const Value none{};
  const Value& calls = turn == turns_.end() ? none : answers_[turn->second]["tool_calls"];
  const auto nth = static_cast<std::size_t>(entry["turn_call"].as_int());
  const Value call = calls.is_array() && nth < calls.size() ? calls.items()[nth] : Value();
  const Value* edited = results.find(id + "/edited");
  if (is_erased(*event_, "results")) {
    for (const char* name : {"arguments", "call_id"}) redacted_.emplace_back(name);
  }
  add("tool_call", id,
      {{"arguments", edited != nullptr ? *edited : call["arguments"]},
       {"call_id", call["id"]},
       {"effect_class", Value()},
       {"refused", Value()},
       {"tool", or_null(entry.text("tool"))},
       {"try", Value()}});
}

// ---------------------------------------------------------------- calls

// The messages of a model call that no earlier entry has: the prompt, and what is left of the budget.
void Transcript::messages(std::string_view step_id, const Value& arguments) {
  const auto add_message = [&](const Value& message, std::string_view origin) {
    add("message", step_id,
        {{"content", message["content"]}, {"from", message["role"]}, {"origin", origin}});
  };
  const Value& prompt = arguments["messages"];
  for (std::size_t i = 0; prompt.is_array() && i < prompt.size(); ++i) {
    add_message(prompt.items()[i], "prompt");
  }
  if (arguments["notice"].is_object()) add_message(notice_message(arguments["notice"]), "budget");
}

// The arguments of a model's call; nullptr: they were erased. `first`: they hold the prompt; those of a later turn hold at most
// a notice.
void Transcript::sent(std::string_view step_id, const Value* arguments, bool first) {
  if (arguments != nullptr) return messages(step_id, *arguments);
  if (!first) return;
  redacted_.emplace_back("content");
  add("message", step_id, {{"content", Value()}, {"from", "user"}, {"origin", "prompt"}});
}

void Transcript::started() {
  const Value& p = event_->payload;
  const std::string_view id = p.text("step_id"), tool = p.text("tool_name");
  calls_.try_emplace(std::string(p.text("invocation_id")),
                     Call{std::string(id), node_name(p["node_id"]), std::string(tool)});
  if (!is_model(tool)) {
    tool_calls_++;
    if (!called_.insert(std::string(id)).second) repeated_++;
    const Value arguments = value("arguments", "arguments");
    return add("tool_call", id,
               {{"arguments", arguments},
                {"call_id", call_id_of(step(id))},
                {"effect_class", p["effect_class"]},
                {"refused", Value()},
                {"tool", tool},
                {"try", p["try"]}});
  }
  const Step* of = step(id);
  const bool turn = of != nullptr && of->is_turn();
  if (turn) turns_[{node_name(p["node_id"]), of->turn}] = id;
  const Value* const arguments = is_erased(*event_, "arguments") ? nullptr : &p["arguments"];
  if (p["try"] == Value(1)) sent(id, arguments, !turn || of->turn == 0);
  add("model_call", id, {{"model", model_of(tool)}, {"try", p["try"]}});
}

// The id that the model gave a call of its answer.
Value Transcript::call_id_of(const Step* of) {
  if (of == nullptr || !of->is_loop_call()) return {};
  const auto turn = turns_.find({s_.node_of(*of).id, of->turn});
  const auto choice = turn == turns_.end() ? call_ids_.end() : call_ids_.find(turn->second);
  if (choice == call_ids_.end() || of->nth >= choice->second.size()) return {};
  const Value& id = choice->second[of->nth];
  if (id.is_null()) redacted_.emplace_back("call_id");  // of an erased choice
  return id;
}

void Transcript::count(const Value& usage) {
  const std::uint64_t in = positive_of(usage["input_tokens"]);
  const std::uint64_t out = positive_of(usage["output_tokens"]);
  const std::uint64_t both = positive_of(usage["total_tokens"]);
  answers_count_++;
  input_ += in;
  output_ += out;
  total_ += both != 0 ? both : in + out;
  if (usage["cost_micros"].is_integer()) {
    cost_ = cost_.value_or(0) + positive_of(usage["cost_micros"]);
  }
}

void Transcript::answered(std::string_view step_id, const Answer& got, Members more) {
  const Value& answer = got.answer;
  const bool ok = got.outcome == "success";
  const Step* const of = step(step_id);
  Value usage = ok ? answer["usage"] : Value();
  if (ok && got.late) {  // it is not committed
    if (of != nullptr) usage = priced(s_.tool_of(*of), std::move(usage));
    count(usage);
  }
  if (ok && !got.late && of != nullptr && of->is_turn()) answers_[std::string(step_id)] = answer;
  if (imported_) {
    for (const char* name : {"definite", "duration_us", "error", "try"}) {
      more.emplace_back(name, Value());
    }
    more.emplace_back("late", false);
  }
  more.emplace_back("answered_by", ok && got.late ? answer["model"] : Value());
  more.emplace_back("cost_micros", usage["cost_micros"]);
  more.emplace_back("finish_reason", answer["finish_reason"]);
  more.emplace_back("model", is_model(got.model) ? Value(model_of(got.model)) : Value());
  more.emplace_back("outcome", got.outcome);
  more.emplace_back("refusal", answer["refusal"]);
  more.emplace_back("text", answer["text"]);
  more.emplace_back("tool_calls", answer["tool_calls"]);
  more.emplace_back("usage", usage);
  add("answer", step_id, std::move(more));
  if (ok && !got.late && !imported_) answered_[std::string(step_id)] = {added_, std::move(usage)};
}

// An answer's model and usage are here, and the result of a call that a person or a probe resolved.
void Transcript::committed() {
  const Value& p = event_->payload;
  const std::string id(p.text("step_id"));
  if (auto answer = answered_.extract(id)) {
    const bool counted = p["usage"].is_object();
    const Value& usage = counted ? p["usage"] : answer.mapped().usage;
    count(usage);
    change(
        answer.mapped().entry,
        {{"answered_by", p["llm_model"]}, {"cost_micros", usage["cost_micros"]}, {"usage", usage}});
  }
  if (auto resolution = resolved_.extract(id)) {
    const bool erased = is_erased(*event_, "result");
    change(
        resolution.mapped().entry,
        {{"redacted", Value::array(erased ? std::vector<Value>{"result"} : std::vector<Value>())},
         {"result", erased ? Value() : p["result"]}});
  }
}

void Transcript::finished() {
  const Value& p = event_->payload;
  const std::string_view id = p.text("step_id"), outcome = p.text("outcome");
  const auto known = calls_.find(std::string(p.text("invocation_id")));
  const Call call = known == calls_.end() ? Call() : known->second;
  const std::string_view tool = call.tool;
  Members members{{"definite", flag(p, "definite")},
                  {"duration_us", p["duration_us"]},
                  {"late", flag(p, "late")},
                  {"try", p["try"]}};
  if (!p["error"].is_null()) note_error(id, call.node_id, p["error"].text("code"));
  if (is_model(tool)) {
    const Value answer = value("result", "text");
    members.emplace_back("error", error());
    const Answer got{.model = tool, .answer = answer, .outcome = outcome, .late = flag(p, "late")};
    return answered(id, got, std::move(members));
  }
  const Value result = value("result", "result");
  members.emplace_back("error", error());
  members.emplace_back("outcome", outcome);
  members.emplace_back("result", outcome == "input_required" ? Value() : result);
  members.emplace_back("tool", tool);
  add("result", id, std::move(members));
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

// The calls of an answer that are refused, and the repair of an answer that cannot be used.
void Transcript::chosen(std::string_view step_id, const Value& choice) {
  if (!choice.is_object()) return;
  const std::string id(step_id);
  const Value& calls = choice["calls"];
  const auto kept = answers_.find(id);
  const Value answer = kept == answers_.end() ? Value() : kept->second;
  if (!imported_) answers_.erase(id);
  const Value& requested = answer["tool_calls"];
  std::vector<Value>& ids = call_ids_[id];
  ids.clear();
  for (std::size_t nth = 0; calls.is_array() && nth < calls.size(); ++nth) {
    const Value& call = calls.items()[nth];
    ids.push_back(call["id"]);
    if (call["refused"].is_null()) continue;
    const bool known = requested.is_array() && nth < requested.size();
    const Value wanted = known ? requested.items()[nth] : Value();
    if (answer.is_null()) redacted_.emplace_back("arguments");
    if (call["id"].is_null()) {  // of an erased choice, see left_of
      for (const char* name : {"call_id", "refused.message", "tool"}) redacted_.emplace_back(name);
    }
    add("tool_call", step_id,
        {{"arguments",
          wanted.find("malformed") != nullptr ? wanted["malformed"] : wanted["arguments"]},
         {"call_id", call["id"]},
         {"effect_class", Value()},
         {"refused", call["refused"]},
         {"tool", call["name"]},
         {"try", Value()}});
  }
  if (choice["repair"].is_string()) {
    const std::string& why = choice["repair"].as_string();  // "": erased
    const Value message = repair_message(why);
    if (why.empty()) redacted_.emplace_back("content");
    add("message", step_id,
        {{"content", why.empty() ? Value() : message["content"]},
         {"from", message["role"]},
         {"origin", "repair"}});
  }
}

void Transcript::recorded(Records records) {
  const auto of = step_of_effect(event_->payload.text("effect_id"), records);
  if (!of) return;
  const Step* made = step(of->text);
  const Value given = value("value", "result");
  add("result", of->text,
      {{"definite", Value()},
       {"duration_us", Value()},
       {"error", Value()},
       {"late", false},
       {"outcome", "success"},
       {"result", given},
       {"tool", made != nullptr ? Value(s_.tool_of(*made).name) : Value(to_text(records))},
       {"try", Value()}});
}

// ---------------------------------------------------------------- decisions and waits

void Transcript::approval(std::string_view state) {
  const Value& p = event_->payload;
  const bool waited = event_->type == EventType::wait_completed;
  const bool erased = !waited && is_erased(*event_, "payload");
  if (erased) redacted_.emplace_back("arguments");
  const Value& payload = erased ? p["payload"]["left"] : p["payload"];
  add("approval", p.text("step_id"),
      {{"arguments", erased || waited ? Value() : payload["arguments"]},
       {"by", p["by"]},
       {"expires_at", waited ? Value() : payload["expires_at"]},
       {"note", p["reason"]},
       {"state", state},
       {"tool", waited ? Value() : payload["tool"]}});
}

void Transcript::decided() {
  const Value& p = event_->payload;
  const std::string_view kind = p.text("kind"), id = p.text("step_id");
  if (kind == "tool_choice") {  // a decision of the loop, about the answer of a turn
    const bool erased = is_erased(*event_, "payload");
    const Value& choice = erased ? p["payload"]["left"] : p["payload"];
    const auto call = calls_.find(std::string(choice.text("of")));
    return call == calls_.end() ? void() : chosen(call->second.step_id, choice);
  }
  if (kind == "approval") return approval(p.text("state"));
  if (kind == "budget") {
    const Value payload = value("payload", "payload");
    return add(
        "budget", id,
        {{"by", p["by"]}, {"note", p["reason"]}, {"payload", payload}, {"state", p["state"]}});
  }
  if (kind != "in_doubt") return;
  add("resolution", id,
      {{"by", p["by"]}, {"note", p["reason"]}, {"resolution", p["state"]}, {"result", Value()}});
  if (p.text("state") == "happened") resolved_[std::string(id)] = {added_, {}};
}

void Transcript::note_error(std::string_view step_id, const std::string& node_id,
                            std::string_view code) {
  errors_[std::string(step_id)] = code;
  errors_["/" + node_id] = code;
}

void Transcript::node_finished() {
  const Value& p = event_->payload;
  if (flag(p, "skipped")) return add("skipped", p.text("step_id"), {});
  if (p["error"].is_null()) return;
  // A map and a loop fail with the error of a part.
  const std::string_view id = p.text("step_id");
  const Step* of = step(id);
  const bool part = of != nullptr && of->is_part();
  const std::string known = errors_[part ? std::string(id) : "/" + node_name(p["node_id"])];
  note_error(id, node_name(p["node_id"]), p["error"].text("code"));
  if (known == p["error"].text("code")) return;
  const Value failure = error();
  add("failed", id, {{"error", failure}});
}

void Transcript::wait_opened() {
  const Value& p = event_->payload;
  const std::string_view key = p.text("correlation_key");
  for (const char* ours : {"approval/", "resolve/", "input/"}) {
    if (key.starts_with(ours)) return;  // other entries have them
  }
  add("wait", p.text("step_id"),
      {{"channel", p["channel"]},
       {"correlation_key", key},
       {"due_at", p["due_at"]},
       {"expires_at", p["expires_at"]},
       {"wait_type", p["wait_type"]}});
}

void Transcript::wait_completed() {
  const Value& p = event_->payload;
  const std::string_view key = p.text("correlation_key"), outcome = p.text("outcome");
  if (key.starts_with("resolve/")) return;
  if (key.starts_with("approval/")) {
    if (outcome == "timed_out") return approval("expired");
    if (outcome == "cancelled") return approval("withdrawn");
    return;
  }
  const Value payload = value("payload", "payload");
  add("reply", p.text("step_id"),
      {{"by", p["by"]},
       {"correlation_key", key},
       {"outcome", outcome},
       {"payload", payload},
       {"wait_type", p["wait_type"]}});
}

void Transcript::ended(std::string_view status) {
  const Value& p = event_->payload;
  Value error;
  if (status == "failed") {
    const Value message = value("error", "error.message");
    error = Value::object({{"code", p["code"]}, {"message", message}});
  }
  const Value result = status == "completed" ? value("result", "result") : Value();
  add("end", {},
      {{"by", p["by"]},
       {"error", error},
       {"reason", p["reason"]},
       {"result", result},
       {"status", status}});
}

// ---------------------------------------------------------------- the walk

void Transcript::take(const Event& event) {
  event_ = &event;
  of_event_ = 0;
  redacted_.clear();
  const Value& p = event.payload;
  if (const Records records = records_of(event.type); records != Records::nothing) {
    return recorded(records);
  }
  switch (event.type) {
    case EventType::job_created:
      return created();
    case EventType::plan_generated:
      return planned();
    case EventType::fork_imported:
      return imported();
    case EventType::tool_invocation_started:
      return started();
    case EventType::tool_invocation_finished:
      return finished();
    case EventType::command_committed:
      return committed();
    case EventType::decision_recorded:
      return decided();
    case EventType::node_finished:
      return node_finished();
    case EventType::wait_opened:
      return wait_opened();
    case EventType::wait_completed:
      return wait_completed();
    case EventType::agent_message:
      return add("received", {},
                 {{"payload", value("payload", "payload")},
                  {"by", p["by"]},
                  {"channel", or_null(p.text("channel"))},
                  {"correlation_key", p["correlation_key"]}});
    case EventType::outcome_noted:
      return add("resolution", p.text("step_id"),
                 {{"result", value("result", "result")},
                  {"by", p["by"]},
                  {"note", value("note", "note")},
                  {"resolution", p["resolution"]}});
    case EventType::job_completed:
      return ended("completed");
    case EventType::job_failed:
      return ended("failed");
    case EventType::job_cancelled:
      return ended("cancelled");
    default:
      return;
  }
}

Status Transcript::add(const Event& event) {
  AE_TRY(apply(s_, event, plans_));
  take(event);
  return {};
}

Value Transcript::take() {
  for (const auto& [step_id, answer] : std::exchange(answered_, {})) count(answer.usage);
  const Value job = job_view(s_);
  const Value next = more_ ? entries_.back()["seq"] : Value();
  return Value::object({{"agent", s_.agent},
                        {"ended", is_terminal(s_.status)},
                        {"entries", Value::array(std::move(entries_))},
                        {"error", job["error"]},
                        {"forked_from", s_.forked_from},
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

Transcribing::Transcribing(const JobId& job, const TranscriptPage& page, PlanSource plans)
    : transcript_(std::make_unique<Transcript>(job, page, std::move(plans))) {}
Transcribing::~Transcribing() = default;
Status Transcribing::add(const Event& event) { return transcript_->add(event); }
Value Transcribing::take() && { return transcript_->take(); }

}  // namespace ae::engine
