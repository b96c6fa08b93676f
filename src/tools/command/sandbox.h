// Sandbox: what a program of a tool can reach, and how the kernel holds it to that.
//
// Without `sandbox:` a program runs as our user with what costs nothing: no new privileges, no core files, no
// capabilities that reach other processes or the machine (of a server that has them, as of root), and no ptrace
// (Landlock from ABI 2 on) and no signals (from ABI 6 on) to processes that it did not start. `sandbox: none` leaves
// out what Landlock does. A mapping closes more. What this machine cannot do fails when the tool is made, with
// `unsupported`. Threads: values; the functions from any thread, `enter` in a process with one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "json/value.h"

namespace ae::tools {

struct Sandbox {
  bool none = false;
  bool files = false;              // only `read`, `write`, and what programs need to run
  std::vector<std::string> read;   // absolute paths: read, and executed
  std::vector<std::string> write;  // … and written
  bool network = true;
  std::uint64_t memory = 0;  // bytes of address space of one process; 0 here and below: as we
  std::uint64_t processes = 0;
  std::uint64_t file_size = 0;
  std::uint64_t open_files = 0;
  std::uint64_t cpu_seconds = 0;  // of one process
  std::vector<std::string>
      denied_paths;  // what begins with one of these stays closed (only with `files`)
};

// What this machine can do.
struct SandboxSupport {
  int landlock = 0;  // its ABI; 0: the kernel has none, or it is switched off
  bool user_namespaces = false;
  bool network_namespaces = false;
};
const SandboxSupport& sandbox_support();
// Landlock's ABI that `read` and `write` need: from it on it can refuse truncation.
constexpr int kLandlockForFiles = 3;
// … the one that keeps signals inside, and the one that keeps tracing inside: before it, a program in a domain makes
// no link and no rename between folders.
constexpr int kLandlockForSignals = 6, kLandlockForTracing = 2;

// The value of `sandbox`, with paths from `folder` on. Fails with plan_invalid, unsupported; begins with `sandbox`.
Result<Sandbox> read_sandbox(const Value& definition, const std::string& folder);
// Does `read` or `write` name something that is closed, or does `write` hold it? Fails with plan_invalid.
Status check_denied_paths(const Sandbox& sandbox, const std::vector<std::string>& denied_paths);

// Holds this process, and all that it starts, to the sandbox. `program` can be executed whatever `read` is. 0 or an errno.
// `can`: an older machine, for tests.
int enter(const Sandbox& sandbox, const std::string& program,
          const SandboxSupport& can = sandbox_support());

}  // namespace ae::tools
