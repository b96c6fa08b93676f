// CommandTool: a program as a tool. It receives its arguments on stdin as canonical JSON; its
// stdout is the result.
//
// No shell is involved: each element of `command` becomes one argument, whatever its expressions
// yield. The program gets a cleared environment, three open files and a progress channel (lines of
// JSON to AETHERIS_PROGRESS_FD), its own session and no new privileges; all its descendants end
// with it (supervisor.h). Outcomes (SPEC §6): 0 is success; other exit codes and a failed start are
// definite failures, with 75 (EX_TEMPFAIL) retryable; every other end is unknown, or a timeout.
// Threads: the loop's.
#pragma once

#include <memory>
#include <string>

#include "async/loop.h"
#include "base/error.h"
#include "json/value.h"
#include "tools/command/processes.h"
#include "tools/secrets.h"
#include "tools/tool.h"

namespace ae::tools {

constexpr Duration kKillGrace = std::chrono::seconds(1);  // from SIGTERM to SIGKILL

class CommandTool final : public Tool {
 public:
  // Borrowed; all outlive the tool.
  struct Dependencies {
    async::Loop& loop;
    Processes& processes;
    SecretSource& secrets;
  };

  // `definition`, from the agents file, `${ env.X }` already replaced:
  //   command      [program, argument…]; the program is literal: a path, or a name in PATH
  //   output       "text" (default; UTF-8, one trailing newline removed) | "json"
  //   numbers      "string": with output json, integers beyond 2^53−1 become strings
  //   env          {NAME: text}; `${ }` and `secret:NAME` are replaced just before the call
  //   env_allow    [NAME…] inherited from our environment, besides PATH HOME LANG LC_ALL TZ TMPDIR
  //   cwd          working directory; relative to `folder`, which is the default
  //   output_max   bytes of stdout (default 1 MiB)
  //   heartbeat_timeout  the timeout of a program that reports nothing; absent: no limit
  //   sandbox      see sandbox.h
  // The caller handles other keys. `folder`: the agents file's, where relative paths start.
  // Fails with plan_invalid, unsupported.
  static Result<std::unique_ptr<CommandTool>> make(const Value& definition, Dependencies deps,
                                                   const std::string& folder = ".");
  // Fails if `make` would reject this definition, with the same error; the message begins with the
  // invalid key.
  static Status check(const Value& definition, const std::string& folder = ".");
  ~CommandTool() override;

  void perform(Permit permit, Call call, async::Done<Outcome> done) override;
  void abandon(const InvocationId& invocation, std::uint32_t try_no) override;
  Result<Value> preview(const Call& call) override;
  Status kill_leftovers(const Value& note) override;

 private:
  struct State;
  explicit CommandTool(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

}  // namespace ae::tools
