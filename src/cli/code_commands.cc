// divergence: why code does not fit the log of its job; workers: the workers of a store.
#include <fmt/core.h>

#include <string>
#include <utility>
#include <vector>

#include "cli/code_end.h"
#include "cli/job_reads.h"
#include "cli/phrases.h"
#include "cli/shared.h"
#include "json/json.h"
#include "log/field_names.h"

namespace ae::cli {
namespace {

// ---------------------------------------------------------------- divergence

struct DivergenceOptions : CommonOptions {
  std::string id;
};

std::vector<Option> divergence_options(DivergenceOptions& o) {
  return {{"ID", "", &o.id, "the job", kRequired}};
}

int divergence_command(const DivergenceOptions& options, Terminal& terminal) {
  const auto job = get_job_view(options, options.id, "");
  if (!job) return terminal.fail_with(job.error());
  const auto store = store_of(options);
  if (!store) return terminal.fail_with(store.error());
  const Value& divergence = (*job)["divergence"];
  if (divergence.is_null()) {
    return terminal.fail_with(
        {Code::not_found,
         fmt::format("job {} is {}, and not parked because its code differs from its log",
                     options.id, job->text("status"))});
  }
  if (terminal.json()) {
    terminal.print_json(divergence.with("job", job->text("id")));
    return kDone;
  }
  std::string text = fmt::format("job {}: its code differs from its log\n", safe(job->text("id")));
  for (const std::string& line : divergence_lines(divergence)) text += line + "\n";
  const std::string id = quoted(std::string(job->text("id"))), flag = store_flag(*store);
  text += fmt::format(
      "To continue with corrected code, or with the version that made the request:\n"
      "  aetheris resume {}{}\n",
      id, flag);
  terminal.print(text);
  return kDone;
}

// ---------------------------------------------------------------- workers

std::vector<Option> workers_options(CommonOptions&) { return {}; }

std::string value_names(const Value& list) {
  std::string text;
  for (const Value& one : list.items()) {
    const std::string name = one.is_string() ? one.as_string() : std::string(one.text("name"));
    const std::string_view version = one.is_string() ? "" : one.text(field::version);
    text += fmt::format("{}{}{}", text.empty() ? "" : ", ", safe(name),
                        version.empty() ? "" : fmt::format(" {}", safe(version)));
  }
  return text;
}

std::string count_text(const Value& count, const Value& most) {
  return fmt::format("{} of {}", count.is_integer() ? count.as_int() : 0,
                     most.is_integer() ? most.as_int() : 0);
}

int workers_command(const CommonOptions& options, Terminal& terminal) {
  const auto body = answer_of(options, app::OpenMode::read, [] {
    api::ApiRequest request;
    request.path = {"api", "workers"};
    return request;
  }());
  if (!body) return terminal.fail_with(body.error());
  if (terminal.json()) {
    terminal.print_json(*body);
    return kDone;
  }
  Table processes({"PROCESS", "JOBS", "AGENTS"});
  for (const Value& one : (*body)["workers"].items()) {
    const Value& most = one["jobs_max"];
    processes.row(
        {{safe(one.text("worker")), Tint::accent},
         {most.is_integer() ? count_text(one["held"], most) : std::to_string(one["held"].as_int())},
         {one["agents"].is_array() ? value_names(one["agents"]) : ""}});
  }
  terminal.print(processes.text(terminal.out(), terminal.width()));
  const Value& code = (*body)["code_workers"];
  if (!code.is_array() || code.size() == 0) {
    terminal.note("no worker of code is connected");
    return kDone;
  }
  Table workers({"WORKER", "SDK", "ROUTINES", "CALLS", "SINCE", "AGENTS", "TOOLS"});
  for (const Value& one : code.items()) {
    const char* const state = one["connected"] != Value(true)  ? " (connection lost)"
                              : one["draining"] == Value(true) ? " (stopping)"
                                                               : "";
    workers.row({{safe(one.text("worker")) + state, Tint::accent},
                 {safe(one.text("sdk"))},
                 {count_text(one["routines"], one["routines_max"])},
                 {count_text(one["calls"], one["calls_max"])},
                 {short_time(one.text("since")), Tint::dim},
                 {value_names(one["agents"])},
                 {value_names(one["tools"])}});
  }
  terminal.print("\n" + workers.text(terminal.out(), terminal.width()));
  return kDone;
}

}  // namespace

extern const Command kDivergenceCommand{
    .name = "divergence",
    .group = Group::inspect,
    .target = Target::store_or_server,
    .summary = "show how the code of a job differs from its log",
    .example = "aetheris divergence refund-7",
    .bind = bound_command<DivergenceOptions, divergence_options, divergence_command>};

extern const Command kWorkersCommand{
    .name = "workers",
    .group = Group::inspect,
    .target = Target::store_or_server,
    .summary = "list the processes that run jobs, and the workers of code",
    .example = "aetheris workers",
    .bind = bound_command<CommonOptions, workers_options, workers_command>};

}  // namespace ae::cli
