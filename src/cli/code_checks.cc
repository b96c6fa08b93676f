#include "cli/code_checks.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string_view>
#include <utility>

#include "api/problem.h"
#include "app/api_client.h"
#include "app/code_command.h"
#include "app/code_workers.h"
#include "app/instance.h"
#include "base/counted.h"
#include "cli/archived_logs.h"
#include "cli/code_children.h"
#include "cli/code_end.h"
#include "cli/job_reads.h"
#include "cli/shared.h"
#include "inspect/envelope.h"
#include "inspect/recorded_code.h"
#include "log/field_names.h"
#include "runtime/service/code_check.h"

namespace ae::cli {
namespace {

using runtime::CodeVerdict;

// The code of a job may wait for its own timers before it is found to differ, so many are checked at
// once.
constexpr std::size_t kChecksAtOnce = 32;
constexpr Duration kWorkerStop = std::chrono::seconds(2);
constexpr Duration kReadMax = std::chrono::minutes(10);
constexpr char kPageEvents[] = "1000", kPageJobs[] = "500";
constexpr std::string_view kLive[] = {"queued", "running", "waiting", "parked"};

class CodeChecker {
 public:
  // `client`: null if the logs are in files.
  CodeChecker(app::CodeCommand command, CodeCheckRequest request, app::ApiClient* client,
              Terminal& terminal)
      : command_(std::move(command)),
        request_(std::move(request)),
        client_(client),
        terminal_(terminal) {}
  ~CodeChecker() {
    running_.clear();
    if (children_) children_->stop(kWorkerStop);
    children_.reset();
  }
  CodeChecker(const CodeChecker&) = delete;
  CodeChecker& operator=(const CodeChecker&) = delete;

  Result<std::vector<Value>> run() {
    AE_TRY(find_jobs());
    AE_TRY(start_worker());
    if (client_ != nullptr && request_.jobs.empty()) AE_TRY(list_jobs());
    const auto& logs = client_ != nullptr ? request_.jobs : request_.archives;
    results_.resize(logs.size());
    while (!failed_ && (next_ < logs.size() || !running_.empty())) {
      while (!failed_ && next_ < logs.size() && running_.size() < kChecksAtOnce) {
        AE_ASSIGN(ArchivedLog log, read_log(logs[next_]));
        AE_TRY(start_check(next_++, std::move(log)));
      }
      if (!failed_ && !running_.empty()) instance_->loop().run();
      ended_.clear();
    }
    if (failed_) return std::unexpected(*failed_);
    return std::move(results_);
  }

 private:
  // What is wrong with the server or the ids is reported before a worker starts.
  Status find_jobs() {
    if (client_ == nullptr) return {};
    if (request_.jobs.empty()) AE_TRY(get(*client_, {"api", "jobs"}, {{"limit", "1"}}));
    for (const std::string& id : request_.jobs) AE_TRY(get(*client_, {"api", "jobs", id}, {}));
    return {};
  }

  Status start_worker() {
    app::InstanceOptions options;
    options.store = {.kind = app::StoreUrl::Kind::memory, .path = {}};
    options.mode = app::InstanceOptions::Mode::run;
    options.on_worker = [this](const routines::Definitions& offered) {
      if (children_) children_->on_worker(offered, {});
      instance_->loop().post([this] {
        is_ready_ = true;
        instance_->loop().stop();
      });
      return std::vector<agents::Diagnostic>();
    };
    AE_ASSIGN(instance_, app::Instance::open(std::move(options)));
    AE_ASSIGN(std::string socket, instance_->listen_for_workers());
    children_.emplace(
        *instance_,
        CodeChildren::Options{
            .commands = {command_},
            .environment = {{"AETHERIS_SOCKET", std::move(socket)}, {"AETHERIS_URL", ""}},
            .restarts = false},
        CodeChildren::Callbacks{.print = [this](const std::string& line) { terminal_.note(line); },
                                .on_failed =
                                    [this](Error why) {
                                      if (!failed_) failed_ = std::move(why);
                                      instance_->loop().stop();
                                    }});
    children_->begin();
    while (!is_ready_ && !failed_) instance_->loop().run();
    if (failed_) return std::unexpected(*failed_);
    return {};
  }

  Status list_jobs() {
    std::set<std::string> agents;
    for (const auto& one : instance_->code().agent_versions()) agents.insert(one.agent);
    for (const std::string& agent : agents) {
      std::string cursor;
      do {
        api::QueryPairs query{{field::agent, agent}, {"limit", kPageJobs}, {"cursor", cursor}};
        for (const std::string_view status : kLive) query.emplace_back("status", status);
        AE_ASSIGN(const Value page, get(*client_, {"api", "jobs"}, std::move(query)));
        for (const Value& job : page["jobs"].items()) {
          request_.jobs.emplace_back(job.text("id"));
        }
        cursor = page.text("next_cursor");
      } while (!cursor.empty());
    }
    std::ranges::sort(request_.jobs);
    return {};
  }

  // That the store or the file cannot be read is an error.
  Result<ArchivedLog> read_log(const std::string& name) {
    if (client_ == nullptr) return read_archived_log(name);
    auto events = read_events(name);
    if (!events && events.error().code != Code::needs_version) {
      return std::unexpected(std::move(events).error());
    }
    return ArchivedLog{.job = name, .events = std::move(events)};
  }

  Result<std::vector<Event>> read_events(const std::string& id) {
    std::vector<Event> events;
    for (std::string after = "0"; !after.empty();) {
      AE_ASSIGN(const Value page, get(*client_, {"api", "jobs", id, "events"},
                                      {{"after", after}, {"limit", kPageEvents}}));
      for (const Value& envelope : page["events"].items()) {
        AE_ASSIGN(Event event, event_from_envelope(envelope));
        if (request_.at && event.seq > *request_.at) return events;
        events.push_back(std::move(event));
      }
      after = page["next"].is_integer() ? std::to_string(page["next"].as_int()) : "";
    }
    return events;
  }

  // A job that cannot be judged is a result.
  Status start_check(std::size_t index, ArchivedLog log) {
    auto& [id, events] = log;
    AE_ASSIGN(const JobId job, job_id_from_text(id));
    auto recorded = events ? engine::recorded_code(job, *events, engine::uncached_plan_source())
                           : std::unexpected(events.error());
    if (!recorded) {
      runtime::CodeFinding finding;
      finding.reason = recorded.error().message;
      results_[index] = view(id, nullptr, finding);
      return {};
    }
    Value head = view(id, &recorded->state, {});
    running_.emplace(index,
                     std::make_unique<runtime::CodeCheck>(
                         runtime::CodeCheck::Parts{.loop = instance_->loop(),
                                                   .provider = instance_->code(),
                                                   .recorded = *std::move(recorded),
                                                   .events = *std::move(events)},
                         [this, index, head = std::move(head)](runtime::CodeFinding finding) {
                           results_[index] = with_finding(head, finding);
                           ended_.push_back(std::move(running_.extract(index).mapped()));
                           instance_->loop().stop();
                         }));
    return {};
  }

  static Value view(const std::string& id, const engine::State* state,
                    const runtime::CodeFinding& finding) {
    const Value head =
        Value::object({{field::agent, state != nullptr ? Value(state->agent) : Value()},
                       {"job", id},
                       {"status", state != nullptr ? Value(to_text(state->status)) : Value()}});
    return with_finding(head, finding);
  }
  static Value with_finding(const Value& head, const runtime::CodeFinding& finding) {
    std::vector<std::string> lines = divergence_lines(finding.divergence);
    if (lines.empty()) lines = exception_lines(finding.exception, 0);
    std::string text;
    for (const std::string& line : lines) text += line + "\n";
    return head.with("arguments_compared", finding.compares_arguments)
        .with("divergence", finding.divergence)
        .with("exception", finding.exception)
        .with("explanation", text.empty() ? Value() : Value(std::move(text)))
        .with(field::reason, finding.reason.empty() ? Value() : Value(finding.reason))
        .with("recorded_requests", std::uint64_t{finding.requests})
        .with(field::verdict, to_text(finding.verdict))
        .with(field::version,
              finding.version && !finding.version->empty() ? Value(*finding.version) : Value());
  }

  const app::CodeCommand command_;
  CodeCheckRequest request_;
  app::ApiClient* const client_;
  Terminal& terminal_;
  std::unique_ptr<app::Instance> instance_;
  std::optional<CodeChildren> children_;
  bool is_ready_ = false;
  std::optional<Error> failed_;
  std::size_t next_ = 0;
  std::map<std::size_t, std::unique_ptr<runtime::CodeCheck>> running_;
  std::vector<std::unique_ptr<runtime::CodeCheck>> ended_;  // in a call of theirs
  std::vector<Value> results_;
};

std::string check_text(const Value& check, const Paint& paint) {
  const std::string_view verdict = check.text(field::verdict);
  const Tint tint = verdict == "continues"    ? Tint::good
                    : verdict == "not_judged" ? Tint::dim
                                              : Tint::bad;
  const bool is_judged = verdict != "not_judged";
  const auto requests = static_cast<std::uint64_t>(check["recorded_requests"].as_int());
  std::string text = fmt::format("{}  {}", safe(check.text("job")),
                                 paint(tint, is_judged ? std::string(verdict) : "not judged"));
  if (is_judged) text += fmt::format("  {}", counted(requests, "recorded request"));
  if (check[field::reason].is_string()) text += ": " + safe(check.text(field::reason));
  if (is_judged && check["arguments_compared"] == Value(false)) {
    text += "; arguments were not compared, because the job's blind is erased";
  }
  text += "\n";
  bool is_at_begin = true;
  for (const char c : check.text("explanation")) {
    if (is_at_begin) text += "  ";
    text += c;
    is_at_begin = c == '\n';
  }
  return text;
}

}  // namespace

Result<std::vector<Value>> check_code(const CommonOptions& options, const CodeCheckRequest& request,
                                      Terminal& terminal) {
  AE_ASSIGN(const app::StoreUrl store, store_of(options));
  // While a log is read, the worker is not answered.
  app::set_worker_limits({.silent = kReadMax, .resume = kReadMax});
  std::unique_ptr<app::ApiClient> client;
  if (request.archives.empty()) {
    AE_ASSIGN(client, open_to_read(store, request.jobs.size() == 1 ? request.jobs.front() : ""));
  }
  AE_ASSIGN(app::CodeCommand command, app::code_command(request.file));
  return CodeChecker(std::move(command), request, client.get(), terminal).run();
}

int print_code_checks(const std::vector<Value>& checks, Terminal& terminal) {
  constexpr CodeVerdict kVerdicts[] = {CodeVerdict::continues, CodeVerdict::diverges,
                                       CodeVerdict::fails, CodeVerdict::not_judged};
  std::map<std::string_view, std::uint64_t> counts;
  for (const Value& check : checks) counts[check.text(field::verdict)]++;
  const bool fits = counts["diverges"] == 0 && counts["fails"] == 0;
  if (terminal.json()) {
    std::vector<Member> members;
    for (const CodeVerdict verdict : kVerdicts) {
      members.emplace_back(to_text(verdict), counts[to_text(verdict)]);
    }
    terminal.print_json(Value::object(
        {{"counts", Value::object(std::move(members))}, {"jobs", Value::array(checks)}}));
    return fits ? kDone : kUnverified;
  }
  for (const Value& check : checks) terminal.print(check_text(check, terminal.out()));
  terminal.note(fmt::format("{}: {} continue, {} diverge, {} fail, {} not judged",
                            counted(checks.size(), "job"), counts["continues"], counts["diverges"],
                            counts["fails"], counts["not_judged"]));
  return fits ? kDone : kUnverified;
}

}  // namespace ae::cli
