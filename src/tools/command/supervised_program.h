// SupervisedProgram: the state of a program and its supervisor, as the thread of Processes keeps
// it.
//
// Threads: the thread of Processes. What its tasks on the loop use is shared with them.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "async/loop.h"
#include "tools/command/fd.h"
#include "tools/command/processes.h"
#include "tools/command/program_output.h"

namespace ae::tools {

// The latest report on its way to the loop. Shared with the task that delivers it.
struct PendingReport {
  std::mutex mutex;
  std::optional<std::string> line;  // guarded by mutex; empty: no task is posted
};

// Stdin and stdout of an interactive program.
struct StdioChannel {
  std::function<void(std::string)> on_output;
  Fd input;
  std::string input_buffer;  // unwritten input starts at `written`
  std::size_t written = 0;
  // Bytes posted to the loop. Shared with the tasks that deliver them.
  std::shared_ptr<std::atomic<std::size_t>> undelivered =
      std::make_shared<std::atomic<std::size_t>>(0);
  async::Loop* loop = nullptr;

  bool is_backpressured() const { return on_output && *undelivered > kUndeliveredMax; }
  void add(std::string_view bytes) {
    *undelivered += bytes.size();
    loop->post(
        [on_output = on_output, undelivered = undelivered, text = std::string(bytes)]() mutable {
          *undelivered -= text.size();
          on_output(std::move(text));
        });
  }
};

struct SupervisedProgram {
  pid_t supervisor = -1;
  Fd control, output, errors, reports;
  StdioChannel channel;
  ReportLines lines;
  ReportCallback on_report;
  std::shared_ptr<PendingReport> pending_report = std::make_shared<PendingReport>();
  Duration heartbeat{};
  Duration last_report_at{};  // monotonic: the last report or start
  OutputCapture stdout_capture{0};
  OutputTail stderr_tail;
  async::Done<ProcessGroup> ready;
  async::Done<ProcessExit> ended;  // empty: reported; only the supervisor remains to be reaped
  std::optional<ProcessGroup> group;
  std::string mark;
  bool go_sent = false;
  KillReason kill_reason = KillReason::no;
  Duration time_max{};
  Duration started_at{};
  std::optional<Duration> supervisor_deadline;  // when to stop waiting for the supervisor
};

}  // namespace ae::tools
