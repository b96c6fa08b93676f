// Processes: starts programs under supervisors and monitors all of them on one thread.
//
// A program starts in two steps: `start` creates its process group and reports it, `go` lets the
// program run. Output is kept up to a limit and hashed beyond it, so memory stays bounded.
// Threads: call the methods from one thread (the loop's); callbacks run there too, by Loop::post.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "async/loop.h"
#include "base/hash.h"
#include "base/ids.h"
#include "tools/command/wire.h"

namespace ae::tools {

struct LaunchSpec {
  InvocationId invocation;  // shown by ps
  std::string mark;         // of all its processes (leftovers.h); also in the order's environment
  std::string order;        // encode(Order)
  std::string input;        // its stdin
  std::size_t output_max = 0;
  Duration time_max{};   // the order's timeout + grace; after it the supervisor is killed too
  Duration heartbeat{};  // killed after this time without a report; zero: no limit
  // Interactive mode: stdin stays open (`write`), stdout is delivered as it arrives instead of
  // being kept, and the program is killed when it closes its stdout. Called on the loop's thread,
  // before `ended`. Empty: not interactive.
  std::function<void(std::string bytes)> on_output;
};

struct ProcessGroup {
  std::int32_t group = 0;
  std::uint64_t start = 0;
};

struct ProcessExit {
  enum class Kind { not_started, late, exited, signalled, lost };
  Kind kind = Kind::lost;
  std::int32_t value = 0;  // errno, exit code, signal
  Stage stage = Stage::none;
  KillReason kill_reason = KillReason::no;
  bool stuck = false;  // still running after SIGKILL
  std::string output;  // the first output_max bytes of stdout
  std::size_t output_size = 0;
  Hash output_hash;    // of all of stdout; only if `output` is incomplete
  std::string errors;  // the last kStderrTailMax bytes of its stderr
  bool is_errors_truncated = false;
  Duration elapsed{};  // since go
};

// The latest complete line that the program wrote to its progress channel. Earlier lines are
// skipped if they arrive faster than they are delivered.
using ReportCallback = std::function<void(std::string line)>;

constexpr std::size_t kStderrTailMax = 4096;
constexpr std::size_t kProcessesMax = 256;  // at once
constexpr std::size_t kInputBufferMax = 16u
                                        << 20;  // bytes that an interactive program has not read
constexpr std::size_t kUndeliveredMax =
    8u << 20;  // bytes of its output not yet delivered; then reading pauses

class Processes {
 public:
  using Id = std::uint64_t;

  // `supervisor`: a program whose main starts with is_supervisor (supervisor.h). `descriptors`: the
  // soft RLIMIT_NOFILE of programs; 0: as ours. `denied_paths`: absolute paths of Aetheris itself,
  // or prefixes of them, that a sandbox with `read` or `write` never opens. Borrows the loop.
  explicit Processes(async::Loop& loop, std::string supervisor = "/proc/self/exe",
                     std::size_t descriptors = 0, std::vector<std::string> denied_paths = {});
  // Kills the running programs, waits for them and reports their exits.
  ~Processes();
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;

  // Calls `ready` at most once, then `on_report`, and `ended` exactly once; only `ended` if the
  // program could not be started.
  Id start(LaunchSpec launch, async::Done<ProcessGroup> ready, ReportCallback on_report,
           async::Done<ProcessExit> ended);
  void go(Id id);
  // Writes to an interactive program. It is killed if it leaves more than kInputBufferMax unread.
  void write(Id id, std::string bytes);
  // Before go: the program never runs. After: SIGKILL for all its processes. No effect if it has
  // already ended.
  void kill(Id id);
  // Like kill, but a running program gets SIGTERM first and the grace of its order, a few seconds
  // at most.
  void stop(Id id);

  const std::vector<std::string>& denied_paths() const { return denied_paths_; }

 private:
  class Listener;
  const std::vector<std::string> denied_paths_;
  Id next_ = 1;
  std::unique_ptr<Listener> listener_;
};

}  // namespace ae::tools
