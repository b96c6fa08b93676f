// Options of the commands whose process runs jobs: run, serve, worker and mcp.
//
// Threads: values.
#pragma once

#include <string>
#include <vector>

#include "cli/command.h"

namespace ae::cli {

struct ProcessOptions : CommonOptions {
  std::string policies, durability = "fused", grace = "10s", signing_key, notify, fair_by;
  std::vector<std::string> capabilities, queue_limits;
  bool no_fair_by = false, verbose = false;
};

// serve, worker and mcp.
struct ServiceOptions : ProcessOptions {
  std::vector<std::string> files;
  std::string workers, lease = "30s", log;
  std::string wait_store;  // "" = without end
  bool quiet = false;      // no line for each job
  // Workers with code may connect: neither a file nor an agent in it is needed.
  bool accepts_code = false;
};

// The declarations that several commands share.
Option policies_option(std::string& policies);
Option capability_option(ProcessOptions& options);
std::vector<Option> queue_options(ProcessOptions& options);
Option durability_option(ProcessOptions& options);
Option signing_key_option(ProcessOptions& options);
Option notify_option(ProcessOptions& options, const std::string& how);
Option wait_store_option(ServiceOptions& options);
std::vector<Option> service_options(ServiceOptions& options);

}  // namespace ae::cli
