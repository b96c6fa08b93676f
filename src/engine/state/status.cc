// The state machine of a job: SPEC §2 as a table; the texts of the enumerations of the state.
#include <array>

#include "engine/state/state.h"

namespace ae::engine {

std::string_view to_text(JobStatus status) {
  switch (status) {
    case JobStatus::none:
      return "none";
    case JobStatus::queued:
      return "queued";
    case JobStatus::running:
      return "running";
    case JobStatus::waiting:
      return "waiting";
    case JobStatus::parked:
      return "parked";
    case JobStatus::completed:
      return "completed";
    case JobStatus::failed:
      return "failed";
    case JobStatus::cancelled:
      return "cancelled";
  }
  return "none";
}

bool is_terminal(JobStatus status) {
  return status == JobStatus::completed || status == JobStatus::failed ||
         status == JobStatus::cancelled;
}

bool is_blocked(JobStatus status) {
  return status == JobStatus::waiting || status == JobStatus::parked;
}

std::string_view to_text(ResultType type) {
  switch (type) {
    case ResultType::none:
      return "none";
    case ResultType::pure:
      return "pure";
    case ResultType::side_effect_committed:
      return "side_effect_committed";
    case ResultType::permanent_failure:
      return "permanent_failure";
    case ResultType::compensatable_failure:
      return "compensatable_failure";
    case ResultType::compensated:
      return "compensated";
  }
  return "none";
}

std::string_view to_text(ApprovalState state) {
  switch (state) {
    case ApprovalState::requested:
      return "requested";
    case ApprovalState::approved:
      return "approved";
    case ApprovalState::rejected:
      return "rejected";
    case ApprovalState::expired:
      return "expired";
    case ApprovalState::withdrawn:
      return "withdrawn";
    case ApprovalState::denied:
      return "denied";
  }
  return {};
}

namespace {

// The status after an event, by the status before it.
struct StatusRow {
  EventType event;
  std::optional<JobStatus> queued, running, waiting, parked;
};

constexpr auto kStatusTable = [] {
  using enum JobStatus;
  using E = EventType;
  //                  queued   running   waiting   parked
  return std::to_array<StatusRow>({
      {E::job_created, {}, {}, {}, {}},
      {E::job_running, running, running, {}, {}},
      {E::job_requeued, {}, queued, {}, {}},
      {E::job_waiting, {}, waiting, {}, {}},
      {E::wait_completed, queued, running, queued, parked},
      {E::job_parked, parked, parked, parked, {}},
      {E::job_resumed, {}, {}, {}, queued},
      {E::job_cancel_requested, queued, running, queued, queued},
      {E::job_completed, {}, completed, {}, {}},
      {E::job_failed, failed, failed, failed, failed},
      {E::job_cancelled, cancelled, cancelled, cancelled, cancelled},
  });
}();

// By the number of the event's type; nullptr = it has no row.
constexpr auto kStatusRows = [] {
  std::array<const StatusRow*, 256> rows{};
  for (const StatusRow& row : kStatusTable) rows[static_cast<std::uint8_t>(row.event)] = &row;
  return rows;
}();

}  // namespace

std::optional<JobStatus> next_status(JobStatus status, EventType event, bool ends_own_park) {
  using enum JobStatus;
  using E = EventType;
  if (status == none) {
    return event == E::job_created ? std::optional(queued) : std::nullopt;
  }
  if (is_terminal(status)) {
    const EventKind* kind = event_kind(event);
    const bool narrative = kind == nullptr || kind->event_class == EventClass::narrative;
    return narrative ? std::optional(status) : std::nullopt;
  }
  const StatusRow* const row = kStatusRows[static_cast<std::uint8_t>(event)];
  if (row == nullptr) return status;  // types without a row never change it
  if (event == E::wait_completed && status == parked && ends_own_park) return queued;
  switch (status) {
    case queued:
      return row->queued;
    case running:
      return row->running;
    case waiting:
      return row->waiting;
    default:
      return row->parked;
  }
}

std::string_view wait_reason(const Wait& wait) {
  if (wait.approval) return "approval_required";
  if (wait.question) return to_text(OutcomeKind::input_required);
  switch (wait.type) {
    case WaitType::human:
      return "human_answer_required";
    case WaitType::timer:
      return "timer_pending";
    case WaitType::message:
      return "message_awaited";
    case WaitType::job:
      return "job_awaited";
    case WaitType::signal:
    case WaitType::webhook:
      return "signal_awaited";
  }
  return "";
}

}  // namespace ae::engine
