// Five proofs over one log. Each stops at its first fault and names the event.
#include "engine/verify.h"

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "core/json.h"
#include "engine/decide.h"
#include "engine/evaluate.h"
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

// ---------------------------------------------------------------- ledger

// What the log says of one invocation, told again without the engine's own state.
class LedgerProof {
 public:
  explicit LedgerProof(const JobId& job) : job_(job) {}

  // Empty, or what is wrong.
  std::string event(const Event& event);
  std::string effects(const std::vector<VerifyInput::Effect>& effects) const;
  std::string at_end() const;
  std::vector<std::string> pending() const;
  std::size_t invocations() const { return calls_.size(); }
  std::size_t tries() const { return tries_; }

 private:
  struct Try {
    bool finished = false;
    std::string outcome;
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

  const JobId& job_;
  std::map<std::string, Call> calls_;                           // by invocation
  std::unordered_map<std::string, std::string> invocation_of_;  // of a command
  std::unordered_set<std::string> external_keys_;
  std::size_t tries_ = 0;
  bool ended_ = false;
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
  call.tries.emplace(n, Try{});
  tries_++;
  return {};
}

std::string LedgerProof::finished(const Event& event) {
  const Value& p = event.payload;
  if (p["late"] == Value(true)) return {};
  auto call = calls_.find(std::string(p.text("invocation_id")));
  const std::int64_t n = p["try"].is_integer() ? p["try"].as_int() : 0;
  if (call == calls_.end() || !call->second.tries.contains(n)) return "ends a try that never began";
  Try& mine = call->second.tries[n];
  if (mine.finished) return "ends a try that has ended";
  mine.finished = true;
  mine.outcome = p.text("outcome");
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

// A success or a definite failure that a try closed unknown learned of later is no disagreement.
std::string LedgerProof::effects(const std::vector<VerifyInput::Effect>& effects) const {
  for (const VerifyInput::Effect& effect : effects) {
    const std::string name =
        "the effect of " + effect.invocation.text + ", try " + std::to_string(effect.try_no) + ",";
    auto call = calls_.find(effect.invocation.text);
    if (call == calls_.end() || !call->second.tries.contains(effect.try_no)) {
      return name + " belongs to no call in the log";
    }
    const Try& mine = call->second.tries.at(effect.try_no);
    const bool late = mine.outcome == "unknown" || mine.outcome == "timeout";
    if (mine.finished && !late && mine.outcome != effect.record.text("outcome")) {
      return name + " says " + std::string(effect.record.text("outcome")) + ", the log " +
             mine.outcome;
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
  static std::string branch(const State& state, const Event& event);
  static std::string wait(const State& state, const Event& event);
  static std::string request(const State& state, const Event& event);

  std::size_t commands_ = 0;
};

std::string ReplayProof::emitted(const State& state, const Event& event) {
  commands_++;
  const Step* step = step_of(state, event);
  if (!step || !asks_for(state, state.by_id.at(step->id))) {
    return "stands where the plan asks for no command";
  }
  return {};
}

std::string ReplayProof::started(const State& state, const Event& event) {
  const Step* step = step_of(state, event);
  if (!step || step->call) return {};  // a later try sends what is recorded: the ledger's proof
  if (step->phase != StepPhase::ready) return "stands where the plan asks for no call";
  const Node& node = state.node_of(*step);
  const ToolPolicy& tool = state.plan->tools[node.tool];
  if (event.payload.text("tool_name") != tool.name) return "calls another tool than the plan's";
  if (event.payload.text("effect_class") != to_text(tool.effect)) {
    return "has another effect class than the plan's";
  }
  auto arguments = arguments_of(state, node, step->item);
  if (!arguments) return "has arguments, but " + arguments.error().message;
  if (to_hex(sha256(canonical(*arguments))) == event.payload.text("arguments_hash")) return {};
  return "has other arguments than the plan's expressions give";
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
    key = *named;
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

std::string ReplayProof::before(const State& state, const Event& event) {
  std::string wrong;
  switch (event.type) {
    case EventType::command_emitted:
      wrong = emitted(state, event);
      break;
    case EventType::tool_invocation_started:
      wrong = started(state, event);
      break;
    case EventType::decision_recorded:
      if (event.payload.text("kind") == "branch") wrong = branch(state, event);
      if (event.payload.text("kind") == "approval" && event.payload.text("state") == "requested") {
        wrong = request(state, event);
      }
      break;
    case EventType::wait_opened:
      wrong = wait(state, event);
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
  void conclude_replay(const std::string& wrong);
  void conclude_ledger(const LedgerProof& ledger, std::string wrong);
  void execution_hash();
  bool any_redacted() const {
    return std::ranges::any_of(in_.events,
                               [](const Event& event) { return holds_redacted(event.payload); });
  }

  const VerifyInput& in_;
  const PlanSource& plans_;
  Verification out_;
  State state_;
  std::size_t commands_ = 0;
};

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
  }
  commands_ = replay.commands();
  conclude_ledger(ledger, std::move(ledger_wrong));
  conclude_replay(replay_wrong);
}

void Verifier::conclude_ledger(const LedgerProof& ledger, std::string wrong) {
  if (wrong.empty()) wrong = ledger.at_end();
  if (wrong.empty()) wrong = ledger.effects(in_.effects);
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

void Verifier::execution_hash() {
  std::vector<std::pair<std::string, std::string>> steps;
  for (const Event& event : in_.events) {
    if (event.type != EventType::node_finished) continue;
    auto step = state_.by_id.find(StepId(std::string(event.payload.text("step_id"))));
    if (step == state_.by_id.end()) continue;
    steps.emplace_back(state_.path_of(state_.steps[step->second]),
                       std::string(event.payload.text("result_type")));
  }
  if (!state_.plan) {
    out_.execution_hash = broken("the log holds no plan");
    return;
  }
  std::ranges::sort(steps);
  std::string text = "aetheris.execution.v1\n" + to_hex(state_.plan->hash) + "\n";
  for (const auto& [path, result_type] : steps) {
    text.append(path).append(" ").append(result_type).append("\n");
  }
  out_.execution_hash_hex = to_hex(sha256(text));
  out_.execution_hash = {true,
                         counted(steps.size(), "finished step") + ", " + out_.execution_hash_hex};
}

Verification Verifier::run() {
  Chain chain = chain_of(in_);
  out_.event_chain = std::move(chain.proof);
  out_.head = std::move(chain.head);
  if (!in_.events.empty()) out_.root_hash_hex = to_hex(in_.events.back().hash);
  walk();
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
  return Value::object({{"head", head}, {"ok", ok}, {"proofs", proofs}});
}

Verification verify(const VerifyInput& input, const PlanSource& plans) {
  return Verifier(input, plans).run();
}

}  // namespace ae::engine
