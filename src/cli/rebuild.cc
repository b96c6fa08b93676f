// rebuild: compares the derived tables of a store with its logs, or rebuilds them.
#include <fmt/core.h>

#include <chrono>
#include <cstdio>
#include <utility>

#include "api/command_line.h"
#include "app/instance.h"
#include "base/counted.h"
#include "base/utf8.h"
#include "cli/progress_line.h"
#include "cli/shared.h"
#include "cli/text.h"
#include "log/field_names.h"
#include "net/system.h"
#include "runtime/service/rebuild.h"

namespace ae::cli {
namespace {

struct RebuildOptions : CommonOptions {
  std::string job_id;
  bool check_only = false;
};

std::vector<Option> rebuild_options(RebuildOptions& o) {
  return {{"--job", "ID", &o.job_id, "only this job"},
          {"--check", "", &o.check_only, "only compare; exit code 6 if a row differs"}};
}

// Data of a damaged store may be invalid UTF-8.
std::string as_text(const std::string& bytes) {
  return is_utf8(bytes) ? bytes : fmt::format("hex {}", to_hex(bytes));
}

Value rows_view(const std::vector<store::Difference>& rows) {
  std::vector<Value> shown;
  shown.reserve(rows.size());
  for (const store::Difference& row : rows) {
    shown.push_back(Value::object({{"column", as_text(row.column)},
                                   {"derived", as_text(row.derived)},
                                   {"stored", as_text(row.stored)},
                                   {"table", as_text(row.table)}}));
  }
  return Value::array(std::move(shown));
}

Value body_of(const runtime::RebuildResult& rebuilt, bool checked, bool ok) {
  std::vector<Value> differing, refused;
  for (const auto& [job, rows] : rebuilt.differing) {
    differing.push_back(Value::object({{"id", job.text}, {"rows", rows_view(rows)}}));
  }
  for (const auto& [job, error] : rebuilt.refused) {
    refused.push_back(Value::object({{field::code, code_name(error.code)},
                                     {"id", job.text},
                                     {"message", as_text(api::message_with_command(error))}}));
  }
  return Value::object({{"checked_only", checked},
                        {"differing", Value::array(std::move(differing))},
                        {"differing_jobs", rebuilt.differing_jobs},
                        {"jobs", rebuilt.jobs},
                        {"ok", ok},
                        {"refused", Value::array(std::move(refused))},
                        {"refused_jobs", rebuilt.refused_jobs}});
}

void print(const runtime::RebuildResult& rebuilt, bool checked, Terminal& terminal) {
  for (const auto& [job, rows] : rebuilt.differing) {
    terminal.print(fmt::format("{}\n", job.empty() ? "no job" : safe(job.text)));
    for (const store::Difference& row : rows) {
      const std::string name =
          row.column.empty() ? row.table : fmt::format("{}.{}", row.table, row.column);
      std::string values;
      if (!row.stored.empty()) values += fmt::format("  stored {}", safe(as_text(row.stored)));
      if (!row.derived.empty())
        values += fmt::format("  expected from the log: {}", safe(as_text(row.derived)));
      terminal.print(fmt::format("  {}{}\n", name, values));
    }
  }
  for (const auto& [job, error] : rebuilt.refused) {
    terminal.warn(fmt::format("{}: {}; its rows were not changed", safe(job.text),
                              safe(api::message_with_command(error))));
  }
  const std::string refused =
      rebuilt.refused_jobs > 0 ? fmt::format(", {} refused", rebuilt.refused_jobs) : "";
  terminal.print(fmt::format("{} checked, {} {}{}\n", counted(rebuilt.jobs, "job"),
                             rebuilt.differing_jobs,
                             checked ? "with rows that differ from the log" : "rebuilt", refused));
  if (checked && !rebuilt.differing.empty()) {
    terminal.note("run `aetheris rebuild` to rebuild the rows");
  }
}

int rebuild_command(const RebuildOptions& options, Terminal& terminal) {
  const auto rebuilt = [&]() -> Result<runtime::RebuildResult> {
    app::RebuildRequest instance{
        .store = {}, .compare_only = options.check_only, .job = options.job_id};
    AE_ASSIGN(instance.store, store_of(options));
    AE_ASSIGN(const auto store, app::open_rebuild(instance));
    ProgressLine line(terminal);
    net::SystemClock clock;
    AE_ASSIGN(
        runtime::RebuildResult done,
        runtime::rebuild(
            *store, [&] { return clock.now(); },
            [&](const auto& progress) {
              line.show(fmt::format("{} of {}", progress.done, counted(progress.jobs, "job")));
            },
            cli_actor()));
    if (done.jobs == 0 && !options.job_id.empty()) {
      return fail(Code::not_found, "job {} not found in this store", options.job_id);
    }
    return done;
  }();
  if (!rebuilt) return terminal.fail_with(rebuilt.error());
  const bool differs = options.check_only && !rebuilt->differing.empty();
  const bool ok = !differs && rebuilt->refused_jobs == 0;
  if (terminal.json()) {
    terminal.print_json(body_of(*rebuilt, options.check_only, ok));
  } else {
    print(*rebuilt, options.check_only, terminal);
  }
  return ok ? kDone : kUnverified;
}

}  // namespace

extern const Command kRebuildCommand{
    .name = "rebuild",
    .group = Group::maintain,
    .target = Target::store,
    .summary = "rebuild derived tables from the event logs",
    .example = "aetheris rebuild --check",
    .bind = bound_command<RebuildOptions, rebuild_options, rebuild_command>};

}  // namespace ae::cli
