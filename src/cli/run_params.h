// RunParams: the checked options of a run.
//
// Threads: values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "agents/agents_file.h"
#include "app/store_url.h"
#include "base/error.h"
#include "base/time.h"
#include "cli/run_options.h"
#include "json/value.h"
#include "store/store.h"

namespace ae::cli {

struct RunParams {
  app::StoreUrl store;
  std::string file;
  std::string agent;  // "" = as recorded in the job
  bool has_one_agent = false;
  std::optional<Value> input;
  Value labels = Value::object({});
  std::int64_t priority = 0;
  std::vector<store::QueueLimit> queues;
  Duration grace{};
};
// Fails with usage, input_invalid.
Result<RunParams> parse_run_params(const RunOptions& options, const agents::AgentsFile& file);
// The command that continues a job; the agent is recorded in the job.
std::string run_text(const RunParams& params, const std::string& id);

}  // namespace ae::cli
