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

#include "sim/report.h"
#include "sim/sim_loop.h"
#include "sim/witness.h"
#include "tools/tool.h"
#include "tools/verifier.h"

namespace ae::sim {

// What the downstream does with a second arrival of a key.
enum class Nature : std::uint8_t { read, idempotent, at_most_once };

// The tools of the simulated world, by their names in plans. To add one is to add a line.
struct ToolKind {
  std::string_view name;
  Nature nature;
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
    {"look", Nature::read, "resend"},
    {"put", Nature::idempotent, "resend"},
    {"stow", Nature::idempotent, "resend", "20s"},  // may be resent for a short time only
    {"mail", Nature::idempotent, "park"},
    {"once", Nature::at_most_once, "park"},
    {"pay", Nature::at_most_once, "fail"},
    {.name = "wire", .nature = Nature::at_most_once, .in_doubt = "probe", .probe = "seek"},
    {.name = "bill", .nature = Nature::idempotent, .in_doubt = "probe", .probe = "seek"},
    {.name = "book", .nature = Nature::idempotent, .in_doubt = "resend", .undo = "unbook"},
    {.name = "grab", .nature = Nature::at_most_once, .in_doubt = "park", .undo = "drop"},
    {.name = "hire",
     .nature = Nature::at_most_once,
     .in_doubt = "probe",
     .probe = "seek",
     .undo = "fire"},
    {.name = "gift",
     .nature = Nature::idempotent,
     .in_doubt = "resend",
     .undo = "unbook",
     .approval = "required"},
    {.name = "vote",
     .nature = Nature::at_most_once,
     .in_doubt = "park",
     .approval = "${ .args.i != 0 }",
     .approval_expires = "40s"},
    {.name = "alter", .nature = Nature::idempotent, .in_doubt = "resend", .changes = "strict"},
    {.name = "amend", .nature = Nature::at_most_once, .in_doubt = "park", .changes = "warn"},
    {.name = "edit", .nature = Nature::idempotent, .in_doubt = "resend", .changes = "human"},
    {.name = "touch", .nature = Nature::idempotent, .in_doubt = "resend", .changes = "unconfirmed"},
    {.name = "quiz", .nature = Nature::at_most_once, .in_doubt = "park", .questions = true},
    {.name = "poll", .nature = Nature::idempotent, .in_doubt = "resend", .questions = true},
    {.name = "model:echo", .nature = Nature::read, .in_doubt = "resend", .provider = "openai"},
    {.name = "seek", .nature = Nature::read, .in_doubt = "resend", .side = true},
    {.name = "unbook", .nature = Nature::idempotent, .in_doubt = "resend", .side = true},
    {.name = "drop", .nature = Nature::at_most_once, .in_doubt = "park", .side = true},
    {.name = "fire",
     .nature = Nature::at_most_once,
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
  Nature nature{};
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
struct Thing {
  struct Made {  // by a call
    std::uint64_t version = 0;
    JobId job;
    InvocationId invocation;
    std::uint32_t try_no = 0;
  };
  std::uint64_t version = 0, strangers = 0;  // changes that no call made
  std::vector<Made> made;
};

struct Look {  // of a verifier
  JobId job;
  std::string thing, expected;  // as it was recorded
  std::string there;            // as it truly was
  Sight said{};
  Sight truth() const {
    return said == Sight::unreachable ? said : expected == there ? Sight::match : Sight::mismatch;
  }
};

class Outside {
 public:
  struct Host {  // what the world lends
    SimLoop& loop;
    SimChance& chance;
    JumpingClock& clock;
    Witness& witness;
    Report& report;
    // Something can die here: false when the life has.
    std::function<bool(Life&, std::string_view where)> boundary;
    // This attempt was told that it has lost the job.
    std::function<bool(const AttemptId&)> refused;
    // False: the clock is set, so a probe may come before the grace has passed.
    bool grace_binds = true;
  };
  Outside(Host host, Odds odds) : host_(std::move(host)), odds_(odds) {}

  std::unique_ptr<tools::Tool> tool(const ToolKind& kind, std::shared_ptr<Life> life);
  // nullptr: nobody looks at what it changes.
  std::unique_ptr<tools::Verifier> verifier(const ToolKind& kind, std::shared_ptr<Life> life);
  void calm() {
    odds_ = {};
    blind_ = false;
  }
  // Somebody changes one of the things that there are. False: there is none.
  bool meddle(std::string_view thing = {});
  // No verifier can look at anything.
  void blind(bool wish) { blind_ = wish; }
  // The canary: a request of an at_most_once tool arrives twice.
  void duplicate_requests(bool wish) { duplicate_ = wish; }
  // The canary: whoever asks what became of a call is told that it never came.
  void lie_to_probes(bool wish) { lies_ = wish; }
  // The canaries: a verifier says that all is as it was; it changes what it looks at; a question comes twice.
  void praise(bool wish) { praises_ = wish; }
  void touch_when_looking(bool wish) { touches_ = wish; }
  void ask_twice(bool wish) { asks_twice_ = wish; }
  void set_grace_binds(bool wish) { host_.grace_binds = wish; }

  const std::map<std::string, KeyRecord>& journal() const { return journal_; }
  const KeyRecord* find(const std::string& idempotency_key) const;
  const std::map<std::string, Thing, std::less<>>& things() const { return things_; }
  const std::vector<Look>& looks() const { return looks_; }

 private:
  friend class SimTool;
  friend class SimVerifier;
  struct Flight;
  enum class Fate {
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
  Fate fate(const Flight& flight, const KeyRecord& record);
  void send(std::shared_ptr<Flight> flight);
  void arrive(const std::shared_ptr<Flight>& flight, Fate fate, bool last);
  Value found(const Value& args) const;
  void ask_or_decline(const std::shared_ptr<Flight>& flight);
  void respond(const std::shared_ptr<Flight>& flight, Outcome outcome);
  void speak(const std::shared_ptr<Flight>& flight, const std::string& text);
  void check_send(const Flight& flight);
  void check_question(const Flight& flight, const Intent& intent);
  Value take_effect(const Flight& flight);
  Value answer_of_model(const Value& request);
  void hear(const Flight& flight, const Outcome& outcome);
  Sighting look(const Value& change);

  Host host_;
  Odds odds_;
  bool duplicate_ = false, lies_ = false, praises_ = false, touches_ = false, asks_twice_ = false;
  bool blind_ = false;
  std::map<std::string, KeyRecord> journal_;  // by idempotency key
  std::map<std::string, Thing, std::less<>> things_;
  std::vector<Look> looks_;
  std::uint64_t answers_ = 0;  // of models
  // Attempts that have heard a model's answer, by invocation: each keeps it, or has lost the job.
  std::map<std::string, AttemptId> heard_;
};

}  // namespace ae::sim
