// Five proofs over one log. Each stops at its first fault and names the event.
#include "engine/verify.h"

#include <algorithm>
#include <utility>

#include "core/counted.h"
#include "core/json.h"
#include "core/redacted.h"
#include "engine/beside.h"
#include "engine/checkpoint.h"
#include "engine/evaluate.h"
#include "engine/head.h"
#include "engine/ledger_proof.h"
#include "engine/replay_proof.h"
#include "engine/view.h"
#include "engine/view_values.h"

namespace ae::engine {
namespace {

constexpr std::size_t kPendingShownMax = 8;
// Of arguments, prompts, inputs and keys. That two events hold the same hash is proved all the same.
constexpr std::string_view kBlindGone = "hashes not recomputed: the blind is gone";

Proof broken(std::string why) { return {false, std::move(why)}; }

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
    return {broken("the head of the log differs from the recorded head"), "altered"};
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

// ---------------------------------------------------------------- all of them

std::string inbox_fault(const JobId& job,
                        const std::vector<std::pair<std::string, std::string>>& inbox) {
  for (const auto& [id, act] : inbox) {
    if (!read_beside(inbox_place(job, id), act)) {
      return "the act " + id + " in the inbox is not what was written";
    }
  }
  return {};
}

}  // namespace

class Verifier {
 public:
  Verifier(const VerifyInput& input, const PlanSource& plans);
  bool next();
  Verification take();

 private:
  void look_at(const Event& event);
  void end_walk();
  std::string compare_checkpoint(const Event& event) const;
  std::string compare_doubts(const Event& event) const;
  void conclude_replay();
  void conclude_ledger();
  void note_ends(const Event& event);
  void execution_hash();
  void signature(Chain& chain);
  void compare_row();
  bool any_redacted() const {
    return std::ranges::any_of(in_.events,
                               [](const Event& event) { return !erased_values(event).empty(); });
  }

  const VerifyInput& in_;
  const PlanSource& plans_;
  Verification out_;
  State state_;
  LedgerProof ledger_{in_.job};
  ReplayProof replay_;
  std::string ledger_wrong_, replay_wrong_;
  std::size_t next_ = 0;  // of the events
  bool walked_ = false;
  std::optional<Folding> again_;
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

// A terminal event lists the calls whose outcome the log leaves unknown, each once and no other. A job_completed of schema 1
// was written by a program that listed none.
std::string Verifier::compare_doubts(const Event& event) const {
  const bool lists = event.type == EventType::job_failed ||
                     event.type == EventType::job_cancelled ||
                     (event.type == EventType::job_completed && event.schema >= 2);
  if (!lists || !state_.plan) return {};
  const auto sorted = [](std::vector<std::string> keys) {
    std::ranges::sort(keys);
    return keys;
  };
  std::vector<std::string> unknown, listed;
  for (const Value& key : state_.unknown_calls()) unknown.push_back(key.as_string());
  if (const Value& in_doubt = event.payload["in_doubt"]; in_doubt.is_array()) {
    for (const Value& key : in_doubt.items()) {
      listed.push_back(key.is_string() ? key.as_string() : canonical(key));
    }
  }
  if (sorted(std::move(unknown)) == sorted(std::move(listed))) return {};
  return at(event) + " lists other calls than those whose outcome the log leaves unknown";
}

// One event of the walk.
void Verifier::look_at(const Event& event) {
  if (ledger_wrong_.empty()) ledger_wrong_ = ledger_.event(event);
  if (ledger_wrong_.empty()) ledger_wrong_ = compare_doubts(event);
  if (replay_wrong_.empty() && state_.plan) replay_wrong_ = replay_.before(state_, event);
  auto applied = apply(state_, event, plans_);
  if (!applied) {
    out_.state_machine = broken(applied.error().message);
    if (replay_wrong_.empty()) replay_wrong_ = "nothing can be replayed past a " + at(event);
    return;
  }
  note_ends(event);
  if (replay_wrong_.empty()) replay_wrong_ = ReplayProof::after(state_, event);
  if (replay_wrong_.empty()) replay_wrong_ = compare_checkpoint(event);
}

void Verifier::end_walk() {
  walked_ = true;
  if (in_.checkpoint && replay_wrong_.empty() && in_.checkpoint->first > in_.events.size()) {
    replay_wrong_ = "the checkpoint is of event " + std::to_string(in_.checkpoint->first) +
                    ", which the log does not have";
  }
  conclude_ledger();
  if (replay_wrong_.empty()) again_.emplace(in_.job, in_.events, plans_);
}

void Verifier::conclude_ledger() {
  std::string wrong = std::move(ledger_wrong_);
  if (wrong.empty()) wrong = ledger_.at_end();
  if (wrong.empty()) wrong = ledger_.effects(in_.effects);
  if (wrong.empty()) wrong = ledger_.entries(in_.ledger);
  if (wrong.empty()) wrong = ledger_.missing(in_);
  if (wrong.empty()) wrong = inbox_fault(in_.job, in_.inbox);
  out_.pending = ledger_.pending();
  if (!wrong.empty()) {
    out_.ledger = broken("ledger: derived; " + wrong);
    return;
  }
  std::string detail = "ledger: derived; " + counted(ledger_.invocations(), "call") + ", " +
                       counted(ledger_.tries(), "try");
  if (state_.blind_gone) detail += ", " + std::string(kBlindGone);
  if (!in_.effects.empty()) {
    detail += ", " + counted(in_.effects.size(), "effect") +
              (in_.effects.size() == 1 ? " agrees" : " agree");
  }
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

void Verifier::conclude_replay() {
  if (!replay_wrong_.empty()) {
    // What an expression read may have been taken out; then only a complete log can prove more.
    if (out_.state_machine.ok && any_redacted()) {
      out_.replay = {true, "values are redacted: arguments and branches cannot all be compared"};
      if (state_.blind_gone) out_.replay.detail += "; " + std::string(kBlindGone);
      return;
    }
    out_.replay = broken(replay_wrong_);
    return;
  }
  const auto again = std::move(*again_).take();
  if (!again || !(state_view(*again) == state_view(state_))) {
    out_.replay = broken("folding the log twice gives two states");
    return;
  }
  const std::size_t calls = replay_.commands();
  out_.replay = {true, counted(calls, "call") + (calls == 1 ? " matches" : " match") + " the plan"};
  if (state_.blind_gone) out_.replay.detail += "; " + std::string(kBlindGone);
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
        broken("the job's row has " + std::string(what) + " \"" + std::string(row) +
               "\", its log \"" + std::string(log) + "\"; `aetheris rebuild` rebuilds the row");
  };
  const Value& born = in_.events.front().payload;
  differs("status", in_.row->status, to_text(state_.status));
  differs("agent", in_.row->agent, born.text("agent"));
  differs("idempotency_key", in_.row->idempotency_key, born.text("idempotency_key"));
  std::vector<Member> labels;
  for (const auto& [name, value] : in_.row->labels) labels.emplace_back(name, value);
  const Value logged = born["labels"].is_object() ? born["labels"] : Value::object({});
  const auto hex = [](const std::optional<Hash>& hash) { return hash ? to_hex(*hash) : ""; };
  // As numbers: a damaged row may hold a time that has no text.
  const Instant created = in_.events.front().created_at;
  if (in_.row->created_at && far_apart(*in_.row->created_at, created)) {
    differs("created_at", std::to_string(in_.row->created_at->us), std::to_string(created.us));
  }
  if (in_.row->request_hash && in_.row->of_the_request) {
    differs("request_hash", hex(in_.row->request_hash), hex(in_.row->of_the_request));
  }
  if (in_.row->commits && !in_.refused) {
    differs("commits", std::to_string(*in_.row->commits), std::to_string(in_.row->commits_read));
  }
  differs("labels", canonical(Value::object(std::move(labels))), canonical(logged));
}

Verifier::Verifier(const VerifyInput& input, const PlanSource& plans) : in_(input), plans_(plans) {
  Chain chain = chain_of(in_);
  signature(chain);
  out_.event_chain = std::move(chain.proof);
  out_.head = std::move(chain.head);
  if (!in_.events.empty()) out_.root_hash_hex = to_hex(in_.events.back().hash);
  state_.job = in_.job;
  out_.state_machine.detail = counted(in_.events.size(), "event") + ", valid state transitions";
}

bool Verifier::next() {
  if (next_ < in_.events.size() && out_.state_machine.ok) {
    look_at(in_.events[next_++]);
    return true;
  }
  if (!walked_) {
    end_walk();
    return true;
  }
  return again_ && again_->next();
}

Verification Verifier::take() {
  conclude_replay();
  compare_row();
  execution_hash();
  out_.ok = out_.event_chain.ok && out_.execution_hash.ok && out_.ledger.ok && out_.replay.ok &&
            out_.state_machine.ok;
  return std::move(out_);
}

namespace {

Value proof_json(const Proof& proof) {
  return Value::object({{"detail", proof.detail}, {"ok", proof.ok}});
}

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

Verifying::Verifying(const VerifyInput& input, const PlanSource& plans)
    : verifier_(std::make_unique<Verifier>(input, plans)) {}
Verifying::~Verifying() = default;
bool Verifying::next() { return verifier_->next(); }
Verification Verifying::take() { return verifier_->take(); }

Verification verify(const VerifyInput& input, const PlanSource& plans) {
  Verifying verifying(input, plans);
  while (verifying.next()) {
  }
  return verifying.take();
}

}  // namespace ae::engine
