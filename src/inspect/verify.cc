// verify: five proofs over one log. Each stops at its first error and names the event.
#include "inspect/verify.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>
#include <variant>

#include "base/counted.h"
#include "engine/heart/evaluate.h"
#include "engine/heart/side_record.h"
#include "engine/state/checkpoint.h"
#include "engine/state/view_values.h"
#include "inspect/head.h"
#include "inspect/ledger_proof.h"
#include "inspect/replay_proof.h"
#include "inspect/view.h"
#include "json/json.h"
#include "log/field_names.h"
#include "log/records.h"
#include "log/redacted.h"

namespace ae::engine {
namespace {

constexpr std::size_t kPendingShownMax = 8;
// Hashes of arguments, prompts, inputs and keys. Equality of the hashes in two events is still
// checked.
constexpr std::string_view kBlindErased = "hashes not recomputed: the blind is gone";

Proof failed_proof(std::string why) { return {false, std::move(why)}; }

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
      return {failed_proof(fmt::format("event {} is missing", seq + 1)), "altered"};
    }
    if (event.prev_hash != previous) {
      return {
          failed_proof(fmt::format("{} does not follow the event before it", event_label(event))),
          "altered"};
    }
    previous = event.hash;
    seq = event.seq;
  }
  if (input.open_error) {
    const bool newer = input.open_error->code == Code::needs_version;
    return {failed_proof(fmt::format("after event {}: {}", seq, input.open_error->message)),
            newer ? "unsigned" : "altered"};
  }
  if (input.last_seq && seq < *input.last_seq) {
    return {
        failed_proof(fmt::format("the log ends at event {}, the job had {}", seq, *input.last_seq)),
        "truncated"};
  }
  if (input.events.empty()) return {failed_proof("the log has no events"), "truncated"};
  if ((input.last_seq && seq > *input.last_seq) || (input.head && previous != *input.head)) {
    return {failed_proof("the head of the log differs from the recorded head"), "altered"};
  }
  return {
      {true, fmt::format("{}, root {}", counted(input.events.size(), "event"), to_hex(previous))},
      "unsigned"};
}

// ---------------------------------------------------------------- signature

Value signature_view(const Head& head) {
  return Value::object({{"count", head.count},
                        {"hash", to_hex(head.hash)},
                        {"key_id", head.key_id},
                        {"time", to_text(head.time)}});
}

// Compares the signed head with a log whose chain is valid.
Chain signed_chain(const VerifyInput& input, const Head& head, Chain chain) {
  const std::uint64_t last = input.events.back().seq;
  const auto signer = std::ranges::find(input.keys, head.key_id, &PublicKey::id);
  const bool known = signer != input.keys.end();
  const std::string by = fmt::format("signed on {} by key {}", to_text(head.time), head.key_id);
  if (head.job != input.job || (known && !head.signed_by(*signer))) {
    return {failed_proof("the signature of the head is not of this job and this head"), "altered"};
  }
  if (last < head.count) {
    return {failed_proof(fmt::format("the log ends at event {}; it had {} when its head was {}",
                                     last, head.count, by)),
            "truncated"};
  }
  if (input.events[head.count - 1].hash != head.hash) {
    return {failed_proof(fmt::format("event {} is not the one that was {}", head.count, by)),
            "altered"};
  }
  chain.proof.detail += fmt::format(", {}", by);
  if (last > head.count) chain.proof.detail += fmt::format(" up to event {}", head.count);
  if (known) {
    chain.head = last == head.count ? "intact" : "unsigned";
    return chain;
  }
  chain.head = "unknown_key";
  if (!input.keys.empty()) {
    chain.proof = failed_proof(fmt::format("the head is {}, which is none of the keys given", by));
  }
  return chain;
}

// ---------------------------------------------------------------- verifier

// The unknown calls that a terminal event lists; null: none.
Value unknown_calls_of(const Event& event) {
  return std::visit(
      [](const auto& body) -> Value {
        if constexpr (requires { body.in_doubt; }) return body.in_doubt.json();
        return {};
      },
      event.body);
}

std::string inbox_error(const JobId& job,
                        const std::vector<std::pair<std::string, std::string>>& inbox) {
  for (const auto& [id, request] : inbox) {
    if (!read_side_record(inbox_location(job, id), request)) {
      return fmt::format("the act {} in the inbox is not what was written", id);
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
  void check_event(const Event& event);
  void finish_events();
  std::string check_checkpoint(const Event& event) const;
  std::string check_unknown_calls(const Event& event) const;
  void conclude_replay();
  void conclude_ledger();
  void add_step_ends(const Event& event);
  void execution_hash();
  void signature(Chain& chain);
  void check_row();
  bool any_redacted() const {
    return std::ranges::any_of(in_.events,
                               [](const Event& event) { return !erased_fields(event).empty(); });
  }

  const VerifyInput& in_;
  const PlanSource& plans_;
  Verification out_;
  State state_;
  LedgerProof ledger_{in_.job};
  ReplayProof replay_;
  std::string ledger_error_, replay_error_;
  std::size_t next_ = 0;  // index of the next event
  bool events_done_ = false;
  std::optional<IncrementalFold> second_fold_;
  std::vector<std::string> plan_hashes_;  // in order
  struct End {
    StepId step;
    std::string path, result_type;
  };
  std::vector<End> ends_;  // of steps of this job or imported from its origin
};

// A checkpoint of this event equals the state after it, if this version of the fold made the
// checkpoint.
std::string Verifier::check_checkpoint(const Event& event) const {
  if (!in_.checkpoint || in_.checkpoint->first != event.seq || !state_.plan) return {};
  const auto& [seq, bytes] = *in_.checkpoint;
  const auto restored = restore(in_.job, seq, bytes, plans_);
  if (!restored && restored.error().code == Code::needs_version) return {};
  if (restored && bytes == checkpoint(state_, event.hash)) return {};
  return fmt::format("the checkpoint of event {} is not what the log folds to", seq);
}

// A terminal event lists exactly the calls whose outcome the log leaves unknown, each once. A
// job_completed of schema 1 was written by a version that listed none.
std::string Verifier::check_unknown_calls(const Event& event) const {
  const bool lists = event.type == EventType::job_failed ||
                     event.type == EventType::job_cancelled ||
                     (event.type == EventType::job_completed && event.schema >= 2);
  if (!lists || !state_.plan) return {};
  const auto sorted = [](std::vector<std::string> keys) {
    std::ranges::sort(keys);
    return keys;
  };
  std::vector<std::string> unknown = state_.unknown_call_keys(), listed;
  if (const Value in_doubt = unknown_calls_of(event); in_doubt.is_array()) {
    for (const Value& key : in_doubt.items()) {
      listed.push_back(key.is_string() ? key.as_string() : canonical(key));
    }
  }
  if (sorted(std::move(unknown)) == sorted(std::move(listed))) return {};
  return fmt::format("{} lists other calls than those whose outcome the log leaves unknown",
                     event_label(event));
}

// Checks one event.
void Verifier::check_event(const Event& event) {
  if (ledger_error_.empty()) ledger_error_ = ledger_.add_event(event);
  if (ledger_error_.empty()) ledger_error_ = check_unknown_calls(event);
  if (replay_error_.empty() && state_.plan) replay_error_ = replay_.check_before(state_, event);
  auto applied = apply(state_, event, plans_);
  if (!applied) {
    out_.state_machine = failed_proof(applied.error().message);
    if (replay_error_.empty())
      replay_error_ = fmt::format("nothing can be replayed past a {}", event_label(event));
    return;
  }
  add_step_ends(event);
  if (replay_error_.empty()) replay_error_ = ReplayProof::check_after(state_, event);
  if (replay_error_.empty()) replay_error_ = check_checkpoint(event);
}

void Verifier::finish_events() {
  events_done_ = true;
  if (in_.checkpoint && replay_error_.empty() && in_.checkpoint->first > in_.events.size()) {
    replay_error_ = fmt::format("the checkpoint is of event {}, which the log does not have",
                                in_.checkpoint->first);
  }
  conclude_ledger();
  if (replay_error_.empty()) second_fold_.emplace(in_.job, in_.events, plans_);
}

void Verifier::conclude_ledger() {
  std::string error = std::move(ledger_error_);
  if (error.empty()) error = ledger_.check_end();
  if (error.empty()) error = ledger_.check_effects(in_.effects);
  if (error.empty()) error = ledger_.check_entries(in_.ledger);
  if (error.empty()) error = ledger_.check_missing(in_);
  if (error.empty()) error = inbox_error(in_.job, in_.inbox);
  out_.pending = ledger_.pending();
  if (!error.empty()) {
    out_.ledger = failed_proof(fmt::format("ledger: derived; {}", error));
    return;
  }
  std::string detail =
      fmt::format("ledger: derived; {}, {}", counted(ledger_.invocations(), "call"),
                  counted(ledger_.tries(), "try"));
  if (state_.blind_erased) detail += fmt::format(", {}", kBlindErased);
  if (!in_.effects.empty()) {
    detail += fmt::format(", {} {}", counted(in_.effects.size(), "effect"),
                          in_.effects.size() == 1 ? "agrees" : "agree");
  }
  if (out_.pending.empty()) {
    detail += ", none pending";
  } else {
    detail += ", pending:";
    for (std::size_t i = 0; i < out_.pending.size() && i < kPendingShownMax; ++i) {
      detail += fmt::format(" {}", out_.pending[i]);
    }
    if (out_.pending.size() > kPendingShownMax) detail += " …";
  }
  out_.ledger = {true, std::move(detail)};
}

void Verifier::conclude_replay() {
  if (!replay_error_.empty()) {
    // A value that an expression read may have been erased; only a complete log can be compared in
    // full.
    if (out_.state_machine.ok && any_redacted()) {
      out_.replay = {true, "values are redacted: arguments and branches cannot all be compared"};
      if (state_.blind_erased) out_.replay.detail += fmt::format("; {}", kBlindErased);
      return;
    }
    out_.replay = failed_proof(replay_error_);
    return;
  }
  const auto second = std::move(*second_fold_).take();
  if (!second || !(state_view(*second) == state_view(state_))) {
    out_.replay = failed_proof("folding the log twice gives two states");
    return;
  }
  const std::size_t calls = replay_.commands();
  out_.replay = {true, fmt::format("{} {} the plan", counted(calls, "call"),
                                   calls == 1 ? "matches" : "match")};
  if (state_.blind_erased) out_.replay.detail += fmt::format("; {}", kBlindErased);
}

// Called after the event is applied.
void Verifier::add_step_ends(const Event& event) {
  const auto add = [&](const StepId& id, std::string_view result_type) {
    const Step* const step = state_.find_step(id);
    if (step == nullptr) return;
    ends_.push_back({id, state_.path_of(*step), std::string(result_type)});
  };
  if (const auto* plan = as<PlanGenerated>(event)) plan_hashes_.push_back(to_hex(plan->plan_hash));
  if (const auto* end = as<NodeFinished>(event)) add(end->step_id, end->result_type);
  const auto* fork = as<ForkImported>(event);
  if (fork == nullptr) return;
  const auto entries = fork->commands.read();
  if (!entries) return;
  for (const ForkEntry& entry : *entries) {
    if (entry.result_type) add(entry.step_id, *entry.result_type);
  }
}

void Verifier::execution_hash() {
  std::vector<std::pair<std::string, std::string>> steps;
  for (End& end : ends_) {
    const Step* const step = state_.find_step(end.step);
    const bool compensated = step != nullptr && step->result_type == ResultType::compensated;
    steps.emplace_back(std::move(end.path), compensated
                                                ? std::string(to_text(ResultType::compensated))
                                                : std::move(end.result_type));
  }
  if (!state_.plan) {
    out_.execution_hash = failed_proof("the log holds no plan");
    return;
  }
  std::ranges::sort(steps);
  std::string text = "aetheris.execution.v1\n";
  for (const std::string& plan : plan_hashes_) text.append(plan).append("\n");
  for (const auto& [path, result_type] : steps) {
    text.append(path).append(" ").append(result_type).append("\n");
  }
  out_.execution_hash_hex = to_hex(sha256(text));
  out_.execution_hash = {
      true, fmt::format("{}, {}", counted(steps.size(), "finished step"), out_.execution_hash_hex)};
}

void Verifier::signature(Chain& chain) {
  if (!in_.signed_head) return;
  const auto head = head_from_text(*in_.signed_head);
  if (head) out_.signature = signature_view(*head);
  if (!chain.proof.ok) return;
  if (head) {
    chain = signed_chain(in_, *head, std::move(chain));
  } else {
    chain = {failed_proof(head.error().message), "altered"};
  }
}

// The row is a copy used to find and run jobs; a wrong row does not damage the log, but the job may
// not be found or run.
void Verifier::check_row() {
  if (!in_.row || !out_.state_machine.ok || in_.events.empty()) return;
  const auto differs = [&](std::string_view what, std::string_view row, std::string_view log) {
    if (row == log || !out_.state_machine.ok) return;
    out_.state_machine = failed_proof(fmt::format(
        "the job's row has {} \"{}\", its log \"{}\"; a rebuild derives the row from the log", what,
        row, log));
  };
  const auto* created = as<JobCreated>(in_.events.front());
  const JobCreated job_created = created != nullptr ? *created : JobCreated();
  differs("status", in_.row->status, to_text(state_.status));
  differs(field::agent, in_.row->agent, job_created.agent);
  differs(field::idempotency_key, in_.row->idempotency_key, or_empty(job_created.idempotency_key));
  std::vector<Member> labels;
  for (const auto& [name, value] : in_.row->labels) labels.emplace_back(name, value);
  const Value logged = job_created.labels.is_object() ? job_created.labels : Value::object({});
  const auto hex = [](const std::optional<Hash>& hash) { return hash ? to_hex(*hash) : ""; };
  // Compared as numbers: a damaged row may hold a time without a text form.
  const Instant created_at = in_.events.front().created_at;
  if (in_.row->created_at && exceeds_time_skew(*in_.row->created_at, created_at)) {
    differs("created_at", std::to_string(in_.row->created_at->us), std::to_string(created_at.us));
  }
  if (in_.row->request_hash && in_.row->computed_request_hash) {
    differs("request_hash", hex(in_.row->request_hash), hex(in_.row->computed_request_hash));
  }
  if (in_.row->commits && !in_.open_error) {
    differs("commits", std::to_string(*in_.row->commits), std::to_string(in_.row->commits_read));
  }
  differs(field::labels, canonical(Value::object(std::move(labels))), canonical(logged));
}

Verifier::Verifier(const VerifyInput& input, const PlanSource& plans) : in_(input), plans_(plans) {
  Chain chain = chain_of(in_);
  signature(chain);
  out_.event_chain = std::move(chain.proof);
  out_.head = std::move(chain.head);
  if (!in_.events.empty()) out_.root_hash_hex = to_hex(in_.events.back().hash);
  state_.job = in_.job;
  out_.state_machine.detail =
      fmt::format("{}, valid state transitions", counted(in_.events.size(), "event"));
}

bool Verifier::next() {
  if (next_ < in_.events.size() && out_.state_machine.ok) {
    check_event(in_.events[next_++]);
    return true;
  }
  if (!events_done_) {
    finish_events();
    return true;
  }
  return second_fold_ && second_fold_->next();
}

Verification Verifier::take() {
  conclude_replay();
  check_row();
  execution_hash();
  out_.ok = out_.event_chain.ok && out_.execution_hash.ok && out_.ledger.ok && out_.replay.ok &&
            out_.state_machine.ok;
  return std::move(out_);
}

namespace {

Value proof_json(const Proof& proof) {
  return Value::object({{field::detail, proof.detail}, {"ok", proof.ok}});
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

IncrementalVerifier::IncrementalVerifier(const VerifyInput& input, const PlanSource& plans)
    : verifier_(std::make_unique<Verifier>(input, plans)) {}
IncrementalVerifier::~IncrementalVerifier() = default;
bool IncrementalVerifier::next() { return verifier_->next(); }
Verification IncrementalVerifier::take() { return verifier_->take(); }

Verification verify(const VerifyInput& input, const PlanSource& plans) {
  IncrementalVerifier verifying(input, plans);
  while (verifying.next()) {
  }
  return verifying.take();
}

}  // namespace ae::engine
