// Execution: the state of one routine, shared by its threads and by the loop: its requests, its
// record, what is delivered to it, and the advance that it makes.
//
//   a request        matched with the record, or a part of the advance
//   settled          every thread waits (turns.h). Before the frontier the next recorded outcome is
//                    delivered. After it the advance goes to the client, then the next outcome that
//                    has come is delivered: one at a time, in the order in which they came.
//   dropped          or diverged, or lost: nothing is delivered, and all calls of a Context fail
//
// What comes: durable outcomes from the client, successes of functions, and results of closed
// scopes. Threads: any; each public function takes the mutex. The functions for the loop are called
// on its thread.
//
// Long: the parts of one routine, which share a mutex.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "async/loop.h"
#include "engine/code/replay.h"
#include "routines/native/context.h"
#include "routines/native/positions.h"
#include "routines/native/request.h"
#include "routines/native/routine_threads.h"
#include "routines/native/turns.h"
#include "routines/native/values.h"
#include "routines/routine.h"

namespace ae::routines {

class Execution final : public std::enable_shared_from_this<Execution> {
 public:
  struct Setup {
    RoutineStart start;
    AgentBody body;
    async::Loop& loop;
    async::SteadyClock& clock;
    Instant now;                           // of the store's clock
    std::array<std::uint64_t, 4> entropy;  // 256 bits of the random source
    RoutineThreads& threads;               // outlives it until it is dropped
    std::shared_ptr<RoutineThreads::Place> place;
  };
  using MadeRequest = Result<std::shared_ptr<Request>>;
  struct Made {
    engine::NodeKind kind = engine::NodeKind::tool;
    std::string_view tool;  // of a call
    Value arguments;
    engine::CallOptions options;  // of a call
    Function function;            // of a run
    engine::NewWait wait;
  };

  explicit Execution(Setup setup);

  // ---- for the loop

  bool begin();  // false: there is no thread for it
  void deliver(std::vector<engine::Delivery> outcomes, Instant now);
  // The function of this request; nullptr: it has none, or its outcome was delivered.
  std::shared_ptr<const Function> function_of(const std::string& position);
  // A call of a function of this request has ended.
  void on_function_end(const std::string& position, FunctionEnd end, Instant now);
  // Its client is not called any more. Calls done for functions whose ends are not recorded.
  void drop();

  // ---- for a Context, on a thread of the routine

  MadeRequest request(const Context& context, std::string_view name, std::string_view key,
                      Made made);
  Result<Value> await(Request& request);
  void cancel(Request& request);
  Result<std::size_t> first(std::span<const std::shared_ptr<Request>> requests);
  // Makes the request of a closed scope. `closed`: its body is to run; nullptr: it has ended.
  struct BegunScope {
    std::shared_ptr<Request> request;
    std::shared_ptr<ClosedScope> closed;
  };
  Result<BegunScope> begin_scope(const Context& context, std::string_view name,
                                 std::optional<std::uint64_t> number);
  // A loop of this name. Its turns begin with this number.
  struct BegunLoop {
    std::string position;
    std::uint64_t first_turn = 0;
  };
  Result<BegunLoop> begin_loop(const Context& context, std::string_view name);
  Result<BegunScope> begin_turn(const Context& context, const std::string& loop,
                                std::uint64_t number);
  // The body has returned. Its open waits are closed.
  void end_scope(const std::shared_ptr<ClosedScope>& closed, const Result<Value>& result);
  // The scope of the branches of a map or race. Fails with input_invalid, evicted.
  Result<std::string> branches_scope(const Context& context, std::string_view name);
  // Runs each on a thread of its own, until all have ended. Not all run if the routine was dropped,
  // or if there is no thread for one: then the routine is lost.
  void run_branches(std::vector<std::move_only_function<void()>> branches);
  void begin_branch();  // the next one of this thread: another item of a map
  // Stops the other branches of this thread's map or race. Their waits are closed.
  void stop_other_branches();
  // A closed scope threw this: the routine ends with it.
  void end_with_exception(std::exception_ptr thrown);
  // Fails with evicted: the calls of this thread are not performed.
  Status check_caller();

  Instant now(const Context& context);
  double random(const Context& context);
  std::string uuid(const Context& context);
  bool patched(const Context& context, std::string_view id);
  Status emit(const Context& context, std::string_view name, Value value, bool is_published);
  bool is_replaying();
  const Value& job() const { return start_.job_value; }
  // Of the request at this position, which starts a child job.
  JobId child_id(std::string_view position) const;

 private:
  struct FunctionSuccess {
    std::string position;
    FunctionEnd end;
  };
  using Lock = Turns::Lock;
  using OpenRequests = std::map<std::string, std::shared_ptr<Request>>;  // by position
  using Arrived = std::variant<engine::Delivery, FunctionSuccess, std::shared_ptr<ClosedScope>>;
  using Message = std::variant<Advance, Divergence, Error>;  // the last: why it is lost
  struct ScopeValues {
    std::uint64_t times = 0, uuids = 0;
    std::optional<RandomNumbers> numbers;
  };

  // All below except granted_tool and check_arguments: the mutex is held.
  // The thread that calls. Fails with evicted, or input_invalid: it is not one of the routine.
  Result<RoutineThread*> caller();
  Result<RoutineThread*> caller(const Context& context);
  Error evicted(bool is_branch) const;
  void force_end(engine::RoutineEnd end);
  bool spawn(RoutineThread& thread, std::move_only_function<void()> work);
  void run_body();  // takes the mutex

  Result<std::uint32_t> granted_tool(const Made& made) const;
  Status check_arguments(const Made& made) const;
  Result<BegunScope> begin_closed(const Context& context, std::string position,
                                  engine::NodeKind kind);
  MadeRequest add_request(const Context& context, std::string position, Made made,
                          std::uint32_t tool, std::optional<Hash> arguments_hash);
  Result<Value> result_of(const Request& request) const;
  void cancel_open(Request& request);
  bool can_give(const std::string& position, const Outcome& outcome) const;

  bool deliver_next();
  void give(engine::Delivery outcome);
  void give(FunctionSuccess success);
  void give(const std::shared_ptr<ClosedScope>& scope);
  void complete(const std::string& position, const engine::Delivery& outcome);
  void close(OpenRequests::iterator open);
  void forget_scope(const std::string& scope);
  void drop_scope_ends();

  void seal_advance();
  void send(Message message);
  void call_client();  // on the loop; takes the mutex
  void diverge(Divergence divergence);
  void lose(Error why);
  void release_functions();
  void finish_call(FunctionEnd end);

  Instant estimate() const;
  const Hash& seed();
  void set_time(Instant now);

  RoutineStart start_;
  AgentBody body_;
  async::Loop& loop_;
  async::SteadyClock& clock_;
  RoutineThreads& threads_;
  std::shared_ptr<RoutineThreads::Place> place_;

  std::mutex mutex_;
  // Guarded by mutex_.
  Turns turns_;
  std::set<std::string> ended_scopes_;  // of the record
  std::set<std::string> without_call_;  // recorded requests that wait to be admitted
  engine::Replay replay_;
  Positions positions_;
  OpenRequests open_;             // without an outcome
  std::size_t open_outside_ = 0;  // of them, in no closed scope
  std::deque<Arrived> arrived_;
  Advance advance_;                  // since the last one
  bool has_unsent_advance_ = false;  // something was delivered since
  std::deque<Message> messages_;
  bool is_posted_ = false;                      // a task that sends them
  std::atomic<bool> is_live_ = false;           // it has been at the frontier
  bool is_dropped_ = false, is_inert_ = false;  // inert: dropped, diverged or lost
  std::optional<engine::RoutineEnd> end_;
  std::optional<engine::RoutineEnd> forced_end_;
  std::map<std::string, ScopeValues> scope_values_;
  std::map<std::string, bool, std::less<>> patches_;
  Entropy entropy_;
  std::optional<Hash> seed_;
  Instant base_time_, last_time_;
  Duration base_clock_{};
};

}  // namespace ae::routines
