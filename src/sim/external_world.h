// ExternalWorld: the systems that jobs use: services that take effect, models, resources that calls
// change and verifiers check, and the journal of all arrivals. No crash affects it.
//
// A request that has left a process arrives whatever happens to the process; its answer reaches the
// process alive or is lost. A model's answer is streamed, and the process may die between two
// deltas. A model never gives the same answer twice. Some services first ask the user a question,
// and take effect when the call is repeated with an accepted answer. The outcome of a call is drawn
// (Odds), or given in the arguments of a call, or in the first message to a model:
//
//   {"fate": ["refused", "ok"]}   a call: the first, second, … sending of its key
//   ["refused", "ok"]             a model: the same
//   {"texts": [text…]}           a model: its answers, turn by turn
//   [[{name, arguments}…]…]       a model: the calls of a loop's tools, turn by turn
//
// Threads: one.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/journal.h"
#include "sim/observer.h"
#include "sim/report.h"
#include "sim/sim_loop.h"
#include "sim/sim_random.h"
#include "sim/tool_kinds.h"
#include "tools/tool.h"
#include "tools/verifier.h"

namespace ae::sim {

// One in n; 0 = never.
struct Odds {
  std::uint64_t refused = 0;      // no connection: a definite failure, nothing arrives
  std::uint64_t denied = 0;       // arrives, 422: a definite failure, no effect
  std::uint64_t down = 0;         // arrives, 503 before the effect
  std::uint64_t down_after = 0;   // arrives, takes effect, 503
  std::uint64_t lost = 0;         // the request is lost in transit: timeout
  std::uint64_t silent = 0;       // takes effect, the answer is lost: timeout
  std::uint64_t late = 0;         // arrives after the caller's timeout
  std::uint64_t slow = 0;         // arrives within the timeout, up to 1.2 s after sending
  std::uint64_t fault = 0;        // arrives, takes effect, a complete 500 settles the call
  std::uint64_t broken = 0;       // takes effect, its answer breaks a rule
  std::uint64_t busy = 0;         // a model returns 429 and a retry delay
  std::uint64_t unreachable = 0;  // a verifier cannot check
  std::uint64_t cut = 0;          // a routine loses its session, at each of its steps
};

class ExternalWorld {
 public:
  struct Host {  // provided by the world
    SimLoop& loop;
    SimRandom& random;
    JumpingClock& clock;
    Observer& observer;
    Report& report;
    // Called at each boundary, where the process may die; false if it has died.
    std::function<bool(SimProcess&, std::string_view where)> at_boundary;
    // True if this attempt was notified that it has lost the job.
    std::function<bool(const AttemptId&)> has_lost_job;
    // False: the clock jumps, so a probe may arrive before the grace period is over.
    bool grace_binds = true;
  };
  ExternalWorld(Host host, Odds odds) : host_(std::move(host)), odds_(odds) {}

  std::unique_ptr<tools::Tool> tool(const ToolKind& kind, std::shared_ptr<SimProcess> process);
  // nullptr: its changes are not verified.
  std::unique_ptr<tools::Verifier> verifier(const ToolKind& kind,
                                            std::shared_ptr<SimProcess> process);
  void disable_faults() {
    odds_ = {};
    are_verifiers_unreachable_ = false;
  }
  // Changes one of the existing resources from outside. False: there is none.
  bool mutate(std::string_view resource = {});
  // Makes every verification unreachable.
  void set_verifiers_unreachable(bool is_enabled) { are_verifiers_unreachable_ = is_enabled; }
  // Canary: a request of an at_most_once tool arrives twice.
  void set_duplicate_requests(bool is_enabled) { duplicate_ = is_enabled; }
  // Canary: probes report that the call never arrived.
  void set_false_probes(bool is_enabled) { has_false_probes_ = is_enabled; }
  // Canaries: verifiers always report a match; verifiers change what they check; requests to models
  // arrive twice.
  void set_always_matching_verifiers(bool is_enabled) {
    has_always_matching_verifiers_ = is_enabled;
  }
  void set_mutating_verifiers(bool is_enabled) { has_mutating_verifiers_ = is_enabled; }
  void set_duplicate_model_requests(bool is_enabled) { duplicates_model_requests_ = is_enabled; }
  // Of routines of code.
  Instant now() const { return host_.loop.now(); }
  Duration think();  // until a routine goes on
  bool cuts_session();
  void on_diverged(const JobId& job, const std::string& position);
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
  DeliveryOutcome draw_outcome(const PendingCall& call_in_flight, const KeyRecord& record);
  void send(std::shared_ptr<PendingCall> call_in_flight);
  void arrive(const std::shared_ptr<PendingCall>& call_in_flight, DeliveryOutcome outcome,
              bool last);
  Value probe_answer(const Value& args) const;
  void ask_or_decline(const std::shared_ptr<PendingCall>& call_in_flight);
  void respond(const std::shared_ptr<PendingCall>& call_in_flight, Outcome outcome);
  void stream_deltas(const std::shared_ptr<PendingCall>& call_in_flight, const std::string& text);
  void check_send(const PendingCall& call_in_flight);
  void check_model_request(const PendingCall& call_in_flight, const DeclaredCall& declared_call);
  Value take_effect(const PendingCall& call_in_flight);
  Value answer_of_model(const Value& request);
  void note_receiver(const PendingCall& call_in_flight, const Outcome& outcome);
  CheckResult check_resource(const Value& change);

  Host host_;
  Odds odds_;
  bool duplicate_ = false, has_false_probes_ = false, has_always_matching_verifiers_ = false,
       has_mutating_verifiers_ = false, duplicates_model_requests_ = false;
  bool are_verifiers_unreachable_ = false;
  std::map<std::string, KeyRecord> journal_;  // by idempotency key
  std::map<std::string, Resource, std::less<>> resources_;
  std::vector<VerifierCheck> verifier_checks_;
  std::uint64_t answers_ = 0;  // of models
  // Attempts that received a model's answer, by invocation: each records it, or has lost the job.
  std::map<std::string, AttemptId> answer_receivers_;
};

}  // namespace ae::sim
