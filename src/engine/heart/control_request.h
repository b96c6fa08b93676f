// ControlRequest: a request that changes a job, from an operator, a client or the runtime.
//
// If a worker holds the lease of the job, the request reaches it as canonical JSON through the
// inbox; otherwise it is applied directly (SPEC §10). Each kind is a struct with the members that
// this kind has.
//
// To add a kind: a struct, at the end of RequestBody; its members in control_request.cc; and an
// overload of apply_request (engine/heart/request.h). The compiler reports the other places.
// Stored: the kinds, their members, and the order of RequestBody. Threads: values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "base/error.h"
#include "base/time.h"
#include "json/value.h"
#include "plan/budget.h"

namespace ae::engine {

// Answers the wait with this key.
struct SignalRequest {
  static constexpr std::string_view kKind = "signal";
  std::string correlation_key;
  std::string wait_type;  // "" = any
  bool buffer = false;    // keep it if no wait has had this key yet
  Value payload;
  std::string traceparent;  // of the request of the client; "" = none
};

struct CancelRequest {
  static constexpr std::string_view kKind = "cancel";
  std::string reason;
  std::optional<bool> compensate;  // undo committed steps; absent = yes
};

// Decides about a call with an unknown outcome, or about the changes of a step whose verification
// failed.
struct ResolveRequest {
  static constexpr std::string_view kKind = "resolve";
  // Or a prefix of it (at least 8 digits) that matches only one call with an unknown outcome.
  std::string idempotency_key;
  std::string step_id;       // of a verification
  std::string resolution;    // happened | not_happened | fail; of a verification accept | fail
  std::uint32_t try_no = 0;  // the try to resolve; 0 = the one with an unknown outcome
  std::optional<Value> result;
  std::string reason;
};

// Fires what is due. In an inbox it is only a hint, without a reply.
struct TimersRequest {
  static constexpr std::string_view kKind = "timers";
};

struct MessageRequest {
  static constexpr std::string_view kKind = "message";
  std::string channel;
  Value payload;
  std::string traceparent;  // as of a signal
  // No message, but a request to a thread (engine/loop/thread.h): end, interrupt; "" = a message.
  std::string control;
};

struct PauseRequest {
  static constexpr std::string_view kKind = "pause";
  std::string reason;
};

struct ResumeRequest {
  static constexpr std::string_view kKind = "resume";
};

// Replaces the plan.
struct PlanRequest {
  static constexpr std::string_view kKind = "plan";
  Value task_graph;
  Value drop;  // a list of nodes whose effects may be abandoned; null = none
  std::string reason;
};

// Raises limits of the budget.
struct BudgetRequest {
  static constexpr std::string_view kKind = "budget";
  Limits limits;
  std::string reason;
};

// A process offers the versions of its DecisionContext: resumes a job that waits for them.
struct VersionRequest {
  static constexpr std::string_view kKind = "version";
};

// Approves or rejects an open request: a call that needs an approval, a human wait, a question of a
// tool, or the changes of a step whose verification failed. Stored as a signal with the member
// `approval`.
struct ApproveRequest {
  static constexpr std::string_view kKind = SignalRequest::kKind;
  std::string approval_id;  // in the list of approvals; of a failed verification: the step or node
  std::string decision;     // approve | reject
  std::string note;
  // Of a call: sent instead of the requested ones. Of a question: the submitted form.
  std::optional<Value> arguments;
  std::string traceparent;  // as of a signal

  Value payload() const;  // decision and note, as a wait records them
};

// A child job has ended. Its id is that of the request. Sent by the commit that ends it.
struct ChildEndedRequest {
  static constexpr std::string_view kKind = "child_ended";
  std::string command_id;  // of the call that created it
  Value end;               // a ChildEnd
};

using RequestBody = std::variant<SignalRequest, CancelRequest, ResolveRequest, TimersRequest,
                                 MessageRequest, PauseRequest, ResumeRequest, PlanRequest,
                                 BudgetRequest, VersionRequest, ApproveRequest, ChildEndedRequest>;

struct ControlRequest {
  std::string id;  // chosen by the sender; requests with the same id are one
  std::string by;  // the author
  // When its author decided, by the store's clock: `not_happened` must be valid then, and a signal
  // counts if its wait had not expired then. Absent = when it is applied.
  std::optional<Instant> checked_at;
  RequestBody body;

  // Is it of one of these kinds?
  template <class... Bodies>
  bool is() const noexcept {
    return (std::holds_alternative<Bodies>(body) || ...);
  }
  // Null if it is of another kind.
  template <class Body>
  const Body* as() const noexcept {
    return std::get_if<Body>(&body);
  }

  Value to_json() const;
  // Fails with needs_version: an unknown kind or member. A member that only other kinds have is
  // ignored.
  static Result<ControlRequest> from_json(const Value& json);
};

// The id of its inbox entry. A request has one entry, however often it is sent; requests about
// different subjects may have the same id. Stored.
std::string inbox_id(const ControlRequest& request);

// Does the job count it as a signal (kSignalsMax)?
inline bool is_counted(const ControlRequest& request) {
  return request.is<SignalRequest, ApproveRequest, MessageRequest>();
}

// Is its payload or its result larger than kValueMax?
bool is_too_large(const ControlRequest& request);

}  // namespace ae::engine
