// Secret names: which secrets the tools and models of an agents file use, and which are missing.
//
// Threads: any.
#pragma once

#include <string>
#include <vector>

#include "agents/agents_file.h"
#include "app/store_url.h"
#include "base/error.h"

namespace ae::app {

// The secrets file (lines NAME=value) of this store's owner; "" = none.
std::string secrets_file_of(const StoreUrl& store);

// The secrets in a tool's headers, env and key; each once.
std::vector<std::string> secret_names_of(const agents::ToolDefinition& tool);

struct MissingSecret {
  std::string tool;  // the first that uses it, as in its file: tools.NAME, models.NAME
  std::string name;
  Error why;  // with the way to provide it
};
// In the order of the tools; each secret once. `agent`: only tools of its plan; nullptr = the whole
// file.
std::vector<MissingSecret> missing_secrets(const agents::AgentsFile& file, const StoreUrl& store,
                                           const agents::Agent* agent = nullptr);

// Are all secrets available that a job of this agent may need? Fails with secret_missing or
// forbidden, before anything starts.
Status has_secrets(const agents::AgentsFile& file, const StoreUrl& store,
                   const agents::Agent& agent);

}  // namespace ae::app
