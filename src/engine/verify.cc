// Five proofs over one log. Each stops at its first fault and names the event.
#include "engine/verify.h"

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "core/json.h"
#include "engine/absorb.h"
#include "engine/beside.h"
#include "engine/checkpoint.h"
#include "engine/confirm.h"
#include "engine/decide.h"
#include "engine/evaluate.h"
#include "engine/head.h"
#include "engine/model_calls.h"
#include "engine/replan.h"
#include "engine/view.h"

namespace ae::engine {
namespace {

constexpr std::size_t kPendingShownMax = 8;

std::string at(const Event& event) {
  return "event " + std::to_string(event.seq) + " (" + std::string(event_name(event)) + ")";
}

std::string counted(std::size_t n, std::string_view one) {
  return std::to_string(n) + " " + std::string(one) + (n == 1 ? "" : "s");
}

Proof broken(std::string why) { return {false, std::move(why)}; }

bool holds_redacted(const Value& value) {
  if (value.is_object()) {
    return (value.size() == 1 && value.find("$redacted")) ||
           std::ranges::any_of(value.members(),
                               [](const Member& member) { return holds_redacted(member.second); });
  }
  return value.is_array() && std::ranges::any_of(value.items(), holds_redacted);
}

bool is_redacted(const Value& value) { return value.size() == 1 && value.find("$redacted"); }

// ---------------------------------------------------------------- chain

struct Chain {
  Proof proof;
  std::string head = "unsigned";
};

Chain chain_of(const VerifyInput& input) {
  Hash previous;
  std::uint64_t seq = 0;
  for (const Event& event : input.events) {
    if (event.seq != seq + 1) {
      return {broken("event " + std::to_string(seq + 1) + " is missing"), "altered"};
    }
    if (event.prev_hash != previous) {
      return {broken(at(event) + " does not follow the event before it"), "altered"};
    }
    previous = event.hash;
    seq = event.seq;
  }
  if (input.refused) {
    const bool newer = input.refused->code == Code::needs_version;
    return {broken("after event " + std::to_string(seq) + ": " + input.refused->message),
            newer ? "unsigned" : "altered"};
  }
  if (input.last_seq && seq < *input.last_seq) {
    return {broken("the log ends at event " + std::to_string(seq) + ", the job had " +
                   std::to_string(*input.last_seq)),
            "truncated"};
  }
  if (input.events.empty()) return {broken("the log has no events"), "truncated"};
  if ((input.last_seq && seq > *input.last_seq) || (input.head && previous != *input.head)) {
    return {broken("the head of the log is not the one that was recorded beside it"), "altered"};
  }
  return {{true, counted(input.events.size(), "event") + ", root " + to_hex(previous)}, "unsigned"};
}

// ---------------------------------------------------------------- signature

Value signature_view(const Head& head) {
  return Value::object({{"count", head.count},
                        {"hash", to_hex(head.hash)},
                        {"key_id", head.key_id},
                        {"time", to_text(head.time)}});
}

// What the signed head says of a log whose chain holds.
Chain signed_chain(const VerifyInput& input, const Head& head, Chain chain) {
  const std::uint64_t last = input.events.back().seq;
  const auto signer = std::ranges::find(input.keys, head.key_id, &PublicKey::id);
  const bool known = signer != input.keys.end();
  const std::string by = "signed on " + to_text(head.time) + " by key " + head.key_id;
  if (head.job != input.job || (known && !head.signed_by(*signer))) {
    return {broken("the signature of the head is not of this job and this head"), "altered"};
  }
  if (last < head.count) {
    return {broken("the log ends at event " + std::to_string(last) + "; it had " +
                   std::to_string(head.count) + " when its head was " + by),
            "truncated"};
  }
  if (input.events[head.count - 1].hash != head.hash) {
    return {broken("event " + std::to_string(head.count) + " is not the one that was " + by),
            "altered"};
  }
  chain.proof.detail += ", " + by;
  if (last > head.count) chain.proof.detail += " up to event " + std::to_string(head.count);
  if (known) {
    chain.head = last == head.count ? "intact" : "unsigned";
    return chain;
  }
  chain.head = "unknown_key";
  if (!input.keys.empty()) {
    chain.proof = broken("the head is " + by + ", which is none of the keys given");
  }
  return chain;
}

// ---------------------------------------------------------------- ledger

// What the log says of one invocation, told again without the engine's own state.
class LedgerProof {
 public:
  explicit LedgerProof(const JobId& job) : job_(job) {}

  // Empty, or what is wrong.
  std::string event(const Event& event);
  std::string effects(const std::vector<VerifyInput::Effect>& effects) const;
  std::string entries(const std::vector<VerifyInput::Entry>& entries) const;
  // A row that must stand beside the log, and does not. REQUIRES: effects and entries found nothing.
  std::string missing(const VerifyInput& input);
  std::string at_end() const;
  std::vector<std::string> pending() const;
  std::size_t invocations() const { return calls_.size(); }
  std::size_t tries() const { return tries_; }

 private:
  struct Try {
    bool finished = false;
    bool by_its_attempt = false;  // the attempt that made the call says how it ended
    std::string outcome;
    std::string attempt, deadline;
    const Value* end = nullptr;       // the payload of its finished event
    std::vector<const Value*> later;  // of those that came late
  };
  struct Call {
    std::string command, key, external_key, arguments_hash, tool;
    std::map<std::int64_t, Try> tries;
    bool success = false, happened = false;
  };
  std::string started(const Event& event);
  std::string finished(const Event& event);
  std::string committed(const Event& event);
  std::string same_hashes(const Value& p) const;
  std::string effect(const VerifyInput::Effect& effect) const;
  std::string entry(const VerifyInput::Entry& entry) const;
  void note_splits(const VerifyInput& input);
  std::string missing_effect(const VerifyInput& input) const;
  std::string missing_entry(const VerifyInput& input) const;
  const Try* find(const InvocationId& invocation, std::uint32_t try_no) const;

  const JobId& job_;
  std::map<std::string, Call> calls_;                           // by invocation
  std::unordered_map<std::string, std::string> invocation_of_;  // of a command
  std::unordered_set<std::string> external_keys_;
  std::unordered_set<std::string>
      splits_;  // attempts that kept a ledger and effects beside the log
  std::size_t tries_ = 0;
  bool ended_ = false;
  bool redacted_ = false;
};

std::string LedgerProof::same_hashes(const Value& p) const {
  const StepId command(std::string(p.text("command_id")));
  const IdempotencyKey key(std::string(p.text("idempotency_key")));
  if (invocation_id(job_, command, key).text != p.text("invocation_id")) {
    return "has an invocation_id that is not made of its keys";
  }
  if (is_redacted(p["arguments"])) return {};
  const std::string arguments = canonical(p["arguments"]);
  if (to_hex(sha256(arguments)) != p.text("arguments_hash")) {
    return "has arguments that are not those of its arguments_hash";
  }
  if (idempotency_key(job_, command, p.text("tool_name"), arguments) != key) {
    return "has an idempotency_key that is not made of its command, tool and arguments";
  }
  return {};
}

std::string LedgerProof::started(const Event& event) {
  const Value& p = event.payload;
  const std::string id(p.text("invocation_id")), command(p.text("command_id"));
  if (auto wrong = same_hashes(p); !wrong.empty()) return wrong;
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
    mine.later.push_back(&p);
    return {};
  }
  if (mine.finished) return "ends a try that has ended";
  mine.finished = true;
  mine.end = &p;
  mine.outcome = p.text("outcome");
  mine.by_its_attempt = event.attempt_id && event.attempt_id->text == mine.attempt;
  if (mine.outcome != "success") return {};
  if (call->second.success || call->second.happened) return "is a second success";
  call->second.success = true;
  return {};
}

std::string LedgerProof::committed(const Event& event) {
  const Value& p = event.payload;
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

std::string LedgerProof::event(const Event& event) {
  std::string wrong;
  redacted_ = redacted_ || holds_redacted(event.payload);
  switch (event.type) {
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

// Does a finished event say what an effect says? How it came into the log, and what was erased, are no matter.
bool says_the_same(const Value& logged, const Value& expected) {
  const auto counts = [&](const Member& member) {
    return member.first != "caught_up" && member.first != "late" && member.first != "source";
  };
  std::size_t members = 0;
  for (const Member& member : logged.members()) {
    if (!counts(member)) continue;
    members++;
    const Value& other = expected[member.first];
    if (holds_redacted(member.second) ? other.is_null() : !(member.second == other)) return false;
  }
  return members == expected.size();
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
  const auto expected = finished_by(r);
  if (!expected) return "says nothing of what was seen";
  for (const Value* late : mine->later) {
    if (says_the_same(*late, *expected)) return {};
  }
  if (mine->end == nullptr || says_the_same(*mine->end, *expected)) return {};
  // A try that was closed without knowing, and what was heard of it later, do not disagree.
  if (mine->outcome == "unknown" || mine->outcome == "timeout") return {};
  return "says " + std::string(r.text("outcome")) + ", the log " + mine->outcome +
         (r.text("outcome") == mine->outcome ? " with another content" : "");
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
    return "says " + entry.state + ", the log " + (mine->finished ? mine->outcome : "no end");
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
      const bool was_there = one.end != nullptr && (*one.end)["caught_up"] == Value(true);
      const bool put_first = one.by_its_attempt && splits_.contains(one.attempt) &&
                             (one.outcome == "success" || one.outcome == "failure");
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

std::string inbox_fault(const JobId& job,
                        const std::vector<std::pair<std::string, std::string>>& inbox) {
  for (const auto& [id, act] : inbox) {
    if (!read_beside(inbox_place(job, id), act)) {
      return "the act " + id + " in the inbox is not what was written";
    }
  }
  return {};
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

// ---------------------------------------------------------------- replay

// What the plan asks for at the state before an event, compared with what stands there.
class ReplayProof {
 public:
  // Empty, or what is wrong.
  std::string before(const State& state, const Event& event);
  std::size_t commands() const { return commands_; }

 private:
  static const Step* step_of(const State& state, const Event& event) {
    auto it = state.by_id.find(StepId(std::string(event.payload.text("step_id"))));
    return it == state.by_id.end() ? nullptr : &state.steps[it->second];
  }
  std::string emitted(const State& state, const Event& event);
  static std::string started(const State& state, const Event& event);
  static std::string finished(const State& state, const Event& event);
  static std::string fits(const ToolPolicy& tool, const Value& result);
  static std::string committed(const State& state, const Event& event);
  static std::string branch(const State& state, const Event& event);
  static std::string wait(const State& state, const Event& event);
  static std::string probe_says(const State& state, const Event& event);
  static std::string request(const State& state, const Event& event);
  static std::string changed(const State& state, const Event& event);
  static std::string plan(const State& state, const Event& event);

  std::size_t commands_ = 0;
};

std::string ReplayProof::emitted(const State& state, const Event& event) {
  commands_++;
  const Step* step = step_of(state, event);
  if (event.payload.find("of")) {
    auto of = state.by_id.find(StepId(std::string(event.payload.text("of"))));
    const StepId id(std::string(event.payload.text("step_id")));
    if (of == state.by_id.end() || !state.side_role(state.steps[of->second], id)) {
      return "stands where nothing is to be asked or undone";
    }
    return {};
  }
  if (!step || !asks_for(state, state.by_id.at(step->id))) {
    return "stands where the plan asks for no command";
  }
  const bool model = state.plan->tools[state.node_of(*step).tool].is_model();
  if (event.payload.text("kind") != (model ? "llm" : "tool")) {
    return "is a command of another kind than the plan's";
  }
  return {};
}

// What a probe says is what its answer gives.
std::string ReplayProof::probe_says(const State& state, const Event& event) {
  const Step* step = step_of(state, event);
  if (!step || step->phase != StepPhase::probing) return {};
  auto result = happened_of(state, *step, state.steps[step->probe].result);
  if (!result) return "says what the probe's answer does not give";
  if (event.type == EventType::command_committed) {
    const Value* said = event.payload.find("result");
    return !said || *said == *result ? "" : "is not what the probe's answer gives";
  }
  const std::string_view says = result->is_null() ? "not_happened" : "happened";
  return event.payload.text("state") == says ? "" : "is not what the probe's answer gives";
}

std::string ReplayProof::started(const State& state, const Event& event) {
  const Step* step = step_of(state, event);
  if (!step || step->call) return {};  // a later try sends what is recorded: the ledger's proof
  if (step->phase != StepPhase::ready) return "stands where the plan asks for no call";
  const Node& node = state.node_of(*step);
  const ToolPolicy& tool = state.tool_of(*step);
  if (event.payload.text("tool_name") != tool.name) return "calls another tool than the plan's";
  if (event.payload.text("effect_class") != to_text(tool.effect)) {
    return "has another effect class than the plan's";
  }
  const std::string_view schema = event.payload.text("request_schema_hash");
  if (!schema.empty() && schema != tool.schema_digest)
    return "names another schema than the plan's";
  auto arguments = step->role == Role::node
                       ? arguments_of(state, node, step->item)
                       : side_arguments_of(state, state.steps[step->of], step->role);
  if (!arguments) return "has arguments, but " + arguments.error().message;
  if (to_hex(sha256(canonical(*arguments))) == event.payload.text("arguments_hash")) return {};
  return "has other arguments than the plan's expressions give";
}

// A success is what the plan's schema lets its tool give, or is said to break it.
std::string ReplayProof::finished(const State& state, const Event& event) {
  const Value& p = event.payload;
  const Step* step = step_of(state, event);
  if (!step || p.text("outcome") != "success" || p["late"] == Value(true)) return {};
  const ToolPolicy& tool = state.tool_of(*step);
  if (p.text("response_schema_hash") != tool.result_digest) {
    return "names another schema than the plan's";
  }
  if (!p["error"].is_null()) return {};
  return fits(tool, p["result"]);
}

std::string ReplayProof::fits(const ToolPolicy& tool, const Value& result) {
  if (!tool.result_schema || holds_redacted(result)) return {};
  return tool.result_schema->check(result) ? "" : "is a result that the plan's schema refuses";
}

// What is said of a model is what was asked and answered.
std::string ReplayProof::committed(const State& state, const Event& event) {
  const Step* step = step_of(state, event);
  if (step && !event.payload.find("result_of")) {  // a person or a probe says what it gave
    if (auto wrong = fits(state.tool_of(*step), event.payload["result"]); !wrong.empty()) {
      return wrong;
    }
  }
  if (!step || !step->call || is_redacted(step->call->arguments) || is_redacted(step->result)) {
    return {};
  }
  const auto said =
      model_members(state.tool_of(*step).provider, step->call->arguments, step->result);
  for (const std::string_view name :
       {"llm_provider", "llm_model", "llm_temperature", "prompt_hash", "usage"}) {
    const auto one = std::ranges::find(said, name, &Member::first);
    if (!(event.payload[name] == (one == said.end() ? Value() : one->second))) {
      return "says another " + std::string(name) + " than the call and its answer";
    }
  }
  return {};
}

std::string ReplayProof::branch(const State& state, const Event& event) {
  const Step* step = step_of(state, event);
  if (!step) return {};
  const Node& node = state.node_of(*step);
  const Value& recorded = event.payload["payload"];
  if (node.when && !step->branch) {
    auto now = when_of(state, node);
    return now && Value(*now) == recorded ? "" : "is not what `when` gives";
  }
  if (node.kind != NodeKind::map) return {};
  auto now = over_of(state, node);
  return now && *now == recorded ? "" : "is not what `map` gives";
}

std::string ReplayProof::wait(const State& state, const Event& event) {
  const Step* step = step_of(state, event);
  if (!step || state.node_of(*step).kind != NodeKind::wait) return {};
  const Node& node = state.node_of(*step);
  std::string key = step->id.text;
  if (node.wait_key) {
    auto named = wait_key_of(state, node);
    if (!named) return "has a key, but " + named.error().message;
    key = state.key_of_wait(*named);
  }
  if (node.wait_channel) {
    auto channel = channel_of(state, node);
    if (!channel) return "has a channel, but " + channel.error().message;
    if (*channel != event.payload.text("channel")) return "has another channel than the plan's";
  }
  return key == event.payload.text("correlation_key") ? "" : "has another key than the plan's";
}

// A person was asked about the call that the plan's expressions give.
std::string ReplayProof::request(const State& state, const Event& event) {
  const Step* step = step_of(state, event);
  const Value& asked = event.payload["payload"];
  if (!step || step->call || is_redacted(asked)) return {};
  auto arguments = arguments_of(state, state.node_of(*step), step->item);
  if (!arguments) return "asks for a call, but " + arguments.error().message;
  const std::string hash = to_hex(sha256(canonical(*arguments)));
  if (hash == asked.text("arguments_hash") && *arguments == asked["arguments"]) return {};
  return "asks for other arguments than the plan's expressions give";
}

// What a call changed is what its `changes` give of its result, all of it, before its command is committed. A result that
// stands in the command_committed itself (somebody said that it happened) is looked at there, by whoever says it.
std::string ReplayProof::changed(const State& state, const Event& event) {
  const Step* step = step_of(state, event);
  if (!step || !step->call || step->call->outcome != OutcomeKind::success || step->failure)
    return {};
  if (holds_redacted(step->result) || holds_redacted(step->call->arguments)) return {};
  const Extracted expected = changes_of(state, *step, step->result);
  if (event.type == EventType::command_committed) {
    return step->changed == expected.events.size() ? "" : "leaves out what its call changed";
  }
  const bool same = step->changed < expected.events.size() &&
                    expected.events[step->changed].payload == event.payload;
  return same ? "" : "is not what `changes` gives";
}

// What another plan carries is what both plans give.
std::string ReplayProof::plan(const State& state, const Event& event) {
  const auto plan = Plan::compile(event.payload["task_graph"]);
  if (!plan) return "holds no plan";
  Dropped drop;
  if (event.payload["drop"].is_array()) {
    for (const Value& one : event.payload["drop"].items()) {
      if (one.is_string()) drop.insert(one.as_string());
    }
  }
  const Replan replan = replan_of(state, *plan, drop);
  return carried_list(state, replan) == event.payload["carried"]
             ? ""
             : "does not carry what the two plans have in common";
}

std::string ReplayProof::before(const State& state, const Event& event) {
  std::string wrong;
  switch (event.type) {
    case EventType::command_emitted:
      wrong = emitted(state, event);
      break;
    case EventType::tool_invocation_started:
      wrong = started(state, event);
      break;
    case EventType::tool_invocation_finished:
      wrong = finished(state, event);
      break;
    case EventType::command_committed:
      wrong = probe_says(state, event);
      if (wrong.empty()) wrong = committed(state, event);
      if (wrong.empty()) wrong = changed(state, event);
      break;
    case EventType::decision_recorded:
      if (event.payload.text("kind") == "branch") wrong = branch(state, event);
      if (event.payload.text("kind") == "in_doubt") wrong = probe_says(state, event);
      if (event.payload.text("kind") == "approval" && event.payload.text("state") == "requested") {
        wrong = request(state, event);
      }
      break;
    case EventType::state_changed:
      wrong = changed(state, event);
      break;
    case EventType::wait_opened:
      wrong = wait(state, event);
      break;
    case EventType::plan_generated:
      wrong = plan(state, event);
      break;
    case EventType::job_completed:
      if (auto output = output_of(state); !output || !(*output == event.payload["result"])) {
        wrong = "is not what `output` gives";
      }
      break;
    default:
      break;
  }
  return wrong.empty() ? wrong : at(event) + " " + wrong;
}

// ---------------------------------------------------------------- all of them

class Verifier {
 public:
  Verifier(const VerifyInput& input, const PlanSource& plans) : in_(input), plans_(plans) {}
  Verification run();

 private:
  void walk();
  std::string compare_checkpoint(const Event& event) const;
  void conclude_replay(const std::string& wrong);
  void conclude_ledger(LedgerProof& ledger, std::string wrong);
  void note_ends(const Event& event);
  void execution_hash();
  void signature(Chain& chain);
  void compare_row();
  bool any_redacted() const {
    return std::ranges::any_of(in_.events,
                               [](const Event& event) { return holds_redacted(event.payload); });
  }

  const VerifyInput& in_;
  const PlanSource& plans_;
  Verification out_;
  State state_;
  std::size_t commands_ = 0;
  std::vector<std::string> plans_seen_;  // their hashes, in order
  struct End {
    std::string step, path, result_type;
  };
  std::vector<End> ends_;  // of steps, in this job or before it was forked
};

// The state after `event` is the one that a checkpoint of it holds, if this fold made that.
std::string Verifier::compare_checkpoint(const Event& event) const {
  if (!in_.checkpoint || in_.checkpoint->first != event.seq || !state_.plan) return {};
  const auto& [seq, bytes] = *in_.checkpoint;
  const auto restored = restore(in_.job, seq, bytes, plans_);
  if (!restored && restored.error().code == Code::needs_version) return {};
  if (restored && bytes == checkpoint(state_, event.hash)) return {};
  return "the checkpoint of event " + std::to_string(seq) + " is not what the log folds to";
}

void Verifier::walk() {
  LedgerProof ledger(in_.job);
  ReplayProof replay;
  std::string ledger_wrong, replay_wrong;
  state_.job = in_.job;
  out_.state_machine.detail = counted(in_.events.size(), "event") + " in a legal order";
  for (const Event& event : in_.events) {
    if (ledger_wrong.empty()) ledger_wrong = ledger.event(event);
    if (replay_wrong.empty() && state_.plan) replay_wrong = replay.before(state_, event);
    auto applied = apply(state_, {event.type, event.payload}, event.created_at, plans_);
    if (!applied) {
      out_.state_machine = broken(applied.error().message);
      if (replay_wrong.empty()) replay_wrong = "nothing can be replayed past a " + at(event);
      break;
    }
    note_ends(event);
    if (replay_wrong.empty()) replay_wrong = compare_checkpoint(event);
  }
  if (in_.checkpoint && replay_wrong.empty() && in_.checkpoint->first > in_.events.size()) {
    replay_wrong = "the checkpoint is of event " + std::to_string(in_.checkpoint->first) +
                   ", which the log does not have";
  }
  commands_ = replay.commands();
  conclude_ledger(ledger, std::move(ledger_wrong));
  conclude_replay(replay_wrong);
}

void Verifier::conclude_ledger(LedgerProof& ledger, std::string wrong) {
  if (wrong.empty()) wrong = ledger.at_end();
  if (wrong.empty()) wrong = ledger.effects(in_.effects);
  if (wrong.empty()) wrong = ledger.entries(in_.ledger);
  if (wrong.empty()) wrong = ledger.missing(in_);
  if (wrong.empty()) wrong = inbox_fault(in_.job, in_.inbox);
  out_.pending = ledger.pending();
  if (!wrong.empty()) {
    out_.ledger = broken("ledger: derived; " + wrong);
    return;
  }
  std::string detail = "ledger: derived; " + counted(ledger.invocations(), "invocation") + ", " +
                       std::to_string(ledger.tries()) + (ledger.tries() == 1 ? " try" : " tries");
  if (!in_.effects.empty()) detail += ", " + counted(in_.effects.size(), "effect") + " agree";
  if (out_.pending.empty()) {
    detail += ", none pending";
  } else {
    detail += ", pending:";
    for (std::size_t i = 0; i < out_.pending.size() && i < kPendingShownMax; ++i) {
      detail += " " + out_.pending[i];
    }
    if (out_.pending.size() > kPendingShownMax) detail += " …";
  }
  out_.ledger = {true, std::move(detail)};
}

void Verifier::conclude_replay(const std::string& wrong) {
  if (!wrong.empty()) {
    // What an expression read may have been taken out; then only a complete log can prove more.
    if (out_.state_machine.ok && any_redacted()) {
      out_.replay = {true, "values are redacted: arguments and branches cannot all be compared"};
      return;
    }
    out_.replay = broken(wrong);
    return;
  }
  const auto again = fold(in_.job, in_.events, plans_);
  if (!again || !(state_view(*again) == state_view(state_))) {
    out_.replay = broken("folding the log twice gives two states");
    return;
  }
  out_.replay = {true, counted(commands_, "command") +
                           " where the plan asks for them, with the arguments it gives"};
}

// After the event is applied.
void Verifier::note_ends(const Event& event) {
  const auto note = [&](const Value& of) {
    const std::string id(of.text("step_id"));
    const auto step = state_.by_id.find(StepId(id));
    if (step == state_.by_id.end() || of.text("result_type").empty()) return;
    ends_.push_back(
        {id, state_.path_of(state_.steps[step->second]), std::string(of.text("result_type"))});
  };
  if (event.type == EventType::plan_generated) {
    plans_seen_.emplace_back(event.payload.text("plan_hash"));
  }
  if (event.type == EventType::node_finished) note(event.payload);
  if (event.type != EventType::fork_imported) return;
  for (const Value& entry : event.payload["commands"].items()) note(entry);
}

void Verifier::execution_hash() {
  std::vector<std::pair<std::string, std::string>> steps;
  for (End& end : ends_) {
    const auto step = state_.by_id.find(StepId(end.step));
    const bool undone = step != state_.by_id.end() &&
                        state_.steps[step->second].result_type == ResultType::compensated;
    steps.emplace_back(std::move(end.path), undone ? "compensated" : std::move(end.result_type));
  }
  if (!state_.plan) {
    out_.execution_hash = broken("the log holds no plan");
    return;
  }
  std::ranges::sort(steps);
  std::string text = "aetheris.execution.v1\n";
  for (const std::string& plan : plans_seen_) text.append(plan).append("\n");
  for (const auto& [path, result_type] : steps) {
    text.append(path).append(" ").append(result_type).append("\n");
  }
  out_.execution_hash_hex = to_hex(sha256(text));
  out_.execution_hash = {true,
                         counted(steps.size(), "finished step") + ", " + out_.execution_hash_hex};
}

void Verifier::signature(Chain& chain) {
  if (!in_.signed_head) return;
  const auto head = head_from_text(*in_.signed_head);
  if (head) out_.signature = signature_view(*head);
  if (!chain.proof.ok) return;
  if (head) {
    chain = signed_chain(in_, *head, std::move(chain));
  } else {
    chain = {broken(head.error().message), "altered"};
  }
}

// The row is a copy, by which jobs are found and run; a wrong one leaves the log whole and the job astray.
void Verifier::compare_row() {
  if (!in_.row || !out_.state_machine.ok || in_.events.empty()) return;
  const auto differs = [&](std::string_view what, std::string_view row, std::string_view log) {
    if (row == log || !out_.state_machine.ok) return;
    out_.state_machine =
        broken("the job's row says " + std::string(what) + " \"" + std::string(row) +
               "\", its log \"" + std::string(log) + "\"; `aetheris rebuild` makes the row anew");
  };
  const Value& born = in_.events.front().payload;
  differs("status", in_.row->status, to_text(state_.status));
  differs("agent", in_.row->agent, born.text("agent"));
  differs("idempotency_key", in_.row->idempotency_key, born.text("idempotency_key"));
  std::vector<Member> labels;
  for (const auto& [name, value] : in_.row->labels) labels.emplace_back(name, value);
  const Value logged = born["labels"].is_object() ? born["labels"] : Value::object({});
  differs("labels", canonical(Value::object(std::move(labels))), canonical(logged));
}

Verification Verifier::run() {
  Chain chain = chain_of(in_);
  signature(chain);
  out_.event_chain = std::move(chain.proof);
  out_.head = std::move(chain.head);
  if (!in_.events.empty()) out_.root_hash_hex = to_hex(in_.events.back().hash);
  walk();
  compare_row();
  execution_hash();
  out_.ok = out_.event_chain.ok && out_.execution_hash.ok && out_.ledger.ok && out_.replay.ok &&
            out_.state_machine.ok;
  return std::move(out_);
}

Value proof_json(const Proof& proof) {
  return Value::object({{"detail", proof.detail}, {"ok", proof.ok}});
}

Value or_null(const std::string& text) { return text.empty() ? Value() : Value(text); }

}  // namespace

Value Verification::to_json() const {
  std::vector<Value> keys(pending.begin(), pending.end());
  const Value proofs = Value::object(
      {{"event_chain", proof_json(event_chain).with("hash", or_null(root_hash_hex))},
       {"execution_hash", proof_json(execution_hash).with("hash", or_null(execution_hash_hex))},
       {"ledger", proof_json(ledger).with("pending", Value::array(std::move(keys)))},
       {"replay", proof_json(replay)},
       {"state_machine", proof_json(state_machine)}});
  return Value::object({{"head", head}, {"ok", ok}, {"proofs", proofs}, {"signature", signature}});
}

Verification verify(const VerifyInput& input, const PlanSource& plans) {
  return Verifier(input, plans).run();
}

}  // namespace ae::engine
