// The event table itself. Stored for ever: numbers are never changed or reused; new fields get the next number.
// Fields stand in the canonical order of their names, which is the order in which they are hashed.
#include <algorithm>
#include <array>

#include "log/event.h"

namespace ae {
namespace {

using enum FieldKind;
constexpr bool kRequired = true;
constexpr bool kOptional = false;

constexpr auto kJobCreated = std::to_array<Field>({
    {"agent", 1, text, kRequired},
    {"asked", 16, json, kOptional},
    {"blind", 18, value, kOptional},
    {"budget", 17, json, kOptional},
    {"deadline", 2, instant, kOptional},
    {"execution_version", 3, text, kRequired},
    {"forked_from", 4, json, kOptional},
    {"idempotency_key", 5, text, kOptional},
    {"input", 6, value, kRequired},
    {"labels", 7, json, kOptional},
    {"max_attempts", 8, integer, kOptional},
    {"parent", 9, json, kOptional},
    {"planner_version", 10, text, kOptional},
    {"priority", 11, integer, kOptional},
    {"queue", 12, text, kOptional},
    {"required_capabilities", 13, json, kOptional},
    {"traceparent", 14, text, kOptional},
    {"tracestate", 15, text, kOptional},
});
constexpr auto kPlanGenerated = std::to_array<Field>({
    {"carried", 1, json, kOptional},
    {"decision_id", 2, id8, kRequired},
    {"decision_locked", 3, boolean, kOptional},
    {"drop", 4, json, kOptional},
    {"plan_hash", 5, hash32, kRequired},
    {"plan_input_hash", 6, hash32, kRequired},
    {"planned_by", 7, text, kOptional},
    {"planner_version", 8, text, kOptional},
    {"schema_version", 9, integer, kRequired},
    {"task_graph", 10, json, kRequired},
});
constexpr auto kForkImported = std::to_array<Field>({
    {"commands", 1, json, kRequired},
    {"results", 2, value, kRequired},
    {"unknown", 3, json, kOptional},
});
constexpr auto kDecisionRecorded = std::to_array<Field>({
    {"at", 1, instant, kOptional},
    {"by", 2, text, kOptional},
    {"decision_id", 3, id8, kRequired},
    {"kind", 4, word, kRequired},
    {"node_id", 5, text, kOptional},
    {"not_before", 6, instant, kOptional},
    {"payload", 7, value, kRequired},
    {"reason", 8, text, kOptional},
    {"state", 9, word, kOptional},
    {"step_id", 10, id8, kOptional},
});
constexpr auto kNodeStarted = std::to_array<Field>({
    {"node_id", 1, text, kRequired},
    {"step_id", 2, id8, kRequired},
    {"try", 3, integer, kRequired},
});
constexpr auto kCommandEmitted = std::to_array<Field>({
    {"command_id", 1, id8, kRequired},
    {"input_ref", 2, text, kRequired},
    {"kind", 3, word, kRequired},
    {"node_id", 4, text, kRequired},
    {"of", 6, id8, kOptional},
    {"step_id", 5, id8, kRequired},
});
constexpr auto kCommandCommitted = std::to_array<Field>({
    {"command_id", 1, id8, kRequired},
    {"llm_model", 2, text, kOptional},
    {"llm_provider", 3, text, kOptional},
    {"llm_temperature", 4, json, kOptional},
    {"node_id", 5, text, kRequired},
    {"prompt_hash", 6, hash32, kOptional},
    {"result", 7, value, kOptional},
    {"result_of", 8, id8, kOptional},
    {"step_id", 9, id8, kRequired},
    {"usage", 10, json, kOptional},
});
constexpr auto kToolInvocationStarted = std::to_array<Field>({
    {"approval_id", 1, text, kOptional},
    {"arguments", 2, value, kRequired},
    {"arguments_hash", 3, hash32, kRequired},
    {"command_id", 4, id8, kRequired},
    {"deadline", 5, instant, kRequired},
    {"effect_class", 6, word, kRequired},
    {"external_key", 7, external_key, kRequired},
    {"idempotency_key", 8, hash32, kRequired},
    {"invocation_id", 9, id8, kRequired},
    {"node_id", 10, text, kRequired},
    {"request_schema_hash", 11, hash32, kOptional},
    {"reserved", 17, json, kOptional},
    {"send_by", 12, instant, kRequired},
    {"step_id", 13, id8, kRequired},
    {"tool_name", 14, text, kRequired},
    {"tool_version", 15, id8, kRequired},
    {"try", 16, integer, kRequired},
});
constexpr auto kToolInvocationFinished = std::to_array<Field>({
    {"at", 17, instant, kOptional},
    {"caught_up", 1, boolean, kOptional},
    {"definite", 2, boolean, kOptional},
    {"duration_us", 3, integer, kOptional},
    {"error", 4, error, kOptional},
    {"external_id", 5, text, kOptional},
    {"invocation_id", 6, id8, kRequired},
    {"late", 7, boolean, kOptional},
    {"outcome", 8, word, kRequired},
    {"response_schema_hash", 9, hash32, kOptional},
    {"result", 10, value, kOptional},
    {"retry_after_ms", 15, integer, kOptional},
    {"retryable", 11, boolean, kOptional},
    {"settled", 16, boolean, kOptional},
    {"source", 12, word, kOptional},
    {"step_id", 13, id8, kRequired},
    {"try", 14, integer, kRequired},
});
constexpr auto kNodeFinished = std::to_array<Field>({
    {"error", 1, error, kOptional},
    {"node_id", 2, text, kRequired},
    {"result", 3, value, kOptional},
    {"result_of", 4, id8, kOptional},
    {"result_type", 5, word, kRequired},
    {"skipped", 6, boolean, kOptional},
    {"step_id", 7, id8, kRequired},
    {"try", 8, integer, kRequired},
});
constexpr auto kStepCommitted = std::to_array<Field>({
    {"command_id", 1, id8, kRequired},
    {"idempotency_key", 2, hash32, kOptional},
    {"node_id", 3, text, kRequired},
    {"step_id", 4, id8, kRequired},
});
constexpr auto kStepCompensated = std::to_array<Field>({
    {"compensation_invocation_id", 1, id8, kRequired},
    {"node_id", 2, text, kRequired},
    {"step_id", 3, id8, kRequired},
});
constexpr auto kStateChanged = std::to_array<Field>({
    {"etag", 1, text, kOptional},
    {"external_ref", 2, text, kOptional},
    {"node_id", 3, text, kRequired},
    {"operation", 4, text, kRequired},
    {"resource_id", 5, text, kRequired},
    {"resource_type", 6, text, kRequired},
    {"step_id", 7, id8, kRequired},
    {"version", 8, text, kOptional},
});
constexpr auto kJobCompleted = std::to_array<Field>({
    {"in_doubt", 3, json, kOptional},
    {"result", 1, value, kRequired},
    {"undelivered", 2, json, kOptional},
});
constexpr auto kJobFailed = std::to_array<Field>({
    {"code", 1, text, kRequired},
    {"compensated", 2, json, kOptional},
    {"error", 3, value, kRequired},
    {"in_doubt", 4, json, kOptional},
    {"node_id", 5, text, kOptional},
    {"uncompensated", 7, json, kOptional},
    {"undelivered", 6, json, kOptional},
});
constexpr auto kJobCancelled = std::to_array<Field>({
    {"by", 1, text, kOptional},
    {"compensated", 2, json, kOptional},
    {"in_doubt", 3, json, kOptional},
    {"reason", 4, text, kOptional},
    {"uncompensated", 6, json, kOptional},
    {"undelivered", 5, json, kOptional},
});

constexpr auto kJobRunning = std::to_array<Field>({
    {"attempt_id", 1, text, kRequired},
    {"epoch", 2, integer, kRequired},
    {"opened_at", 4, instant, kOptional},
    {"worker_id", 3, text, kRequired},
});
constexpr auto kJobRequeued = std::to_array<Field>({
    {"not_before", 1, instant, kOptional},
    {"reason", 2, text, kRequired},
});
constexpr auto kJobWaiting = std::to_array<Field>({
    {"correlation_key", 1, text, kRequired},
    {"expires_at", 2, instant, kOptional},
    {"node_id", 3, text, kRequired},
    {"reason", 4, text, kOptional},
    {"resumption_context", 5, json, kOptional},
    {"step_id", 6, id8, kRequired},
    {"wait_type", 7, word, kRequired},
    {"waits", 8, json, kOptional},
});
constexpr auto kJobParked = std::to_array<Field>({
    {"reason", 1, text, kRequired},
    {"until", 2, word, kRequired},
});
constexpr auto kJobResumed = std::to_array<Field>({
    {"by", 1, text, kRequired},
});
constexpr auto kJobCancelRequested = std::to_array<Field>({
    {"by", 1, text, kOptional},
    {"compensate", 2, boolean, kOptional},
    {"reason", 3, text, kOptional},
});
constexpr auto kJobPauseRequested = std::to_array<Field>({
    {"by", 1, text, kOptional},
    {"reason", 2, text, kOptional},
    {"withdrawn", 3, boolean, kOptional},
});
constexpr auto kWaitOpened = std::to_array<Field>({
    {"channel", 8, text, kOptional},
    {"correlation_key", 1, text, kRequired},
    {"due_at", 2, instant, kOptional},
    {"expires_at", 3, instant, kOptional},
    {"node_id", 4, text, kRequired},
    {"reason", 5, text, kOptional},
    {"step_id", 6, id8, kRequired},
    {"wait_type", 7, word, kRequired},
});
constexpr auto kWaitCompleted = std::to_array<Field>({
    {"by", 1, text, kOptional},
    {"correlation_key", 2, text, kRequired},
    {"node_id", 3, text, kRequired},
    {"outcome", 4, word, kRequired},
    {"payload", 5, value, kOptional},
    {"signal_id", 6, text, kOptional},
    {"step_id", 7, id8, kRequired},
    {"traceparent", 9, text, kOptional},
    {"wait_type", 8, word, kRequired},
});
constexpr auto kAgentMessage = std::to_array<Field>({
    {"by", 5, text, kOptional},
    {"channel", 1, text, kRequired},
    {"correlation_key", 2, text, kOptional},
    {"message_id", 3, text, kRequired},
    {"payload", 4, value, kRequired},
    {"traceparent", 7, text, kOptional},
    {"wait_type", 6, word, kOptional},
});

constexpr auto kTimeRecorded = std::to_array<Field>({
    {"effect_id", 1, text, kRequired},
    {"value", 2, value, kRequired},
});
constexpr auto kTimerFired = std::to_array<Field>({
    {"due_at", 1, instant, kRequired},
    {"effect_id", 2, text, kRequired},
    {"value", 3, value, kRequired},
});
constexpr auto kRandomRecorded = kTimeRecorded;
constexpr auto kUuidRecorded = kTimeRecorded;
constexpr auto kHttpRecorded = kTimeRecorded;

constexpr auto kRecovery = std::to_array<Field>({
    {"attempt_id", 1, text, kOptional},
    {"detail", 2, json, kOptional},
});
constexpr auto kNarrative = std::to_array<Field>({
    {"detail", 1, json, kOptional},
    {"node_id", 2, text, kOptional},
    {"step_id", 3, id8, kOptional},
});
constexpr auto kConfirmationChecked = std::to_array<Field>({
    {"detail", 1, json, kOptional},
    {"node_id", 2, text, kOptional},
    {"resource_id", 4, text, kOptional},
    {"resource_type", 5, text, kOptional},
    {"step_id", 3, id8, kOptional},
    {"verdict", 6, word, kOptional},
});
constexpr auto kVersionMismatched = std::to_array<Field>({
    {"attempt_id", 1, text, kRequired},
    {"job_version", 2, text, kRequired},
    {"worker_version", 3, text, kRequired},
});
constexpr auto kOutcomeNoted = std::to_array<Field>({
    {"at", 1, instant, kRequired},
    {"by", 2, text, kOptional},
    {"idempotency_key", 3, hash32, kRequired},
    {"invocation_id", 4, id8, kRequired},
    {"node_id", 5, text, kRequired},
    {"note", 6, value, kOptional},
    {"resolution", 7, word, kRequired},
    {"result", 8, value, kOptional},
    {"step_id", 9, id8, kRequired},
});

using enum EventClass;
constexpr auto kKinds = std::to_array<EventKind>({
    {EventType::job_created, "job_created", history, 3, kJobCreated},
    {EventType::plan_generated, "plan_generated", history, 3, kPlanGenerated},
    {EventType::decision_recorded, "decision_recorded", history, 3, kDecisionRecorded},
    {EventType::node_started, "node_started", history, 1, kNodeStarted},
    {EventType::command_emitted, "command_emitted", history, 1, kCommandEmitted},
    {EventType::command_committed, "command_committed", history, 1, kCommandCommitted},
    {EventType::tool_invocation_started, "tool_invocation_started", history, 2,
     kToolInvocationStarted},
    {EventType::tool_invocation_finished, "tool_invocation_finished", history, 4,
     kToolInvocationFinished},
    {EventType::node_finished, "node_finished", history, 1, kNodeFinished},
    {EventType::step_committed, "step_committed", history, 1, kStepCommitted},
    {EventType::step_compensated, "step_compensated", history, 1, kStepCompensated},
    {EventType::state_changed, "state_changed", history, 1, kStateChanged},
    {EventType::job_completed, "job_completed", history, 2, kJobCompleted},
    {EventType::job_failed, "job_failed", history, 1, kJobFailed},
    {EventType::job_cancelled, "job_cancelled", history, 1, kJobCancelled},
    {EventType::fork_imported, "fork_imported", history, 3, kForkImported},
    {EventType::job_running, "job_running", coordination, 2, kJobRunning},
    {EventType::job_requeued, "job_requeued", coordination, 1, kJobRequeued},
    {EventType::job_waiting, "job_waiting", coordination, 1, kJobWaiting},
    {EventType::job_parked, "job_parked", coordination, 2, kJobParked},
    {EventType::job_resumed, "job_resumed", coordination, 1, kJobResumed},
    {EventType::job_cancel_requested, "job_cancel_requested", coordination, 1, kJobCancelRequested},
    {EventType::wait_opened, "wait_opened", coordination, 1, kWaitOpened},
    {EventType::wait_completed, "wait_completed", coordination, 1, kWaitCompleted},
    {EventType::agent_message, "agent_message", coordination, 1, kAgentMessage},
    {EventType::job_pause_requested, "job_pause_requested", coordination, 1, kJobPauseRequested},
    {EventType::time_recorded, "time_recorded", recorded_effect, 1, kTimeRecorded},
    {EventType::timer_fired, "timer_fired", recorded_effect, 1, kTimerFired},
    {EventType::random_recorded, "random_recorded", recorded_effect, 1, kRandomRecorded},
    {EventType::uuid_recorded, "uuid_recorded", recorded_effect, 1, kUuidRecorded},
    {EventType::http_recorded, "http_recorded", recorded_effect, 1, kHttpRecorded},
    {EventType::recovery_started, "recovery_started", narrative, 1, kRecovery},
    {EventType::recovery_completed, "recovery_completed", narrative, 1, kRecovery},
    {EventType::confirmation_checked, "confirmation_checked", narrative, 1, kConfirmationChecked},
    {EventType::progress, "progress", narrative, 1, kNarrative},
    {EventType::agent_thought_recorded, "agent_thought_recorded", narrative, 1, kNarrative},
    {EventType::state_checkpointed, "state_checkpointed", narrative, 1, kNarrative},
    {EventType::outcome_noted, "outcome_noted", narrative, 1, kOutcomeNoted},
    {EventType::version_mismatched, "version_mismatched", narrative, 1, kVersionMismatched},
});

}  // namespace

namespace {

// Has a plan a tool that makes no call?
bool records_values(const Value& tools) {
  return tools.is_object() && std::ranges::any_of(tools.members(), [](const Member& tool) {
           return tool.second.find("records") != nullptr;
         });
}

}  // namespace

std::span<const EventKind> event_kinds() { return kKinds; }

std::uint8_t schema_of(const EventKind& kind, const Value& payload) {
  switch (kind.type) {
    case EventType::
        job_created:  // 2 knows of no blind, 1 of no job that has spent something already
      if (!payload["blind"].is_null()) return 3;
      return payload["budget"].find("spent") != nullptr ? 2 : 1;
    case EventType::plan_generated:
      // 2 would call a tool whose value is recorded; 1 knows of no conditions that are judged strictly
      if (records_values(payload["task_graph"]["tools"])) return 3;
      return payload["task_graph"].find("conditions") != nullptr ? 2 : 1;
    case EventType::fork_imported: {  // 1 knows of no loop that goes on in the middle
      const Value& commands = payload["commands"];
      const bool newer =
          commands.is_array() && std::ranges::any_of(commands.items(), [](const Value& entry) {
            return entry.find("under_way") != nullptr;
          });
      if (payload.find("unknown") != nullptr) return 3;  // 2 lists no unknown call of the origin
      return newer ? 2 : 1;
    }
    case EventType::
        decision_recorded: {  // 1 knows of no call that is denied, or that a person has changed
      const std::string_view state = payload.text("state");
      // 2 leaves a call in doubt to a person whose tool is offered again as it was
      if (payload.text("kind") == "in_doubt" && state == "resend") return 3;
      const bool newer =
          payload.text("kind") == "approval" && (state == "denied" || state == "edited");
      return newer ? 2 : 1;
    }
    case EventType::
        tool_invocation_finished:  // 1 takes an outcome that it does not know for `unknown`
      // 3 takes a check for one of this try that was made before its end
      if (payload.find("at") != nullptr) return 4;
      if (payload.find("settled") != nullptr) return 3;  // 2 waits for what has been answered
      return payload.text("outcome") == "input_required" ? 2 : 1;
    case EventType::job_running:  // 1 takes a call of an earlier process for one that is over
      return payload.find("opened_at") != nullptr ? 2 : 1;
    case EventType::job_parked:  // 1 takes the event that ends such a park for a damaged log
      return payload.text("until") == "version" ? 2 : 1;
    case EventType::job_completed:  // 1 lists no call whose outcome stayed unknown
      return payload.find("in_doubt") != nullptr ? 2 : 1;
    default:
      return kind.schema;
  }
}

}  // namespace ae
