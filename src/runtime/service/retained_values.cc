#include "runtime/service/retained_values.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>

#include "engine/state/retained_value.h"
#include "log/decisions.h"
#include "log/field_names.h"
#include "log/redacted.h"
#include "runtime/row.h"

namespace ae::runtime {
namespace {

constexpr std::string_view kNoValue =
    "it is not a value field: its text is in the hash chain unchanged";

// Set by the runtime, or names of parts of the plan: one entry covers all of them.
constexpr auto kNames = std::to_array<std::string_view>(
    {field::agent, field::approval_id, field::attempt_id, field::command_id, field::effect_id,
     field::execution_version, field::external_key, field::input_ref, field::llm_model,
     field::llm_provider, field::node_id, field::planned_by, field::planner_version,
     field::tool_name, field::worker_id});

bool is_text(FieldKind kind, std::string_view name) {
  const bool text = kind == FieldKind::text || kind == FieldKind::json || kind == FieldKind::error;
  return text && std::ranges::find(kNames, name) == kNames.end();
}

std::string events_text(const std::vector<std::uint64_t>& seqs) {
  std::string text = seqs.size() == 1 ? "event " : "events ";
  for (std::size_t i = 0; i < seqs.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(seqs[i]);
  }
  return text;
}

// Describes what is kept of an erased value.
std::string retained_part_name(const Event& event) {
  const auto* decision = as<DecisionRecorded>(event);
  const std::string_view kind = decision != nullptr ? decision->kind.view() : std::string_view();
  if (kind == MapListed::kKind) return "the number of items of a map";
  if (kind == ToolChosen::kKind) return "which tools a model chose";
  if (kind == EndDecided::kKind) return "the code with which the job ends";
  if (kind == PatchDecided::kKind || kind == VersionMoved::kKind) {
    return "which changes and versions of its code the job runs";
  }
  return "the names and hashes of an approval";
}

class RetainedList {
 public:
  void add(std::string what, std::uint64_t seq, std::string_view why) {
    auto& [seqs, reason] = found_[std::move(what)];
    if (seqs.empty() || seqs.back() != seq) seqs.push_back(seq);
    reason = why;
  }

  void add_event(const Event& event, bool blinded) {
    std::visit(
        [&]<class E>(const E& body) {
          if constexpr (std::is_same_v<E, UnknownEvent>) {
            add_unknown(event, body);
          } else {
            visit_fields(body, [&](auto field, const auto& member) {
              if (is_present(field, member)) add_field(event, field, member, blinded);
            });
          }
        },
        event.body);
  }

  void append_to(std::vector<RetainedValue>& retained) const {
    for (const auto& [what, found] : found_) {
      retained.push_back({what, events_text(found.first), std::string(found.second)});
    }
  }

 private:
  void add_unknown(const Event& event, const UnknownEvent& body) {
    for (const auto& [name, value] : body.payload.members()) {
      if (salt_of(event, name) == nullptr && !is_redacted(value)) {
        add(fmt::format("{}.{}", event_name(event), name), event.seq, kNoValue);
      }
    }
  }

  template <class Field, class T>
  void add_field(const Event& event, Field field, const T& member, bool blinded) {
    const bool present = salt_of(event, field.name()) != nullptr;
    std::string name = fmt::format("{}.{}", event_name(event), field.name());
    const auto why = present ? engine::retention_reason(event, field.name()) : std::string_view();
    if (!why.empty()) {
      add(std::move(name), event.seq, why);
    } else if constexpr (field.kind() == FieldKind::value) {
      const bool is_retained =
          present ? engine::retained_value(event, field.name(), blinded).is_object()
                  : member.erased && member.value["left"].is_object();
      if (is_retained)
        add(retained_part_name(event), event.seq, "the course of the ended job follows from it");
    } else if (is_text(field.kind(), field.name())) {
      if (field.kind() == FieldKind::error) name += ".code";
      add(std::move(name), event.seq, kNoValue);
    }
  }

  std::map<std::string, std::pair<std::vector<std::uint64_t>, std::string_view>> found_;
};

void add_side_records(const std::vector<Event>& events, const store::LoadedJob& loaded,
                      std::vector<RetainedValue>& retained) {
  retained.push_back({"names and ids", "the log and the job's row",
                      "the job's id and the names of agent, nodes, tools, models and workers name "
                      "parts of the plan; keys are made of them"});
  retained.push_back({"times, numbers and outcomes", "the log and the job's row",
                      "the course of the job, without its contents"});
  const JobCreated& created = job_created_of(events.front());
  const std::pair<const char*, bool> found_by[] = {
      {field::idempotency_key, created.idempotency_key.has_value()},
      {field::labels, !created.labels.is_null()}};
  for (const auto& [name, present] : found_by) {
    if (present) retained.push_back({name, "the job's row", "jobs are found by it"});
  }
  if (!loaded.effects.empty()) {
    retained.push_back(
        {"outcomes of calls", "the effect store",
         "that a call happened, how it ended and the code of its error, also of a call "
         "that ended after the job"});
  }
  if (!loaded.inbox.empty()) {
    retained.push_back({"acts", "the inbox", "they came after the end and were never applied"});
  }
}

}  // namespace

std::vector<RetainedValue> retained_values(const JobId& job, const std::vector<Event>& events,
                                           const store::LoadedJob& loaded,
                                           const RedactRequest& request) {
  std::vector<RetainedValue> retained;
  const JobCreated& created = job_created_of(events.front());
  const bool blinded = is_blinded(created);
  if (request.all) {
    RetainedList listing;
    for (const Event& event : events) listing.add_event(event, blinded);
    listing.append_to(retained);
    add_side_records(events, loaded, retained);
  }
  if (!blinded) {
    retained.push_back(
        {"hashes of values",
         "arguments_hash, idempotency_key, invocation_id, input_ref, prompt_hash and "
         "plan_input_hash in the log, request_hash in the job's row",
         "the job has no blind: a guess of a value can be confirmed with them"});
  } else if (request.keep_blind && blind_of(created)) {
    retained.push_back(
        {field::blind, "event 1",
         "--keep-blind: a guess of an erased value can be confirmed with arguments_hash, "
         "idempotency_key, prompt_hash, plan_input_hash and request_hash"});
  }
  retained.push_back({"copies", "backups, exports, archives, and what tools and models were sent",
                      "they are outside of the store: a backup keeps erased values until it is "
                      "deleted"});
  retained.push_back({"the reason", "the audit log",
                      fmt::format("it records who redacted job {} and why", job.text)});
  return retained;
}

}  // namespace ae::runtime
