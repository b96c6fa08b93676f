// aetheris: the command line.
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
#include "async/point.h"
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

// What looks at a store's files or tables, or changes them as a whole, cannot be asked for over the network.
constexpr std::string_view kNeedStore[] = {"inspect", "rebuild", "migrate",
                                           "backup",  "restore", "doctor"};

// These work on a store of their own; a URL leads to them.
constexpr std::string_view kServe[] = {"serve", "worker"};
constexpr std::string_view kNeither[] = {"init", "check", "completion", "version"};

std::string_view environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

bool is_one_of(std::span<const std::string_view> names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

// A server or a store: nobody is to learn afterwards which of the two it was.
Status one_place(const Options& options) {
  const std::string& name = options.command;
  if (environment("AETHERIS_URL").empty() || is_one_of(kNeither, name)) return {};
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

int act(const Parsed& parsed, Terminal& terminal) {
  if (parsed.error) {
    const int code = terminal.fail_with(*parsed.error);
    if (!parsed.usage.empty()) terminal.note(parsed.usage);
    return code;
  }
  if (!parsed.options) return parsed.code;
  if (auto one = one_place(*parsed.options); !one) return terminal.fail_with(one.error());
  auto failpoints = app::Failpoints::parse(environment("AETHERIS_FAILPOINTS"),
                                           environment("AETHERIS_FAILPOINTS_TRACE"));
  if (!failpoints) return terminal.fail_with(failpoints.error());
  async::point_handler = failpoints->get();
  int code = kUsage;
  for (const auto& command : kCommands) {
    if (command.name == parsed.options->command) code = command.run(*parsed.options, terminal);
  }
  async::point_handler = nullptr;
  return code;
}

int run(int argc, char** argv) {
  const Parsed parsed = parse(argc, argv);
  Terminal terminal(parsed.json);
  return terminal.finish(act(parsed, terminal));
}

// What was closed before we began is held shut, so that no file of ours is ever taken for it.
void hold_standard_files() {
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
  // Keys and secrets are in our environment and memory: other processes of our user do not read them, nor a core file.
  ::prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
  ae::cli::hold_standard_files();
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);  // a limit on the size of files is a full disk
  try {
    const int code = ae::cli::run(argc, argv);
    if (!ae::app::functions_still_run()) return code;
    std::fflush(nullptr);
    ::_exit(code);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: internal error: %s\n", error.what());
  } catch (...) {
    std::fprintf(stderr, "error: internal error\n");
  }
  return ae::cli::kBug;
}
