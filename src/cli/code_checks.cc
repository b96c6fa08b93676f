#include "cli/code_checks.h"

#include <fmt/core.h>

#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "app/code_checker.h"
#include "app/code_command.h"
#include "app/code_workers.h"
#include "base/counted.h"
#include "cli/job_reads.h"
#include "cli/local_worker.h"
#include "cli/shared.h"
#include "log/field_names.h"
#include "runtime/service/code_check.h"

namespace ae::cli {
namespace {

using runtime::CodeVerdict;

constexpr Duration kReadMax = std::chrono::minutes(10);
constexpr Duration kCheckMax = std::chrono::minutes(1);  // of one job
constexpr Duration kDebugMax = std::chrono::hours(24);   // of code that a user may stop

// Tells how to use the debugger of the worker.
void print_debugger(const std::string& line, Terminal& terminal) {
  const std::string address = app::debugger_address(line);
  if (address.empty()) return;
  const bool is_node = address.starts_with("ws://");
  terminal.note(fmt::format(
      "the code waits for a debugger at {}: {}", safe(address),
      is_node ? "attach an editor, or open chrome://inspect"
              : fmt::format("python3 -m aetheris.debugger --connect {}", safe(address))));
}

Value view_of(const app::CheckedJob& checked) {
  const runtime::CodeFinding& finding = checked.finding;
  std::string explanation = checked.explanation();
  return Value::object(
      {{field::agent, checked.agent ? Value(*checked.agent) : Value()},
       {"arguments_compared", finding.compares_arguments},
       {"divergence", finding.divergence},
       {"exception", finding.exception},
       {"explanation", explanation.empty() ? Value() : Value(std::move(explanation))},
       {"job", checked.job},
       {field::reason, finding.reason.empty() ? Value() : Value(finding.reason)},
       {"recorded_requests", std::uint64_t{finding.requests}},
       {"status", checked.status ? Value(to_text(*checked.status)) : Value()},
       {field::verdict, to_text(finding.verdict)},
       {field::version,
        finding.version && !finding.version->empty() ? Value(*finding.version) : Value()}});
}

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
  const Duration silent = request.is_debugged ? kDebugMax : kReadMax;
  app::set_worker_limits({.silent = silent, .resume = silent});
  std::unique_ptr<app::ApiClient> client;
  if (request.archives.empty()) {
    AE_ASSIGN(client, open_to_read(store, request.jobs.size() == 1 ? request.jobs.front() : ""));
  }
  app::CheckedLogs logs{
      .client = client.get(), .jobs = request.jobs, .archives = request.archives, .at = request.at};
  AE_ASSIGN(app::CodeCommand command, app::code_command(request.file));
  if (request.is_debugged) {
    AE_ASSIGN(command, app::debugged(std::move(command)));
  }
  AE_TRY(app::check_logs(logs));
  app::CodeChecker* running = nullptr;
  LocalWorker worker(terminal, {.on_end =
                                    [&](Error why) {
                                      if (running != nullptr) running->fail(std::move(why));
                                    },
                                .on_line =
                                    [&](const std::string& line) {
                                      if (request.is_debugged) print_debugger(line, terminal);
                                    }});
  AE_TRY(worker.start(std::move(command)));
  app::CodeChecker checker(worker.instance(), std::move(logs),
                           request.is_debugged ? kDebugMax : kCheckMax);
  running = &checker;
  const auto checked = checker.run();
  running = nullptr;
  if (!checked) return std::unexpected(checked.error());
  std::vector<Value> checks;
  for (const app::CheckedJob& job : *checked) checks.push_back(view_of(job));
  return checks;
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
