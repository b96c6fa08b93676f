// Toolbox: the tools and models of an agents file, created by their drivers.
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
#include "tools/native/native.h"

namespace ae::app {

// Base folders of relative paths of tools.
struct ToolFolders {
  const std::string& folder;
  const std::map<std::string, std::string, std::less<>>& others;  // of tools with another folder
  const std::string& of(std::string_view tool) const {
    const auto found = others.find(tool);
    return found == others.end() ? folder : found->second;
  }
};

class Toolbox {
 public:
  // Fails with plan_invalid: a definition that no driver accepts. `secrets_file`: NAME=value lines,
  // mode 0600; may be missing. `closed`: paths or path prefixes of the store, our keys and secrets:
  // sandboxes of tools cannot open them, and changes that a tool reports cannot lead a verifier
  // there. `descriptors`: the limit for a tool's program; 0 = our own. `warn`: warnings for the
  // operator about a call of a job; may be empty.
  using Warn = std::function<void(const JobId& job, const std::string& what)>;
  static Result<std::unique_ptr<Toolbox>> make(async::Loop& loop, async::SteadyClock& steady,
                                               const agents::AgentsFile& file,
                                               const ToolFolders& folders,
                                               const std::string& secrets_file,
                                               std::vector<std::string> closed = {},
                                               std::size_t descriptors = 0, Warn warn = {});
  virtual ~Toolbox() = default;
  virtual runtime::ToolRegistry& tool_registry() = 0;
  // Creates the tools of this file that differ from ours; the task adds them, and running jobs keep
  // theirs. All or none. Fails as `make`, and with input_invalid: too many versions of a tool.
  static constexpr std::size_t kVersionsMax = 1'000;  // of one tool, per process lifetime
  virtual Result<async::Task> update_tools(const agents::AgentsFile& file,
                                           const ToolFolders& folders) = 0;
  // Secrets in use that are too short to be redacted from the output of tools.
  virtual std::vector<std::string> short_secrets() = 0;
};

// Can this machine run this tool? Fails with plan_invalid; the message begins with the invalid key.
Status check_usable(const agents::ToolDefinition& tool, const std::string& folder);

// The sandbox features of this machine.
struct SandboxFeatures {
  int landlock = 0;  // ABI version; 0 = not available
  bool files = false, tracing = false, signals = false, network = false, processes = false;
  bool root = false;  // this process runs as root, and so do its tools
};
SandboxFeatures sandbox_features();

// Does a native function still run after it was cut off? Its thread cannot be ended: the process
// must exit with `_exit`, because the thread could use what exit() destroys.
bool has_running_functions();

// Replaces the native functions of this program, tools::built_in_functions() unless this is called.
// REQUIRES: no other function of this file was called.
void set_native_functions(tools::NativeFunctions functions);
// Is there a native function of this name?
bool has_native(std::string_view name);

}  // namespace ae::app
