// Outside: what the jobs touch. Services that take effect, models that answer, things that calls change and verifiers look
// at, and the journal of what reached them; no crash touches it.
//
// A request that has left a process arrives whatever becomes of the process; its answer finds the process alive or is
// lost. What a model says comes in pieces, and the process may die between any two. What a service does with a call is drawn (Odds), or written in its arguments: {"fate": ["refused", "ok"]} for
// the first, second, … sending of its key; to a model in its first message, which is then such a list. Or that is what the
// model says, turn by turn: {"says": [text…]}, or [[{name, arguments}…]…], which calls a loop's tools. A model never gives
// the same answer twice. Some services ask a person first, and take effect when the call comes again with a yes. Threads: one.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "sim/observer.h"
#include "sim/report.h"
#include "sim/sim_loop.h"
#include "tools/tool.h"
#include "tools/verifier.h"

namespace ae::sim {

// What the downstream does with a second arrival of a key.
enum class EffectClass : std::uint8_t { read, idempotent, at_most_once };

// The tools of the simulated world, by their names in plans. To add one is to add a line.
struct ToolKind {
  std::string_view name;
  EffectClass effect_class;
  std::string_view in_doubt;  // on_in_doubt
  std::string_view dedupe_window = "24h";
  std::string_view probe = {};     // the tool that asks what became of a call
  std::string_view undo = {};      // the tool that undoes one
  std::string_view approval = {};  // "required", or a condition: see `asks`
  std::string_view approval_expires = {};
  bool side = false;  // only for what is about another call: no node of a random plan
  // A call changes the thing that its arguments name: "strict", "warn" or "human", which say what follows when it is found
  // otherwise; or "unconfirmed", when nobody looks.
  std::string_view changes = {};
  std::string_view provider = {};  // of a model
  bool questions = false;          // asks a person before it does anything: see `question`
  bool verified() const { return !changes.empty() && changes != "unconfirmed"; }
};
constexpr ToolKind kTools[] = {
    {"look", EffectClass::read, "resend"},
    {"put", EffectClass::idempotent, "resend"},
    {"stow", EffectClass::idempotent, "resend", "20s"},  // may be resent for a short time only
    {"mail", EffectClass::idempotent, "park"},
    {"once", EffectClass::at_most_once, "park"},
    {"pay", EffectClass::at_most_once, "fail"},
    {.name = "wire",
     .effect_class = EffectClass::at_most_once,
     .in_doubt = "probe",
     .probe = "seek"},
    {.name = "bill", .effect_class = EffectClass::idempotent, .in_doubt = "probe", .probe = "seek"},
    {.name = "book",
     .effect_class = EffectClass::idempotent,
     .in_doubt = "resend",
     .undo = "unbook"},
    {.name = "grab", .effect_class = EffectClass::at_most_once, .in_doubt = "park", .undo = "drop"},
    {.name = "hire",
     .effect_class = EffectClass::at_most_once,
     .in_doubt = "probe",
     .probe = "seek",
     .undo = "fire"},
    {.name = "gift",
     .effect_class = EffectClass::idempotent,
     .in_doubt = "resend",
     .undo = "unbook",
     .approval = "required"},
    {.name = "vote",
     .effect_class = EffectClass::at_most_once,
     .in_doubt = "park",
     .approval = "${ .args.i != 0 }",
     .approval_expires = "40s"},
    {.name = "alter",
     .effect_class = EffectClass::idempotent,
     .in_doubt = "resend",
     .changes = "strict"},
    {.name = "amend",
     .effect_class = EffectClass::at_most_once,
     .in_doubt = "park",
     .changes = "warn"},
    {.name = "edit",
     .effect_class = EffectClass::idempotent,
     .in_doubt = "resend",
     .changes = "human"},
    {.name = "touch",
     .effect_class = EffectClass::idempotent,
     .in_doubt = "resend",
     .changes = "unconfirmed"},
    {.name = "quiz",
     .effect_class = EffectClass::at_most_once,
     .in_doubt = "park",
     .questions = true},
    {.name = "poll",
     .effect_class = EffectClass::idempotent,
     .in_doubt = "resend",
     .questions = true},
    {.name = "model:echo",
     .effect_class = EffectClass::read,
     .in_doubt = "resend",
     .provider = "openai"},
    {.name = "seek", .effect_class = EffectClass::read, .in_doubt = "resend", .side = true},
    {.name = "unbook", .effect_class = EffectClass::idempotent, .in_doubt = "resend", .side = true},
    {.name = "drop", .effect_class = EffectClass::at_most_once, .in_doubt = "park", .side = true},
    {.name = "fire",
     .effect_class = EffectClass::at_most_once,
     .in_doubt = "probe",
     .probe = "seek",
     .side = true},
};
const ToolKind* tool_kind(std::string_view name);
constexpr Duration kToolTimeout = std::chrono::seconds(4);
constexpr Duration kToolGrace = std::chrono::seconds(6);
constexpr Duration kSlowMax = std::chrono::milliseconds(1200);
constexpr std::string_view kToolVersion = "0123456789abcdef";
// Is a person asked before a call with these arguments? Said here a second time, for whoever judges.
bool asks(const ToolKind& kind, const Value& args);
// What a tool that asks wants to know, and how it calls it: a number, which has a usual value.
constexpr std::string_view kQuestion = "how";
Value question();
// Its policy as a task graph holds it.
Value tool_policy(const ToolKind& kind);

// One in n; 0 = never.
struct Odds {
  std::uint64_t refused = 0;     // no connection: a definite failure, nothing arrives
  std::uint64_t denied = 0;      // arrives, 422: a definite failure, no effect
  std::uint64_t down = 0;        // arrives, 503 before the effect
  std::uint64_t down_after = 0;  // arrives, takes effect, 503
  std::uint64_t lost = 0;        // the request vanishes on its way: timeout
  std::uint64_t silent = 0;      // takes effect, the answer vanishes: timeout
  std::uint64_t late = 0;        // arrives after the caller's timeout
  std::uint64_t slow = 0;        // arrives within the timeout, up to 1.2 s after it was sent
  std::uint64_t fault = 0;       // arrives, takes effect, a complete 500 settles the call
  std::uint64_t broken = 0;      // takes effect, its answer breaks a rule
  std::uint64_t busy = 0;        // a model says 429, and when to come back
  std::uint64_t blind = 0;       // a verifier cannot look
};

struct Arrival {
  JobId job;
  InvocationId invocation;
  std::uint32_t try_no = 1;
  std::string arguments_hash;
  bool effect = false;   // it took effect
  bool refused = false;  // it was answered that it did not
  Value answer;          // of a probe or a model: what it was told
  Value inputs;          // that it brought: what people have answered; null = none
};

struct KeyRecord {  // of an idempotency key
  JobId job;
  EffectClass effect_class{};
  std::string tool;
  std::uint64_t sends = 0, in_transit = 0, effects = 0;
  std::set<std::string> external_keys;
  std::vector<Arrival> arrivals;
  Value result;         // of its first effect
  bool broken = false;  // which the caller could not use
  // The key of the call that this one undoes; "" = it undoes none.
  std::string_view undoes() const { return result["args"].text("of"); }
};

// What calls change and others may change too: a number that rises.
struct Resource {
  struct AppliedChange {  // by a call
    std::uint64_t version = 0;
    JobId job;
    InvocationId invocation;
    std::uint32_t try_no = 0;
  };
  std::uint64_t version = 0, foreign_changes = 0;  // changes that no call made
  std::vector<AppliedChange> made;
};

struct VerifierCheck {  // of a verifier
  JobId job;
  std::string resource, expected;  // as it was recorded
  std::string there;               // as it truly was
  CheckVerdict said{};
  CheckVerdict truth() const {
    return said == CheckVerdict::unreachable ? said
           : expected == there               ? CheckVerdict::match
                                             : CheckVerdict::mismatch;
  }
};

class ExternalWorld {
 public:
  struct Host {  // what the world lends
    SimLoop& loop;
    SimRandom& random;
    JumpingClock& clock;
    Observer& observer;
    Report& report;
    // Something can die here: false when the life has.
    std::function<bool(SimProcess&, std::string_view where)> at_boundary;
    // This attempt was told that it has lost the job.
    std::function<bool(const AttemptId&)> refused;
    // False: the clock is set, so a probe may come before the grace has passed.
    bool grace_binds = true;
  };
  ExternalWorld(Host host, Odds odds) : host_(std::move(host)), odds_(odds) {}

  std::unique_ptr<tools::Tool> tool(const ToolKind& kind, std::shared_ptr<SimProcess> process);
  // nullptr: nobody looks at what it changes.
  std::unique_ptr<tools::Verifier> verifier(const ToolKind& kind,
                                            std::shared_ptr<SimProcess> process);
  void disable_faults() {
    odds_ = {};
    are_verifiers_blind_ = false;
  }
  // Somebody changes one of the things that there are. False: there is none.
  bool mutate(std::string_view resource = {});
  // No verifier can look at anything.
  void blind(bool is_enabled) { are_verifiers_blind_ = is_enabled; }
  // The canary: a request of an at_most_once tool arrives twice.
  void set_duplicate_requests(bool is_enabled) { duplicate_ = is_enabled; }
  // The canary: whoever asks what became of a call is told that it never came.
  void set_lying_probes(bool is_enabled) { has_lying_probes_ = is_enabled; }
  // The canaries: a verifier says that all is as it was; it changes what it looks at; a question comes twice.
  void set_praising_verifiers(bool is_enabled) { has_praising_verifiers_ = is_enabled; }
  void set_touching_verifiers(bool is_enabled) { has_touching_verifiers_ = is_enabled; }
  void set_double_questions(bool is_enabled) { doubles_questions_ = is_enabled; }
  void set_grace_binds(bool is_enabled) { host_.grace_binds = is_enabled; }

  const std::map<std::string, KeyRecord>& journal() const { return journal_; }
  const KeyRecord* find(const std::string& idempotency_key) const;
  const std::map<std::string, Resource, std::less<>>& resources() const { return resources_; }
  const std::vector<VerifierCheck>& verifier_checks() const { return verifier_checks_; }

 private:
  friend class SimTool;
  friend class SimVerifier;
  struct PendingCall;
  enum class DeliveryOutcome {
    ok,
    refused,
    denied,
    down,
    down_after,
    lost,
    silent,
    late,
    slow,
    fault,
    broken,
    busy
  };
  DeliveryOutcome fate(const PendingCall& call_in_flight, const KeyRecord& record);
  void send(std::shared_ptr<PendingCall> call_in_flight);
  void arrive(const std::shared_ptr<PendingCall>& call_in_flight, DeliveryOutcome fate, bool last);
  Value found(const Value& args) const;
  void ask_or_decline(const std::shared_ptr<PendingCall>& call_in_flight);
  void respond(const std::shared_ptr<PendingCall>& call_in_flight, Outcome outcome);
  void speak(const std::shared_ptr<PendingCall>& call_in_flight, const std::string& text);
  void check_send(const PendingCall& call_in_flight);
  void check_question(const PendingCall& call_in_flight, const DeclaredCall& declared_call);
  Value take_effect(const PendingCall& call_in_flight);
  Value answer_of_model(const Value& request);
  void hear(const PendingCall& call_in_flight, const Outcome& outcome);
  CheckResult look(const Value& change);

  Host host_;
  Odds odds_;
  bool duplicate_ = false, has_lying_probes_ = false, has_praising_verifiers_ = false,
       has_touching_verifiers_ = false, doubles_questions_ = false;
  bool are_verifiers_blind_ = false;
  std::map<std::string, KeyRecord> journal_;  // by idempotency key
  std::map<std::string, Resource, std::less<>> resources_;
  std::vector<VerifierCheck> verifier_checks_;
  std::uint64_t answers_ = 0;  // of models
  // Attempts that have heard a model's answer, by invocation: each keeps it, or has lost the job.
  std::map<std::string, AttemptId> heard_;
};

}  // namespace ae::sim
