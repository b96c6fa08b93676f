// Companion: a program that lives beside us for many calls and talks on its stdin and stdout.
//
// An MCP server is one. It runs under a supervisor, as every program of ours does: everything it starts ends with it,
// and it ends with us, kill -9 included. Threads: the loop's.
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

constexpr std::size_t kStderrTextMax = 4096;  // bytes of its stderr that its end tells

class StdioProcess {
 public:
  // Ends it; nothing is heard any more, not even `on_exit`.
  virtual ~StdioProcess() = default;
  // Queued until it reads. It is ended when it leaves 16 MiB unread.
  virtual void write(std::string bytes) = 0;
  // Before its end: it gets SIGTERM, and is killed a second later if it still runs.
  virtual void stop() {}
};

struct StdioProcessExit {
  bool has_started = false;   // false: nothing of it ever ran
  bool is_transient = false;  // not started, and only because the machine is short of something
  std::string reason;         // for a person: what ended, and why
  std::string stderr_tail;    // of its stderr, without secrets, fit to be shown; may be ""
};

class StdioProcesses {
 public:
  virtual ~StdioProcesses() = default;

  struct Callbacks {
    std::function<void(std::string bytes)> on_output;  // what it prints, as it comes
    async::Done<StdioProcessExit> on_exit;             // at most once, after the last `on_output`
  };
  // `definition`: {command: [program, argument…], env, env_allow, cwd}, as a command tool has them, without expressions.
  // What secrets went into its environment is added to `used`.
  // Fails with plan_invalid (the message begins with the key at fault), secret_missing, forbidden.
  virtual Result<std::unique_ptr<StdioProcess>> start(const Value& definition,
                                                      const std::string& folder,
                                                      std::vector<UsedSecret>& used,
                                                      Callbacks ears) = 0;
};

}  // namespace ae::tools
