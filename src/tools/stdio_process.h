// StdioProcess: a long-running child process that serves many calls over stdin and stdout.
//
// An MCP server is one. It runs under a supervisor, like every program that we start: all its
// descendants end with it, and it ends with the runtime, even after kill -9. Threads: the loop's.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "async/loop.h"
#include "base/error.h"
#include "json/value.h"
#include "tools/secrets.h"

namespace ae::tools {

constexpr std::size_t kStderrTextMax = 4096;  // bytes of StdioProcessExit::stderr_tail

class StdioProcess {
 public:
  // Kills the process. No callback runs afterwards, not even `on_exit`.
  virtual ~StdioProcess() = default;
  // Queued until the process reads it. The process is killed if it leaves 16 MiB unread.
  virtual void write(std::string bytes) = 0;
  // Call before destruction: sends SIGTERM, and SIGKILL a second later.
  virtual void stop() {}
};

struct StdioProcessExit {
  bool has_started = false;   // false: the program never ran
  bool is_transient = false;  // not started, because of a temporary lack of resources
  std::string reason;         // human-readable: what ended, and why
  std::string stderr_tail;    // scrubbed and printable; may be ""
};

class StdioProcesses {
 public:
  virtual ~StdioProcesses() = default;

  struct Callbacks {
    std::function<void(std::string bytes)> on_output;  // stdout, as it arrives
    async::Done<StdioProcessExit> on_exit;             // at most once, after the last `on_output`
  };
  // `definition`: {command: [program, argument…], env, env_allow, cwd}, as of a command tool, but
  // without expressions. Secrets of its environment are added to `used`. Fails with plan_invalid
  // (the message begins with the invalid key), secret_missing, forbidden.
  virtual Result<std::unique_ptr<StdioProcess>> start(const Value& definition,
                                                      const std::string& folder,
                                                      std::vector<UsedSecret>& used,
                                                      Callbacks callbacks) = 0;
};

}  // namespace ae::tools
