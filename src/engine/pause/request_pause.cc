// Requests that pause and resume a job.
#include <fmt/core.h>

#include "engine/heart/decide.h"
#include "engine/heart/features.h"
#include "engine/heart/request.h"

namespace ae::engine {

Result<AppliedRequest> apply_request(const State& state, const ControlRequest& request,
                                     const PauseRequest& pause, const DecisionContext&) {
  if (is_terminal(state.status) || state.ending) {
    return fail(Code::job_terminal,
                is_terminal(state.status)
                    ? fmt::format("the job has ended ({})", to_text(state.status))
                    : "the job is ending: it starts nothing any more");
  }
  if (state.is_paused())
    return AppliedRequest{.events = {}, .answer = Value::object({{"paused", true}})};
  AppliedRequest applied;
  applied.answer = Value::object({{"pause_requested", true}});
  if (!state.pause_request) {
    applied.events.emplace_back(
        JobPauseRequested{.by = none_if_empty(request.by), .reason = none_if_empty(pause.reason)});
  }
  if (state.status == JobStatus::queued || state.status == JobStatus::waiting) {
    applied.events.push_back(paused_event(pause.reason));
    applied.answer = Value::object({{"paused", true}});
  }
  return applied;
}

Result<AppliedRequest> apply_request(const State& state, const ControlRequest& request,
                                     const ResumeRequest&, const DecisionContext&) {
  if (is_terminal(state.status)) {
    return fail(Code::job_terminal, "the job has ended ({})", to_text(state.status));
  }
  const std::string by = author_of(request);
  const Value answer = Value::object({{"resumed", true}});
  // Earlier builds parked until confirmation in cases that now park until resume.
  const bool parked_by_older_build =
      state.awaits_confirmation() && state.parked_reason == kVerifierUnreachable;
  if (state.is_paused() || state.awaits_code() || parked_by_older_build) {
    return AppliedRequest{.events = {JobResumed{.by = by}}, .answer = answer};
  }
  if (state.pause_request) {  // before the job is parked
    return AppliedRequest{.events = {JobPauseRequested{.by = by, .withdrawn = true}},
                          .answer = answer};
  }
  if (state.status == JobStatus::parked) {
    return fail(Code::not_paused, Action{.act = act::kJob, .job = state.job.text},
                "the job is parked ({}) until `{}`, which `resume` does not do",
                state.parked_reason, state.parked_until);
  }
  return fail(Code::not_paused, "the job is not paused: it is {}", to_text(state.status));
}

}  // namespace ae::engine
