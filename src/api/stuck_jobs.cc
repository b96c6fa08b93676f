// GET /api/jobs?stalled=true and ?in_doubt=true: lists of stalled jobs, and of jobs with an unknown
// outcome. Rows are read page by page; a log only if its row does not hold the answer, kLogsMax of
// them for one response.
#include <fmt/core.h>

#include <algorithm>
#include <deque>
#include <utility>

#include "api/job_gauges.h"
#include "api/jobs.h"
#include "api/read.h"
#include "api/stuck.h"
#include "api/views.h"
#include "inspect/aliases.h"
#include "json/json.h"
#include "log/field_names.h"
#include "log/park_until.h"
#include "runtime/row.h"
#include "store/rules.h"

namespace ae::api {
namespace {

constexpr std::size_t kListDefault = 100;
constexpr std::size_t kStuckRowsAtOnce = 200;

// A job of the list, and the member that tells why it is in it.
struct FoundJob {
  ListedJob job;
  std::string_view member;
  Value value;
};

// A walk over jobs by status, page by page, newest first; each is shown or skipped.
struct JobWalk {
  std::vector<std::string> statuses;
  std::size_t status = 0;
  std::string after;
  std::size_t wanted = kListDefault;
  Duration older_than = kStuckAfter;
  bool unknown_outcomes = false;  // unknown outcomes; else stalled jobs
  bool unattended = false;
  std::size_t logs = 0;  // number of logs read
  std::vector<WorkerOffer> offers;
  std::deque<store::JobRow> rows;
  bool last_page = false;
  std::vector<FoundJob> found;

  bool over() const { return status == statuses.size(); }
};

Status read_flag(const Query& query, std::string_view name) {
  if (*query.find(name) == "true") return {};
  return fail(Code::input_invalid, "\"{}\" must be true if set", name);
}

std::vector<Value> commands_of(const Value& body) {
  std::vector<Value> all;
  const auto add = [&](const Value& from) {
    if (!from.is_array()) return;
    for (const Value& one : from.items()) {
      if (!one[field::commands].is_array()) continue;
      for (const Value& command : one[field::commands].items()) all.push_back(command);
    }
  };
  add(body[field::in_doubt]);
  add(body["confirmations"]);
  if (all.empty() && body["parked"]["command"].is_string()) {
    all.push_back(body["parked"]["command"]);
  }
  return all;
}

std::vector<Value> worker_commands(const StuckReason& why, bool has_single_owner) {
  std::string command = has_single_owner ? "aetheris serve FILE" : "aetheris worker FILE";
  for (const std::string& one : why.missing) {
    if (!one.starts_with(kVersionPrefix)) command += fmt::format(" --capability {}", one);
  }
  return {Value(command)};
}

Value stuck_json(const StuckReason& why, std::vector<Value> commands) {
  return Value::object({{field::commands, Value::array(std::move(commands))},
                        {"message", why.message},
                        {"missing", texts(why.missing)},
                        {field::reason, why.reason},
                        {"since", to_text(why.since)}});
}

Value unreadable_json(const store::JobRow& row, const Error& error) {
  return Value::object(
      {{field::code, std::string(code_name(error.code))},
       {field::commands, Value::array({Value(fmt::format("aetheris verify {}", row.id.text))})},
       {"message", error.message},
       {"missing", Value::array({})},
       {field::reason, "parked"},
       {"since", to_text(row.updated_at)}});
}

// `body`: a parked job (views.h).
Value parked_json(const Value& body) {
  const Value& parked = body["parked"];
  Value message = parked[field::reason];
  std::vector<std::string> missing;
  const bool needs_version =
      parked.text(field::reason) == code_name(Code::execution_version_mismatch);
  if (needs_version && parked.text(field::until) == park_until::kVersion) {
    missing = {
        runtime::version_capability(body.text(field::agent), body.text(field::execution_version))};
    message = fmt::format("no worker has the version {}", missing[0].substr(kVersionPrefix.size()));
  }
  return Value::object({{field::commands, Value::array(commands_of(body))},
                        {"message", message},
                        {"missing", texts(missing)},
                        {field::reason, "parked"},
                        {"since", parked["since"]},
                        {field::until, parked[field::until]}});
}

void next_row(ApiContext& api, RequestPtr ctx, std::shared_ptr<JobWalk> walk);

// Reads the log of a job, and shows it if it is parked or has an unknown outcome. Then continues
// with the next row.
void read_row(ApiContext& api, const RequestPtr& ctx, const std::shared_ptr<JobWalk>& walk,
              ListedJob job) {
  ++walk->logs;
  const JobId id = job.row.id;
  api.runtime.reader().read_state<Value>(
      id,
      [now = api.store.now()](runtime::JobSnapshot& read) -> Result<Value> {
        return job_body(read, now);
      },
      [&api, alive = api.alive.watch(), ctx, walk,
       job = std::move(job)](Result<Value> body) mutable {
        if (!alive) return;
        if (!body && body.error().code == Code::unavailable) return ctx->refuse(body.error());
        if (!body) {  // an unreadable log must not hide other jobs
          if (!walk->unknown_outcomes) {
            Value why = unreadable_json(job.row, body.error());
            walk->found.push_back({std::move(job), engine::plain_name::kStalled, std::move(why)});
          }
        } else if (walk->unknown_outcomes) {
          const Value& in_doubt = (*body)[field::in_doubt];
          if (in_doubt.size() > 0) {
            walk->found.push_back({std::move(job), field::in_doubt, in_doubt});
          }
        } else if ((*body)["parked"].is_object()) {
          walk->found.push_back({std::move(job), engine::plain_name::kStalled, parked_json(*body)});
        }
        next_row(api, ctx, walk);
      });
}

void next_page(ApiContext& api, RequestPtr ctx, std::shared_ptr<JobWalk> walk) {
  store::Filter filter;
  const std::string& status = walk->statuses[walk->status];
  if (!status.empty()) filter.statuses = {status};
  apply_cursor(walk->after, filter);
  filter.limit = kStuckRowsAtOnce;
  if (walk->unknown_outcomes) filter.pending = store::pending::unknown_outcome;
  // A job without progress has an old update time; an expired lease is in the row.
  if (!walk->unknown_outcomes && !walk->unattended && status == "queued") {
    filter.updated_before = api.store.now() - walk->older_than + Duration(1);
  }
  api.store.query(std::move(filter), [&api, alive = api.alive.watch(), ctx,
                                      walk](Result<std::vector<store::JobRow>> rows) {
    if (!rows && rows.error().code == Code::not_found) {
      return ctx->refuse({Code::input_invalid, "\"cursor\" does not match a job of this store"});
    }
    if (!rows) return ctx->refuse(rows.error());
    walk->last_page = rows->size() < kStuckRowsAtOnce;
    for (store::JobRow& row : *rows) walk->rows.push_back(std::move(row));
    if (alive) next_row(api, ctx, walk);
  });
}

void answer_walk(ApiContext& api, const RequestPtr& ctx, JobWalk& walk) {
  Value next;
  if (!walk.over()) next = fmt::format("{}:{}", walk.statuses[walk.status], walk.after);
  answer_large(
      api, ctx,
      [found = std::move(walk.found), registry = api.registry.copy(), next = std::move(next)] {
        std::vector<Value> jobs;
        jobs.reserve(found.size());
        for (const auto& [job, member, value] : found) {
          jobs.push_back(engine::with_aliases(listed_job_json(job, *registry).with(member, value)));
        }
        return Value::object({{"jobs", Value::array(std::move(jobs))}, {"next_cursor", next}});
      });
}

void next_row(ApiContext& api, RequestPtr ctx, std::shared_ptr<JobWalk> walk) {
  while (walk->found.size() < walk->wanted && walk->logs < kLogsMax && !walk->over()) {
    if (walk->rows.empty() && !walk->last_page)
      return next_page(api, std::move(ctx), std::move(walk));
    if (walk->rows.empty()) {
      walk->status++;
      walk->after.clear();
      if (walk->over()) break;
      walk->last_page = false;
      continue;
    }
    store::JobRow row = std::move(walk->rows.front());
    walk->rows.pop_front();
    walk->after = cursor_of(row);
    std::optional<StuckReason> why;
    if (!walk->unknown_outcomes) {
      const bool left = walk->unattended && store::is_runnable(row.status);
      why = left ? unattended_reason(row)
                 : find_stuck_reason(row, api.store.now(), walk->older_than, walk->offers);
      if (!why) continue;
    }
    if (!why || why->reason == "parked") {
      return read_row(api, ctx, walk, listed_job(api, std::move(row)));
    }
    const bool has_single_owner =
        api.store.owned() || api.is_owner_alive;  // the store has a single owner
    Value stuck = stuck_json(*why, walk->unattended ? unattended_commands(row)
                                                    : worker_commands(*why, has_single_owner));
    walk->found.push_back(
        {listed_job(api, std::move(row)), engine::plain_name::kStalled, std::move(stuck)});
  }
  answer_walk(api, ctx, *walk);
}

void begin_job_walk(ApiContext& api, RequestPtr ctx, std::shared_ptr<JobWalk> walk) {
  const auto params = [&]() -> Status {
    AE_ASSIGN(walk->wanted, ctx->query.limit(kListDefault, kJobsMax));
    const std::string* cursor = ctx->query.find("cursor");
    if (!cursor) return {};
    const std::size_t colon = cursor->find(':');
    const auto status = std::ranges::find(walk->statuses, cursor->substr(0, colon));
    if (colon == cursor->npos || status == walk->statuses.end()) {
      return fail(Code::input_invalid, "\"cursor\" must be one that a response returned");
    }
    walk->status = static_cast<std::size_t>(status - walk->statuses.begin());
    walk->after = cursor->substr(colon + 1);
    return {};
  }();
  if (!params) return ctx->refuse(params.error());
  next_page(api, std::move(ctx), std::move(walk));
}

}  // namespace

void list_stuck_jobs(ApiContext& api, RequestPtr ctx) {
  auto walk = std::make_shared<JobWalk>();
  walk->statuses = {"parked", "running", "queued"};
  const auto params = [&]() -> Status {
    AE_TRY(ctx->query.check_combination(engine::plain_name::kStalled,
                                        {"older_than", "cursor", "limit"}));
    AE_TRY(read_flag(ctx->query, engine::plain_name::kStalled));
    if (const std::string* text = ctx->query.find("older_than")) {
      auto age = duration_from_text(*text);
      if (!age) return std::unexpected(std::move(age).error().with_context("\"older_than\""));
      walk->older_than = *age;
    }
    return {};
  }();
  if (!params) return ctx->refuse(params.error());
  api.store.count_jobs(
      [&api, alive = api.alive.watch(), ctx, walk](Result<store::JobStats> job_stats) {
        if (!alive) return;
        if (!job_stats) return ctx->refuse(job_stats.error());
        walk->offers = worker_offers(api, *job_stats);
        walk->unattended = api.has_no_owner();
        begin_job_walk(api, ctx, walk);
      });
}

void list_in_doubt_jobs(ApiContext& api, RequestPtr ctx) {
  auto walk = std::make_shared<JobWalk>();
  walk->statuses = {""};
  walk->unknown_outcomes = true;
  const auto params = [&]() -> Status {
    AE_TRY(ctx->query.check_combination(field::in_doubt, {"cursor", "limit"}));
    return read_flag(ctx->query, field::in_doubt);
  }();
  if (!params) return ctx->refuse(params.error());
  begin_job_walk(api, std::move(ctx), std::move(walk));
}

}  // namespace ae::api
