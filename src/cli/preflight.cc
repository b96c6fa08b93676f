// preflight: checks whether new code fits the logs of the jobs that run, before it is deployed.
#include <string>
#include <utility>
#include <vector>

#include "app/code_command.h"
#include "cli/code_checks.h"
#include "cli/shared.h"

namespace ae::cli {
namespace {

struct PreflightOptions : CommonOptions {
  std::string file;
  std::vector<std::string> jobs;
  bool all = false;
};

std::vector<Option> preflight_options(PreflightOptions& o) {
  return {{"FILE", "", &o.file,
           "a file of code (.ts .mts .cts .js .mjs .cjs .py, or an executable file)", kRequired},
          {"JOB", "", &o.jobs, "the jobs; those that have ended are compared to their end, too"},
          {"--all", "", &o.all, "all jobs of its agents that have not ended"}};
}

int preflight_command(const PreflightOptions& options, Terminal& terminal) {
  if (options.all == !options.jobs.empty()) {
    return terminal.fail_with({Code::usage, "name the jobs, or use --all"});
  }
  const auto checks =
      check_code(options, {.file = options.file, .jobs = options.jobs, .at = {}}, terminal);
  if (!checks) return terminal.fail_with(checks.error());
  return print_code_checks(*checks, terminal);
}

}  // namespace

extern const Command kPreflightCommand{
    .name = "preflight",
    .group = Group::inspect,
    .target = Target::store_or_server,
    .summary = "check whether code fits the logs of jobs; read-only",
    .example = "aetheris preflight agent.ts --all",
    .bind = bound_command<PreflightOptions, preflight_options, preflight_command>};

}  // namespace ae::cli
