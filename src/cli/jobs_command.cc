// jobs: lists jobs, and those that need an operator.
#include <fmt/core.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/job_filter.h"
#include "app/api_client.h"
#include "base/time.h"
#include "cli/job_reads.h"
#include "cli/phrases.h"
#include "cli/shared.h"
#include "cli/trace_text.h"
#include "inspect/aliases.h"
#include "inspect/summary.h"
#include "json/json.h"
#include "log/field_names.h"
#include "store/rules.h"

namespace ae::cli {
namespace {

struct JobsOptions : CommonOptions {
  std::string agent, queue, error, kind, cost_min, forked_from, parent, since, until, updated_since,
      text;
  std::string sort, limit, cursor, older_than;
  std::vector<std::string> statuses, labels;
  bool stalled = false, in_doubt = false, count = false;
};

constexpr std::string_view kErrorCodes[] = {
#define X(name) #name,
    AE_ERROR_CODES(X)
#undef X
};

std::vector<Option> filter_options(JobsOptions& o) {
  return {{"--status",
           "STATUS",
           &o.statuses,
           "queued running waiting parked completed failed cancelled; repeatable",
           {.words = words_of(store::kJobStatuses)}},
          {"--agent", "NAME", &o.agent, "only jobs of this agent"},
          {"--label", "NAME=VALUE", &o.labels, "NAME=VALUE; all must match"},
          {"--queue", "NAME", &o.queue, "only jobs of this queue", kNotEmpty},
          {"--error",
           "CODE",
           &o.error,
           "only jobs that failed with this error code",
           {.accepts = Accepts::not_empty, .words = words_of(kErrorCodes)}},
          {"--kind",
           "KIND",
           &o.kind,
           "plan loop planner code",
           {.accepts = Accepts::not_empty, .words = words_of(engine::kJobKinds)}},
          {"--cost-min", "COST", &o.cost_min, "only jobs whose models cost at least this: 0.50",
           kNotEmpty},
          {"--forked-from", "ID", &o.forked_from, "only forks and retries of this job", kNotEmpty},
          {"--parent",
           "ID",
           &o.parent,
           "only the child jobs of this job",
           {.accepts = Accepts::not_empty,
            .excludes = {"--status", "--agent", "--label", "--queue", "--error", "--kind",
                         "--cost-min", "--forked-from", "--since", "--until", "--updated-since",
                         "--search", "--sort", "--stalled", "--in-doubt", "--count"}}},
          {"--since", "TIME", &o.since,
           "only jobs created since then: a time, or 24h for a day ago", kNotEmpty},
          {"--until", "TIME", &o.until, "only jobs created before then", kNotEmpty},
          {"--updated-since", "TIME", &o.updated_since, "only jobs with an event since then",
           kNotEmpty},
          {"--search", "TEXT", &o.text, "only jobs with this text in id, agent, key or labels",
           kNotEmpty},
          {"--sort",
           "ORDER",
           &o.sort,
           "created (default), changed (status or attempt), ended; the newest first",
           {.accepts = Accepts::not_empty, .words = words_of(api::kJobSorts)}}};
}

std::vector<Option> jobs_options(JobsOptions& o) {
  std::vector<Option> filters = filter_options(o);
  std::vector<Option> lists = {
      {"--limit", "N", &o.limit, "maximum number of entries (default 100)"},
      {"--cursor", "ID", &o.cursor, "continue after this job or cursor"},
      {"--stalled",
       "",
       &o.stalled,
       "only jobs that need an operator, with the command to run",
       {.excludes = {"--status", "--agent", "--label", "--queue", "--error", "--kind", "--cost-min",
                     "--forked-from", "--since", "--until", "--updated-since", "--search", "--sort",
                     "--in-doubt"}}},
      {"--older-than",
       "DURATION",
       &o.older_than,
       "with --stalled: minimum time without progress (default 5m); parked jobs always",
       {.needs = "--stalled"}},
      {"--in-doubt",
       "",
       &o.in_doubt,
       "only jobs with calls whose outcome is unknown",
       {.excludes = {"--status", "--agent", "--label", "--queue", "--error", "--kind", "--cost-min",
                     "--forked-from", "--since", "--until", "--updated-since", "--search",
                     "--sort"}}},
      {"--count",
       "",
       &o.count,
       "only numbers: jobs by status, stalled, with an unknown outcome, with open requests",
       {.excludes = {"--status", "--error", "--kind", "--cost-min", "--forked-from", "--until",
                     "--updated-since", "--search", "--sort", "--limit", "--cursor", "--stalled",
                     "--in-doubt"}}}};
  return std::move(filters) + std::move(lists);
}

// Why the job is stalled, and the commands that help. One line each, below its row.
std::string stalled_text(const Value& job, const std::string& flag, std::size_t columns) {
  std::string text;
  const auto commands = [&](const Value& list, const AnswerTo& to) {
    if (!list.is_array()) return;
    for (const Value& command : list.items()) {
      if (!command.is_string()) continue;
      text += fmt::format("    {}{}\n", safe(command.as_string()), flag);
      const std::string note = answer_note(command.as_string(), to);
      if (!note.empty()) text += fmt::format("        ({})\n", note);
    }
  };
  if (const Value& stalled = job[engine::plain_name::kStalled]; stalled.is_object()) {
    const bool parked = stalled.text(field::reason) == "parked";
    const std::string_view message = stalled.text("message");
    const std::string since = short_time(stalled.text("since"));
    text += parked ? fmt::format("  parked since {}: {}\n", since,
                                 parked_text(Value::object({{field::reason, message}})))
                   : fmt::format("  {}: {}, since {}\n", safe(stalled.text(field::reason)),
                                 safe(message), since);
    const bool confirms =
        stalled[field::commands].is_array() &&
        std::ranges::any_of(stalled[field::commands].items(), [](const Value& one) {
          return one.is_string() && one.as_string().ends_with(" accept");
        });
    commands(stalled[field::commands], {.confirms = confirms});
  }
  if (!job[field::in_doubt].is_array()) return text;
  const std::string_view status = job.text("status");
  const bool ended = store::has_ended(status);
  for (const Value& doubt : job[field::in_doubt].items()) {
    text += fmt::format("  node {}: {}, since {}\n", place_text(doubt), unknown_outcome_text(doubt),
                        short_time(doubt.text("since")));
    for (const std::string& line : call_lines(doubt, columns))
      text += fmt::format("    {}\n", line);
    if (doubt["given_up"] == Value(true)) {
      text += "    given up: no longer waited for\n";
    }
    if (const std::string noted = noted_text(doubt); !noted.empty())
      text += fmt::format("    {}\n", noted);
    commands(doubt[field::commands], {.doubt = doubt, .ended = ended});
  }
  return text;
}

// The head of a list of jobs, and a row with details for each.
std::string stalled_list(const Value& jobs, const std::string& flag, const Paint& paint,
                         std::size_t columns) {
  Table table({"ID", "STATUS", "AGENT"});
  for (const Value& job : jobs.items()) {
    const std::string status(job.text("status"));
    table.row({{std::string(job.text("id"))},
               {status, status_tint(status)},
               {std::string(job.text(field::agent))}});
  }
  const std::string rows = table.text(paint, 0);
  std::size_t at = rows.find('\n') + 1;
  std::string text = rows.substr(0, at);
  for (const Value& job : jobs.items()) {
    const std::size_t end = rows.find('\n', at) + 1;
    text += rows.substr(at, end - at) + stalled_text(job, flag, columns);
    at = end;
  }
  return text;
}

constexpr std::size_t kReasonsRead = 20;  // jobs of a list whose state is read

// The time from creation to end, for a job that has ended.
std::string job_duration_text(const Value& job) {
  const std::string_view status = job.text("status");
  if (!store::has_ended(status)) return "";
  const auto from = instant_from_text(job.text("created_at"));
  const auto to = instant_from_text(job.text("updated_at"));
  return from && to ? duration_shown(*to - *from) : "";
}

// Why a job failed or does not continue; "" if it needs no action.
std::string reason_of(const Value& job) {
  if (const Value& error = job[field::error]; error.is_object()) {
    const std::string_view summary = error.text("summary");
    return fmt::format("{}: {}", safe(error.text(field::code)),
                       first_line(summary.empty() ? error.text("message") : summary));
  }
  if (job["parked"].is_object()) return park_reason(job["parked"], job[field::in_doubt]);
  if (job[engine::plain_name::kNoWorker].is_object())
    return first_line(job[engine::plain_name::kNoWorker].text("message"));
  return job[field::waits].size() > 0 ? wait_sentence(job[field::waits].items()[0]) : std::string();
}

// The reasons of the first jobs in a list that have one, by id; rows do not contain them.
std::map<std::string, std::string, std::less<>> reasons_of(const Value& jobs,
                                                           const CommonOptions& options) {
  // Jobs that need an operator are read first.
  constexpr std::pair<std::string_view, std::string_view> kRounds[] = {{"failed", "parked"},
                                                                       {"waiting", "queued"}};
  std::map<std::string, std::string, std::less<>> reasons;
  const auto store = store_of(options);
  std::unique_ptr<app::ApiClient> client;
  std::size_t read = 0;
  for (const auto& [one, other] : kRounds) {
    for (const Value& job : jobs.items()) {
      if (job.text("status") != one && job.text("status") != other) continue;
      if (read++ == kReasonsRead) return reasons;
      if (!client) {
        auto opened = store ? open_to_read(*store, {}) : std::unexpected(store.error());
        if (!opened) return reasons;
        client = *std::move(opened);
      }
      const std::string id(job.text("id"));
      const auto whole = get(*client, {"api", "jobs", id}, {});
      if (!whole) continue;
      if (std::string reason = reason_of(*whole); !reason.empty()) reasons[id] = std::move(reason);
    }
  }
  return reasons;
}

Status add_labels(const JobsOptions& options, api::QueryPairs& query) {
  for (const std::string& label : options.labels) {
    if (const std::size_t at = label.find_first_of(":="); at == 0 || at == label.npos) {
      return fail(Code::usage, "--label must be NAME=VALUE, not \"" + label.substr(0, 80) + "\"");
    }
    query.emplace_back("label", label);
  }
  return {};
}

std::string counts_text(const Value& counts, const Paint& paint) {
  const std::span<const Value> lower_bounds = counts["lower_bounds"].items();
  Table table({"JOBS", "NUMBER"});
  const auto row = [&](const std::string& shown, const Value& number, std::string_view name) {
    const bool is_bound = std::ranges::find(lower_bounds, Value(name)) != lower_bounds.end();
    table.row({{shown}, {canonical(number) + (is_bound ? " or more" : "")}});
  };
  for (const std::string_view status : store::kJobStatuses) {
    row(std::string(status), counts["statuses"][status], status);
  }
  row("unknown outcome", counts[field::in_doubt], field::in_doubt);
  row("stalled", counts[engine::plain_name::kStalled], engine::plain_name::kStalled);
  for (const auto& [kind, number] : counts["open_requests"].members()) {
    row("request: " + kind, number, "open_requests");
  }
  return table.text(paint, 0);
}

int print_counts(const JobsOptions& options, Terminal& terminal) {
  const auto counts = [&]() -> Result<Value> {
    AE_ASSIGN(const app::StoreUrl store, store_of(options));
    AE_ASSIGN(const auto client, open_to_read(store, {}));
    api::QueryPairs query{
        {field::agent, options.agent}, {field::queue, options.queue}, {"since", options.since}};
    AE_TRY(add_labels(options, query));
    return get(*client, {"api", "job-counts"}, std::move(query));
  }();
  if (!counts) return terminal.fail_with(counts.error());
  if (terminal.json()) {
    terminal.print_json(*counts);
  } else {
    terminal.print(counts_text(*counts, terminal.out()));
  }
  return kDone;
}

int jobs_command(const JobsOptions& options, Terminal& terminal) {
  if (options.count) return print_counts(options, terminal);
  auto page = [&]() -> Result<Value> {
    AE_ASSIGN(const app::StoreUrl store, store_of(options));
    auto client = open_to_read(store, {});
    if (!client) return std::unexpected(client.error());
    api::QueryPairs query{{field::agent, options.agent},
                          {field::queue, options.queue},
                          {field::error, options.error},
                          {field::kind, options.kind},
                          {"cost_min", options.cost_min},
                          {field::forked_from, options.forked_from},
                          {field::parent, options.parent},
                          {"since", options.since},
                          {field::until, options.until},
                          {"updated_since", options.updated_since},
                          {"q", options.text},
                          {"sort", options.sort},
                          {"limit", options.limit},
                          {"cursor", options.cursor}};
    for (const std::string& status : options.statuses) query.emplace_back("status", status);
    AE_TRY(add_labels(options, query));
    if (options.stalled) {
      query.emplace_back(engine::plain_name::kStalled, "true");
      query.emplace_back("older_than", options.older_than);
    }
    if (options.in_doubt) query.emplace_back(field::in_doubt, "true");
    // A page of a search may be short although there are more jobs.
    if (!options.stalled && !options.in_doubt && options.text.empty())
      return get(**client, {"api", "jobs"}, std::move(query));
    return full_page(**client, {"api", "jobs"}, std::move(query), "jobs", options.limit);
  }();
  if (!page) return terminal.fail_with(page.error());
  if (terminal.json()) {
    terminal.print_json(*page);
    return kDone;
  }
  if ((*page)["jobs"].size() == 0) {
    terminal.note(options.stalled    ? "no stalled jobs"
                  : options.in_doubt ? "no calls with an unknown outcome"
                                     : "no jobs");
    return kDone;
  }
  if (options.stalled || options.in_doubt) {
    const auto store = store_of(options);
    const std::string flag = store ? store_flag(*store) : "";
    terminal.print(stalled_list((*page)["jobs"], flag, terminal.out(),
                                argument_columns(terminal, Stream::out)));
    if ((*page)["next_cursor"].is_string()) {
      terminal.note(fmt::format("more: --cursor {}", safe((*page)["next_cursor"].as_string())));
    }
    return kDone;
  }
  const auto reasons = reasons_of((*page)["jobs"], options);
  std::vector<std::string> head{"ID", "STATUS", "AGENT", "CREATED", "DURATION", "LABELS"};
  if (!reasons.empty()) head.emplace_back("REASON");
  Table table(std::move(head));
  for (const Value& job : (*page)["jobs"].items()) {
    const std::string status(job.text("status"));
    const auto reason = reasons.find(job.text("id"));
    std::vector<Table::Cell> cells{{std::string(job.text("id"))},
                                   {status, status_tint(status)},
                                   {std::string(job.text(field::agent))},
                                   {short_time(job.text("created_at"))},
                                   {job_duration_text(job)},
                                   {labels_text(job[field::labels])}};
    if (!reasons.empty()) {
      cells.push_back({reason == reasons.end() ? std::string() : reason->second,
                       status == "failed" ? Tint::bad : Tint::none});
    }
    table.row(std::move(cells));
  }
  terminal.print(table.text(terminal.out(), terminal.width()));
  if ((*page)["next_cursor"].is_string()) {
    terminal.note(fmt::format("more: --cursor {}", safe((*page)["next_cursor"].as_string())));
  }
  return kDone;
}

}  // namespace

extern const Command kJobsCommand{.name = "jobs",
                                  .group = Group::inspect,
                                  .target = Target::store_or_server,
                                  .summary = "list jobs, newest first",
                                  .example = "aetheris jobs --status waiting",
                                  .bind = bound_command<JobsOptions, jobs_options, jobs_command>};

}  // namespace ae::cli
