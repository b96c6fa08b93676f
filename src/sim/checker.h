// Checker: helpers for the rules. A rule is a function of a job's evidence that reports violations.
// Threads: pure functions.
#pragma once

#include <fmt/core.h>

#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "engine/heart/decide.h"
#include "sim/check.h"

namespace ae::sim {

// Reports violations of one rule for one job.
class Checker {
 public:
  Checker(Report& report, const JobId& job, std::string_view rule)
      : report_(report), job_(job), rule_(rule) {}
  template <class... Args>
  void fail(fmt::format_string<Args...> what, Args&&... args) {
    report_.violate(rule_, job_, fmt::format(what, std::forward<Args>(args)...));
  }
  template <class... Args>
  void fail_if(bool wrong, fmt::format_string<Args...> what, Args&&... args) {
    if (wrong) fail(what, std::forward<Args>(args)...);
  }
  void mark(std::string_view name) { report_.mark(name); }

 private:
  Report& report_;
  const JobId& job_;
  std::string_view rule_;
};

struct Rule {
  std::string_view name;
  void (*check)(const JobEvidence&, Checker&);
};
std::span<const Rule> log_rules();
std::span<const Rule> effect_rules();
std::span<const Rule> request_rules();
std::span<const Rule> user_rules();
std::span<const Rule> side_rules();
std::span<const Rule> model_rules();
std::span<const Rule> budget_rules();
std::span<const Rule> confirm_rules();
std::span<const Rule> plan_rules();
std::span<const Rule> child_rules();
std::span<const Rule> code_rules();

bool is_end(EventType type);
// The type of a wait, or of a message, that is the end of a child job.
inline bool is_of_child(std::string_view wait_type) { return wait_type == "job"; }
// The terminal event; nullptr = none yet. `outcome_noted` events may follow it.
const Event* end_of(const JobEvidence& e);
// The event as a decision of this kind; nullptr if it is none.
const DecisionRecorded* decision_of(const Event& event, std::string_view kind);
// True if this try certainly had no effect.
bool is_definite(const ToolInvocationFinished& finished);
// Parses the instant of a JSON text.
Instant instant(const Value& text);
// The plan of the job at this event.
const engine::Plan& plan_at(const JobEvidence& e, std::uint64_t seq);
// The node of an event.
const engine::Node& node_of(const JobEvidence& e, const Event& event);
// Tracks which steps are map items or parts of loops: the failure of one does not by itself end the
// job.
class PartSteps {
 public:
  explicit PartSteps(const JobEvidence& e) : e_(e) {}
  // REQUIRES: called with all events in the order of the log.
  void apply(const Event& event);
  // REQUIRES: `event` is a node_finished, and all events before it were applied.
  bool fails_job(const Event& event) const;

 private:
  const JobEvidence& e_;
  std::map<std::string, std::string> own_;  // the step of each map and loop, by its node
  std::set<std::string> parts_;
};
// True if the request answers a verification mismatch.
bool answers_confirmation(const JobEvidence& e, const engine::ControlRequest& request);
const KeyRecord* record_of(const JobEvidence& e, std::string_view key);
// True if the terminal event lists this request as expired.
bool is_expired_request(const JobEvidence& e, std::string_view request);
// The completion of the wait that this request answered; nullptr = none.
const Event* completion_of(const JobEvidence& e, std::string_view id);
// The key of the wait that a signal or an approval answers; nullopt = a request of another kind.
// "" = the wait of an approval was never opened.
std::optional<std::string> wait_of(const JobEvidence& e, const engine::ControlRequest& request);
// What a signal or an approval gives to its wait.
Value payload_of(const engine::ControlRequest& request);
// True if the job began to end before its work was done.
bool was_ended_early(const JobEvidence& e);

// The log of one call, as the effect rules use it.
struct CallHistory {
  std::string step, key, external_key, tool, effect_class;
  struct Try {
    bool finished = false, success = false, definite = false;
    std::string error;
    Value result;
    Instant deadline;
    // After this instant it must not be sent: its send_by, or the next opening of the store by
    // another process.
    Instant no_send_after;
    std::optional<Instant> opening;  // of the store, when it was sent; none = a shared store
    bool settled = false;            // a complete response arrived
    std::uint64_t seq = 0;
    std::uint64_t first_outcome_seq = 0;   // of its first outcome; a later one is a late result
    std::uint64_t newest_outcome_seq = 0;  // of its newest outcome
    bool is_first_outcome_definite = false;
    // True if its own result counts. A result that arrived after the call was abandoned is
    // recorded, but decides nothing.
    bool is_answered() const { return success && newest_outcome_seq == first_outcome_seq; }
    // When it can no longer take effect; computed independently of the engine.
    Instant settled_at(Duration timeout, Duration grace) const {
      return std::min(deadline, no_send_after + timeout) + grace;
    }
    // It ended before the downstream can have received it.
    bool was_never_delivered() const {
      return is_first_outcome_definite && (error == "connect" || error == "not_sent");
    }
  };
  std::map<std::int64_t, Try> tries;
  bool has_unknown_outcome() const {
    for (const auto& [number, t] : tries) {
      if (!t.finished || (!t.success && !t.definite)) return true;
    }
    return false;
  }
};
std::map<std::string, CallHistory> calls_of(const std::vector<Event>& events);  // by invocation
// Commands about another call (probes and compensations): the step of that call, by their step.
std::map<std::string, std::string, std::less<>> side_commands(const std::vector<Event>& events);

}  // namespace ae::sim
