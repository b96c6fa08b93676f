// The parts of `run`: a job runs in this process, at the owner of the store, or at a server, until it
// is idle. run_command.cc uses them for agents files, run_code.cc for files of code.
//
// Threads: one.
#pragma once

#include <cstddef>
#include <expected>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "agents/agents_file.h"
#include "app/api_client.h"
#include "app/code_command.h"
#include "app/instance.h"
#include "cli/job_run.h"
#include "cli/run_creation.h"
#include "cli/run_options.h"
#include "cli/run_params.h"
#include "cli/served_agents.h"
#include "cli/terminal.h"

namespace ae::cli {

// An idle job, with its open requests; or the exit code after everything was printed.
struct IdleJob {
  Value job;
  Value approvals = {};  // from GET /api/approvals; null = not requested
};
using RunOutcome = std::expected<IdleJob, int>;

// A failed request, with the body of a refusal.
struct RequestFailure {
  Error error;
  Value body = {};
  // The responding process has ended or is ending.
  bool is_process_gone() const {
    return error.code == Code::unavailable || error.code == Code::unknown_outcome;
  }
};
std::expected<Value, RequestFailure> answer_to(const SendRequest& send,
                                               const api::ApiRequest& request);

// Is the input valid for the agent? Fails with input_invalid.
Status check_input(const agents::Agent& agent, const Value& input);
// A server runs the job; this process waits until it is idle.
RunOutcome run_at_server(const std::string& url, const RunParams& params, const RunOptions& options,
                         const agents::AgentsFile& file, const std::string& plan_hash,
                         Terminal& terminal);
// The owner of the store runs the job; this process waits. nullopt: the owner has ended. After the
// creation `options` names the job, so that it can continue elsewhere.
std::optional<RunOutcome> run_at_owner(app::ApiClient& client, const RunParams& params,
                                       RunOptions& options, const agents::AgentsFile& file,
                                       const std::string& plan_hash, Terminal& terminal);
// `served`: the agents of workers that may connect; nullptr = none may. `owner`: the process that
// holds the store, if that is why it cannot be opened.
Result<std::unique_ptr<app::Instance>> open_instance(const RunParams& params,
                                                     const RunOptions& options,
                                                     const app::LoadedAgents& loaded, JobRun& run,
                                                     ServedAgents* served, std::size_t descriptors,
                                                     std::unique_ptr<app::ApiClient>& owner);
// Lets other commands reach the instance; a warning if that is not possible.
void listen(app::Instance& instance, Terminal& terminal);
// This process runs the job. REQUIRES: `run` observes `instance`.
RunOutcome run_here(app::Instance& instance, JobRun& run, const RunParams& params,
                    const RunOptions& options, const app::LoadedAgents& loaded, Terminal& terminal);
JobRun::Options job_run_options(const RunParams& params, const RunOptions& options);
// Prints the end of an idle job, and the next command. Returns the exit code.
int print_end(const Value& job, const RunParams& params, Terminal& terminal);
// Runs the job, prompts for its open requests, and runs it again while one is approved; prints its
// end. Returns the exit code.
int run_until_answered(const RunParams& params, RunOptions& options, Terminal& terminal,
                       const std::function<RunOutcome()>& run);

// `run` for a file of code: its worker is a child of this process.
int run_code(const app::CodeCommand& command, RunOptions& options, Terminal& terminal);

}  // namespace ae::cli
