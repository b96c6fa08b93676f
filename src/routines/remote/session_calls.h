// SessionCalls: the calls that the worker of one session performs, from their permits to their ends.
//
//   waiting ──room, and the next frame──▶ sent ──ended, or in an advance──▶ done
//      └─its permit expires: not_sent      ├─no end in time: timeout; a later end is late
//                                          └─the session is gone──▶ LostCalls
//
// Threads: the loop's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "async/alive.h"
#include "async/loop.h"
#include "base/error.h"
#include "routines/remote/lost_calls.h"
#include "routines/routine.h"
#include "tools/permit.h"
#include "tools/tool.h"

namespace ae::routines {

class SessionCalls {
 public:
  // How long a worker has to state the outcome of a call that was abandoned.
  static constexpr Duration kAbandonGrace = std::chrono::seconds(5);

  struct Parts {  // borrowed
    async::Loop& loop;
    async::SteadyClock& clock;
    LostCalls& lost;
    std::size_t calls_max;  // at once
    // The next frame is to have perform() of this call; a message.
    std::function<void(std::uint64_t call)> on_ready;
    std::function<void(Value message)> send;
  };
  explicit SessionCalls(Parts parts) : parts_(std::move(parts)) {}

  // As tools::Tool. `routine`: 0 = none.
  void perform(tools::Permit permit, tools::Call call, async::Done<Outcome> done,
               std::uint64_t routine);
  // False: it is not a call of this session.
  bool abandon(const InvocationId& invocation, std::uint32_t try_no);
  // The message `perform` for a frame that is sent now and acknowledges a frame that came at
  // `acked_at`; "": it is not performed. Consumes the permit.
  std::string perform_message(std::uint64_t call, Duration acked_at);

  // The messages of a worker. Fail with input_invalid, not_found.
  Status on_ended(const Value& message, const std::string& principal, const std::string& worker);
  Status on_text(const Value& message);
  Status on_progress(const Value& message);
  // A success that the routine was given already. nullopt: the call has ended. Fails with
  // not_found: it is not a call of this routine.
  Result<std::optional<FunctionEnd>> take_success(std::uint64_t call, std::uint64_t routine,
                                                  Outcome outcome);
  // A success of a routine that is gone. Fails with not_found.
  Status on_success(std::uint64_t call, Outcome outcome);

  bool has_calls_of(std::uint64_t routine) const;
  std::size_t size() const { return calls_.size(); }
  // The session is gone: those that were sent are lost.
  void lose(const std::string& principal, const std::string& worker);

 private:
  enum class Phase : std::uint8_t { waiting, ready, sent, late };
  struct Entry {
    Phase phase = Phase::waiting;
    std::uint64_t routine = 0;
    std::optional<tools::Permit> permit;  // until it is sent
    tools::Call call;
    async::Done<Outcome> done;  // empty: late
    Duration send_by{}, sent_at{};
    async::TimerId deadline = 0;  // not sent: of its permit; sent: of its end
    std::size_t text_bytes = 0;   // delivered
  };
  using Calls = std::map<std::uint64_t, Entry>;

  Result<Calls::iterator> find(const Value& message);
  Result<Calls::iterator> find(std::uint64_t call);
  void end(Calls::iterator entry, Outcome outcome);
  void end_in_time(std::uint64_t call, Outcome outcome);
  void start_waiting();
  async::TimerId after(Duration delay, std::uint64_t call, std::function<void(std::uint64_t)> task);

  const Parts parts_;
  Calls calls_;
  std::map<std::pair<InvocationId, std::uint32_t>, std::uint64_t> numbers_;
  std::deque<std::uint64_t> waiting_;
  std::size_t in_worker_ = 0;  // ready, sent or late
  std::uint64_t last_ = 0;
  async::Alive alive_;
};

}  // namespace ae::routines
