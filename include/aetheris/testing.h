// aetheris::testing: runs code agents in a test (docs/testing-agents.md).
//
//   const auto t = aetheris::testing::start(
//       {.agents = {refund_agent()}, .tools = {{"pay_back", pay_back}}, .tools_of = shop_tools()});
//   const aetheris::testing::Job job = *(*t)->job("refund", input);
//   (*t)->approve(job);
//   const aetheris::Result<aetheris::Value> result = job.result();
//
// The runtime of the library runs in this process, with a store in memory whose clock the test
// advances: a job that sleeps for three days takes milliseconds. Models are answered by the kit, over
// a connection to 127.0.0.1; nothing else uses a network.
//
// Errors are those of the library, with their codes: timeout, not_found, input_invalid, and others
// below. No exception crosses this header, except from functions of the test into the kit, as in
// aetheris.h. Threads: one test at a time; its functions are called on threads of the library.
// Long: everything that a test needs, in one header.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "aetheris/aetheris.h"

namespace aetheris::testing {

// How long an operation waits for something that must happen, in real time.
inline constexpr std::chrono::seconds kPatience{30};

// A call that a function of the test performed, or a model.
struct CallRecord {
  std::string tool;      // run:EFFECT for a function of ctx.run; model:NAME for a model
  std::string position;  // of the request of an agent; "" = of a plan, a loop, or of a model
  std::string job;
  Value arguments;
  Effect effect = Effect::at_most_once;
  std::string key;  // as Call::key
  std::uint32_t try_no = 1;
  // How it ended: one of them, or none while it runs. An exception is an unknown failure with the
  // code `exception`.
  std::optional<Value> result = {};
  std::optional<Failure> failure = {};
};

// A request to a model.
struct ModelCall {
  Value body;      // all of the request, as Chat Completions has it
  Value messages;  // the conversation so far
  Value schema;    // of the answer, if it is to be JSON; else null
  std::string job, key;
  std::uint32_t try_no = 1;
};
// Answers of a model: a text, or an object with `text`, `json` (given as text), `tool_calls`
// ([{name, arguments, id}]), `refusal`, `finish_reason` and `usage` ({prompt_tokens,
// completion_tokens}). An object with `status` is a failure: an HTTP status, with `message` and
// `retry_after` in seconds.
using ModelFunction = std::function<Value(const ModelCall& call)>;
// What stands in for a model: a function, or the answers of each job in their order. A call that is
// repeated with its key after it was answered gets the same answer. A job that makes more calls fails.
using FakeModel = std::variant<ModelFunction, std::vector<Value>>;

struct Options {
  std::vector<Agent> agents;
  // Tools that the agents call, by name. A function has the definition that `tools_of` has under its
  // name, whose own function is not called; else it is idempotent.
  std::map<std::string, Function> tools = {};
  std::vector<Tool> tools_of = {};
  // By the name that `uses` and ctx.generate name: [A-Za-z_][A-Za-z0-9_-]{0,63}.
  std::map<std::string, FakeModel> models = {};
  std::string agents_file = {};  // further tools, models and policies; "" = none
};

class Testing;

// A job of a test. Copies are the same job. REQUIRES: its Testing exists.
class Job {
 public:
  const std::string& id() const { return id_; }
  // The job, as GET /api/jobs/ID gives it.
  Result<Value> view() const;
  Result<std::string> status() const;
  // The events of its log, in order.
  Result<Value> events() const;
  // Its result. While the job only waits for time, the clock advances to the next instant that is
  // due. Fails with the failure of the job, with `cancelled`, with the reason for which it is parked,
  // or with `waiting`: it waits for an operator or another process. The message has what is known.
  Result<Value> result() const;

 private:
  friend class Testing;
  friend class Crashes;
  Job(Testing& test, std::string id) : test_(&test), id_(std::move(id)) {}
  Testing* test_;
  std::string id_;
};

struct Answer {
  std::string request = {};  // the id of the request; "" = the only open one of the job
  std::string note = {};
  Value arguments = {};  // of an approved call or wait: replaces them; null = unchanged
};

// A runtime with a store in memory, in this process. Made by `start`.
class Testing {
 public:
  // Ends the runtime; all is lost.
  virtual ~Testing() = default;

  // Creates a job. `options.id` "" = the name of the agent and a number.
  Result<Job> job(std::string_view agent, const Value& input = Value::Object(),
                  JobOptions options = {});
  // Waits until the job has this status, or the condition holds for its view. Time does not advance.
  // Fails with timeout after kPatience, or once the job has ended otherwise. Returns the view.
  Result<Value> until(const Job& job, std::string_view status);
  Result<Value> until(const Job& job, const std::function<bool(const Value& view)>& condition);
  // Approves or rejects the only open request of the job: an approval of a call, or a human wait.
  // Waits until there is one. Fails with not_found, input_invalid (there are several).
  Status approve(const Job& job, const Answer& answer = {});
  Status reject(const Job& job, const Answer& answer = {});
  // Answers a wait for a signal, also before it is open.
  Status signal(const Job& job, std::string_view key, const Value& payload = {});
  // Sends a message on a channel.
  Status message(const Job& job, std::string_view channel, const Value& payload = {});
  Status cancel(const Job& job);

  // Advances the clock. All that is due in this time happens in its order: whenever no job runs, the
  // clock goes to the next instant that is due. Fails with unavailable: jobs still run after
  // kPatience.
  Status skip(Duration duration);
  // Advances to the next instant that is due; false: none is.
  Result<bool> skip_to_next();
  Result<Instant> now();  // the time of the store

  // The calls of functions and models, in their order: all, those of a tool or of model:NAME, or
  // those at a position.
  std::vector<CallRecord> calls(std::string_view name = {}) const;
  // As Aetheris::request.
  virtual Result<Value> request(std::string_view method, std::string_view path,
                                const Value& body = {}) = 0;

 private:
  friend class Crashes;
  friend class TestProcess;
  Testing() = default;
  virtual Result<Value> advance_clock(const Value& body) = 0;
  virtual std::vector<CallRecord> all_calls() const = 0;
  Status decide(const Job& job, std::string_view decision, const Answer& answer);
  Result<std::string> open_request(const Job& job);
  std::uint64_t jobs_ = 0, messages_ = 0;
};

// Fails as Aetheris::open.
Result<std::unique_ptr<Testing>> start(Options options);

struct CrashReport {
  std::size_t crashes = 0;
  // In how many the outcome of an at_most_once call stayed unknown, so that an operator must decide.
  std::size_t in_doubt = 0;
};
// Runs the job that `make` creates without a crash, then once for each commit of the job, before and
// after it. Each time the runtime ends there as if the process was killed: its routines are dropped,
// what was not committed is lost, and a new runtime on the same store continues the job. A function
// that runs then goes on, as a request that was sent does.
//
// Fails with crash_changed_result: the job ends otherwise; with call_repeated: an at_most_once
// function is called twice, or a call has another key when it is called again. A job that parks
// because the outcome of an at_most_once call is unknown does not fail it: that is what this effect
// promises. With input_invalid: `make` starts another runtime (`start`); all its jobs are of one.
// Fails as `make`.
Result<CrashReport> crash_everywhere(const std::function<Result<Job>()>& make);

// Recorded jobs: files, or the jobs of a store or of a server.
struct RecordedJobs {
  // Files with the log of a job, as `aetheris events ID --json` prints it and `aetheris prune
  // --archive` writes it, and folders of them.
  std::vector<std::string> logs = {};
  // As Settings::store, such as a copy that `aetheris backup` made; it has no other owner meanwhile.
  std::string store = {};
  std::string url = {};  // of a server; AETHERIS_API_KEY is a key with the role viewer
  // Of a store or server: these; empty = those of the agents that have not ended.
  std::vector<std::string> jobs = {};
};
struct ReplayedJob {
  std::string job, agent;   // agent "" = the log cannot be read
  std::string verdict;      // continues, diverges, fails, not_judged
  std::string reason;       // why it is not judged
  std::string explanation;  // what differs, or the exception
  std::uint64_t recorded_requests = 0;
};
// Runs the code of these agents against recorded jobs. No tool and no function of ctx.run is called,
// and nothing is written. Jobs of other agents are skipped.
//
// Fails with replay_diverged, whose message explains each difference, if the code of a job makes
// other requests than its log has, ends otherwise or throws, or if a job cannot be judged; with
// not_found: there is no job of these agents; with usage, unavailable: the jobs cannot be read.
Result<std::vector<ReplayedJob>> replay(const RecordedJobs& recorded, std::vector<Agent> agents,
                                        std::vector<Tool> tools = {});

}  // namespace aetheris::testing
