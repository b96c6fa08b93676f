// Aetheris as a library: code agents in C++, in the process of the user.
//
//   aetheris::Result<aetheris::Value> refund(aetheris::Context& ctx, const aetheris::Value& input) {
//     AETHERIS_ASSIGN(const aetheris::Value order, ctx.call("get_order", input));
//     AETHERIS_TRY(ctx.approval("Pay the refund?", {.expires = std::chrono::hours(48)}));
//     return ctx.run("pay_back", aetheris::Effect::idempotent, order, pay_back);
//   }
//
// An agent is a function whose effects go through its Context. Each is recorded, with its outcome,
// before the function resumes. When the process dies, another one runs the function again from the
// beginning and gives it the recorded outcomes: no effect is repeated, and none is lost. So the
// function must do the same for the same outcomes: it reads clocks, random numbers, files and
// networks through its Context only.
//
// No exception crosses this header, except from functions of the user into the library: an agent
// that throws parks its job, a tool that throws has an unknown outcome.
// Long: everything that a user of the library needs, in one header.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <expected>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "aetheris/value.h"

// Returns the error of an expression, if it failed.
#define AETHERIS_TRY(...)                                         \
  do {                                                            \
    if (auto aetheris_result = (__VA_ARGS__); !aetheris_result) { \
      return std::unexpected(std::move(aetheris_result).error()); \
    }                                                             \
  } while (false)
// Declares a variable with the value of an expression, or returns its error.
#define AETHERIS_ASSIGN(declaration, ...) \
  AETHERIS_ASSIGN_AT(AETHERIS_JOIN(aetheris_result_, __LINE__), declaration, __VA_ARGS__)
#define AETHERIS_ASSIGN_AT(result, declaration, ...)              \
  auto result = (__VA_ARGS__);                                    \
  if (!result) return std::unexpected(std::move(result).error()); \
  declaration = *std::move(result)
#define AETHERIS_JOIN(a, b) AETHERIS_JOIN_AT(a, b)
#define AETHERIS_JOIN_AT(a, b) a##b

namespace aetheris {

using Duration = std::chrono::microseconds;
using Instant = std::chrono::sys_time<std::chrono::microseconds>;

// What a call does, and so what may happen after a crash.
//   read          no effect: it may be repeated
//   idempotent    the downstream recognises a repetition by Call::key
//   at_most_once  it is never repeated; if its outcome is unknown, an operator decides
enum class Effect : std::uint8_t { read, idempotent, at_most_once };

// Why a function failed. Without `unknown` it is certain that nothing happened.
struct Failure {
  std::string code = "failed";
  std::string message;
  bool unknown = false;    // there may have been an effect
  bool retryable = false;  // the same call may succeed later
};

// The call that a function performs. Threads: any, while the function runs.
class Call {
 public:
  virtual ~Call() = default;
  // The same for all tries of the call: give it to the downstream as its idempotency key.
  virtual std::string_view key() const = 0;
  virtual std::uint32_t try_no() const = 0;  // 1, 2, 3, …
  // Stopped at the deadline of the call, and when its job ends.
  virtual std::stop_token stop() const = 0;
  // For display, at most 4 KiB of JSON.
  virtual void progress(const Value& report) = 0;
};
// Performs a call, on a thread of the library. An exception is an unknown outcome.
using Function = std::function<std::expected<Value, Failure>(const Value& args, Call& call)>;

// What happens by itself when the outcome of a call is unknown: it is repeated, its probe asks, it
// fails; or nothing: an operator decides.
enum class OnInDoubt : std::uint8_t { resend, park, fail, probe };
struct Retry {
  std::optional<std::uint32_t> max_attempts = {};
  std::optional<Duration> initial_backoff = {}, max_backoff = {};
};
struct Options {
  std::string key = {};  // names the request in its scope, instead of a count of its name
  // Of a call. At least as strict as the policy of its tool, else the call fails with input_invalid:
  // a shorter timeout, fewer tries, longer delays, a later one of resend, probe, fail, park. Those
  // of the first run are recorded and hold.
  std::optional<Duration> timeout = {};
  Retry retry = {};
  std::optional<OnInDoubt> on_in_doubt = {};
};
struct StartOptions {
  std::string key = {};   // names the request in its scope, instead of a count of the agent's name
  bool detached = false;  // not awaited, and not cancelled with its parent; the result is {"job": ID}
};
// Which wait of another job is sent to: one for a message on a channel, or for a signal with a key.
struct Recipient {
  std::string channel = {}, key = {};  // one of them
};
struct WaitOptions {
  std::string key = {};                  // of the signal; "" = the id of the step
  std::optional<Duration> expires = {};  // then the wait fails with wait_expired
  bool accepts_data = false;             // of a human wait: any answer, not only a decision
  Value data = {};                       // of a human wait: shown with its question
};
// How a turn of a loop ends: with the state of the next turn, or with the result of the loop.
struct Turn {
  static Turn next(Value state) { return {false, std::move(state)}; }
  static Turn done(Value result) { return {true, std::move(result)}; }
  bool is_last = false;
  Value value = {};
};

struct MapOptions {
  std::size_t parallel = 8;     // items at a time, at most 64
  bool collect_errors = false;  // the result of an item that fails is {"error": {code, message}}
  bool fold = false;            // the result of each item is recorded; its requests are folded
};

// A request whose outcome is awaited later. Copies are the same request.
class Pending {
 public:
  Result<Value> get() const;
  // The outcome is not needed any more. A wait is closed. A call that was not sent is withdrawn, and
  // one that only reads is cut off; any other runs on, without another try. The outcome is recorded,
  // and not given.
  void cancel() const;

 private:
  friend class Context;
  std::shared_ptr<void> request_;
};

// A child job. get() is its result; cancel() cancels it.
class Child : public Pending {
 public:
  // Known before the child is created; "" = it is not requested, and get() has the error.
  const std::string& id() const { return id_; }

 private:
  friend class Context;
  std::string id_;
};

// What an agent calls. Each request is recorded under a position, its name in its scope. It fails
// with the recorded failure, or with `evicted`: the routine is dropped, and must return that error.
// Threads: those of its agent, which take turns.
class Context {
 public:
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  // Calls `function`. What it does depends on `args` only: they are recorded, and shown to who
  // approves the call.
  Result<Value> run(std::string_view name, Effect effect, const Value& args, Function function,
                    const Options& options = {});
  // Calls a tool that this process registered, or one of the agents file that the agent `uses`.
  Result<Value> call(std::string_view tool, const Value& args, const Options& options = {});
  // Calls a model of the agents file: {"messages": …} (docs/models.md).
  Result<Value> generate(std::string_view model, const Value& request, const Options& options = {});
  Status sleep(Duration duration, const Options& options = {});
  Status until(Instant instant, const Options& options = {});
  // Waits for a signal; its payload. Fails with wait_expired.
  Result<Value> signal(const WaitOptions& options = {});
  // Waits for a message on a channel; its payload.
  Result<Value> receive(std::string_view channel, std::optional<Duration> expires = {},
                        const Options& options = {});
  // Waits for a person, who is shown the question, at most 16 KiB, and the data of the options, at
  // most 64 KiB. Fails with rejected, wait_expired.
  Result<Value> approval(std::string_view question, const WaitOptions& options = {});

  // Starts a job of another agent, which `uses` grants as "agent:NAME", and does not wait for it. A
  // child that fails fails its get() with its code; one that is not awaited runs on until this job
  // ends, which cancels it.
  Child start(std::string_view agent, const Value& input, const StartOptions& options = {});
  // Sends a message or a signal to another job of the store, once; `uses` grants it as "job:send".
  // Fails with not_found, job_terminal (it has ended), wait_mismatch (no wait for a signal).
  Status send(std::string_view job, const Recipient& to, const Value& payload,
              const Options& options = {});

  Pending later_run(std::string_view name, Effect effect, const Value& args, Function function,
                    const Options& options = {});
  Pending later_call(std::string_view tool, const Value& args, const Options& options = {});
  Pending later_sleep(Duration duration, const Options& options = {});
  // Waits for the first outcome; its index.
  Result<std::size_t> first(std::span<const Pending> pending);

  // A scope whose result is recorded: then its body does not run again, so it must change nothing
  // outside of itself.
  Result<Value> scope(std::string_view name, const std::function<Result<Value>(Context&)>& body);
  // Repeats `body` with the state that it returned last, until it returns a result. Each turn is
  // such a scope, and a job that continues begins with its newest turn, however many there were. A
  // name is used once in a scope.
  Result<Value> loop(std::string_view name, const Value& state,
                     const std::function<Result<Turn>(Context&, const Value& state,
                                                      std::uint64_t number)>& body);
  // Branches on threads of the agent.
  Result<std::vector<Value>> map(
      std::string_view name, const std::vector<Value>& items,
      const std::function<Result<Value>(Context&, const Value& item, std::size_t index)>& body,
      const MapOptions& options = {});

  Instant now();       // recorded; never earlier than before
  double random();     // recorded; in [0, 1)
  std::string uuid();  // recorded; version 4
  // Is this the code after the change `id`? False in a job that had passed here before the change.
  bool patched(std::string_view id);
  // Values for readers of the job; `publish` replaces the last one of this name.
  Status emit(std::string_view name, const Value& value);
  Status publish(std::string_view name, const Value& value);

  Value job() const;          // {id, agent, labels, created_at}
  bool is_replaying() const;  // it repeats what is recorded

 private:
  friend class ContextFactory;
  explicit Context(void* context) : context_(context) {}
  void* context_;
};

// What an agent or a tool may do is written as in an agents file (docs/agents-file.md): the members
// of `options` are those of its entry there, for example
//   {{"budget", Value::object({{"tool_calls", 10}})}, {"deadline", "2h"}}
struct Agent {
  std::string name;
  std::function<Result<Value>(Context&, const Value& input)> body;
  std::vector<std::string> uses = {};  // tools and models of the agents file, and registered tools
  std::string version = {};            // of the code; "" = none
  Value::Object options = {};
};
struct Tool {
  std::string name;
  Effect effect = Effect::at_most_once;
  Function function;
  Value::Object options = {};  // timeout, retry, args, approval, compensate, …
};

struct Settings {
  std::string store = "sqlite:.aetheris/aetheris.db";  // sqlite:FILE, postgres://…, memory:
  std::string agents_file = {};                        // "" = none
  std::vector<Agent> agents = {};
  std::vector<Tool> tools = {};
};
struct JobOptions {
  std::string id = {};               // "" = chosen
  std::string idempotency_key = {};  // "" = none: each call creates a job
  std::map<std::string, std::string> labels = {};
};

// The runtime in this process: a store, a thread that runs its jobs, agents and tools. Threads:
// any.
class Aetheris {
 public:
  // Opens the store and begins to run its jobs. Fails with plan_invalid (all errors of agents and
  // tools at once), store_locked, unavailable, and others (docs/errors).
  static Result<std::unique_ptr<Aetheris>> open(Settings settings);
  // Stops: calls in flight are awaited for up to ten seconds, then jobs are released. Another
  // process, or the next one, continues them.
  virtual ~Aetheris() = default;

  // Creates a job, or finds the one with this idempotency key, and waits for its end, however long
  // it waits for timers, signals or people. Fails with the failure of the job, or with
  // job_not_finished: it is parked; the message has the reason.
  virtual Result<Value> run(std::string_view agent, const Value& input,
                            const JobOptions& options = {}) = 0;
  // Creates a job and returns its id.
  virtual Result<std::string> start(std::string_view agent, const Value& input,
                                    const JobOptions& options = {}) = 0;
  // A request to the HTTP API (docs/api.md), without a network: GET /api/jobs/ID, … The path is
  // percent-encoded, as in a URL: /api/jobs?label=team%3Da
  virtual Result<Value> request(std::string_view method, std::string_view path,
                                const Value& body = {}) = 0;
  // Serves the HTTP API at ADDRESS:PORT until the process gets SIGINT or SIGTERM.
  virtual Status serve(std::string_view listen) = 0;
};

}  // namespace aetheris
