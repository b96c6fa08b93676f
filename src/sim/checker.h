// Judge: what the files of rules share. A rule is a function over a job's evidence that says what is broken.
// Threads: pure functions.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>

#include "sim/check.h"

namespace ae::sim {

// What a checker says when the rule is broken.
class Checker {
 public:
  Checker(Report& report, const JobId& job, std::string_view rule)
      : report_(report), job_(job), rule_(rule) {}
  void fail(std::string what) { report_.violate(rule_, job_, std::move(what)); }
  void fail_if(bool wrong, std::string_view what) {
    if (wrong) fail(std::string(what));
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
std::span<const Rule> user_rules();
std::span<const Rule> side_rules();
std::span<const Rule> model_rules();
std::span<const Rule> budget_rules();
std::span<const Rule> confirm_rules();
std::span<const Rule> plan_rules();

bool is_end(EventType type);
// The terminal event; nullptr = none yet. Notes (`outcome_noted`) may follow it.
const Event* end_of(const JobEvidence& e);
// The event as a decision of this kind; null when it is none.
const DecisionRecorded* decision_of(const Event& event, std::string_view kind);
// Is it certain that this try changed nothing?
bool is_definite(const ToolInvocationFinished& finished);
// The instant that a JSON text says.
Instant instant(const Value& text);
// The plan that the job had at this event.
const engine::Plan& plan_at(const JobEvidence& e, std::uint64_t seq);
// The node that an event is about.
const engine::Node& node_of(const JobEvidence& e, const Event& event);
// Which steps are items of maps or parts of loops: a failure of one of them does not end the job by itself.
class PartSteps {
 public:
  explicit PartSteps(const JobEvidence& e) : e_(e) {}
  // Events in the order of the log.
  void apply(const Event& event);
  // REQUIRES: `event` is a node_finished, and all events before it were taken in.
  bool fails_job(const Event& event) const;

 private:
  const JobEvidence& e_;
  std::map<std::string, std::string> own_;  // the step of each map and loop, by its node
  std::set<std::string> parts_;
};
// Is this the answer to the question whether a change is well?
bool answers_confirmation(const JobEvidence& e, const engine::ControlRequest& act);
const KeyRecord* record_of(const JobEvidence& e, std::string_view key);
// Does the terminal event list this act among what it overtook?
bool is_expired_request(const JobEvidence& e, std::string_view act);
// The end of the wait that this act answered; nullptr = none.
const Event* completion_of(const JobEvidence& e, std::string_view id);
// The wait that a signal is for, also when it names the approval; "" = it was never opened.
std::string wait_of(const JobEvidence& e, const engine::ControlRequest& act);
// Did the job begin to end for another reason than that its work was done?
bool was_ended_early(const JobEvidence& e);

// The log of one command, as the effect rules look at it.
struct CallHistory {
  std::string step, key, external_key, tool, effect_class;
  struct Try {
    bool finished = false, success = false, definite = false;
    std::string error;
    Value result;
    Instant deadline;
    // From then on nobody may send it any more: its send_by, or the first opening of the store by another process.
    Instant no_send_after;
    std::optional<Instant> opening;  // of the store, that it was sent under; none = it is shared
    bool settled = false;            // a complete response came
    std::uint64_t seq = 0;
    std::uint64_t first_outcome_seq = 0;   // of its first outcome; a later one came late
    std::uint64_t newest_outcome_seq = 0;  // of its newest outcome
    bool is_first_outcome_definite = false;
    // Its own answer, and not one that came after somebody had given it up: that is kept, and decides nothing.
    bool on_answered() const { return success && newest_outcome_seq == first_outcome_seq; }
    // Until when it may take effect, said here a second time.
    Instant settled_at(Duration timeout, Duration grace) const {
      return std::min(deadline, no_send_after + timeout) + grace;
    }
    // It ended before the other side can have heard of it.
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
// Commands that are about another call: what they are about, by their step.
std::map<std::string, std::string, std::less<>> side_commands(const std::vector<Event>& events);

}  // namespace ae::sim
