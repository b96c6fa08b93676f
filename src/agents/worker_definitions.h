// WorkerDefinitions: the agents and tools that workers offer, as a part of the agents file.
//
// A worker states them when it connects (docs/worker-protocol.md). What the file of the server
// defines under the same name holds instead. Definitions stay when their worker leaves: its jobs
// wait for the next one. Threads: a value; one owner.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "agents/agents_file.h"
#include "json/value.h"

namespace ae::agents {

class WorkerDefinitions {
 public:
  // Loads the agents file with these definitions, a JSON text of {agents, tools}; its faults.
  using Load = std::function<std::vector<Diagnostic>(const std::string& code)>;
  // Does the file of the server define an agent or a tool of this name?
  using IsInFile = std::function<bool(std::string_view name)>;

  // `agents`, `tools`: objects with `name`, and what their entry of an agents file has; an agent
  // has the members of `code` beside them, and may call all `tools`. Returns why they are not accepted; then nothing changes.
  // Fails with already_exists: another definition of the same version of an agent.
  std::vector<Diagnostic> add(std::span<const Value> agents, std::span<const Value> tools,
                              const IsInFile& is_in_file, const Load& load);
  // All of them, for Source::code; "" = there are none.
  const std::string& code() const { return code_; }

 private:
  using Entries = std::map<std::string, Value, std::less<>>;  // by name, as in an agents file
  static std::string code_of(const Entries& agents, const Entries& tools);

  Entries agents_, tools_;
  std::string code_;
};

}  // namespace ae::agents
