// Wait: an open wait of a job, how it was closed, and the messages that no wait has taken yet.
//
// Only `apply` changes them. Threads: values; one owner.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/time.h"
#include "json/value.h"
#include "plan/plan.h"

namespace ae::engine {

struct Wait {
  std::uint32_t step = 0;
  WaitType type = WaitType::signal;
  std::optional<Instant> due_at, expires_at;
  bool resolve = false;   // for a call with an unknown outcome
  bool approval = false;  // for a call that needs approval
  bool question = false;  // for a question of a tool during its call
  // Of type job, for the end of a child: its cancellation was requested.
  bool child_cancelled = false;
  Instant opened_at;  // the writer's clock; for display
  std::string reason;
  std::string channel;           // of a message wait
  std::uint64_t opened_seq = 0;  // waits for one channel are served in this order
  std::string prompt;            // of a human wait of code: its question; "" = none
  Value data;                    // of such a wait: what the question is about
};

// Why the job waits: approval_required, input_required, human_answer_required, timer_pending,
// message_awaited, signal_awaited, job_awaited. Stored in job_waiting.
std::string_view wait_reason(const Wait& wait);

// Open waits, by what an operator is asked for.
struct OpenRequests {
  std::uint32_t calls = 0;      // approvals of calls
  std::uint32_t waits = 0;      // human waits
  std::uint32_t questions = 0;  // of tools, in the middle of their calls
};

struct ClosedWait {
  WaitType type = WaitType::signal;
  std::string outcome;
  Value payload;
  std::string signal_id;  // of the request that ended it; "" = none
  std::string approval;   // its id in the list of approvals; "" = not listed
  bool erased = false;    // `payload` was erased from the log
};

// A message, or an early signal, that no wait has taken yet.
struct BufferedMessage {
  std::string id, by, wait_type;
  Value payload;
  bool erased = false;  // `payload` was erased from the log
  bool ends_thread = false;
};

}  // namespace ae::engine
