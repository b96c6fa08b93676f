// aetheris: the main function of the command line.
#include <fcntl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <span>
#include <string>

#include "app/failpoints.h"
#include "app/supervise.h"
#include "app/toolbox.h"
#include "async/failpoint.h"
#include "cli/commands.h"

namespace ae::cli {
namespace {

// clang-format off
constexpr struct {
  std::string_view name;
  int (*run)(const Options&, Terminal&);
} kCommands[] = {
    {"init", init_command},
    {"run", run_command},
    {"serve", serve_command},
    {"worker", worker_command},
    {"mcp", mcp_command},
    {"check", check_command},
    {"jobs", jobs_command},
    {"job", job_command},
    {"events", events_command},
    {"trace", trace_command},
    {"transcript", transcript_command},
    {"replay", replay_command},
    {"verify", verify_command},
    {"signal", signal_command},
    {"message", message_command},
    {"approvals", approvals_command},
    {"approve", approve_command},
    {"reject", approve_command},
    {"pause", pause_command},
    {"resume", resume_command},
    {"budget", budget_command},
    {"cancel", cancel_command},
    {"resolve", resolve_command},
    {"fork", fork_command},
    {"retry", retry_command},
    {"plan", plan_command},
    {"inspect", inspect_command},
    {"rebuild", rebuild_command},
    {"migrate", migrate_command},
    {"backup", backup_command},
    {"restore", restore_command},
    {"redact", redact_command},
      {"prune", prune_command},
    {"audit", audit_command},
    {"keys", keys_command},
    {"completion", completion_command},
    {"doctor", doctor_command},
    {"version", version_command},
};
// clang-format on

// Commands that need direct access to a store: not available over the network.
constexpr std::string_view kNeedStore[] = {"inspect", "rebuild", "migrate",
                                           "backup",  "restore", "doctor"};

// These open a store of their own; clients connect to them by URL.
constexpr std::string_view kServe[] = {"serve", "worker"};
constexpr std::string_view kStorelessCommands[] = {"init", "check", "completion", "version"};

std::string_view environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

bool is_one_of(std::span<const std::string_view> names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

// A command uses either a server or a store; ambiguous settings are rejected.
Status check_single_target(const Options& options) {
  const std::string& name = options.command;
  if (environment("AETHERIS_URL").empty() || is_one_of(kStorelessCommands, name)) return {};
  if (is_one_of(kNeedStore, name)) {
    return fail(Code::usage, "`aetheris " + name +
                                 "` needs direct access to the store: unset AETHERIS_URL, or run "
                                 "it on the server's machine");
  }
  const bool serves = is_one_of(kServe, name);
  if (serves && !options.store_given) {
    return fail(Code::usage,
                "`aetheris " + name +
                    "` needs a store, but AETHERIS_URL is set: use --store, or unset AETHERIS_URL");
  }
  if (!serves && options.store_given) {
    return fail(Code::usage, "--store and AETHERIS_URL cannot be used together");
  }
  return {};
}

int dispatch(const Parsed& parsed, Terminal& terminal) {
  if (parsed.error) {
    const int code = terminal.fail_with(*parsed.error);
    if (!parsed.usage.empty()) terminal.note(parsed.usage);
    return code;
  }
  if (!parsed.options) return parsed.code;
  if (auto one = check_single_target(*parsed.options); !one) return terminal.fail_with(one.error());
  auto failpoints = app::Failpoints::parse(environment("AETHERIS_FAILPOINTS"),
                                           environment("AETHERIS_FAILPOINTS_TRACE"));
  if (!failpoints) return terminal.fail_with(failpoints.error());
  async::failpoint_handler = failpoints->get();
  int code = kUsage;
  for (const auto& command : kCommands) {
    if (command.name == parsed.options->command) code = command.run(*parsed.options, terminal);
  }
  async::failpoint_handler = nullptr;
  return code;
}

int run(int argc, char** argv) {
  const Parsed parsed = parse(argc, argv);
  Terminal terminal(parsed.json);
  return terminal.finish(dispatch(parsed, terminal));
}

// Opens closed standard streams on /dev/null, so that no other file gets their descriptors.
void reserve_standard_fds() {
  for (int fd = ::open("/dev/null", O_RDONLY); fd >= 0; fd = ::open("/dev/null", O_RDONLY)) {
    if (fd <= STDERR_FILENO) continue;
    ::close(fd);
    return;
  }
}

}  // namespace
}  // namespace ae::cli

int main(int argc, char** argv) {
  if (const auto code = ae::app::supervise(argc, argv)) return *code;
  // Our environment and memory contain keys and secrets: protect them from other processes of our
  // user, and from core dumps.
  ::prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
  ae::cli::reserve_standard_fds();
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);  // a file size limit acts like a full disk
  try {
    const int code = ae::cli::run(argc, argv);
    if (!ae::app::has_running_functions()) return code;
    std::fflush(nullptr);
    ::_exit(code);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: internal error: %s\n", error.what());
  } catch (...) {
    std::fprintf(stderr, "error: internal error\n");
  }
  return ae::cli::kBug;
}
