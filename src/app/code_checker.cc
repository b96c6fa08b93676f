#include "app/code_checker.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "api/live_jobs.h"
#include "api/problem.h"
#include "inspect/code_text.h"
#include "inspect/envelope.h"
#include "inspect/recorded_code.h"

namespace ae::app {
namespace {

// The code of a job may wait for its own timers before it is found to differ, so many are checked at
// once.
constexpr std::size_t kChecksAtOnce = 32;
constexpr char kPageEvents[] = "1000";

Result<Value> read(ApiClient& client, api::Path path, api::QueryPairs query) {
  api::ApiRequest request;
  request.path = std::move(path);
  request.query = std::move(query);
  AE_ASSIGN(api::ApiResponse response, client.send(request));
  if (response.status >= 400) {
    return std::unexpected(api::error_of_problem(response.body, response.status));
  }
  return std::move(response.body);
}

}  // namespace

std::string CheckedJob::explanation() const {
  std::vector<std::string> lines = divergence_lines(finding.divergence);
  if (lines.empty()) lines = exception_lines(finding.exception, 0);
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

Status check_logs(const CheckedLogs& logs) {
  if (logs.client == nullptr) return {};
  if (logs.jobs.empty()) AE_TRY(read(*logs.client, {"api", "jobs"}, {{"limit", "1"}}));
  for (const std::string& id : logs.jobs) AE_TRY(read(*logs.client, {"api", "jobs", id}, {}));
  return {};
}

Result<std::vector<CheckedJob>> CodeChecker::run() {
  if (logs_.client != nullptr && logs_.jobs.empty()) AE_TRY(list_jobs());
  const auto& names = logs_.client != nullptr ? logs_.jobs : logs_.archives;
  results_.resize(names.size());
  while (!failed_ && (next_ < names.size() || !running_.empty())) {
    while (!failed_ && next_ < names.size() && running_.size() < kChecksAtOnce) {
      AE_ASSIGN(ArchivedLog log, read_log(names[next_]));
      AE_TRY(start_check(next_++, std::move(log)));
    }
    if (!failed_ && !running_.empty()) instance_.loop().run();
    ended_.clear();
  }
  running_.clear();
  if (failed_) return std::unexpected(*failed_);
  return std::move(results_);
}

void CodeChecker::fail(Error why) {
  if (!failed_) failed_ = std::move(why);
  instance_.loop().stop();
}

Status CodeChecker::list_jobs() {
  std::set<std::string> agents;
  for (const auto& one : instance_.code().agent_versions()) agents.insert(one.agent);
  for (const std::string& agent : agents) {
    std::string cursor;
    do {
      AE_ASSIGN(const Value page,
                read(*logs_.client, {"api", "jobs"}, api::live_jobs_query(agent, cursor)));
      for (const Value& job : page["jobs"].items()) logs_.jobs.emplace_back(job.text("id"));
      cursor = page.text("next_cursor");
    } while (!cursor.empty());
  }
  std::ranges::sort(logs_.jobs);
  return {};
}

// That the store or the file cannot be read is an error.
Result<ArchivedLog> CodeChecker::read_log(const std::string& name) {
  if (logs_.client == nullptr) return read_archived_log(name);
  auto events = read_events(name);
  if (!events && events.error().code != Code::needs_version) {
    return std::unexpected(std::move(events).error());
  }
  return ArchivedLog{.job = name, .events = std::move(events)};
}

Result<std::vector<Event>> CodeChecker::read_events(const std::string& id) {
  std::vector<Event> events;
  for (std::string after = "0"; !after.empty();) {
    AE_ASSIGN(const Value page, read(*logs_.client, {"api", "jobs", id, "events"},
                                     {{"after", after}, {"limit", kPageEvents}}));
    for (const Value& envelope : page["events"].items()) {
      AE_ASSIGN(Event event, event_from_envelope(envelope));
      if (logs_.at && event.seq > *logs_.at) return events;
      events.push_back(std::move(event));
    }
    after = page["next"].is_integer() ? std::to_string(page["next"].as_int()) : "";
  }
  return events;
}

// A job that cannot be judged is a result.
Status CodeChecker::start_check(std::size_t index, ArchivedLog log) {
  auto& [id, events] = log;
  AE_ASSIGN(const JobId job, job_id_from_text(id));
  auto recorded = events ? engine::recorded_code(job, *events, engine::uncached_plan_source())
                         : std::unexpected(events.error());
  results_[index].job = id;
  if (!recorded) {
    results_[index].finding.reason = recorded.error().message;
    return {};
  }
  results_[index].agent = recorded->state.agent;
  results_[index].status = recorded->state.status;
  running_.emplace(index, std::make_unique<runtime::CodeCheck>(
                              runtime::CodeCheck::Parts{.loop = instance_.loop(),
                                                        .provider = instance_.code(),
                                                        .recorded = *std::move(recorded),
                                                        .events = *std::move(events),
                                                        .timeout = timeout_},
                              [this, index](runtime::CodeFinding finding) {
                                results_[index].finding = std::move(finding);
                                ended_.push_back(std::move(running_.extract(index).mapped()));
                                instance_.loop().stop();
                              }));
  return {};
}

}  // namespace ae::app
