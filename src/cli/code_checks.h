// CodeChecks: starts the worker of a file of code and checks its code against the logs of jobs, for
// `preflight` and `replay --code`.
//
// The worker connects to an empty store in the memory of this process. The logs are read from another
// store, or a server, and nothing is written; no call is performed (runtime/service/code_check.h).
// Threads: one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "cli/command.h"
#include "cli/terminal.h"
#include "json/value.h"

namespace ae::cli {

struct CodeCheckRequest {
  std::string file;
  std::vector<std::string> jobs;      // empty: all that have not ended, of the agents of the worker
  std::vector<std::string> archives;  // instead: the logs in these files (app/archived_logs.h)
  std::optional<std::uint64_t> at;    // only the events up to this one
  bool is_debugged = false;           // under a debugger, whose address is printed
};
// {agent, arguments_compared, divergence, exception, explanation, job, reason, recorded_requests,
// status, verdict, version}, one for each job; `explanation` is the text of divergence or exception.
// Fails as ApiClient::open and the reads do; usage; unavailable: the
// worker did not start, or has ended.
Result<std::vector<Value>> check_code(const CommonOptions& options, const CodeCheckRequest& request,
                                      Terminal& terminal);
// Prints them, as JSON or as text. Returns the exit code: kUnverified if the code of a job diverges or
// fails.
int print_code_checks(const std::vector<Value>& checks, Terminal& terminal);

}  // namespace ae::cli
