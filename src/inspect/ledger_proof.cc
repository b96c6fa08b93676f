#include "inspect/ledger_proof.h"

#include <fmt/core.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/hash.h"
#include "engine/heart/ingest.h"
#include "engine/heart/side_record.h"
#include "engine/values/recorded_value.h"
#include "json/json.h"
#include "log/field_names.h"
#include "log/redacted.h"

namespace ae::engine {
namespace {

// Does the event match its effect record? The way in which it came into the log is ignored, and when
// code was given it; of an erased value only its existence is compared.
bool is_same_record(ToolInvocationFinished logged, ToolInvocationFinished expected) {
  for (ToolInvocationFinished* one : {&logged, &expected}) {
    one->at.reset();
    one->caught_up.reset();
    one->delivered.reset();
    one->late.reset();
    one->source.reset();
  }
  if (logged.result.erased) {
    if (expected.result.is_null()) return false;
    logged.result = expected.result = {};
  }
  if (logged.error && logged.error->message.erased) {
    if (!expected.error) return false;
    logged.error->message = expected.error->message = {};
  }
  return logged == expected;
}

}  // namespace

std::string event_label(const Event& event) {
  return fmt::format("event {} ({})", event.seq, event_name(event));
}

std::string LedgerProof::check_hashes(const ToolInvocationStarted& event) const {
  const StepId& command = event.command_id;
  if (invocation_id(job_, command, event.idempotency_key) != event.invocation_id) {
    return "has an invocation_id that is not made of its keys";
  }
  if (event.arguments.erased || blind_erased_) return {};
  const std::string arguments = canonical(event.arguments.value);
  if (blinded_hash(blind_, arguments) != to_hex(event.arguments_hash)) {
    return "has arguments that are not those of its arguments_hash";
  }
  if (idempotency_key(job_, command, event.tool_name, arguments, blind_) != event.idempotency_key) {
    return "has an idempotency_key that is not made of its command, tool and arguments";
  }
  return {};
}

std::string LedgerProof::check_started(const ToolInvocationStarted& event,
                                       const std::optional<AttemptId>& attempt) {
  const StepId& command = event.command_id;
  if (auto error = check_hashes(event); !error.empty()) return error;
  if (values_.contains(command)) return "declares a call of a step whose value is recorded";
  auto [of_command, new_command] = invocation_of_.emplace(command, event.invocation_id);
  if (of_command->second != event.invocation_id)
    return "declares a second invocation of its command";
  Call& call = calls_[event.invocation_id];
  const std::string arguments_hash = to_hex(event.arguments_hash);
  if (call.tries.empty()) {
    call.command = command;
    call.key = event.idempotency_key;
    call.external_key = event.external_key;
    call.arguments_hash = arguments_hash;
    call.tool = event.tool_name;
    if (!external_keys_.insert(call.external_key).second) {
      return "shares its external_key with another command";
    }
  } else if (call.external_key != event.external_key || call.key != event.idempotency_key ||
             call.arguments_hash != arguments_hash || call.tool != event.tool_name) {
    return "changes the keys, the tool or the arguments of its invocation";
  }
  if (call.success || call.happened) return "calls again what has succeeded";
  const std::int64_t n = event.try_no;
  if (n != static_cast<std::int64_t>(call.tries.size()) + 1) return "is not the next try";
  if (n > 1 && !call.tries[n - 1].finished) return "starts while the try before it is open";
  Try& logged = call.tries[n];
  if (attempt) logged.attempt = attempt->text;
  logged.deadline = to_text(event.deadline);
  tries_++;
  return {};
}

std::string LedgerProof::check_finished(const ToolInvocationFinished& event,
                                        const std::optional<AttemptId>& attempt) {
  auto call = calls_.find(event.invocation_id);
  if (call == calls_.end() || !call->second.tries.contains(event.try_no)) {
    return "ends a try that never began";
  }
  Try& logged = call->second.tries[event.try_no];
  if (event.late == true) {
    logged.later.push_back(&event);
    return {};
  }
  if (logged.finished) return "ends a try that has ended";
  logged.finished = true;
  logged.end = &event;
  logged.outcome = event.outcome;
  logged.by_own_attempt = attempt && attempt->text == logged.attempt;
  if (logged.outcome != "success") return {};
  if (call->second.success || call->second.happened) return "is a second success";
  call->second.success = true;
  return {};
}

std::string LedgerProof::check_committed(const CommandCommitted& event) {
  if (const auto value = values_.find(event.command_id); value != values_.end()) {
    if (std::exchange(value->second, true)) return "commits a recorded value twice";
    return event.result_of == value->first.text && event.result.is_null()
               ? std::string()
               : "takes another result than the recorded value";
  }
  auto of_command = invocation_of_.find(event.command_id);
  if (of_command == invocation_of_.end()) return "commits a command that was never declared";
  Call& call = calls_[of_command->second];
  if (event.result_of) {
    return *event.result_of == of_command->second.text && call.success
               ? std::string()
               : "takes the result of a call that has not succeeded";
  }
  if (call.success || call.happened) return "is a second success";
  call.happened = true;
  return {};
}

// Time, random numbers and ids: one value per step, and no invocation.
std::string LedgerProof::check_recorded(std::string_view effect_id, RecordedKind records) {
  const auto step = step_of_effect(effect_id, records);
  if (!step) return {};  // the jitter of a backoff
  if (invocation_of_.contains(*step)) return "records a value for a step that makes a call";
  return values_.emplace(*step, false).second ? std::string()
                                              : "records a second value for its step";
}

std::string LedgerProof::check_event(const Event& event) {
  if (const auto* created = as<JobCreated>(event)) {
    blind_ = created->blind.value.is_string() ? created->blind.value.as_string() : "";
    blind_erased_ = created->blind.erased;
  }
  if (const auto* time = as<TimeRecorded>(event))
    return check_recorded(time->effect_id, RecordedKind::time);
  if (const auto* random = as<RandomRecorded>(event)) {
    return check_recorded(random->effect_id, RecordedKind::random);
  }
  if (const auto* uuid = as<UuidRecorded>(event))
    return check_recorded(uuid->effect_id, RecordedKind::uuid);
  if (const auto* call = as<ToolInvocationStarted>(event))
    return check_started(*call, event.attempt_id);
  if (const auto* end = as<ToolInvocationFinished>(event))
    return check_finished(*end, event.attempt_id);
  if (const auto* command = as<CommandCommitted>(event)) return check_committed(*command);
  return {};
}

std::string LedgerProof::add_event(const Event& event) {
  redacted_ = redacted_ || !erased_fields(event).empty();
  ended_ = ended_ || event.type == EventType::job_completed ||
           event.type == EventType::job_failed || event.type == EventType::job_cancelled;
  const std::string error = check_event(event);
  return error.empty() ? error : fmt::format("{} {}", event_label(event), error);
}

const LedgerProof::Try* LedgerProof::find(const InvocationId& invocation,
                                          std::uint32_t try_no) const {
  auto call = calls_.find(invocation);
  if (call == calls_.end()) return nullptr;
  auto found = call->second.tries.find(try_no);
  return found == call->second.tries.end() ? nullptr : &found->second;
}

// Every field of the record is compared with the log. Only its checksum covers what the log does
// not contain yet (created_at; an outcome that is not imported).
std::string LedgerProof::check_effect(const VerifyInput::Effect& effect) const {
  const auto stored =
      read_side_record(effect_location(job_, effect.invocation, effect.try_no), effect.record);
  if (!stored) return "is not what was written";
  const Try* logged = find(effect.invocation, effect.try_no);
  if (logged == nullptr) return "belongs to no call in the log";
  const Call& call = calls_.at(effect.invocation);
  const auto record = record_from_json<EffectRecord>(*stored);
  if (!record) return fmt::format("cannot be read: {}", record.error().message);
  if (record->job_id != job_.text || record->invocation_id != effect.invocation ||
      record->try_no != std::int64_t{effect.try_no} || record->command_id != call.command ||
      record->idempotency_key != call.key || record->input_ref != call.arguments_hash ||
      (!logged->attempt.empty() && record->attempt_id != logged->attempt)) {
    return "names another call than the log";
  }
  if (record->erased == true) return check_outcome(*logged, record->outcome);
  const auto expected = finished_payload(*record);
  if (!expected) return "has no outcome";
  for (const ToolInvocationFinished* late : logged->later) {
    if (is_same_record(*late, *expected)) return {};
  }
  if (logged->end == nullptr || is_same_record(*logged->end, *expected)) return {};
  // A try that was closed with an unknown outcome does not contradict an outcome observed later.
  if (logged->is_unknown()) return {};
  const std::string outcome = record->outcome;
  return fmt::format("has {}, the log {}{}", outcome, logged->outcome,
                     outcome == logged->outcome ? " with another content" : "");
}

// The content was erased, but the outcome can still be compared with the log.
std::string LedgerProof::check_outcome(const Try& logged, std::string_view outcome) {
  const bool same =
      std::ranges::any_of(logged.later, [&](const auto* late) { return late->outcome == outcome; });
  const bool open = logged.end == nullptr || logged.is_unknown();
  if (same || open || logged.outcome == outcome) return {};
  return fmt::format("has {}, the log {}", outcome, logged.outcome);
}

std::string LedgerProof::check_effects(const std::vector<VerifyInput::Effect>& effects) const {
  for (const VerifyInput::Effect& one : effects) {
    if (auto error = check_effect(one); !error.empty()) {
      return fmt::format("the effect of {}, try {}, {}", one.invocation.text, one.try_no, error);
    }
  }
  return {};
}

std::string LedgerProof::check_entry(const VerifyInput::Entry& entry) const {
  const auto record = read_side_record(
      ledger_location(job_, entry.invocation, entry.try_no, entry.state), entry.record);
  if (!record) return "is not what was written";
  const Try* logged = find(entry.invocation, entry.try_no);
  if (logged == nullptr) return "belongs to no call in the log";
  const Call& call = calls_.at(entry.invocation);
  const Value& r = *record;
  if (r.text(field::arguments_hash) != call.arguments_hash ||
      r.text(field::idempotency_key) != call.key.text ||
      r.text(field::external_key) != call.external_key.text || r.text("tool") != call.tool ||
      r.text(field::deadline) != logged->deadline ||
      (!logged->attempt.empty() && r.text(field::attempt_id) != logged->attempt)) {
    return "names another call than the log";
  }
  if (entry.state == "INFLIGHT") return {};  // may not be repaired yet
  const bool success = logged->outcome == "success";
  if (!logged->finished || success != (entry.state == "COMMITTED")) {
    return fmt::format("has {}, the log {}", entry.state,
                       logged->finished ? logged->outcome : "no end");
  }
  return {};
}

std::string LedgerProof::check_entries(const std::vector<VerifyInput::Entry>& entries) const {
  for (const VerifyInput::Entry& one : entries) {
    if (auto error = check_entry(one); !error.empty()) {
      return fmt::format("the ledger's entry of {}, try {}, {}", one.invocation.text, one.try_no,
                         error);
    }
  }
  return {};
}

// With split durability an attempt writes a ledger entry with each declaration, and each outcome to
// the effect store before the log. With fused durability it writes neither: a ledger entry is only
// an in-flight note, and an effect record is a late result, possibly of an outcome that the log
// already had. The log does not record the durability of an attempt; a ledger entry without a note
// proves split durability for all its calls.
void LedgerProof::find_split_attempts(const VerifyInput& input) {
  for (const VerifyInput::Entry& one : input.ledger) {
    const auto record =
        read_side_record(ledger_location(job_, one.invocation, one.try_no, one.state), one.record);
    if (record && (*record)[field::note].is_null()) {
      split_attempts_.emplace(record->text(field::attempt_id));
    }
  }
}

std::string LedgerProof::check_missing_effect(const VerifyInput& input) const {
  if (redacted_) return {};  // an effect record is erased with its value
  std::set<std::pair<std::string_view, std::int64_t>> stored;
  for (const VerifyInput::Effect& one : input.effects)
    stored.emplace(one.invocation.text, one.try_no);
  for (const auto& [id, call] : calls_) {
    for (const auto& [n, one] : call.tries) {
      const bool was_imported = one.end != nullptr && one.end->caught_up == true;
      const bool stored_first =
          one.by_own_attempt && split_attempts_.contains(one.attempt) &&
          (one.outcome == "success" || one.outcome == "failure" || one.outcome == "input_required");
      if (!was_imported && one.later.empty() && !stored_first) continue;
      if (!stored.contains({id.text, n})) {
        return fmt::format(
            "the effect of {}, try {}, from which the log has its outcome, is missing", id.text, n);
      }
    }
  }
  return {};
}

// Only calls in flight: the entry of a finished call may have been erased by a later lease holder.
std::string LedgerProof::check_missing_entry(const VerifyInput& input) const {
  std::set<std::pair<std::string_view, std::int64_t>> stored;
  for (const VerifyInput::Entry& one : input.ledger)
    stored.emplace(one.invocation.text, one.try_no);
  for (const auto& [id, call] : calls_) {
    for (const auto& [n, one] : call.tries) {
      if (one.finished || !split_attempts_.contains(one.attempt) || stored.contains({id.text, n}))
        continue;
      return fmt::format("the ledger's entry of {}, try {}, which is in flight, is missing",
                         id.text, n);
    }
  }
  return {};
}

std::string LedgerProof::check_missing(const VerifyInput& input) {
  find_split_attempts(input);
  const std::string effect = check_missing_effect(input);
  return effect.empty() ? check_missing_entry(input) : effect;
}

std::vector<std::string> LedgerProof::pending() const {
  std::vector<std::string> pending;
  for (const auto& [id, call] : calls_) {
    if (!call.tries.empty() && !call.tries.rbegin()->second.finished)
      pending.push_back(call.key.text);
  }
  return pending;
}

std::string LedgerProof::check_end() const {
  if (ended_ && !pending().empty()) return "the job has ended, and a call is still open";
  return {};
}

}  // namespace ae::engine
