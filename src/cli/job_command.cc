// job: shows one job, what it waits for and the commands that continue it.
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
#include "log/park_until.h"
#include "plan/budget.h"

namespace ae::cli {
namespace {

struct ShowOptions : CommonOptions {
  std::string id;
};

std::vector<Option> job_options(ShowOptions& o) {
  return {{"ID", "", &o.id, "the job", kRequired}};
}

constexpr std::size_t kChangesShown = 10;

// The external changes of the job and their last verification, one line each; mismatches first.
std::vector<std::string> changes_text(const Value& changes) {
  std::vector<std::string> mismatches, matches;
  if (!changes.is_array()) return mismatches;
  for (const Value& change : changes.items()) {
    const std::string verdict(change.text(field::verdict));
    (verdict.empty() || verdict == "match" ? matches : mismatches)
        .push_back(fmt::format("{} {} ({}){}", safe(change.text(field::resource_type)),
                               safe(change.text(field::resource_id)),
                               safe(change.text(field::operation)),
                               verdict.empty() ? "" : fmt::format(": {}", safe(verdict))));
  }
  mismatches.insert(mismatches.end(), matches.begin(), matches.end());
  if (mismatches.size() > kChangesShown) {
    const std::size_t left = mismatches.size() - kChangesShown;
    mismatches.resize(kChangesShown);
    mismatches.push_back(fmt::format("… and {} more: `aetheris job ID --json`", left));
  }
  return mismatches;
}

// The scheduling of a job, and the capabilities that it requires.
std::string line_text(const Value& job) {
  std::string text = fmt::format("queue {}", safe(job.text(field::queue)));
  if (job[field::priority].is_integer()) {
    text += fmt::format(", priority {}", job[field::priority].as_int());
  }
  if (!job[field::required_capabilities].is_array()) return text;
  std::string needs;
  for (const Value& one : job[field::required_capabilities].items()) {
    if (one.is_string()) needs += (needs.empty() ? ", needs " : " ") + safe(one.as_string());
  }
  return text + needs;
}

constexpr std::size_t kValueShown = 400;  // columns of an input or a result on a narrow terminal
constexpr std::size_t kNarrowest = 60;    // of a terminal that output is fitted to

// Used and reserved amounts against the limits.
std::string budget_text(const Value& budget) {
  std::string text;
  for (const engine::Limit limit : engine::kCountedLimits) {
    const bool cost = limit == engine::Limit::cost;
    const std::string name = cost ? "cost_micros" : std::string(to_text(limit));
    const auto shown = [&](const Value& amount) {
      const auto n = static_cast<std::uint64_t>(amount.is_integer() ? amount.as_int() : 0);
      return cost ? engine::cost_text(n) : std::to_string(n);
    };
    if (budget["limits"][name].is_null()) continue;
    text += fmt::format("{}{} {} of {}", text.empty() ? "" : " · ", to_text(limit),
                        shown(budget["spent"][name]), shown(budget["limits"][name]));
    const Value& reserved = budget[field::reserved][name];
    if (reserved.is_integer() && reserved.as_int() > 0)
      text += fmt::format(", {} reserved", shown(reserved));
  }
  if (const auto until = budget.text("wall_until"); !until.empty()) {
    text += fmt::format("{}until {}", text.empty() ? "" : " · ", short_time(until));
  }
  return text;
}

int job_command(const ShowOptions& options, Terminal& terminal) {
  const auto job = get_job_view(options, options.id, "");
  if (!job) return terminal.fail_with(job.error());
  const auto store = store_of(options);
  if (!store) return terminal.fail_with(store.error());
  if (terminal.json()) {
    terminal.print_json(with_store(*job, *store));
    return kDone;
  }
  const Paint& paint = terminal.out();
  const std::string status(job->text("status"));
  std::string text = fmt::format("{} · {}\n", paint(Tint::bold, job_head(*job)),
                                 paint(status_tint(status), status));
  const auto line = [&](const char* name, const std::string& value) {
    if (value.empty()) return;
    text += fmt::format("  {}{}\n", paint(Tint::dim, pad(name, 10)), value);
  };
  const auto value_line = [&](const char* name, const Value& value) {
    if (value.is_null()) return;
    const std::string all = safe_json(canonical(value));
    if (terminal.width() == 0) return line(name, all);
    const bool narrow = terminal.width() > kNarrowest;
    const std::string shown = cut(all, narrow ? terminal.width() - 12 : kValueShown);
    if (shown == all) return line(name, all);
    const std::string how = " (cut: --json has it all)";
    line(name, narrow ? cut(all, terminal.width() - 12 - how.size()) + how : shown + how);
  };
  line("created", short_time(job->text("created_at")));
  line("updated", short_time(job->text("updated_at")));
  line(field::labels, safe(labels_text((*job)[field::labels])));
  if (status == "queued") line(field::queue, line_text(*job));
  line(field::budget, budget_text((*job)[field::budget]));
  value_line(field::input, (*job)[field::input]);
  value_line(field::result, (*job)[field::result]);
  if ((*job)[field::error].is_object()) {
    const Value& error = (*job)[field::error];
    const std::string_view summary = error.text("summary");
    line(field::error, fmt::format("{}: {}", paint(Tint::bad, safe(error.text(field::code))),
                                   message_text(summary.empty() ? error.text("message") : summary,
                                                std::string(12, ' '))));
    if (status == "failed") {
      line("details", fmt::format("aetheris trace {}{}", quoted(std::string(job->text("id"))),
                                  store_flag(*store)));
    }
    if (const std::string did = committed_text(*job); !did.empty()) line("", did);
    if (status == "failed") {
      const FailedJobFile file{.store_flag = store_flag(*store),
                               .retry_chain = find_retries(*store, job->text("id"))};
      for (const NextCommand& next : next_commands(*job, file)) {
        line(next.name.c_str(), next.lead_matters ? next.lead + next.command : next.command);
      }
    }
  }
  for (const std::string& doubt :
       final_unknown_outcomes(*job, *store, argument_columns(terminal, Stream::out))) {
    line(doubt.starts_with(' ') ? "" : "unknown", doubt);
  }
  for (const std::string& change : changes_text((*job)["changes"])) line("changed", change);
  terminal.print(text);
  print_blocked(*job, *store, terminal, Stream::out);
  const bool elsewhere = (*job)["parked"].text(field::until) == park_until::kVersion &&
                         !is_parked_by_code((*job)["parked"]);  // print_blocked printed that
  if ((status == "waiting" || status == "parked") && !elsewhere) {
    const std::string then = continuation_text(*job, *store);
    if (!then.empty()) terminal.print(fmt::format("then:   {}\n", then));
  }
  return kDone;
}

}  // namespace

extern const Command kJobCommand{.name = "job",
                                 .group = Group::inspect,
                                 .target = Target::store_or_server,
                                 .summary = "show one job",
                                 .example = "aetheris job holiday",
                                 .bind = bound_command<ShowOptions, job_options, job_command>};

}  // namespace ae::cli
