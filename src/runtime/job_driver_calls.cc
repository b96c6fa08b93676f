// JobDriver: tool calls, and what they report while they run.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "async/failpoint.h"
#include "base/trace_context.h"
#include "engine/loop/loop.h"
#include "engine/questions/questions.h"
#include "runtime/job_driver.h"
#include "runtime/output_hub.h"

namespace ae::runtime {
namespace {

// Minimum interval between two recorded progress reports of a call. It grows to 1/64 of the time
// that the call has run, so the number of reports grows with the logarithm of that time: about 130
// in the first three minutes, 600 in a day.
constexpr Duration kReportInterval = std::chrono::seconds(1);
constexpr int kReportIntervalShare = 64;

}  // namespace

// The only path that performs an effect. Its permit comes from the ledger, after the declaration is
// durable.
void JobDriver::perform(const StepId& step_id) {
  const auto found = state_.by_id.find(step_id);
  if (found == state_.by_id.end()) return;  // the declaration was not committed
  const engine::Step& step = state_.steps[found->second];
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
  in_flight_.insert_or_assign(step_id,
                              InFlightCall{entry->tool.get(), call.id, try_no, world_.store.now()});
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
  tools::Call request;
  request.job = job_;
  request.tool = call.tool;
  request.args = *std::move(sendable);
  request.inputs = engine::inputs_of(call);
  request.key = call.key;
  request.external_key = call.external_key;
  request.invocation = call.id;
  request.try_no = try_no;
  request.last_sent_try = try_no - 1 - call.unsent_tries;
  if (step.role == engine::Role::node && host_.is_resident()) {
    request.answer_timeout = state_.tool_of(step).ask_expires;
  }
  request.timeout = state_.tool_of(step).timeout;
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
  const engine::ToolPolicy& policy = state_.tool_of(step);
  if (world_.output_hub != nullptr && !policy.provider.empty()) {
    request.on_text_delta = world_.output_hub->begin(job_, {.step = step_id,
                                                            .node = state_.node_of(step).id,
                                                            .invocation = call.id,
                                                            .try_no = try_no,
                                                            .text = {}});
  }
  request.on_late_outcome = [host = host_.handle(), job = job_, sent](Outcome outcome) {
    if (auto locked_host = host.lock()) (*locked_host)->on_late_result(job, *sent, outcome);
  };
  // Computed last, from the latest possible store time: the tool's clock includes suspend from here
  // on, and any suspend since the lease was requested is included in this value.
  request.send_within = call.send_by - world_.store.latest_now();
  if (request.send_within.count() <= 0) return withdraw("its send deadline had passed");
  entry->tool->perform(std::move(*permit), std::move(request), std::move(answer));
}

Instant JobDriver::InFlightCall::may_report_at() const {
  return last_reported ? *last_reported + std::max(kReportInterval,
                                                   (*last_reported - sent) / kReportIntervalShare)
                       : sent;
}

void JobDriver::on_progress(const StepId& step, std::uint32_t try_no, Value value) {
  const auto call = in_flight_.find(step);
  if (ended_ || draining_ || call == in_flight_.end() || call->second.try_no != try_no) return;
  const bool fresh =
      progress_reports_.insert_or_assign(step, ProgressReport{try_no, std::move(value)}).second;
  // A report that replaces a pending one needs no decision: its write is already scheduled.
  if (fresh) pump();
}

// Records the reports of calls in flight once they may be written, and the last report when the
// call has ended.
void JobDriver::add_progress_reports() {
  const Instant now = world_.store.now();
  for (auto it = progress_reports_.begin(); it != progress_reports_.end();) {
    const auto call = in_flight_.find(it->first);
    const auto step = state_.by_id.find(it->first);
    if (draining_ || call == in_flight_.end() || step == state_.by_id.end()) {
      it = progress_reports_.erase(it);
      continue;
    }
    const bool finished = std::ranges::any_of(
        pending_outcomes_,
        [&](const ObservedOutcome& observed) { return observed.sent.step == it->first; });
    if (!finished && call->second.may_report_at() > now) {
      ++it;
      continue;
    }
    call->second.last_reported = now;
    add(Progress{.detail = Value::object(
                     {{"report", it->second.value}, {"try", std::uint64_t{it->second.try_no}}}),
                 .node_id = state_.node_of(state_.steps[step->second]).id,
                 .step_id = it->first});
    it = progress_reports_.erase(it);
  }
}

std::optional<Instant> JobDriver::next_report_at() const {
  std::optional<Instant> next;
  for (const auto& [step, report] : progress_reports_) {
    const auto call = in_flight_.find(step);
    if (call == in_flight_.end()) continue;
    const Instant at = call->second.may_report_at();
    if (!next || at < *next) next = at;
  }
  return next;
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

}  // namespace ae::runtime
