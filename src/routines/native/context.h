// Context: what the body of a code agent calls. Every call that reaches outside of the body goes
// through it and is recorded; the body may run again at any time and is then given the same
// outcomes.
//
//   Result<Value> refund(Context& ctx, const Value& input) {
//     AE_ASSIGN(Value order, ctx.call("get_order", input));
//     AE_TRY(ctx.approval("Refund it?"));
//     return ctx.run("pay_back", EffectClass::idempotent, order, pay_back);
//   }
//
// A body reads no clock, chance or files itself. A routine may be dropped: from then on every call
// fails with Code::evicted, at once, and the body must return that error. So do the calls of a
// branch that lost a race. An error of a request whose code is not one of base/error.h is
// tool_failed, and its message begins with that code; Pending::failure has both.
//
// Threads: the threads of its routine, which take turns (turns.h): never two at a time, so what
// they share needs no lock. A lock that is held during a call of the Context blocks the routine.
//
// Long: the API of code, method by method.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/boxed.h"
#include "base/error.h"
#include "base/time.h"
#include "engine/heart/routine.h"
#include "json/value.h"
#include "plan/call_options.h"
#include "plan/tool_policy.h"
#include "routines/native/function.h"

namespace ae::routines {

using engine::EffectClass;

struct RequestOptions {
  std::string key = {};   // names the request in its scope, instead of a count of its name
  std::string name = {};  // "" = the default: the tool, `model:NAME`, `sleep`, `receive`, …
  // Of a call: its timeout, tries and delays, and what happens when its outcome is unknown. Within
  // the policy of its tool, else it fails with input_invalid. The recorded ones hold.
  engine::CallOptions call = {};
};

struct WaitSpec {
  engine::WaitType type = engine::WaitType::signal;  // signal, webhook, human
  std::string key = {};                              // of the signal; "" = the step's id
  std::optional<Duration> expires = {};              // then it fails with wait_expired
  bool accepts_data = false;  // of a human wait: any answer, not only a decision
  std::string question = {};  // of a human wait: what is asked, at most 16 KiB
  Value data = {};            // of a human wait: what the question is about, at most 64 KiB
  RequestOptions options = {};
};

struct StartOptions {
  RequestOptions request = {};  // its name: "" = that of the agent
  bool detached = false;        // its result is {"job": ID}, once the child is created
};
// To a wait for a message on a channel, or for a signal with a key.
struct Recipient {
  std::string channel = {}, key = {};  // one of them
};

class Context;
class Execution;
struct ClosedScope;
struct Request;

using AgentBody = std::function<Result<Value>(Context&, const Value& input)>;
using ScopeBody = std::function<Result<Value>(Context&)>;
// The end of a turn of a loop: the state of the next turn, or the result of the loop.
struct Turn {
  bool is_last = false;
  Value value = {};
};
using TurnBody = std::function<Result<Turn>(Context&, const Value& state, std::uint64_t number)>;
using ItemBody = std::function<Result<Value>(Context&, const Value& item, std::size_t index)>;

inline constexpr std::size_t kBranchesMax = 64;  // threads of one map, branches of one race

struct MapOptions {
  std::size_t parallel = 8;  // items at a time, at most kBranchesMax
  // The result of an item that fails is {"error": {code, message}}; else the map fails with it, and
  // its other branches end.
  bool collect_errors = false;
  bool fold = false;  // each item is a closed scope
};

struct RaceBranch {
  std::string name;
  ScopeBody body;
};
struct RaceResult {
  std::string won;
  Value value;
};

// A request whose outcome is awaited later. Copies are the same request.
class Pending {
 public:
  Pending() = default;
  // Waits for the outcome. Fails with that of the request, or with evicted, or with input_invalid:
  // it was cancelled.
  Result<Value> get() const;
  // The outcome is not needed any more. A wait is closed. A call that was not sent is withdrawn, and
  // one that only reads is cut off; any other runs on, without another try. The outcome is recorded,
  // and not given.
  void cancel() const;
  // After get() failed with the failure of the request: its recorded code and message.
  const engine::Failure* failure() const;

 private:
  friend Context;
  explicit Pending(Error error) : error_(std::move(error)) {}
  Pending(Execution& execution, std::shared_ptr<Request> request);
  std::optional<Error> error_;
  std::shared_ptr<Execution> execution_;
  std::shared_ptr<Request> request_;
};

// A child job, which is created by the commit that records its request.
class Child : public Pending {
 public:
  // "" = the request was not made: get() has the error.
  const JobId& id() const { return id_; }

 private:
  friend Context;
  Child(Pending pending, JobId id) : Pending(std::move(pending)), id_(std::move(id)) {}
  JobId id_;
};

class Context {
 public:
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  // ---- requests; each fails with the failure of its outcome, or with tool_not_granted,
  // input_invalid: then it is not made

  // Calls `function`, as tool run:EFFECT. What it does depends on `args` only: they are recorded.
  Result<Value> run(std::string_view name, EffectClass effect, Value args, Function function,
                    const RequestOptions& options = {});
  Result<Value> call(std::string_view tool, Value args, const RequestOptions& options = {});
  Result<Value> generate(std::string_view model, Value request, const RequestOptions& options = {});
  Status sleep(Duration duration, const RequestOptions& options = {});
  Status until(Instant instant, const RequestOptions& options = {});
  // The payload of the answer. Fails with rejected, wait_expired.
  Result<Value> wait(const WaitSpec& spec);
  Result<Value> receive(std::string_view channel, std::optional<Duration> expires = {},
                        const RequestOptions& options = {});
  // A human wait for a decision, with this question.
  Result<Value> approval(std::string_view question, const WaitSpec& spec = {});

  // A job of another agent; its result is that of the request. Fails with the child's code.
  Child start(std::string_view agent, Value input, const StartOptions& options = {});
  // A message or signal to another job of the store, once. Fails with not_found, job_terminal,
  // wait_mismatch.
  Status send(std::string_view job, const Recipient& to, Value payload,
              const RequestOptions& options = {});

  // The same, without waiting.
  Pending later_run(std::string_view name, EffectClass effect, Value args, Function function,
                    const RequestOptions& options = {});
  Pending later_call(std::string_view tool, Value args, const RequestOptions& options = {});
  Pending later_generate(std::string_view model, Value request, const RequestOptions& options = {});
  Pending later_sleep(Duration duration, const RequestOptions& options = {});
  Pending later_until(Instant instant, const RequestOptions& options = {});
  Pending later_wait(const WaitSpec& spec);
  Pending later_receive(std::string_view channel, std::optional<Duration> expires = {},
                        const RequestOptions& options = {});
  Pending later_send(std::string_view job, const Recipient& to, Value payload,
                     const RequestOptions& options = {});
  // Waits until one has its outcome: the index of the one that had it first. Fails with evicted,
  // input_invalid (there is none).
  Result<std::size_t> first(std::span<const Pending> pending);

  // ---- scopes: inside of them names count on their own

  // A closed scope: its result is recorded, once, when its calls have outcomes; open waits are
  // closed. From then on its body does not run again, so it changes nothing outside of itself. A
  // name, with its number, is used once.
  Result<Value> scope(std::string_view name, const ScopeBody& body,
                      std::optional<std::uint64_t> number = {});
  // Repeats `body` with the state that it returned last, until it returns a result. Each turn is a
  // closed scope, `name/number`; of those that ended, a later routine is given only the last. So a
  // job of any number of turns continues at once. A name is used once in a scope.
  Result<Value> loop(std::string_view name, Value state, const TurnBody& body);
  // Branches on threads of the routine, each in the scope `name/index`.
  Result<std::vector<Value>> map(std::string_view name, std::span<const Value> items,
                                 const ItemBody& body, const MapOptions& options = {});
  // The first branch that returns. The others end, and their waits are closed.
  Result<RaceResult> race(std::string_view name, std::span<const RaceBranch> branches);

  // ---- values, recorded

  Instant now();    // never earlier than before
  double random();  // in [0, 1), of 53 bits
  std::string uuid();
  // Is this the code after the change `id`? False in a job that had passed here before the change.
  bool patched(std::string_view id);
  // A value for readers of the job; `publish` replaces the last one of this name. Fails with
  // input_invalid, payload_too_large.
  Status emit(std::string_view name, Value value);
  Status publish(std::string_view name, Value value);

  const Value& job() const;   // {id, agent, labels, created_at}
  bool is_replaying() const;  // it repeats what is recorded

 private:
  friend Execution;
  Context(Execution& execution, std::string scope, std::shared_ptr<ClosedScope> closed)
      : execution_(execution), scope_(std::move(scope)), closed_(std::move(closed)) {}
  struct MapRun;
  Pending pending(Result<std::shared_ptr<Request>> request);
  Result<Value> run_closed(const std::shared_ptr<Request>& request,
                           const std::shared_ptr<ClosedScope>& closed, const ScopeBody& body);
  Pending request_call(engine::NodeKind kind, std::string_view tool, std::string_view name,
                       Value args, Function function, const RequestOptions& options);
  Pending request_wait(engine::NewWait wait, std::string_view name, const RequestOptions& options);
  Result<Value> map_item(MapRun& map, std::size_t index);
  void map_items(MapRun& map);

  Execution& execution_;
  const std::string scope_;                    // "" or "items/2"
  const std::shared_ptr<ClosedScope> closed_;  // around it; nullptr: none
};

}  // namespace ae::routines
