// ServedAgents: the agents and tools of the workers of a server, and the reload after an edit of an
// agents file or of these.
//
// Threads: the loop's.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "agents/agents_file.h"
#include "agents/worker_definitions.h"
#include "app/instance.h"
#include "app/reloader.h"
#include "cli/process_options.h"

namespace ae::cli {

class ServedAgents {
 public:
  struct Callbacks {
    // What a worker offers was accepted, or has these faults. `is_in_use`: its definitions are those
    // in use, so that no reload follows.
    std::function<void(const routines::Definitions&, const std::vector<agents::Diagnostic>&,
                       bool is_in_use)>
        on_worker;
    // The agents in use after a worker has connected or a file was edited, or why they are the same
    // as before.
    std::function<void(const app::Reloader::Report&)> on_reload;
  };
  // Borrows `options` and `loaded`, all files of them.
  ServedAgents(const ServiceOptions& options, const app::LoadedAgents& loaded, Callbacks callbacks)
      : options_(options), loaded_(loaded), callbacks_(std::move(callbacks)) {}

  // InstanceOptions::on_worker.
  std::vector<agents::Diagnostic> accept(const routines::Definitions& offered);
  void attach(app::Instance& instance) { instance_ = &instance; }
  // REQUIRES: `end` is called before the instance is destroyed.
  void begin(app::Instance& instance, bool is_watching);
  void end() { reloader_.reset(); }
  // Are the definitions of all workers that were accepted in use?
  bool is_in_use() const { return of_workers_.code() == in_use_; }
  // The first file, with the agents of the workers.
  Result<app::LoadedAgents> load() const;

 private:
  std::vector<agents::Diagnostic> check(const std::string& code) const;
  app::AgentsFileOptions load_options(std::string code) const;
  std::string first_file() const {
    return options_.files.empty() ? std::string() : options_.files.front();
  }

  const ServiceOptions& options_;
  const app::LoadedAgents& loaded_;
  const Callbacks callbacks_;
  agents::WorkerDefinitions of_workers_;
  std::string loading_, in_use_;       // definitions of workers: of the last reload, that succeeded
  app::Instance* instance_ = nullptr;  // before it is opened
  std::optional<app::Reloader> reloader_;
};

// One line for each fault, where it is and what to change: "agent.ts: agent refund, uses[0]: …".
// `worker`: a name for the worker's code.
std::vector<std::string> fault_lines(const std::vector<agents::Diagnostic>& faults,
                                     std::string_view worker);

}  // namespace ae::cli
