// JobDriver: the calls of a job: performed, reported, abandoned.
#include <algorithm>
#include <memory>
#include <utility>

#include "async/failpoint.h"
#include "base/trace_context.h"
#include "engine/loop/loop.h"
#include "engine/questions/questions.h"
#include "log/field_names.h"
#include "runtime/job_driver.h"
#include "runtime/output_hub.h"

namespace ae::runtime {

// The call of this step's declared try, except its deadline and the receiver of its late outcome.
tools::Call JobDriver::call_of(const engine::Step& step, Value arguments) {
  const engine::Invocation& call = *step.call;
  const std::uint32_t try_no = call.try_no;
  const StepId& step_id = step.id;
  const engine::ToolPolicy& policy = state_.tool_of(step);
  tools::Call request;
  request.job = job_;
  request.tool = call.tool;
  request.args = std::move(arguments);
  request.inputs = engine::inputs_of(call);
  request.key = call.key;
  request.external_key = call.external_key;
  request.invocation = call.id;
  request.try_no = try_no;
  request.last_sent_try = try_no - 1 - call.unsent_tries;
  if (step.role == engine::Role::node && host_.is_resident()) {
    request.answer_timeout = policy.ask_expires;
  }
  request.timeout = policy.timeout;
  const TraceContext trace = trace_of(job_, state_.traceparent, state_.tracestate);
  request.traceparent = traceparent(trace.trace_id, span_id_of(job_, call.id, try_no), trace.flags);
  request.tracestate = trace.state;
  request.note_in_flight = [weak = weak_from_this(), id = call.id, try_no](
                               Value note, async::Done<Status> on_written) {
    auto self = weak.lock();
    if (!self || self->ended_) {
      return on_written(fail(Code::stale_attempt, "this worker no longer holds the job"));
    }
    self->notes_.push_back({id, try_no, std::move(note), std::move(on_written)});
    self->pump();
  };
  request.progress = [weak = weak_from_this(), step_id, try_no](Value value) {
    if (auto self = weak.lock()) self->on_progress(step_id, try_no, std::move(value));
  };
  if (world_.output_hub != nullptr && !policy.provider.empty()) {
    request.on_text_delta = world_.output_hub->begin(job_, {.step = step_id,
                                                            .node = state_.node_of(step).id,
                                                            .invocation = call.id,
                                                            .try_no = try_no,
                                                            .text = {}});
  }
  return request;
}

// The only path that performs an effect. Its permit comes from the ledger, after the declaration is
// durable.
void JobDriver::perform(const StepId& step_id) {
  const engine::Step* const found = state_.find_step(step_id);
  if (found == nullptr) return;  // the declaration was not committed
  const engine::Step& step = *found;
  auto permit = ledger_.permit(state_, step);
  if (!permit) return;
  const engine::Invocation& call = *step.call;
  const std::uint32_t try_no = call.try_no;
  // Shared by the two callbacks that may receive the outcome.
  const auto sent = std::make_shared<const engine::SentTry>(engine::sent_try_of(state_, step));
  auto answer = [weak = weak_from_this(), host = host_.handle(), job = job_,
                 sent](Outcome outcome) {
    if (auto self = weak.lock(); self && !self->ended_)
      return self->on_outcome(*sent, std::move(outcome));
    if (auto locked_host = host.lock()) (*locked_host)->on_late_result(job, *sent, outcome);
  };
  const auto withdraw = [&](std::string why) {
    world_.loop.post([answer, why]() mutable {
      answer({.kind = OutcomeKind::failure,
              .definite = true,
              .retryable = true,
              .error_code = "not_sent",
              .error_message = why});
    });
  };
  const auto index = static_cast<std::size_t>(&state_.tool_of(step) - state_.plan->tools.data());
  auto* entry = world_.tool_registry.find(
      call.tool, index < tool_versions_.size() ? tool_versions_[index] : std::string());
  AE_CHECK(entry, call.tool);
  in_flight_.insert_or_assign(step_id, InFlightCall{entry->tool.get(), call.id, try_no});
  progress_reports_.on_sent(step_id, try_no, world_.store.now());
  if (newer_request_) return withdraw("the job is left to a newer version");
  if (draining_) return withdraw("the process is stopping");
  if (AE_FAILPOINT("tool.before") != async::FailpointAction::proceed)
    return withdraw("failpoint tool.before");
  auto sendable = engine::sent_request(state_, step);
  if (!sendable) {  // the log does not hold the request: nothing is sent
    world_.loop.post([answer, why = sendable.error().message]() mutable {
      answer({.kind = OutcomeKind::failure,
              .definite = true,
              .error_code = std::string(code_name(Code::log_corrupt)),
              .error_message = why});
    });
    return;
  }
  tools::Call request = call_of(step, *std::move(sendable));
  request.on_late_outcome = [host = host_.handle(), job = job_, sent](Outcome outcome) {
    if (auto locked_host = host.lock()) (*locked_host)->on_late_result(job, *sent, outcome);
  };
  // Computed last, from the latest possible store time: the tool's clock includes suspend from here
  // on, and any suspend since the lease was requested is included in this value.
  request.send_within = call.send_by - world_.store.latest_now();
  if (request.send_within.count() <= 0) return withdraw("its send deadline had passed");
  entry->tool->perform(std::move(*permit), std::move(request), std::move(answer));
}

void JobDriver::on_progress(const StepId& step, std::uint32_t try_no, Value value) {
  if (ended_ || draining_) return;
  // A report that replaces a pending one needs no decision: its write is already scheduled.
  if (progress_reports_.add({step, try_no, std::move(value)})) pump();
}

// Records the reports of calls in flight once they may be written, and the last report when the
// call has ended.
void JobDriver::add_progress_reports() {
  if (draining_) return progress_reports_.drop_pending();
  const auto is_finished = [&](const StepId& step) {
    return std::ranges::any_of(pending_outcomes_, [&](const ObservedOutcome& observed) {
      return observed.sent.step == step;
    });
  };
  for (ProgressReports::Report& report :
       progress_reports_.take_due(world_.store.now(), is_finished)) {
    const engine::Step* const step = state_.find_step(report.step);
    if (step == nullptr) continue;
    add(Progress{.detail = Value::object({{"report", std::move(report.value)},
                                          {field::try_, std::uint64_t{report.try_no}}}),
                 .node_id = state_.node_of(*step).id,
                 .step_id = report.step});
  }
}

// Starts the verifiers; their results are input of the next decision.
void JobDriver::start_checks(const std::vector<std::string>& keys) {
  if (!confirmer_) {
    confirmer_.emplace(world_.loop, world_.tool_registry, [weak = weak_from_this()] {
      if (auto self = weak.lock(); self && !self->ended_) self->pump();
    });
  }
  confirmer_->check(state_, keys, tool_versions_);
}

// Abandons questions whose job is ending or whose step is done. A question that a later try
// continued is no longer pending.
void JobDriver::abandon_open_questions() {
  std::erase_if(open_questions_, [&](const OpenQuestion& question) {
    const engine::Step* const step = state_.find_step(question.step);
    const bool waits = !state_.ending && step != nullptr &&
                       step->phase != engine::StepPhase::done && step->call &&
                       step->call->id == question.invocation;
    if (waits) return false;
    abandon_question(world_.tool_registry, question);
    return true;
  });
}

// The job is cancelled. Tool calls are awaited. Model calls are abandoned, because the rest of
// their output is not needed and costs money. No outcome becomes unknown: a model call only reads.
void JobDriver::cancel_model_calls() {
  for (const auto& [step_id, call] : std::map(in_flight_)) {
    const engine::Step* const step = state_.find_step(step_id);
    if (step == nullptr || state_.tool_of(*step).provider.empty()) continue;
    call.tool->abandon(call.invocation, call.try_no);
  }
}

}  // namespace ae::runtime
