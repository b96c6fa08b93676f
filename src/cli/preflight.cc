// preflight: checks whether new code fits the logs of the jobs that run, before it is deployed.
#include <string>
#include <utility>
#include <vector>

#include "app/archived_logs.h"
#include "app/code_command.h"
#include "cli/code_checks.h"
#include "cli/shared.h"

namespace ae::cli {
namespace {

struct PreflightOptions : CommonOptions {
  std::string file;
  std::vector<std::string> jobs, archives;
  bool all = false;
};

std::vector<Option> preflight_options(PreflightOptions& o) {
  return {{"FILE", "", &o.file,
           "a file of code (.ts .mts .cts .js .mjs .cjs .py, or an executable file)", kRequired},
          {"JOB", "", &o.jobs, "the jobs; those that have ended are compared to their end, too"},
          {"--all", "", &o.all, "all jobs of its agents that have not ended"},
          {"--archive", "PATH", &o.archives,
           "instead of a store: a log that `prune --archive` or `events ID --json` wrote, or a "
           "folder of them; repeatable"}};
}

int preflight_command(const PreflightOptions& options, Terminal& terminal) {
  if (int{options.all} + int{!options.jobs.empty()} + int{!options.archives.empty()} != 1) {
    return terminal.fail_with({Code::usage, "name the jobs, or use --all or --archive"});
  }
  CodeCheckRequest request{.file = options.file, .jobs = options.jobs, .archives = {}, .at = {}};
  auto archives = app::archive_files(options.archives);
  if (!archives) return terminal.fail_with(archives.error());
  request.archives = *std::move(archives);
  const auto checks = check_code(options, request, terminal);
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
