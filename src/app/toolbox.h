// Toolbox: the tools and models of an agents file, made of the drivers we have.
//
// Threads: the loop's.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "agents/agents_file.h"
#include "async/loop.h"
#include "base/error.h"
#include "base/ids.h"
#include "runtime/world.h"

namespace ae::app {

// Where the relative paths of tools start.
struct ToolFolders {
  const std::string& folder;
  const std::map<std::string, std::string, std::less<>>& others;  // of these tools elsewhere
  const std::string& of(std::string_view tool) const {
    const auto found = others.find(tool);
    return found == others.end() ? folder : found->second;
  }
};

class Toolbox {
 public:
  // Fails with plan_invalid: a definition that no driver takes. `secrets_file`: NAME=value lines, mode 0600; need not be.
  // `closed`: where the store, our keys and secrets lie, or how these paths begin: no sandbox of a tool opens them, and no
  // change that a tool answers with leads a verifier there.
  // `descriptors`: how many a program of a tool may have open; 0 = as many as we. `warn`: what whoever runs us should know
  // of a job's call; may be empty.
  using Warn = std::function<void(const JobId& job, const std::string& what)>;
  static Result<std::unique_ptr<Toolbox>> make(async::Loop& loop, async::SteadyClock& steady,
                                               const agents::AgentsFile& file,
                                               const ToolFolders& folders,
                                               const std::string& secrets_file,
                                               std::vector<std::string> closed = {},
                                               std::size_t descriptors = 0, Warn warn = {});
  virtual ~Toolbox() = default;
  virtual runtime::ToolRegistry& tool_registry() = 0;
  // Makes the tools of this file that differ from ours; the task adds them, and jobs that run keep theirs. All
  // or none. Fails as `make` does, and with input_invalid: too many versions of a tool.
  static constexpr std::size_t kVersionsMax = 1'000;  // of one tool, in a life of the process
  virtual Result<async::Task> renew(const agents::AgentsFile& file, const ToolFolders& folders) = 0;
  // Names of secrets that tools use and that are too short to be taken out of what tools answer.
  virtual std::vector<std::string> short_secrets() = 0;
};

// Can this machine run this tool? Fails with plan_invalid; the message begins with the key at fault.
Status usable(const agents::ToolDefinition& tool, const std::string& folder);

// What a tool's sandbox can do on this machine.
struct SandboxFeatures {
  int landlock = 0;  // ABI; 0 = there is none
  bool files = false, tracing = false, signals = false, network = false, processes = false;
  bool root = false;  // this process is root, and so would be its tools
};
SandboxFeatures sandbox_features();

// Does a native function still run that was cut off and did not return? Its thread cannot be ended: the process must be left
// by `_exit`, as its thread could use what exit() destroys.
bool has_running_functions();

// Is there a native function of this name?
bool has_native(std::string_view name);

}  // namespace ae::app
