// aetheris::testing::replay: code of this process against recorded jobs.
#include <aetheris/testing.h>
#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "app/code_checker.h"
#include "base/counted.h"
#include "embed/context.h"
#include "embed/convert.h"

namespace aetheris::testing {
namespace {

std::unexpected<Error> replay_failed(std::string code, std::string message) {
  return std::unexpected(Error{std::move(code), std::move(message)});
}

ae::Result<std::unique_ptr<ae::app::ApiClient>> client_of(const RecordedJobs& recorded) {
  if (!recorded.url.empty()) return ae::app::ApiClient::connect_to_server(recorded.url);
  AE_ASSIGN(const ae::app::StoreUrl store, ae::app::store_url(recorded.store));
  return ae::app::ApiClient::open(store, ae::app::OpenMode::read);
}

// The code of the agents, on an empty store.
ae::Result<std::unique_ptr<ae::app::Instance>> instance_of(const std::vector<Agent>& agents,
                                                           const std::vector<Tool>& tools) {
  ae::app::InstanceOptions options;
  options.store = {.kind = ae::app::StoreUrl::Kind::memory, .path = {}};
  options.mode = ae::app::InstanceOptions::Mode::run;
  for (const Agent& agent : agents) {
    options.native_agents.push_back(
        {.name = agent.name, .version = agent.version, .body = ae::embed::to_internal(agent.body)});
  }
  for (const Tool& tool : tools) {
    options.native_functions.push_back({.name = tool.name,
                                        .effect = static_cast<ae::engine::EffectClass>(tool.effect),
                                        .function = ae::embed::to_internal(tool.function)});
  }
  return ae::app::Instance::open(std::move(options));
}

ae::Result<std::vector<ae::app::CheckedJob>> check(const RecordedJobs& recorded,
                                                   const std::vector<Agent>& agents,
                                                   const std::vector<Tool>& tools) {
  ae::app::CheckedLogs logs{.jobs = recorded.jobs};
  std::unique_ptr<ae::app::ApiClient> client;
  if (recorded.logs.empty()) {
    AE_ASSIGN(client, client_of(recorded));
    logs.client = client.get();
  } else {
    AE_ASSIGN(logs.archives, ae::app::archive_files(recorded.logs));
  }
  AE_TRY(ae::app::check_logs(logs));
  AE_ASSIGN(const std::unique_ptr<ae::app::Instance> instance, instance_of(agents, tools));
  return ae::app::CodeChecker(*instance, std::move(logs)).run();
}

std::string text_of(const ReplayedJob& job) {
  return fmt::format("job {} (agent {}) {}", job.job,
                     job.agent.empty() ? "that is not known" : job.agent,
                     job.verdict == "not_judged"
                         ? fmt::format("is not judged: {}", job.reason)
                         : fmt::format("{}{}{}:\n{}", job.verdict, job.reason.empty() ? "" : ": ",
                                       job.reason, job.explanation));
}

}  // namespace

Result<std::vector<ReplayedJob>> replay(const RecordedJobs& recorded, std::vector<Agent> agents,
                                        std::vector<Tool> tools) {
  const auto checks = check(recorded, agents, tools);
  if (!checks) return ae::embed::failed(checks);
  std::vector<ReplayedJob> jobs;
  std::string bad;
  std::uint64_t bad_count = 0;
  for (const ae::app::CheckedJob& checked : *checks) {
    const ReplayedJob job{.job = checked.job,
                          .agent = checked.agent.value_or(""),
                          .verdict = std::string(to_text(checked.finding.verdict)),
                          .reason = checked.finding.reason,
                          .explanation = checked.explanation(),
                          .recorded_requests = checked.finding.requests};
    const bool is_known = job.agent.empty() || std::ranges::any_of(agents, [&](const Agent& one) {
                            return one.name == job.agent;
                          });
    if (!is_known) continue;
    jobs.push_back(job);
    if (job.verdict == "continues") continue;
    bad_count++;
    bad += "\n" + text_of(job);
  }
  if (jobs.empty()) {
    return replay_failed("not_found", fmt::format("there is no recorded job of these agents in {}",
                                                  ae::counted(checks->size(), "job")));
  }
  if (bad_count > 0) {
    return replay_failed("replay_diverged",
                         fmt::format("{} of {} do not fit the code{}", bad_count,
                                     ae::counted(jobs.size(), "recorded job"), bad));
  }
  return jobs;
}

}  // namespace aetheris::testing
