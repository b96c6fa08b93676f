// JobDriver: the calls of a job: performed, reported, abandoned.
#include <algorithm>
#include <memory>
#include <utility>

#include "async/failpoint.h"
#include "base/trace_context.h"
#include "engine/loop/loop.h"
#include "engine/questions/questions.h"
#include "runtime/driver/job_driver.h"
#include "runtime/driver/output_hub.h"

namespace ae::runtime {

namespace {

void report_late(const PerformedCall& call, const Outcome& outcome) {
  if (const auto host = call.host.lock()) (*host)->on_late_result(call.job, call.sent, outcome);
}

}  // namespace

std::shared_ptr<JobDriver> JobDriver::driver_of(const PerformedCall& call) {
  auto self = call.driver.lock();
  return self && !self->ended_ ? self : nullptr;
}

// The request of this step's declared try, except its deadline.
tools::Call JobDriver::request_of(const engine::Step& step, Value arguments,
                                  const std::shared_ptr<const PerformedCall>& performed) {
  const engine::Invocation& call = *step.call;
  const engine::ToolPolicy& policy = state_.tool_of(step);
  tools::Call request;
  request.job = job_;
  request.tool = call.tool;
  request.args = std::move(arguments);
  request.inputs = engine::inputs_of(call);
  request.key = call.key;
  request.external_key = call.external_key;
  request.invocation = call.id;
  request.try_no = call.try_no;
  if (step.request) request.position = step.request->position;
  request.last_sent_try = call.try_no - 1 - call.unsent_tries;
  if (step.role == engine::Role::node && host_.is_resident()) {
    request.answer_timeout = policy.ask_expires;
  }
  request.timeout = state_.timeout_of(step);
  request.trace = [performed]() -> tools::TraceHeaders {
    const engine::SentTry& sent = performed->sent;
    const TraceContext trace =
        trace_of(performed->job, performed->traceparent, performed->tracestate);
    const std::string span = span_id_of(performed->job, sent.invocation, sent.try_no);
    return {traceparent(trace.trace_id, span, trace.flags), trace.state};
  };
  request.note_in_flight = [performed](Value note, async::Done<Status> on_written) {
    const auto self = driver_of(*performed);
    if (!self) return on_written(fail(Code::stale_attempt, "this worker no longer holds the job"));
    const engine::SentTry& sent = performed->sent;
    self->notes_.push_back({sent.invocation, sent.try_no, std::move(note), std::move(on_written)});
    self->pump();
  };
  request.progress = [performed](Value value) {
    const engine::SentTry& sent = performed->sent;
    if (const auto self = performed->driver.lock())
      self->on_progress(sent.step, sent.try_no, std::move(value));
  };
  request.on_late_outcome = [performed](const Outcome& outcome) {
    report_late(*performed, outcome);
  };
  if (world_.output_hub == nullptr) return request;
  request.on_text_delta = [performed](const tools::TextDelta& piece) {
    const auto self = driver_of(*performed);
    const engine::SentTry& sent = performed->sent;
    const InFlightCalls::Call* const open = self ? self->in_flight_.find(sent.step) : nullptr;
    if (open == nullptr || open->try_no != sent.try_no) return;
    const engine::Step* const its_step = self->state_.find_step(sent.step);
    if (its_step == nullptr || !its_step->call || !its_step->call->open)
      return;  // it has an outcome
    self->world_.output_hub->add(self->job_, self->state_.node_of(*its_step).id, sent, piece);
  };
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
  const auto performed = std::make_shared<const PerformedCall>(
      weak_from_this(), host_.handle(), job_, engine::sent_try_of(state_, step), state_.traceparent,
      state_.tracestate);
  auto answer = [performed](Outcome outcome) {
    if (const auto self = driver_of(*performed))
      return self->on_outcome(performed, std::move(outcome));
    report_late(*performed, outcome);
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
  const std::uint32_t index = state_.tool_index(step);
  tools::Tool* tool = nullptr;
  if (step.request && step.role == engine::Role::node && state_.tool_of(step).function) {
    tool = routines_.functions_of(step.node, call.worker);
    if (tool == nullptr) return withdraw("its routine is not here");
  } else if (state_.tool_of(step).is_of_runtime()) {
    tool = &host_.runtime_tool(state_.tool_of(step));
  } else {
    auto* entry = world_.tool_registry.find(call.tool, index < tool_versions_.size()
                                                           ? std::string_view(tool_versions_[index])
                                                           : std::string_view());
    AE_CHECK(entry, call.tool);
    tool = entry->tool.get();
  }
  in_flight_.put({step_id, tool, call.id, call.try_no, world_.store.now()});
  progress_reports_.on_ended(step_id);
  if (newer_request_) return withdraw("the job is left to a newer version");
  if (draining_) return withdraw("the process is stopping");
  // A repetition that resolves an unknown outcome is sent.
  const bool records_child = state_.awaits_child(step) && !engine::inputs_of(call).is_null();
  if (routines_.has_cancelled(step) && !call.outcome_unknown && !records_child) {
    return withdraw("its code does not need it any more");
  }
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
  tools::Call request = request_of(step, *std::move(sendable), performed);
  // Computed last, from the latest possible store time: the tool's clock includes suspend from here
  // on, and any suspend since the lease was requested is included in this value.
  request.send_within = call.send_by - world_.store.latest_now();
  if (request.send_within.count() <= 0) return withdraw("its send deadline had passed");
  tool->perform(std::move(*permit), std::move(request), std::move(answer));
}

// Only calls that an earlier process gave to the worker: it could not know the others when it
// reported.
void JobDriver::on_worker_report(const engine::WorkerName& worker, const WorkerReport& report) {
  if (ended_) return;
  const bool is_owned = world_.store.owned();
  bool holds = false;
  for (const std::uint32_t index : state_.calling) {
    const engine::Step& step = state_.steps[index];
    const engine::Invocation& call = *step.call;
    if (call.worker != worker || call.attempt == lease_.fence.attempt) continue;
    const bool was_before =
        is_owned ? call.sent_opening != world_.store.opened_at() : call.send_by <= report.at;
    const bool was_received = report.received.contains({job_, call.id, call.try_no});
    const bool is_covered = was_before && call.send_by - limits_.send_window >= report.covers_from;
    if (!was_received && !is_covered) continue;
    holds = reported_.held.insert(call.id).second || holds;
    if (was_received || !reported_.not_received.emplace(call.id, call.try_no).second) continue;
    host_.on_late_result(job_, engine::sent_try_of(state_, step),
                         {.kind = OutcomeKind::failure,
                          .definite = true,
                          .retryable = true,
                          .error_code = "not_sent",
                          .error_message = "the worker had not received this call"});
  }
  if (holds) pump();
}

void JobDriver::on_advance(ObservedAdvance observed) {
  observed_.push(std::move(observed));
  pump();
}

void JobDriver::on_routine_dropped(std::uint32_t node) {
  observed_.drop_routine(node, [this, node](const ObservedOutcome& outcome) {
    const engine::Step* const step = state_.find_step(outcome.call->sent.step);
    return step != nullptr && step->node == node;
  });
}

// Adds the events that record the advance; false: it is dropped, because its code does not run any
// more or its routine broke a rule.
bool JobDriver::record(ObservedAdvance& observed) {
  const std::uint32_t node = observed.node;
  const bool runs = state_.status == engine::JobStatus::running && !state_.ending &&
                    state_.routines.contains(node);
  if (!runs) return false;
  const bool cancels = !observed.advance.cancelled.empty();
  auto events = routines_.events_of(state_, observed);
  if (events) {
    for (EventBody& draft : *events) add(std::move(draft));
    routines_.on_recorded(state_, node, observed.advance);
    if (cancels) {
      world_.loop.post([weak = weak_from_this()] {
        if (const auto self = weak.lock(); self && !self->ended_) self->abandon_cancelled_calls();
      });
    }
    return true;
  }
  host_.warn(job_, fmt::format("the code of \"{}\" broke a rule: {}",
                               state_.node_of(state_.steps[node]).id, events.error().message));
  routines_.fail_routine(node, events.error());
  return false;
}

// Everything is durable. False: the driver has finished with the job, because its code cannot run
// here.
bool JobDriver::start_routines() {
  if (draining_ || newer_request_) return true;
  // Another worker would not learn the outcomes of these calls.
  if (routines_.has_lost() && !in_flight_.empty()) return true;
  const Status running = routines_.on_durable(job_, state_);
  if (!running) release_claim(running.error());
  return running.has_value();
}

void JobDriver::on_progress(const StepId& step, std::uint32_t try_no, Value value) {
  if (ended_ || draining_) return;
  const InFlightCalls::Call* const call = in_flight_.find(step);
  if (call == nullptr || call->try_no != try_no) return;
  // A report that replaces a pending one needs no decision: its write is already scheduled.
  if (progress_reports_.add({step, try_no, std::move(value)}, call->sent)) pump();
}

// Records the reports of calls in flight once they may be written, and the last report when the
// call has ended.
void JobDriver::add_progress_reports() {
  if (progress_reports_.empty()) return;
  if (draining_) return progress_reports_.drop_pending();
  const auto is_finished = [&](const StepId& step) {
    return observed_.has_pending_outcome(
        [&](const ObservedOutcome& observed) { return observed.call->sent.step == step; });
  };
  for (ProgressReports::Report& report :
       progress_reports_.take_due(world_.store.now(), is_finished)) {
    const engine::Step* const step = state_.find_step(report.step);
    if (step == nullptr) continue;
    add(Progress{.detail = ProgressReport{.report = std::move(report.value),
                                          .try_no = std::int64_t{report.try_no}},
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

// Code has cancelled these calls. Those that only read are abandoned: no outcome becomes unknown.
// Others are awaited, because what they did must be known.
void JobDriver::abandon_cancelled_calls() {
  if (routines_.empty()) return;
  for (const InFlightCalls::Call& call : std::vector(in_flight_.list())) {
    const engine::Step* const step = state_.find_step(call.step);
    if (step == nullptr || !routines_.has_cancelled(*step)) continue;
    if (state_.tool_of(*step).effect != engine::EffectClass::read) continue;
    call.tool->abandon(call.invocation, call.try_no);
  }
}

// The job is cancelled. Tool calls are awaited. Model calls are abandoned, because the rest of
// their output is not needed and costs money. No outcome becomes unknown: a model call only reads.
void JobDriver::cancel_model_calls() {
  for (const InFlightCalls::Call& call : std::vector(in_flight_.list())) {
    const engine::Step* const step = state_.find_step(call.step);
    if (step == nullptr || state_.tool_of(*step).provider.empty()) continue;
    call.tool->abandon(call.invocation, call.try_no);
  }
}

}  // namespace ae::runtime
