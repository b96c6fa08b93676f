// RunOptions: the options of `run`, which `retry` with a FILE runs too.
//
// Threads: values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "cli/process_options.h"
#include "json/value.h"

namespace ae::cli {

// The input of a new job.
struct InputOptions {
  std::optional<std::string> input, message;
  std::vector<std::string> pairs;  // KEY=VALUE, KEY:=JSON
};
// --input, with the members of KEY=VALUE and --message. nullopt: not given. Fails with
// input_invalid, usage (a repeated member, a KEY=VALUE without KEY or =, --input is not an object).
Result<std::optional<Value>> input_of(const InputOptions& options);

struct RunOptions : ProcessOptions {
  std::string file, agent, job_id, idempotency_key, queue, deadline;
  InputOptions input;
  std::int64_t priority = 0;
  std::vector<std::string> budget;  // NAME=AMOUNT
  std::vector<std::string> labels;  // NAME=VALUE
  bool detach = false, only = false, dry_run = false;
  bool has_only_option = true;  // the command has the option --only
  bool was_looked_up = false;   // this process has already looked up the job
};
int run_command(const RunOptions& options, Terminal& terminal);

}  // namespace ae::cli
