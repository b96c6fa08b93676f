// WorkerDefinitions: the agents and tools that workers offer, as a part of the agents file.
//
// A worker states them when it connects (docs/worker-protocol.md). What the file of the server
// defines under the same name holds instead. Of each agent the version that was offered last for the
// first time is in the file: a worker of an older one that connects again replaces nothing.
// Definitions stay when their worker leaves: its jobs wait for the next one. Threads: a value; one
// owner.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "agents/agents_file.h"
#include "json/value.h"

namespace ae::agents {

// What one worker offers: objects with `name`, and what their entry of an agents file has. An agent
// has the members of `code` beside them, and may call all tools of its worker.
struct WorkerOffer {
  std::string principal;  // whose key it has
  std::span<const Value> agents, tools;
};

class WorkerDefinitions {
 public:
  static constexpr std::size_t kAgentsMax = 1'000, kToolsMax = 4'096, kVersionsMax = 1'000;

  struct Context {
    // Does the file of the server define an agent or a tool of this name?
    std::function<bool(std::string_view name)> is_in_file;
    // Did an earlier process register a later version of the agent?
    std::function<bool(std::string_view agent, std::string_view version)> is_superseded;
    // Loads the agents file with these definitions, a JSON text of {agents, tools}; its faults.
    std::function<std::vector<Diagnostic>(const std::string& code)> load;
  };

  // Returns why they are not accepted; then nothing changes. Fails with already_exists: another
  // definition of the same version of an agent, or of a tool of other workers; input_invalid: too
  // many.
  std::vector<Diagnostic> add(const WorkerOffer& offer, const Context& context);
  // All of them, for Source::code; "" = there are none.
  const std::string& code() const { return code_; }

 private:
  using Entry = std::pair<std::string, Value>;  // version, and the entry of an agents file
  struct Agent {
    std::vector<Entry> versions;  // the last one is in the file
  };
  struct Tool {
    Value entry;
    std::string principal;       // of the worker that offered it
    std::set<std::string> with;  // the agents of that worker
  };
  struct Known {
    std::map<std::string, Agent, std::less<>> agents;
    std::map<std::string, Tool, std::less<>> tools;
  };
  struct Adding;
  static void add_agent(Adding& adding, const Value& definition, Value entry);
  static void add_tool(Adding& adding, const Value& definition);
  static std::string code_of(const Known& known);

  Known known_;
  std::string code_;
};

}  // namespace ae::agents
