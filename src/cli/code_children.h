// CodeChildren: the workers that `dev` and `run` start, one process for each file of code.
//
// One that ends is started again after a delay; an edited file starts a second one, which replaces
// the first once the server has accepted it.
//
//   starting ──hello accepted──▶ serving ──edit: the next one is accepted──▶ draining ──▶ ended
//      │ ends, is refused           │ ends
//      └────────────────────────────┴──▶ started again after a delay, or at an edit
//
// The next one that is refused or ends is not started again before another edit.
//
// Threads: the loop's.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "agents/agents_file.h"
#include "app/code_command.h"
#include "app/instance.h"
#include "async/alive.h"
#include "base/error.h"

namespace ae::cli {

class CodeChildren {
 public:
  struct Options {
    std::vector<app::CodeCommand> commands;
    std::vector<std::pair<std::string, std::string>> environment;  // of the workers
    bool is_watching = false;  // start a worker again after an edit
    bool restarts = true;      // … and after its end
  };
  struct Callbacks {
    std::function<void(const std::string& line)> print;  // for the user
    // Without `restarts`: a worker has ended, or was not accepted.
    std::function<void(Error)> on_failed = {};
  };
  // Borrows the instance, which accepts workers.
  CodeChildren(app::Instance& instance, Options options, Callbacks callbacks);
  // Kills the workers.
  ~CodeChildren();
  CodeChildren(const CodeChildren&) = delete;
  CodeChildren& operator=(const CodeChildren&) = delete;

  void begin();
  // A worker, of ours or not, was accepted or has these faults (ServedAgents::Callbacks).
  void on_worker(const routines::Definitions& offered,
                 const std::vector<agents::Diagnostic>& faults);
  // Has each unit a worker that was accepted?
  bool are_accepted() const;
  // What workers offer is in use: prints it.
  void on_in_use();
  // Stops all workers: SIGTERM, and SIGKILL after `grace`. Runs the loop.
  void stop(Duration grace);

 private:
  struct Child;
  struct Unit;
  void start(Unit& unit);
  void on_line(Unit& unit, Child& child, const std::string& line);
  void on_exit(Unit& unit, Child* child, const std::string& how);
  void on_end_of_serving(Unit& unit, const std::string& how, bool was_accepted,
                         const std::vector<std::string>& lines);
  void refuse(Unit& unit, Child* child);
  void drop(Unit& unit, std::unique_ptr<Child>& child);
  std::pair<Unit*, Child*> find(const routines::Definitions& offered);
  std::string output_line(const Unit& unit, const std::string& line) const;
  void schedule_poll();
  void poll();

  app::Instance& instance_;
  const Options options_;
  const Callbacks callbacks_;
  std::vector<std::unique_ptr<Unit>> units_;
  std::vector<std::string> not_printed_;  // lines about what will be in use
  bool is_stopping_ = false;
  async::Alive alive_;
};

}  // namespace ae::cli
