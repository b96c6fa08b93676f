#include "inspect/ledger_proof.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/hash.h"
#include "engine/heart/absorb.h"
#include "engine/heart/beside.h"
#include "engine/heart/recorded_value.h"
#include "json/json.h"
#include "log/redacted.h"

namespace ae::engine {
namespace {

// Does this event say what its effect record says? How it came into the log is not part of that; of an erased value, only that
// there is one.
bool says_the_same(const Event& logged, ToolInvocationFinished expected) {
  const EventBody body = body_of(logged);
  const auto* event = std::get_if<ToolInvocationFinished>(&body);
  if (event == nullptr) return false;
  ToolInvocationFinished mine = *event;
  for (ToolInvocationFinished* one : {&mine, &expected}) {
    one->at.reset();
    one->caught_up.reset();
    one->late.reset();
    one->source.reset();
  }
  if (mine.result.erased) {
    if (expected.result.is_null()) return false;
    mine.result = expected.result = {};
  }
  if (mine.error && mine.error->message.erased) {
    if (!expected.error) return false;
    mine.error->message = expected.error->message = {};
  }
  return mine == expected;
}

}  // namespace

std::string at(const Event& event) {
  return "event " + std::to_string(event.seq) + " (" + std::string(event_name(event)) + ")";
}

std::string LedgerProof::same_hashes(const Event& event) const {
  const Value& p = event.payload;
  const StepId command(std::string(p.text("command_id")));
  const IdempotencyKey key(std::string(p.text("idempotency_key")));
  if (invocation_id(job_, command, key).text != p.text("invocation_id")) {
    return "has an invocation_id that is not made of its keys";
  }
  if (is_erased(event, "arguments") || blind_gone_) return {};
  const std::string arguments = canonical(p["arguments"]);
  if (blinded_hash(blind_, arguments) != p.text("arguments_hash")) {
    return "has arguments that are not those of its arguments_hash";
  }
  if (idempotency_key(job_, command, p.text("tool_name"), arguments, blind_) != key) {
    return "has an idempotency_key that is not made of its command, tool and arguments";
  }
  return {};
}

std::string LedgerProof::started(const Event& event) {
  const Value& p = event.payload;
  const std::string id(p.text("invocation_id")), command(p.text("command_id"));
  if (auto wrong = same_hashes(event); !wrong.empty()) return wrong;
  if (values_.contains(command)) return "declares a call of a step whose value is recorded";
  auto [of_command, new_command] = invocation_of_.emplace(command, id);
  if (of_command->second != id) return "declares a second invocation of its command";
  Call& call = calls_[id];
  if (call.tries.empty()) {
    call.command = command;
    call.key = p.text("idempotency_key");
    call.external_key = p.text("external_key");
    call.arguments_hash = p.text("arguments_hash");
    call.tool = p.text("tool_name");
    if (!external_keys_.insert(call.external_key).second) {
      return "shares its external_key with another command";
    }
  } else if (call.external_key != p.text("external_key") || call.key != p.text("idempotency_key") ||
             call.arguments_hash != p.text("arguments_hash") || call.tool != p.text("tool_name")) {
    return "changes the keys, the tool or the arguments of its invocation";
  }
  if (call.success || call.happened) return "calls again what has succeeded";
  const std::int64_t n = p["try"].is_integer() ? p["try"].as_int() : 0;
  if (n != static_cast<std::int64_t>(call.tries.size()) + 1) return "is not the next try";
  if (n > 1 && !call.tries[n - 1].finished) return "starts while the try before it is open";
  Try& mine = call.tries[n];
  if (event.attempt_id) mine.attempt = event.attempt_id->text;
  mine.deadline = p.text("deadline");
  tries_++;
  return {};
}

std::string LedgerProof::finished(const Event& event) {
  const Value& p = event.payload;
  auto call = calls_.find(std::string(p.text("invocation_id")));
  const std::int64_t n = p["try"].is_integer() ? p["try"].as_int() : 0;
  if (call == calls_.end() || !call->second.tries.contains(n)) return "ends a try that never began";
  Try& mine = call->second.tries[n];
  if (p["late"] == Value(true)) {
    mine.later.push_back(&event);
    return {};
  }
  if (mine.finished) return "ends a try that has ended";
  mine.finished = true;
  mine.end = &event;
  mine.outcome = p.text("outcome");
  mine.by_its_attempt = event.attempt_id && event.attempt_id->text == mine.attempt;
  if (mine.outcome != "success") return {};
  if (call->second.success || call->second.happened) return "is a second success";
  call->second.success = true;
  return {};
}

std::string LedgerProof::committed(const Event& event) {
  const Value& p = event.payload;
  if (const auto value = values_.find(std::string(p.text("command_id"))); value != values_.end()) {
    if (std::exchange(value->second, true)) return "commits a recorded value twice";
    return p.text("result_of") == value->first && p.find("result") == nullptr
               ? std::string()
               : "takes another result than the recorded value";
  }
  auto of_command = invocation_of_.find(std::string(p.text("command_id")));
  if (of_command == invocation_of_.end()) return "commits a command that was never declared";
  Call& call = calls_[of_command->second];
  const std::string_view result_of = p.text("result_of");
  if (!result_of.empty()) {
    return result_of == of_command->second && call.success
               ? std::string()
               : "takes the result of a call that has not succeeded";
  }
  if (call.success || call.happened) return "is a second success";
  call.happened = true;
  return {};
}

// Time, chance and ids: one value of a step, and no invocation.
std::string LedgerProof::recorded(const Event& event) {
  const auto step = step_of_effect(event.payload.text("effect_id"), records_of(event.type));
  if (!step) return {};  // the jitter of a back-off
  if (invocation_of_.contains(step->text)) return "records a value for a step that makes a call";
  return values_.emplace(step->text, false).second ? std::string()
                                                   : "records a second value for its step";
}

std::string LedgerProof::event(const Event& event) {
  std::string wrong;
  redacted_ = redacted_ || !erased_values(event).empty();
  switch (event.type) {
    case EventType::job_created:
      blind_ = event.payload.text("blind");
      blind_gone_ = is_erased(event, "blind");
      break;
    case EventType::time_recorded:
    case EventType::random_recorded:
    case EventType::uuid_recorded:
      wrong = recorded(event);
      break;
    case EventType::tool_invocation_started:
      wrong = started(event);
      break;
    case EventType::tool_invocation_finished:
      wrong = finished(event);
      break;
    case EventType::command_committed:
      wrong = committed(event);
      break;
    case EventType::job_completed:
    case EventType::job_failed:
    case EventType::job_cancelled:
      ended_ = true;
      break;
    default:
      break;
  }
  return wrong.empty() ? wrong : at(event) + " " + wrong;
}

const LedgerProof::Try* LedgerProof::find(const InvocationId& invocation,
                                          std::uint32_t try_no) const {
  auto call = calls_.find(invocation.text);
  if (call == calls_.end()) return nullptr;
  auto found = call->second.tries.find(try_no);
  return found == call->second.tries.end() ? nullptr : &found->second;
}

// Every field of the record is one that the log knows, or is covered by the record's checksum alone while the log does
// not know it yet (created_at; an outcome that is not taken in).
std::string LedgerProof::effect(const VerifyInput::Effect& effect) const {
  auto record = read_beside(effect_place(job_, effect.invocation, effect.try_no), effect.record);
  if (!record) return "is not what was written";
  const Try* mine = find(effect.invocation, effect.try_no);
  if (mine == nullptr) return "belongs to no call in the log";
  const Call& call = calls_.at(effect.invocation.text);
  const Value& r = *record;
  if (r.text("job_id") != job_.text || r.text("invocation_id") != effect.invocation.text ||
      r["try"] != Value(std::uint64_t{effect.try_no}) || r.text("command_id") != call.command ||
      r.text("idempotency_key") != call.key || r.text("input_ref") != call.arguments_hash ||
      (!mine->attempt.empty() && r.text("attempt_id") != mine->attempt)) {
    return "names another call than the log";
  }
  if (is_erased_effect(r)) return same_outcome(*mine, r.text("outcome"));
  const auto expected = finished_by(r);
  if (!expected) return "has no outcome";
  for (const Event* late : mine->later) {
    if (says_the_same(*late, *expected)) return {};
  }
  if (mine->end == nullptr || says_the_same(*mine->end, *expected)) return {};
  // A try that was closed without knowing, and what was heard of it later, do not disagree.
  if (mine->outcome == "unknown" || mine->outcome == "timeout") return {};
  return "has " + std::string(r.text("outcome")) + ", the log " + mine->outcome +
         (r.text("outcome") == mine->outcome ? " with another content" : "");
}

// What was seen is gone; that the log was told the same outcome can still be proved.
std::string LedgerProof::same_outcome(const Try& mine, std::string_view outcome) {
  const bool same = std::ranges::any_of(
      mine.later, [&](const Event* late) { return late->payload.text("outcome") == outcome; });
  const bool open = mine.end == nullptr || mine.outcome == "unknown" || mine.outcome == "timeout";
  if (same || open || mine.outcome == outcome) return {};
  return "has " + std::string(outcome) + ", the log " + mine.outcome;
}

std::string LedgerProof::effects(const std::vector<VerifyInput::Effect>& effects) const {
  for (const VerifyInput::Effect& one : effects) {
    if (auto wrong = effect(one); !wrong.empty()) {
      return "the effect of " + one.invocation.text + ", try " + std::to_string(one.try_no) + ", " +
             wrong;
    }
  }
  return {};
}

std::string LedgerProof::entry(const VerifyInput::Entry& entry) const {
  const auto record =
      read_beside(ledger_place(job_, entry.invocation, entry.try_no, entry.state), entry.record);
  if (!record) return "is not what was written";
  const Try* mine = find(entry.invocation, entry.try_no);
  if (mine == nullptr) return "belongs to no call in the log";
  const Call& call = calls_.at(entry.invocation.text);
  const Value& r = *record;
  if (r.text("arguments_hash") != call.arguments_hash || r.text("idempotency_key") != call.key ||
      r.text("external_key") != call.external_key || r.text("tool") != call.tool ||
      r.text("deadline") != mine->deadline ||
      (!mine->attempt.empty() && r.text("attempt_id") != mine->attempt)) {
    return "names another call than the log";
  }
  if (entry.state == "INFLIGHT") return {};  // perhaps not repaired yet
  const bool success = mine->outcome == "success";
  if (!mine->finished || success != (entry.state == "COMMITTED")) {
    return "has " + entry.state + ", the log " + (mine->finished ? mine->outcome : "no end");
  }
  return {};
}

std::string LedgerProof::entries(const std::vector<VerifyInput::Entry>& entries) const {
  for (const VerifyInput::Entry& one : entries) {
    if (auto wrong = entry(one); !wrong.empty()) {
      return "the ledger's entry of " + one.invocation.text + ", try " +
             std::to_string(one.try_no) + ", " + wrong;
    }
  }
  return {};
}

// Who writes in phases (split) notes each call in the ledger with its declaration, and each outcome in the effect store
// before the log. Who writes all at once (fused) does neither: a ledger entry of it has a note. An effect of it came late,
// perhaps without anybody knowing that the log had it already. The log does not say which an attempt did; one ledger entry
// that only the first leaves says it of all its calls.
void LedgerProof::note_splits(const VerifyInput& input) {
  for (const VerifyInput::Entry& one : input.ledger) {
    const auto record =
        read_beside(ledger_place(job_, one.invocation, one.try_no, one.state), one.record);
    if (record && (*record)["note"].is_null()) {
      splits_.emplace(record->text("attempt_id"));
    }
  }
}

std::string LedgerProof::missing_effect(const VerifyInput& input) const {
  if (redacted_) return {};  // an effect goes with its value
  std::set<std::pair<std::string_view, std::int64_t>> there;
  for (const VerifyInput::Effect& one : input.effects)
    there.emplace(one.invocation.text, one.try_no);
  for (const auto& [id, call] : calls_) {
    for (const auto& [n, one] : call.tries) {
      const bool was_there = one.end != nullptr && one.end->payload["caught_up"] == Value(true);
      const bool put_first =
          one.by_its_attempt && splits_.contains(one.attempt) &&
          (one.outcome == "success" || one.outcome == "failure" || one.outcome == "input_required");
      if (!was_there && one.later.empty() && !put_first) continue;
      if (!there.contains({id, n})) {
        return "the effect of " + id + ", try " + std::to_string(n) +
               ", from which the log has its outcome, is missing";
      }
    }
  }
  return {};
}

// Only of calls in flight: an entry of one that has ended may have been taken away by who took the job over.
std::string LedgerProof::missing_entry(const VerifyInput& input) const {
  std::set<std::pair<std::string_view, std::int64_t>> there;
  for (const VerifyInput::Entry& one : input.ledger) there.emplace(one.invocation.text, one.try_no);
  for (const auto& [id, call] : calls_) {
    for (const auto& [n, one] : call.tries) {
      if (one.finished || !splits_.contains(one.attempt) || there.contains({id, n})) continue;
      return "the ledger's entry of " + id + ", try " + std::to_string(n) +
             ", which is in flight, is missing";
    }
  }
  return {};
}

std::string LedgerProof::missing(const VerifyInput& input) {
  note_splits(input);
  const std::string effect = missing_effect(input);
  return effect.empty() ? missing_entry(input) : effect;
}

std::vector<std::string> LedgerProof::pending() const {
  std::vector<std::string> pending;
  for (const auto& [id, call] : calls_) {
    if (!call.tries.empty() && !call.tries.rbegin()->second.finished) pending.push_back(call.key);
  }
  return pending;
}

std::string LedgerProof::at_end() const {
  if (ended_ && !pending().empty()) return "the job has ended, and a call is still open";
  return {};
}

}  // namespace ae::engine
