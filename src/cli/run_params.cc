#include "cli/run_params.h"

#include <fmt/core.h>

#include <utility>

#include "cli/shared.h"

namespace ae::cli {

Result<RunParams> parse_run_params(const RunOptions& options, const agents::AgentsFile& file) {
  RunParams params{.file = options.file, .has_one_agent = file.agents.size() == 1};
  AE_ASSIGN(params.store, store_of(options));
  if (options.detach && params.store.kind == app::StoreUrl::Kind::memory) {
    return fail(Code::usage, "--detach cannot be used with --store memory:");
  }
  AE_ASSIGN(params.labels, labels_of(options.labels));
  params.priority = options.priority;
  AE_ASSIGN(params.queues, queue_limits(options.queue_limits));
  auto grace = duration_from_text(options.grace);
  if (!grace) return fail(Code::usage, "--grace: {}", grace.error().message);
  params.grace = *grace;
  if (!options.job_id.empty()) {
    auto id = job_id_from_text(options.job_id);
    if (!id) return std::unexpected(std::move(id).error().with_context("--job-id"));
  }
  std::string names;
  for (const auto& [name, agent] : file.agents) names += (names.empty() ? "" : ", ") + name;
  if (!options.agent.empty()) {
    if (!file.agents.contains(options.agent)) {
      return fail(Code::usage, "there is no agent \"{}\" in {}; its agents: {}", options.agent,
                  options.file, names);
    }
    params.agent = options.agent;
  } else if (file.agents.size() == 1) {
    params.agent = file.agents.begin()->first;
  } else if (options.job_id.empty()) {
    return fail(Code::usage, "{} has several agents; choose one of {}", options.file, names);
  }
  AE_ASSIGN(params.input, input_of(options.input));
  return params;
}

std::string run_text(const RunParams& params, const std::string& id) {
  return fmt::format("aetheris run {} --job-id {}{}", quoted(params.file), quoted(id),
                     store_flag(params.store));
}

}  // namespace ae::cli
