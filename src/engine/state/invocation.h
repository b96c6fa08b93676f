// Invocation: the call of a step, with all its tries, and the questions that its tool asked.
//
// Only `apply` changes it. Threads: a value; one owner.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/boxed.h"
#include "base/hash.h"
#include "base/ids.h"
#include "base/time.h"
#include "engine/state/number_set.h"
#include "json/value.h"
#include "log/event.h"
#include "log/outcome.h"
#include "plan/budget.h"

namespace ae::engine {

struct Failure {
  std::string code, message;
};

inline const Failure kNoFailure;
inline Boxed<Failure> boxed(Failure failure) {
  if (failure.code.empty() && failure.message.empty()) return {};
  return failure;
}

// How the newest try is accounted in the job's budget (plan/budget.h).
enum class Charge : std::uint8_t { none, reserved, spent };

// The questions with which a try of a call ended, and the user's answers (schema/question.h). Only
// the newest round counts; every later try sends it.
struct Questions {
  Value input_required;  // {requests, state?}
  Value answers;         // by key of a request
  bool erased = false;   // `input_required` was erased from the log (log/redacted.h)
  std::uint32_t rounds = 0;
  std::uint32_t number = 0;  // of the newest question, over all rounds
};

// A worker process that runs code (docs/worker-protocol.md).
struct WorkerName {
  std::string key;  // the id of the API key that it has; "" = none
  std::string name;
  friend auto operator<=>(const WorkerName&, const WorkerName&) = default;
};

// The call of a step. All its tries share keys and arguments.
struct Invocation {
  InvocationId id;
  IdempotencyKey key;
  ExternalKey external_key;
  Value arguments;
  Hash arguments_hash;
  std::string tool;
  ShortDigest tool_version;
  AttemptId attempt;  // declared the newest try
  // Of a function of code whose outcome is not certain: the worker that the newest try was given to.
  Boxed<WorkerName> worker;
  std::uint32_t try_no = 0;  // the newest try
  // Tries that count against max_attempts: neither withdrawn tries nor resends after a crash.
  std::uint32_t counted_tries = 0;
  std::uint32_t unsent_tries = 0;  // newest consecutive tries withdrawn before a byte was sent
  std::uint32_t absent_tries = 0;  // tries that a probe reported as not happened
  // The newest try with a late result: its outcome was already decided.
  std::uint32_t last_late_try = 0;
  bool erased = false;  // `arguments` was erased from the log (log/redacted.h)
  bool open = false;    // the newest try has started and not finished
  // A try may have taken effect, and neither a later response under this key nor an
  // operator has settled it.
  bool outcome_unknown = false;
  Instant first_send_by, send_by, deadline;
  // The latest deadline of the tries that have ended and whose requests may still take effect. It
  // can be after `deadline`: near the end of a lease less time is left to send a try.
  std::optional<Instant> ended_deadline;
  // When another attempt first ran the job while this try was open. The sender's
  // lease had ended by then.
  std::optional<Instant> taken_over_at;
  // On a store with a single owner process: the store opening under which the newest try was sent,
  // and the first later one, by another process, that ran the job. That process held the store
  // lock, so the sender was dead.
  std::optional<Instant> sent_opening, next_opening;
  // A check made before this instant does not cover the newest try. Set when the earlier tries are
  // ruled out, then to the time at which the end of the newest try was observed.
  std::optional<Instant> checkable_from;
  std::optional<Instant> ended_at;  // of the newest try; for display
  NumberSet uncertain_tries;        // tries that ended without a certain result
  // Of the newest finished try:
  OutcomeKind outcome = OutcomeKind::unknown;
  bool definite = false, retryable = false;
  Charge charge = Charge::none;
  Boxed<Failure> failure;  // absent: it has no code and no message
  std::optional<Duration> retry_after;
  Reservation reserved;  // per try, for a model call of a job with a budget
  std::unique_ptr<Questions> questions;

  const Failure& error() const { return failure ? *failure : kNoFailure; }
  // When the last request that may still take effect has its deadline; nullopt = there is none. All
  // tries have the same timeout.
  std::optional<Instant> last_deadline() const;
};

// The next request to ask: the first one without an answer; nullptr = all are
// answered, or there are none.
const Member* open_question(const Invocation& call);
// Is the next try the first one that sends the user's answers? A job's budget
// counts it as another call.
bool is_first_with_answers(const Invocation& call);

}  // namespace ae::engine
