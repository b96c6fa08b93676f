#include "cli/program.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <string_view>

#include "app/failpoints.h"
#include "app/supervise.h"
#include "app/toolbox.h"
#include "async/failpoint.h"
#include "cli/commands.h"
#include "cli/parse.h"

namespace ae::cli {
namespace {

std::string_view environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

// A command uses either a server or a store; ambiguous settings are rejected.
Status check_single_target(const Command& command, bool store_given) {
  if (environment("AETHERIS_URL").empty() || command.target == Target::nothing) return {};
  if (command.target == Target::store) {
    return fail(Code::usage,
                "`aetheris {}` needs direct access to the store: unset "
                "AETHERIS_URL, or run it on the server's machine",
                command.name);
  }
  const bool serves = command.target == Target::served_store;
  if (serves && !store_given) {
    return fail(Code::usage,
                "`aetheris {}` needs a store, but AETHERIS_URL is set: "
                "use --store, or unset AETHERIS_URL",
                command.name);
  }
  if (!serves && store_given) {
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
  if (parsed.command == nullptr) {
    terminal.print(parsed.output);
    return parsed.code;
  }
  const bool store_given = parsed.bound->common().store_given;
  if (auto one = check_single_target(*parsed.command, store_given); !one) {
    return terminal.fail_with(one.error());
  }
  auto failpoints = app::Failpoints::parse(environment("AETHERIS_FAILPOINTS"),
                                           environment("AETHERIS_FAILPOINTS_TRACE"));
  if (!failpoints) return terminal.fail_with(failpoints.error());
  async::failpoint_handler = failpoints->get();
  const int code = parsed.bound->run(terminal);
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

// The launcher of the npm package passes signals on, which it cannot do if it is killed. Another
// process with this variable inherited it and is not a child of the launcher.
void end_with_launcher() {
  const char* const text = std::getenv("AETHERIS_LAUNCHER");
  if (text == nullptr) return;
  const bool is_child = std::to_string(::getppid()) == text;
  ::unsetenv("AETHERIS_LAUNCHER");
  if (!is_child) return;
  const pid_t launcher = ::getppid();
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != launcher) ::raise(SIGTERM);  // it ended before
}

}  // namespace

int run_program(int argc, char** argv) {
  if (const auto code = app::supervise(argc, argv)) return *code;
  // Our environment and memory contain keys and secrets: protect them from other processes of our
  // user, and from core dumps.
  ::prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
  reserve_standard_fds();
  end_with_launcher();
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);  // a file size limit acts like a full disk
  try {
    const int code = run(argc, argv);
    if (!app::has_running_functions()) return code;
    std::fflush(nullptr);
    ::_exit(code);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: internal error: %s\n", error.what());
  } catch (...) {
    std::fprintf(stderr, "error: internal error\n");
  }
  return kBug;
}

}  // namespace ae::cli
