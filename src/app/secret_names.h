// Which secrets the tools and models of an agents file use, and which of them this process does not have.
//
// Threads: none of its own.
#pragma once

#include <string>
#include <vector>

#include "agents/agents_file.h"
#include "app/store_url.h"
#include "base/error.h"

namespace ae::app {

// The file of lines NAME=value that the owner of this store reads; "" = none.
std::string secrets_file_of(const StoreUrl& store);

// The names that stand in a tool's headers, env and key; each once.
std::vector<std::string> secret_names_of(const agents::ToolDefinition& tool);

struct MissingSecret {
  std::string tool;  // the first that uses it, as its file calls it: tools.NAME, models.NAME
  std::string name;
  Error why;  // and how to give it
};
// In the order of the tools; each secret once. `agent`: only what its plan may call; nullptr = all of the file.
std::vector<MissingSecret> missing_secrets(const agents::AgentsFile& file, const StoreUrl& store,
                                           const agents::Agent* agent = nullptr);

// Are all secrets there that a job of this agent may need? Fails with secret_missing or forbidden: nothing was begun.
Status has_secrets(const agents::AgentsFile& file, const StoreUrl& store,
                   const agents::Agent& agent);

}  // namespace ae::app
