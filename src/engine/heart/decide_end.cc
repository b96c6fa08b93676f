// How a job ends (SPEC §7), and how it becomes idle while it waits.
#include <fmt/core.h>

#include "engine/heart/decider.h"
#include "engine/heart/features.h"
#include "log/park_until.h"

namespace ae::engine {
namespace {

// In a job_waiting event. Each wait has its own wait_opened, so the log stays linear in the work.
constexpr std::size_t kWaitsShownMax = 64;

template <class T>
JsonOf<std::vector<T>> list_or_absent(const std::vector<T>& list) {
  return list.empty() ? JsonOf<std::vector<T>>() : list;
}

// The position of the job for the resuming worker: its plan, the number of unfinished nodes and of
// open waits (`waits` lists the first ones). The full state is the fold.
ResumptionContext resumption_context(const State& state) {
  return {.decision_id = state.plan->decision,
          .nodes_left = state.nodes_left,
          .open_waits = static_cast<std::int64_t>(state.waits.size()),
          .plan = state.plan_number};
}

}  // namespace

// All nodes are done: the output, then the end.
void Decider::complete_job() {
  auto result = output_of(s_, &work_);
  if (result && canonical_exceeds(*result, kValueMax)) result = too_large("the output");
  if (!result) {
    return end_with_error(code_name(result.error().code),
                          fmt::format("output: {}", result.error().message));
  }
  emit(JobCompleted{.children_in_doubt = list_or_absent(s_.children_in_doubt),
                    .in_doubt = list_or_absent(s_.unknown_call_keys()),
                    .result = std::move(*result),
                    .undelivered = list_or_absent(undelivered())});
  decision_.release = true;
}

// Signals that arrived after the end was decided, and signals and messages that no wait took.
std::vector<UndeliveredMessage> Decider::undelivered() const {
  std::vector<UndeliveredMessage> left = s_.undelivered;
  for (const auto& [key, early] : s_.early_signals) {
    if (is_child_wait_key(key)) continue;
    for (const BufferedMessage& kept : early) {
      left.push_back({.correlation_key = key, .signal_id = kept.id});
    }
  }
  for (const auto& [channel, pending_messages] : s_.pending_messages) {
    for (const BufferedMessage& kept : pending_messages) {
      left.push_back({.channel = channel, .message_id = kept.id});
    }
  }
  return left;
}

void Decider::cancel_wait(const std::string& key, const Wait& wait) {
  if (wait.type == WaitType::job) return cancel_child(wait);  // and still awaited
  emit_of(s_.steps[wait.step], WaitCompleted{.correlation_key = key,
                                             .outcome = "cancelled",
                                             .wait_type = std::string(to_text(wait.type))});
}

// The job ends for a reason that is in no event yet. A job that must undo steps records the reason.
void Decider::end_with_error(std::string_view code, std::string message) {
  if (!s_.needs_undo()) {
    return end_job({.cancelled = false,
                    .code = std::string(code),
                    .message = std::move(message),
                    .node_id = {},
                    .by = {}});
  }
  emit(decision_event(EndDecided{.code = std::string(code), .message = std::move(message)},
                      {.decision_id = decision_at(s_, "end")}));
}

// Ends the job: nothing new starts, calls in flight are awaited, and unknown
// outcomes are closed and listed.
void Decider::end_job(const Ending& ending) {
  for (std::uint32_t index : s_.todo) {  // known results are still recorded
    if (is_full()) break;
    const Step& step = s_.steps[index];
    const bool success =
        step.phase == StepPhase::settled && step.call->outcome == OutcomeKind::success;
    if (success) commit_command(step);
    if (step.phase == StepPhase::recorded || step.phase == StepPhase::committed ||
        step.phase == StepPhase::done) {
      this->decide_step(index);
    }
  }
  if (!decision_.events.empty()) return;
  const bool has_children = await_children();
  if (!decision_.events.empty()) return;
  for (std::uint32_t index : s_.calling) {
    const Step& step = s_.steps[index];
    if (s_.is_live(step)) return;
    // Another process may still perform it and record its outcome.
    if (!context_.owned && context_.now < step.call->deadline) {
      // No worker would continue an idle job.
      if (s_.status == JobStatus::parked &&
          (s_.parked_until != park_until::kResolve || !s_.awaits_operator_before_end())) {
        emit(JobResumed{.by = "runtime"});
      }
      return decide_again_at(step.call->deadline);
    }
  }
  // Its children end, and are compensated, before it.
  if (has_children) {
    const bool may_exist = s_.has_unknown_child();
    if (s_.status == JobStatus::running && !may_exist && s_.open_children > 0) wait_for_answers();
    if (!may_exist) return;
  }
  if (s_.must_undo() && s_.status == JobStatus::running && has_wrong_version(s_, context_)) {
    return park_for_version();
  }
  if (s_.must_undo()) return decide_undo();
  const std::vector<std::string> in_doubt = s_.unknown_call_keys();
  for (const Step& step : s_.steps) {
    if (step.call && step.call->open) finish_as_unknown(step);
  }
  for (const auto& [key, wait] : s_.waits) cancel_wait(key, wait);
  const auto end_with = [&](auto event) {
    event.children_in_doubt = list_or_absent(s_.children_in_doubt);
    event.in_doubt = list_or_absent(in_doubt);
    event.compensated = list_or_absent(steps_list(s_, s_.undone));
    event.uncompensated = list_or_absent(steps_list(s_, not_undone(s_)));
    event.undelivered = list_or_absent(undelivered());
    emit(std::move(event));
  };
  if (ending.cancelled) {
    end_with(JobCancelled{.by = none_if_empty(ending.by), .reason = none_if_empty(ending.message)});
  } else {
    end_with(JobFailed{.code = ending.code,
                       .error = Value(ending.message),
                       .node_id = none_if_empty(ending.node_id)});
  }
  decision_.release = true;
}

// Releases the job for a long back-off. False: there is nothing to wait for.
bool Decider::release_until(std::optional<Instant> backoff) {
  if (!backoff) return false;
  const bool settles = revisit_at_ && *revisit_at_ == *backoff;
  // A death during this wait would count as a lost claim. After one lost claim the
  // job is released at once.
  const Duration wait_max =
      settles && s_.lost_claims > 0 ? Duration(0) : limits_.leased_backoff_max;
  if (*backoff - context_.now > wait_max) {
    decision_.events.push_back(requeued_event(settles ? "settling" : "backoff", backoff));
    decision_.release = true;
  }
  return true;
}

// Nothing can progress now: records what the job waits for.
void Decider::become_idle() {
  if (limit_reached_) return;
  if (s_.nodes_left == 0) return complete_job();
  // A child that ends returns what it did not use of the budget.
  const bool may_fit_later = s_.open_children > 0;
  std::optional<Instant> backoff;
  for (std::uint32_t index : s_.todo) {
    const Step& step = s_.steps[index];
    if (settling_ && !s_.may_have_changed(step)) continue;  // blocked until that is known
    const bool awaits_budget =
        !exceeded_limits_.empty() && may_fit_later && step.not_before <= context_.now;
    if (step.phase != StepPhase::backoff || awaits_budget) continue;
    if (!backoff || step.not_before < *backoff) backoff = step.not_before;
  }
  if (revisit_at_ && (!backoff || *revisit_at_ < *backoff)) backoff = revisit_at_;
  // Tries that only need a resend are resent before the job parks, so that no operator
  // has to check their outcome.
  if (!exceeded_limits_.empty() && !may_fit_later && (!backoff || *backoff <= context_.now)) {
    return park_for_budget();
  }
  if (release_until(backoff)) return;
  if (s_.waits.empty() && !s_.routines.empty()) return park_stalled_routine();
  AE_CHECK(!s_.waits.empty(), fmt::format("nothing can move, nothing is awaited: {}", s_.job.text));
  wait_for_answers();
}

// REQUIRES: a wait is open.
void Decider::wait_for_answers() {
  const bool all_resolve =
      std::ranges::all_of(s_.waits, [](const auto& entry) { return entry.second.resolve; });
  decision_.release = true;
  if (all_resolve) {
    emit(JobParked{.reason = std::string(code_name(Code::invocation_in_doubt)),
                   .until = park_until::kResolve});
    return;
  }
  std::vector<std::string> waits;
  const std::pair<const std::string, Wait>* first = nullptr;
  for (const auto& entry : s_.waits) {
    if (!entry.second.resolve && (!first || entry.second.step < first->second.step)) first = &entry;
    if (waits.size() < kWaitsShownMax) waits.emplace_back(entry.first);
  }
  emit_of(s_.steps[first->second.step],
          JobWaiting{.correlation_key = first->first,
                     .expires_at = first->second.expires_at,
                     .reason = std::string(wait_reason(first->second)),
                     .resumption_context = resumption_context(s_),
                     .wait_type = std::string(to_text(first->second.type)),
                     .waits = waits});
}

}  // namespace ae::engine
