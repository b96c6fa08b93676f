// Transcript: the page and its entries, the job and its plans, and the dispatch of events.
#include "inspect/transcript.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "engine/state/view_values.h"
#include "inspect/field_json.h"
#include "inspect/transcript_internal.h"
#include "inspect/view.h"
#include "inspect/view_parts.h"
#include "json/json.h"
#include "log/field_names.h"

namespace ae::engine {

const Step* Transcript::step(std::string_view id) const { return s_.find_step(StepId(id)); }

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
  members.emplace_back(field::position, of != nullptr ? position_of(*of) : Value());
  members.emplace_back("redacted", Value::array(std::move(redacted)));
  members.emplace_back("role", of != nullptr ? Value(to_text(of->role)) : Value());
  members.emplace_back("seq", number(event_->seq));
  members.emplace_back(field::step_id, or_null(step_id));
  members.emplace_back("turn", place(&Step::turn, kNoTurn));
  members.emplace_back("turn_call", of != nullptr ? nth_number(*of) : Value());
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

Value Transcript::error(const Boxed<RecordedError>& error) {
  if (!error || !error->message.erased) return field_json(error);
  redacted_.emplace_back("error.message");
  return field_json(error).with("message", Value());
}

// ---------------------------------------------------------------- job and plans

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
                        {field::forked_from, field_json(s_.forked_from)},
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
