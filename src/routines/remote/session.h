// Session: one worker, from its hello until it is gone: its frames, its routines, its calls.
//
//   attached ──connection lost, or silent──▶ detached ──resume_ms──▶ gone
//      ▲                                        │
//      └───────────────── resumed ──────────────┘        close 1000, or too many errors: gone
//
// RemoteRoutines owns it. A routine keeps it until the routine is dropped, and so do tasks that run.
// Threads: the loop's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "async/loop.h"
#include "routines/remote/earlier_calls.h"
#include "routines/remote/frames.h"
#include "routines/remote/lost_calls.h"
#include "routines/remote/session_calls.h"
#include "routines/remote/worker_connection.h"
#include "routines/remote/worker_messages.h"
#include "routines/routine.h"

namespace ae::routines {

class RemoteRoutine;

class Session final : public std::enable_shared_from_this<Session> {
 public:
  static constexpr std::size_t kBatchMax = 8u << 20;    // bytes of a frame with several messages
  static constexpr std::size_t kUnsentHigh = 4u << 20;  // above it no routine is started
  static constexpr std::size_t kKeptMax = 64u << 20;    // of frames that are not acknowledged
  static constexpr int kErrorsMax = 100;                // in a minute

  struct Parts {  // borrowed
    async::Loop& loop;
    async::Clock& clock;
    async::SteadyClock& steady_clock;
    LostCalls& lost;
    EarlierCalls* earlier;  // nullptr: reports of their workers are dropped
  };
  // REQUIRES: the frame of the hello was processed.
  Session(const Parts& parts, std::string id, std::string principal, Hello hello);
  ~Session();

  const std::string& id() const { return id_; }
  const std::string& principal() const { return principal_; }
  const Hello& hello() const { return hello_; }
  Instant begun_at() const { return begun_at_; }

  // ---- its connection

  // REQUIRES: not gone. `first`: the messages of its first frame; `ack`: of a resume.
  void attach(WorkerConnection& connection, std::string_view first, bool is_resumed);
  // False: it acknowledges a frame that was never sent.
  bool can_resume(std::uint64_t ack) { return frames_.on_ack(ack); }
  void detach();
  bool is_attached() const { return connection_ != nullptr; }
  bool is_gone() const { return is_gone_; }
  // By the steady clock.
  Duration last_frame_at() const { return received_at_; }
  Duration detached_at() const { return detached_at_; }
  // The worker broke the framing, or sent too many errors: its connection is to be closed so.
  struct Breach {
    std::uint16_t code;
    std::string reason;
  };
  std::optional<Breach> on_frame(const WorkerFrame& frame);
  // Since when more than kKeptMax bytes wait for an acknowledgement, without any.
  std::optional<Duration> unacknowledged_since() const {
    return frames_.kept_bytes() > kKeptMax ? std::optional(acked_at_) : std::nullopt;
  }
  // Sends an acknowledgement that is due.
  void acknowledge();
  void forget_errors() { errors_ = 0; }
  // Its routines and calls are lost.
  void lose(std::string_view why);

  // ---- what it runs

  const std::set<AgentVersion>& agents() const { return agents_; }
  bool offers_agent(const AgentVersion& agent) const { return agents_.contains(agent); }
  bool offers_tool(std::string_view name) const { return tools_.contains(name); }
  void remove_tools() { tools_.clear(); }  // its definitions are not accepted
  void remove_agent(const AgentVersion& agent) { agents_.erase(agent); }
  // By the steady clock: no routine is started here any more. nullopt: it does not drain.
  std::optional<Duration> draining_since() const { return draining_since_; }
  // May a routine be started here now?
  bool has_room() const;
  // No routine is started here any more, and those that wait for others are released.
  void drain();
  std::size_t routines() const { return routines_.size(); }
  std::unique_ptr<Routine> start(RoutineStart start);
  SessionCalls& calls() { return calls_; }
  // A part of the next frame.
  void send(const Value& message);

 private:
  friend class RemoteRoutine;
  using Pending = std::variant<std::string, std::uint64_t>;  // a message, or a call to perform

  void add(Pending pending);
  void flush();
  void write(const std::string& frame);
  void on_message(const Value& message);
  Status handle(const Value& message, std::string_view type);
  Status on_advance(const Value& message);
  Status end_functions(const Value& message);
  Status on_late(const Value& message);
  // nullptr: it is gone. Fails with not_found: there never was one.
  Result<RemoteRoutine*> find_routine(const Value& message) const;
  void refuse(RemoteRoutine& routine, const Error& why);
  void send_error(const Error& error, std::optional<std::uint64_t> routine);
  void release_if_idle(RemoteRoutine& routine);
  void remove(std::uint64_t routine, std::string_view reason);

  const Parts parts_;
  const std::string id_, principal_;
  const Hello hello_;
  const Instant begun_at_;
  std::set<AgentVersion> agents_;
  std::set<std::string, std::less<>> tools_;
  Frames frames_{1};  // the hello
  std::vector<Pending> pending_;
  bool is_flush_posted_ = false;
  WorkerConnection* connection_ = nullptr;
  Duration received_at_{}, acked_at_{}, detached_at_{};
  bool is_gone_ = false;
  std::optional<Duration> draining_since_;
  int errors_ = 0;
  std::map<std::uint64_t, RemoteRoutine*> routines_;  // not dropped
  std::uint64_t last_routine_ = 0;
  SessionCalls calls_;
};

// One routine in a worker, and the tool that performs the calls of its functions.
class RemoteRoutine final : public Routine, private tools::Tool {
 public:
  RemoteRoutine(std::shared_ptr<Session> session, std::uint64_t number, RoutineStart start);
  ~RemoteRoutine() override;
  void deliver(std::vector<engine::Delivery> outcomes) override;
  tools::Tool& functions() override { return *this; }
  std::optional<engine::WorkerName> worker() const override {
    return engine::WorkerName{.key = session_->principal(), .name = session_->hello().worker};
  }

 private:
  friend class Session;
  void perform(tools::Permit permit, tools::Call call, async::Done<Outcome> done) override;
  void abandon(const InvocationId& invocation, std::uint32_t try_no) override;

  const std::shared_ptr<Session> session_;
  const std::uint64_t number_;
  const JobId job_;
  const std::uint32_t node_;
  const std::shared_ptr<const engine::Plan> plan_;
  RoutineClient* const client_;
  bool has_settled_ = false, has_ended_ = false;
};

}  // namespace ae::routines
