// CodeProcess: a worker of code that this process starts for a file, under a guard (guard.h).
//
// It does not outlive this process. Its stdout and stderr are one stream of lines; a worker that
// prints faster than the loop reads waits. The stream ends with the guard, also if a descendant that
// could not be killed still has it open.
// Threads: the loop's; a thread of its own reads its output.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "async/loop.h"
#include "base/error.h"
#include "base/time.h"

namespace ae::app {

class CodeProcess {
 public:
  struct Launch {
    std::vector<std::string> words;  // the program, searched in PATH, and its arguments
    // Variables beside ours; "" removes one.
    std::vector<std::pair<std::string, std::string>> environment;
  };
  struct Callbacks {
    std::function<void(std::string line)> on_line;
    // After the last line, once: "exited with code 1", "was killed by signal 9".
    async::Done<std::string> on_exit;
  };
  // Fails with unavailable.
  static Result<std::unique_ptr<CodeProcess>> start(async::Loop& loop, const Launch& launch,
                                                    Callbacks callbacks);
  // Kills it and its descendants, and waits for the end of its guard (kGuardEnd). No callback runs
  // afterwards. It waits for nothing if `on_exit` was called.
  ~CodeProcess();
  CodeProcess(const CodeProcess&) = delete;
  CodeProcess& operator=(const CodeProcess&) = delete;

  // SIGTERM to `worker`, a process of it, so that what runs for its calls is not disturbed; 0: to
  // its group. SIGKILL to it and its descendants after `grace`.
  void stop(Duration grace, pid_t worker = 0);
  // Is this process id one of its descendants?
  bool has_process(pid_t pid) const;

 private:
  struct Shared;
  explicit CodeProcess(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}
  std::shared_ptr<Shared> shared_;
};

}  // namespace ae::app
