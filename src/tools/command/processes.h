// Processes: starts programs under their supervisors and listens to all of them, in one thread.
//
// A program is started in two steps: `start` makes its group and says which it is; `go` lets it run. What it prints
// is kept up to a limit and hashed beyond it, so memory stays bounded however much comes.
// Threads: the methods from one thread (the loop's); answers come there too, by Loop::post.
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
  InvocationId invocation;  // shown by ps, for whoever looks
  std::string mark;   // of everything it starts (leftovers.h); the order's environment holds it
  std::string order;  // encode(Order)
  std::string input;  // its stdin
  std::size_t output_max = 0;
  Duration time_max{};   // the order's timeout + grace; beyond, the supervisor itself is given up
  Duration heartbeat{};  // it is killed when it reports nothing for so long; zero: it may be silent
  // One that talks: its stdin stays open (`write`), its stdout is handed over as it comes instead of being kept, and it
  // ends when it closes that. On the loop's thread, before `ended`. Empty: it does not talk.
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
  bool stuck = false;  // SIGKILL did not end it yet
  std::string output;  // its beginning, output_max bytes at most
  std::size_t output_size = 0;
  Hash output_hash;    // of everything it printed; only if that is more than `output`
  std::string errors;  // the last kStderrTailMax bytes of its stderr
  bool is_errors_truncated = false;
  Duration took{};  // from go
};

// The newest whole line that the program wrote to its channel for reports; the ones before it were passed over when they
// came faster than they were fetched.
using ReportCallback = std::function<void(std::string line)>;

constexpr std::size_t kStderrTailMax = 4096;
constexpr std::size_t kProcessesMax = 256;          // at once
constexpr std::size_t kInputBufferMax = 16u << 20;  // bytes that one that talks has not read yet
constexpr std::size_t kUndeliveredMax =
    8u << 20;  // … and of its own that nobody has heard: it waits then

class Processes {
 public:
  using Id = std::uint64_t;

  // `supervisor` is a program that begins with is_supervisor (supervisor.h). `descriptors`: how many a program may have open
  // (its soft RLIMIT_NOFILE); 0 = as many as we. `denied_paths`: absolute paths of ours, or how they begin, that a sandbox with `read` or
  // `write` never opens. Borrows the loop.
  explicit Processes(async::Loop& loop, std::string supervisor = "/proc/self/exe",
                     std::size_t descriptors = 0, std::vector<std::string> denied_paths = {});
  // Kills what runs, waits for it, and answers.
  ~Processes();
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;

  // `ready` at most once, then `ended` exactly once; `ended` alone when nothing could be started. `on_report` between them.
  Id start(LaunchSpec launch, async::Done<ProcessGroup> ready, ReportCallback on_report,
           async::Done<ProcessExit> ended);
  void go(Id id);
  // For one that talks. It is killed when it leaves more than kInputBufferMax of this unread.
  void write(Id id, std::string bytes);
  // Before go: it never runs. After: SIGKILL for all of it. Nothing when there is no such process any more.
  void kill(Id id);
  // As kill; but what runs gets SIGTERM first, and the grace of its order, which is a few seconds at most.
  void stop(Id id);

  const std::vector<std::string>& denied_paths() const { return denied_paths_; }

 private:
  class Listener;
  const std::vector<std::string> denied_paths_;
  Id next_ = 1;
  std::unique_ptr<Listener> listener_;
};

}  // namespace ae::tools
