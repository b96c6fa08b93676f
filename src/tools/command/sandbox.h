// Sandbox: what a tool's program can access, enforced by the kernel.
//
// Without `sandbox:` a program runs as our user with basic restrictions: no new privileges, no core
// files, no capabilities that affect other processes or the machine (if the server has them, for
// example as root), and for processes that it did not start no ptrace (Landlock ABI 2 or later) and
// no signals (ABI 6 or later). `sandbox: none` omits the Landlock restrictions. A mapping restricts
// more. What this machine does not support fails with `unsupported` when the tool is created.
// Threads: values; the functions from any thread, but `enter_sandbox` only in a single-threaded
// process.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "json/value.h"

namespace ae::tools {

struct Sandbox {
  bool none = false;
  bool files = false;              // only `read`, `write` and system files
  std::vector<std::string> read;   // absolute paths: read and execute
  std::vector<std::string> write;  // absolute paths: read, execute and write
  bool network = true;
  std::uint64_t memory = 0;  // bytes of address space per process; 0 here and below: as ours
  std::uint64_t processes = 0;
  std::uint64_t file_size = 0;
  std::uint64_t open_files = 0;
  std::uint64_t cpu_seconds = 0;  // per process
  std::vector<std::string>
      denied_paths;  // path prefixes that stay inaccessible (only with `files`)
};

// What this machine supports.
struct SandboxSupport {
  int landlock = 0;  // its ABI; 0: not in the kernel, or disabled
  bool user_namespaces = false;
  bool network_namespaces = false;
};
const SandboxSupport& sandbox_support();
// The Landlock ABI that `read` and `write` need: the first one that can deny truncation.
constexpr int kLandlockForFiles = 3;
// The first ABI that restricts signals, and the first one that restricts ptrace without denying
// links and renames between folders.
constexpr int kLandlockForSignals = 6, kLandlockForTracing = 2;

// Reads the value of `sandbox`; relative paths start at `folder`. Fails with plan_invalid,
// unsupported; the message begins with `sandbox`.
Result<Sandbox> read_sandbox(const Value& definition, const std::string& folder);
// Fails with plan_invalid if `read` or `write` names a denied path, or `write` contains one.
Status check_denied_paths(const Sandbox& sandbox, const std::vector<std::string>& denied_paths);

// Restricts this process and its descendants to the sandbox. `program` is executable whatever
// `read` contains. Returns 0 or an errno. `support`: tests pass the support of an older machine.
int enter_sandbox(const Sandbox& sandbox, const std::string& program,
                  const SandboxSupport& support = sandbox_support());

}  // namespace ae::tools
