// Command tools: a program as a tool. Its arguments come on stdin as canonical JSON, its stdout is the result.
//
// There is no shell: each element of `command` becomes one argument, whatever an expression in it gives. The program
// gets a cleared environment, three open files and a channel for reports (lines of JSON on AETHERIS_PROGRESS_FD), a
// session of its own and no new privileges; everything it starts ends with it (supervisor.h). Outcomes (SPEC §6): not started and exit codes but 0 are definite failures, 0 is success,
// everything that ended otherwise is unknown.  Exit code 75 (EX_TEMPFAIL) is retryable.
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
  // Borrowed; all live longer than the tool.
  struct Dependencies {
    async::Loop& loop;
    Processes& processes;
    SecretSource& secrets;
  };

  // `definition`, of the agents file, `${ env.X }` already replaced:
  //   command      [program, argument…]: the program is literal: a path, or a name looked up in PATH now
  //   output       "text" (default; UTF-8, one trailing newline removed) | "json"
  //   numbers      "string": with output json, integers beyond 2^53−1 become strings
  //   env          {NAME: text}; `${ }` and `secret:NAME` are replaced just before the call
  //   env_allow    [NAME…] passed on from our own environment, beside PATH HOME LANG LC_ALL TZ TMPDIR
  //   cwd          where it runs; relative to `folder`, which is the default
  //   output_max   bytes of stdout (default 1 MiB)
  //   heartbeat_timeout  killed, and a timeout, when it reports nothing for so long; absent: it may be silent
  // Other keys belong to whoever reads the file. `folder` is what relative paths start from: the agents file's.
  // Fails with plan_invalid.
  static Result<std::unique_ptr<CommandTool>> make(const Value& definition, Dependencies deps,
                                                   const std::string& folder = ".");
  // Would `make` take this definition here? Fails as it does; the message begins with the key at fault.
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
