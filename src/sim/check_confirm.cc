// The rules about external changes: each is verified after each recovery, the recorded verdict is
// true, and the consequence is the one of the plan. (external_world.cc checks that verifiers run in
// no other case.)
#include <algorithm>
#include <optional>
#include <set>

#include "inspect/request_kind.h"
#include "inspect/view.h"
#include "json/json.h"
#include "log/decisions.h"
#include "log/field_names.h"
#include "log/park_until.h"
#include "sim/checker.h"

namespace ae::sim {
namespace {

struct Mismatch {  // from the recorded version
  std::string verdict, observed;
  friend bool operator==(const Mismatch&, const Mismatch&) = default;
};

// The last change of a resource, as of an event of the log.
struct RecordedChange {
  std::string step, tool, version, attempt;
  std::uint64_t epoch = 0;
  bool was_verified = false;  // by the current attempt
  std::optional<Mismatch> accepted, open_mismatch;
};

class ConfirmationWalker {
 public:
  ConfirmationWalker(const JobEvidence& e, Checker& checker) : e_(e), checker_(checker) {}
  std::map<std::string, RecordedChange, std::less<>> resources;
  std::string attempt;
  std::uint64_t epoch = 0;

  virtual ~ConfirmationWalker() = default;
  void run() {
    for (index_ = 0; index_ < e_.events.size(); ++index_) {
      const Event& event = e_.events[index_];
      seq_ = event.seq;
      check_event(event);
      apply(event);
    }
  }

 protected:
  virtual void check_event(const Event& event) = 0;
  const JobEvidence& e_;
  Checker& checker_;
  std::uint64_t seq_ = 0;
  std::size_t index_ = 0;

 private:
  void apply(const Event& event) {
    const std::string step(step_of(event));
    if (const auto* running = as<JobRunning>(event)) {
      attempt = running->attempt_id;
      epoch = static_cast<std::uint64_t>(running->epoch);
      for (auto& [name, resource] : resources) {
        resource.was_verified = false;
        resource.open_mismatch.reset();
      }
    } else if (const auto* call = as<ToolInvocationStarted>(event)) {
      tools_[step] = call->tool_name;
      attempts_[step] = {event.attempt_id ? event.attempt_id->text : "", epoch};
    } else if (const auto* change = as<StateChanged>(event)) {
      resources[change->resource_id] = {.step = step,
                                        .tool = tools_[step],
                                        .version = or_empty(change->version),
                                        .attempt = attempts_[step].first,
                                        .epoch = attempts_[step].second,
                                        .was_verified = false,
                                        .accepted = {},
                                        .open_mismatch = {}};
      nodes_[change->resource_id] = change->node_id;
    } else if (const auto* checked = as<ConfirmationChecked>(event)) {
      const auto resource = resources.find(or_empty(checked->resource_id));
      if (resource != resources.end()) resource->second.was_verified = true;
    } else if (const auto* decision = decision_of(event, ConfirmationRequested::kKind)) {
      decided(*decision, step);
    } else if (const auto* plan = as<PlanGenerated>(event)) {
      if (!plan->carried.is_null()) remove_carried(plan->carried.read_leniently());
    }
  }

  void decided(const DecisionRecorded& decision, const std::string& step) {
    if (const auto request = decision_as<ConfirmationRequested>(decision)) {
      for (const DeviatingResource& one : request->resources) {
        const auto resource = resources.find(one.resource_id);
        if (resource == resources.end()) continue;
        const bool known = one.observed.is_string();
        resource->second.open_mismatch =
            Mismatch{one.verdict, known ? one.observed.as_string() : std::string()};
      }
    }
    for (auto& [name, resource] : resources) {
      if (resource.step != step || decision.state != "accept" || !resource.open_mismatch) continue;
      resource.accepted = std::exchange(resource.open_mismatch, std::nullopt);
    }
  }

  void remove_carried(const std::vector<CarriedNode>& carried) {
    std::set<std::string, std::less<>> nodes;
    for (const CarriedNode& entry : carried) nodes.insert(entry.node_id);
    std::erase_if(resources,
                  [&](const auto& resource) { return !nodes.contains(nodes_[resource.first]); });
  }

  std::map<std::string, std::string> tools_;  // by step
  std::map<std::string, std::pair<std::string, std::uint64_t>> attempts_;
  std::map<std::string, std::string> nodes_;  // by resource
};

// ---------------------------------------------------------------- when changes are verified

class VerifierCheckWalker final : public ConfirmationWalker {
 public:
  VerifierCheckWalker(const JobEvidence& e, Checker& checker)
      : ConfirmationWalker(e, checker), parts_(e) {}

 private:
  void check_event(const Event& event) override {
    parts_.apply(event);
    ending_ = ending_ || begins_end(event);
    const auto* command = as<CommandEmitted>(event);
    if (command && command->of) side_.insert(command->step_id.text);
    if (const auto* check = as<ConfirmationChecked>(event)) return checked(*check);
    const auto* call = as<ToolInvocationStarted>(event);
    if (!call || ending_) return;
    // Probes and compensations may follow the end; and a call that may have changed something is
    // settled first.
    const bool again = call->try_no != 1 && !tool_kind(call->tool_name)->changes.empty();
    if (again || side_.contains(call->step_id.text)) return;
    for (const auto& [name, resource] : resources) {
      checker_.fail_if(resource.attempt != attempt && !resource.was_verified,
                       "event {}: a call begins before the verification of {}", seq_, name);
    }
  }

  // True if no new work begins after this event. Calls with an unknown outcome that can be undone
  // may be retried.
  bool begins_end(const Event& event) const {
    if (const auto* timer = as<TimerFired>(event))
      return timer->effect_id == engine::kDeadlineTimer;
    if (const auto* decision = decision_of(event, ConfirmationRequested::kKind)) {
      // "fail" is an operator's answer, "failed" the end after a strict mismatch.
      return or_empty(decision->state).starts_with("fail");
    }
    if (event.type == EventType::node_finished) return parts_.fails_job(event);
    if (decision_of(event, EndDecided::kKind) != nullptr) return true;
    return event.type == EventType::job_cancel_requested;
  }

  void checked(const ConfirmationChecked& check) {
    const std::string& name = or_empty(check.resource_id);
    const auto resource = resources.find(name);
    if (resource == resources.end())
      return checker_.fail("event {}: {} was not changed by the job", seq_, name);
    checker_.fail_if(resource->second.was_verified, "event {}: {} is verified twice by one attempt",
                     seq_, name);
    checker_.fail_if(resource->second.attempt == attempt,
                     "event {}: {} is verified by the attempt that changed it", seq_, name);
  }

  PartSteps parts_;
  std::set<std::string, std::less<>> side_;
  bool ending_ = false;
};

void verifies_after_recovery(const JobEvidence& e, Checker& checker) {
  VerifierCheckWalker(e, checker).run();
  // An attempt checks each change once, or a few times if it was unreachable.
  std::map<std::pair<std::string, std::string>, std::pair<std::uint64_t, std::uint64_t>>
      verifier_checks;
  for (const VerifierCheck* verifier_check : e.verifier_checks) {
    auto& [seen, all] = verifier_checks[{verifier_check->resource, verifier_check->expected}];
    seen += verifier_check->reported_verdict != CheckVerdict::unreachable;
    all++;
  }
  for (const auto& [what, times] : verifier_checks) {
    checker.fail_if(times.first > e.state.epoch || times.second > 4 * e.state.epoch,
                    "{} was verified {} times in {} attempts", what.first, times.second,
                    e.state.epoch);
  }
}

// ---------------------------------------------------------------- verdicts

class ObservedStateWalker final : public ConfirmationWalker {
 public:
  using ConfirmationWalker::ConfirmationWalker;

 private:
  void check_event(const Event& event) override {
    const auto* check = as<ConfirmationChecked>(event);
    if (!check) return;
    const std::string& name = or_empty(check->resource_id);
    const auto found = resources.find(name);
    if (found == resources.end()) return;
    const RecordedChange& resource = found->second;
    const std::string& verdict = or_empty(check->verdict);
    checker_.mark("confirm." + verdict);
    const bool verified = tool_kind(resource.tool)->verified();
    checker_.fail_if(verified == (verdict == "unconfirmed"), "event {}: {} is {}", seq_, name,
                     verdict);
    if (!verified) return;
    const bool seen =
        std::ranges::any_of(e_.verifier_checks, [&](const VerifierCheck* verifier_check) {
          const bool same = verdict != "mismatch" ||
                            check->detail.json().text("observed") == verifier_check->actual_version;
          return verifier_check->resource == name && verifier_check->expected == resource.version &&
                 to_text(verifier_check->actual_verdict()) == verdict && same;
        });
    checker_.fail_if(!seen, "event {}: {} is recorded as {}, which no verifier check returned",
                     seq_, name, verdict);
  }
};

void observed_state_is_true(const JobEvidence& e, Checker& checker) {
  ObservedStateWalker(e, checker).run();
}

// ---------------------------------------------------------------- consequences

// True if the request decides about the changes of this step, as `accepts`.
bool decides(const engine::ApproveRequest& approve, std::string_view step, bool accepts) {
  return approve.approval_id == step && accepts == (approve.decision == "approve");
}
bool decides(const engine::ResolveRequest& resolve, std::string_view step, bool accepts) {
  return resolve.step_id == step && accepts == (resolve.resolution == "accept");
}
bool decides(const auto&, std::string_view, bool) { return false; }

class ConsequenceWalker final : public ConfirmationWalker {
 public:
  ConsequenceWalker(const JobEvidence& e, Checker& checker)
      : ConfirmationWalker(e, checker), parts_(e) {}
  bool failed() const { return failed_; }
  // A node failed the job with the code of a mismatch: its child had one.
  bool child_failed() const { return child_failed_; }

 private:
  void check_event(const Event& event) override {
    parts_.apply(event);
    if (const auto* node = as<NodeFinished>(event)) {
      const bool is_mismatch = node->error && node->error->code == "confirmation_failed";
      child_failed_ = child_failed_ || (is_mismatch && parts_.fails_job(event));
    }
    if (const auto* check = as<ConfirmationChecked>(event)) return checked(*check);
    const auto* decision = decision_of(event, ConfirmationRequested::kKind);
    if (!decision) return;
    const std::string_view state = or_empty(decision->state);
    if (state == "checked") return consequence();
    if (state == "failed" || state == "fail") failed_ = true;
    if (state == "accept" || state == "fail") check_answer(event, *decision);
  }

  void checked(const ConfirmationChecked& check) {
    const auto resource = resources.find(or_empty(check.resource_id));
    const std::string_view verdict = or_empty(check.verdict);
    if (resource == resources.end() || (verdict != "mismatch" && verdict != "unreachable")) return;
    const Mismatch seen{std::string(verdict), verdict == "mismatch"
                                                  ? or_empty(check.detail.read_leniently().observed)
                                                  : std::string()};
    const std::string_view mode = tool_kind(resource->second.tool)->changes;
    if (resource->second.accepted == seen) {
      checker_.mark("confirm.accepted_before");
    } else if (verdict == "unreachable" || mode == "human") {
      raises_.insert(resource->second.step);
      raises_mismatch_ = raises_mismatch_ || verdict == "mismatch";
    } else if (mode == "strict") {
      strict_ = true;
    }
  }

  // The events after the decision are the consequence of the verdicts.
  void consequence() {
    std::set<std::string> requested;
    std::size_t next = index_ + 1;
    const auto state_at = [&](std::size_t i) {
      const auto* decision =
          i < e_.events.size() ? decision_of(e_.events[i], ConfirmationRequested::kKind) : nullptr;
      return decision ? std::string_view(or_empty(decision->state)) : std::string_view();
    };
    while (state_at(next) == "requested") {
      requested.emplace(step_of(e_.events[next++]));
    }
    checker_.fail_if(strict_ != (state_at(next) == "failed"), "event {}: {}", seq_,
                     strict_ ? "a strict mismatch does not end the job"
                             : "the job ends without a strict mismatch");
    if (strict_) checker_.mark("confirm.failed");
    const bool raises = !raises_.empty() && !strict_;
    checker_.fail_if(requested != (raises ? raises_ : std::set<std::string>()),
                     "event {}: the raised mismatches are not the observed ones without acceptance",
                     seq_);
    if (raises) parks(next);
    raises_.clear();
    raises_mismatch_ = false;
    strict_ = false;
  }

  void parks(std::size_t next) {
    const auto* park = next < e_.events.size() ? as<JobParked>(e_.events[next]) : nullptr;
    const bool parked =
        park && park->until == (raises_mismatch_ ? park_until::kConfirmation : park_until::kResume);
    checker_.fail_if(!parked, "event {}: a decision is requested, and the job is not parked", seq_);
    checker_.mark("confirm.requested");
    if (!parked) return;
    const std::vector<Event> events_so_far(
        e_.events.begin(), e_.events.begin() + static_cast<std::ptrdiff_t>(next + 1));
    const auto state = engine::fold(e_.job, events_so_far, e_.plans);
    if (!state) return checker_.fail("event {}: {}", seq_, state.error().message);
    std::set<std::string> listed;
    for (const Value& one : engine::approvals_view(*state)) {
      if (one.text(field::kind) == to_text(engine::RequestKind::confirmation))
        listed.emplace(one.text(field::step_id));
    }
    checker_.fail_if(listed != raises_,
                     "event {}: the approvals list other steps than the requested ones", seq_);
  }

  // The answer was requested by a user.
  void check_answer(const Event& event, const DecisionRecorded& decision) {
    const auto requested = e_.requested.find(or_empty(decision.by));
    const bool accepts = decision.state == "accept";
    const bool is_requested =
        requested != e_.requested.end() &&
        std::visit([&](const auto& body) { return decides(body, step_of(event), accepts); },
                   requested->second.request.body);
    checker_.fail_if(!is_requested, "event {}: no user requested this", seq_);
    checker_.mark(accepts ? "confirm.accepted" : "confirm.not_accepted");
  }

  std::set<std::string> raises_;  // steps
  bool raises_mismatch_ = false;  // else all of them are unreachable
  bool strict_ = false, failed_ = false, child_failed_ = false;
  PartSteps parts_;
};

void mismatches_have_consequences(const JobEvidence& e, Checker& checker) {
  ConsequenceWalker following(e, checker);
  following.run();
  if (e.state.status != engine::JobStatus::failed) return;
  const bool is_confirmation_failure =
      e.state.error && e.state.error->code == "confirmation_failed";
  checker.fail_if(is_confirmation_failure && !following.failed() && !following.child_failed(),
                  "it failed without a mismatch");
  checker.fail_if(!is_confirmation_failure && following.failed(),
                  "it failed for another reason than the mismatch");
}

void answers_are_kept(const JobEvidence& e, Checker& checker) {
  for (const Ack* ack : e.acks) {
    if (!answers_confirmation(e, ack->request)) continue;
    const bool found = std::ranges::any_of(e.events, [&](const Event& event) {
      const auto* answer = decision_of(event, ConfirmationRequested::kKind);
      return answer && or_empty(answer->by) == ack->request.by;
    });
    checker.fail_if(!found, "{} was accepted and is not in the log", ack->request.id);
  }
}

constexpr Rule kConfirmRules[] = {
    {"V1 each change is verified once after a recovery, before a new call",
     verifies_after_recovery},
    {"V2 a recorded verdict matches the resource", observed_state_is_true},
    {"V3 a mismatch has its mode's consequence, and an accepted one is not raised again",
     mismatches_have_consequences},
    {"N1 an accepted decision about a change is never lost", answers_are_kept},
};

}  // namespace

std::span<const Rule> confirm_rules() { return kConfirmRules; }

}  // namespace ae::sim
