// LocalWorker: the worker of a file of code, connected to an empty store in the memory of this process:
// for commands that use the definitions or the code of a file, and no job.
//
// Threads: one.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "app/code_command.h"
#include "app/instance.h"
#include "base/error.h"
#include "cli/code_children.h"
#include "cli/terminal.h"

namespace ae::cli {

class LocalWorker {
 public:
  struct Callbacks {                         // on the loop; each may be empty
    std::function<void(Error)> on_end = {};  // the worker has ended, after `start` has returned
    std::function<void(const std::string&)> on_line = {};  // it printed this line
  };
  // Borrows the terminal, which shows what the worker prints.
  LocalWorker(Terminal& terminal, Callbacks callbacks)
      : terminal_(terminal), callbacks_(std::move(callbacks)) {}
  ~LocalWorker();
  LocalWorker(const LocalWorker&) = delete;
  LocalWorker& operator=(const LocalWorker&) = delete;

  // Returns once the worker has offered its agents. Fails with unavailable: it did not start.
  Status start(app::CodeCommand command);
  app::Instance& instance() { return *instance_; }
  const routines::Definitions& offered() const { return *offered_; }

 private:
  Terminal& terminal_;
  const Callbacks callbacks_;
  std::unique_ptr<app::Instance> instance_;
  std::optional<CodeChildren> children_;
  std::optional<routines::Definitions> offered_;
  bool has_started_ = false;
  std::optional<Error> failed_;
};

}  // namespace ae::cli
