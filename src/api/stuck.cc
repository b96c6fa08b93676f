// Lists of stalled jobs, and numbers of jobs by state.
#include "api/stuck.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "api/job_gauges.h"
#include "api/request_context.h"
#include "api/views.h"
#include "json/json.h"
#include "log/field_names.h"
#include "log/park_until.h"
#include "runtime/row.h"
#include "store/rules.h"

namespace ae::api {
namespace {

constexpr std::string_view kVersion = "execution_version:";
constexpr Duration kOlderThan = std::chrono::minutes(5);
constexpr std::size_t kListDefault = 100;
constexpr std::size_t kStuckRowsAtOnce = 200;
constexpr std::size_t kCountedMax = 10'000;  // rows read per number
constexpr Duration kGaugesTtl = std::chrono::seconds(5);

std::vector<std::string> missing_of(const WorkerOffer& offer,
                                    const std::vector<std::string>& needed) {
  std::vector<std::string> missing;
  for (const std::string& one : needed) {
    if (std::ranges::find(offer.offers, one) == offer.offers.end()) missing.push_back(one);
  }
  return missing;
}

// What the best matching worker lacks; nullopt: no worker runs the agent.
std::optional<std::vector<std::string>> missing_at_best_worker(
    const store::JobRow& row, const std::vector<WorkerOffer>& offers) {
  std::optional<std::vector<std::string>> least;
  for (const WorkerOffer& offer : offers) {
    if (!may_claim_agent(offer, row.agent)) continue;
    auto missing = missing_of(offer, row.capabilities);
    if (!least || missing.size() < least->size()) least = std::move(missing);
  }
  return least;
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

// Why no worker takes the job; nullopt: one can.
std::optional<StuckReason> missing_worker(const store::JobRow& row,
                                          const std::vector<WorkerOffer>& offers) {
  StuckReason stuck{.reason = "no_worker", .since = {}, .missing = {}, .message = {}};
  if (offers.empty()) {
    stuck.message = "no worker is running";
    return stuck;
  }
  const auto missing = missing_at_best_worker(row, offers);
  if (!missing) {
    stuck.message = "no worker runs the agent " + row.agent;
    return stuck;
  }
  if (missing->empty()) return std::nullopt;
  stuck.missing = *missing;
  const auto version = std::ranges::find_if(
      *missing, [](const std::string& one) { return one.starts_with(kVersion); });
  if (version != missing->end()) {
    stuck.reason = "needs_version";
    stuck.message = "no worker has the version " + version->substr(kVersion.size());
  } else {
    stuck.message = "no worker has " + joined(*missing);
  }
  return stuck;
}

}  // namespace

std::optional<StuckReason> find_stuck_reason(const store::JobRow& row, Instant now,
                                             Duration older_than,
                                             const std::vector<WorkerOffer>& offers) {
  if (row.status == "parked") {
    return StuckReason{.reason = "parked", .since = row.updated_at, .missing = {}, .message = {}};
  }
  if (!store::is_runnable(row.status)) return std::nullopt;
  if (row.claim) {
    if (!row.lease_until) return std::nullopt;
    // A new owner of a store ends all earlier leases by setting them to the epoch.
    const Instant since = std::max(*row.lease_until, row.updated_at);
    if (since + older_than > now) return std::nullopt;
    auto why = missing_worker(row, offers);
    StuckReason stuck{.reason = "lease_expired", .since = since, .missing = {}, .message = {}};
    stuck.message = "its worker " + row.claim_worker + " is gone";
    if (why) {
      stuck.message += ", and " + why->message;
      stuck.missing = std::move(why->missing);
    }
    return stuck;
  }
  const Instant since = std::max(row.updated_at, row.not_before.value_or(row.updated_at));
  if (since + older_than > now) return std::nullopt;
  auto why = missing_worker(row, offers);
  if (why) why->since = since;
  return why;
}

StuckReason unattended_reason(const store::JobRow& row) {
  StuckReason stuck{.reason = "no_worker", .since = row.updated_at, .missing = {}, .message = {}};
  stuck.message = "no process runs jobs of this store";
  if (row.claim) stuck.message += "; " + row.claim_worker + ", its last worker, is gone";
  return stuck;
}

std::vector<Value> unattended_commands(const store::JobRow& row) {
  return {Value("aetheris run FILE --job-id " + row.id.text), Value("aetheris serve FILE")};
}

Value unattended_json(const store::JobRow& row) {
  return Value::object({{field::commands, Value::array(unattended_commands(row))},
                        {"message", unattended_reason(row).message}});
}

std::optional<Value> not_offered_json(const store::JobRow& row,
                                      const std::vector<WorkerOffer>& offers) {
  const auto why = missing_worker(row, offers);
  if (!why) return std::nullopt;
  return Value::object({{field::commands, Value::array({Value("aetheris serve FILE")})},
                        {"message", why->message + "; stop the process that owns this store, then "
                                                   "start one with a file that has it"}});
}

std::vector<WorkerOffer> Api::worker_offers(const store::JobStats& job_stats) const {
  std::vector<WorkerOffer> all;
  for (const auto& [name, worker] : job_stats.workers) {
    if (worker.announcement.empty()) continue;
    if (auto offer = worker_offer(worker.announcement)) all.push_back(*std::move(offer));
  }
  // In a single-owner store workers are not announced.
  if (store_.owned() && options_.runs && runtime_.options().may_claim) {
    all.push_back({runtime_.options().agents, runtime_.offered()});
  }
  return all;
}

// ---------------------------------------------------------------- lists

// A walk over jobs by status, page by page, newest first; each is shown or skipped.
struct Api::JobWalk {
  std::vector<std::string> statuses;
  std::size_t status = 0;
  std::string after;
  std::size_t wanted = kListDefault;
  Duration older_than = kOlderThan;
  bool unknown_outcomes = false;  // unknown outcomes; else stalled jobs
  bool unattended = false;
  std::size_t logs = 0;  // number of logs read
  std::vector<WorkerOffer> offers;
  std::deque<store::JobRow> rows;
  bool last_page = false;
  std::vector<Value> found;

  bool over() const { return status == statuses.size(); }
};

namespace {

Status read_flag(const Query& query, std::string_view name) {
  if (*query.find(name) == "true") return {};
  return fail(Code::input_invalid, "\"" + std::string(name) + "\" must be true if set");
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

}  // namespace

void Api::stuck_jobs(ContextPtr ctx) {
  auto walk = std::make_shared<JobWalk>();
  walk->statuses = {"parked", "running", "queued"};
  const auto params = [&]() -> Status {
    AE_TRY(ctx->query.check_combination("stuck", {"older_than", "cursor", "limit"}));
    AE_TRY(read_flag(ctx->query, "stuck"));
    if (const std::string* text = ctx->query.find("older_than")) {
      auto age = duration_from_text(*text);
      if (!age) return std::unexpected(std::move(age).error().with_context("\"older_than\""));
      walk->older_than = *age;
    }
    return {};
  }();
  if (!params) return ctx->refuse(params.error());
  store_.count_jobs([this, alive = alive_.watch(), ctx, walk](Result<store::JobStats> job_stats) {
    if (!alive) return;
    if (!job_stats) return ctx->refuse(job_stats.error());
    walk->offers = worker_offers(*job_stats);
    walk->unattended = has_no_owner();
    begin_walk(ctx, walk);
  });
}

void Api::in_doubt_jobs(ContextPtr ctx) {
  auto walk = std::make_shared<JobWalk>();
  walk->statuses = {""};
  walk->unknown_outcomes = true;
  const auto params = [&]() -> Status {
    AE_TRY(ctx->query.check_combination(field::in_doubt, {"cursor", "limit"}));
    return read_flag(ctx->query, field::in_doubt);
  }();
  if (!params) return ctx->refuse(params.error());
  begin_walk(std::move(ctx), std::move(walk));
}

void Api::begin_walk(ContextPtr ctx, std::shared_ptr<JobWalk> walk) {
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
  next_page(std::move(ctx), std::move(walk));
}

void Api::next_page(ContextPtr ctx, std::shared_ptr<JobWalk> walk) {
  store::Filter filter;
  const std::string& status = walk->statuses[walk->status];
  if (!status.empty()) filter.statuses = {status};
  apply_cursor(walk->after, filter);
  filter.limit = kStuckRowsAtOnce;
  if (walk->unknown_outcomes) filter.pending = store::pending::unknown_outcome;
  // A job without progress has an old update time; an expired lease is in the row.
  if (!walk->unknown_outcomes && !walk->unattended && status == "queued") {
    filter.updated_before = store_.now() - walk->older_than + Duration(1);
  }
  store_.query(std::move(filter), [this, alive = alive_.watch(), ctx,
                                   walk](Result<std::vector<store::JobRow>> rows) {
    if (!rows && rows.error().code == Code::not_found) {
      return ctx->refuse({Code::input_invalid, "\"cursor\" does not match a job of this store"});
    }
    if (!rows) return ctx->refuse(rows.error());
    walk->last_page = rows->size() < kStuckRowsAtOnce;
    for (store::JobRow& row : *rows) walk->rows.push_back(std::move(row));
    if (alive) next_row(ctx, walk);
  });
}

void Api::next_row(ContextPtr ctx, std::shared_ptr<JobWalk> walk) {
  while (walk->found.size() < walk->wanted && walk->logs < kLogsMax && !walk->over()) {
    if (walk->rows.empty() && !walk->last_page) return next_page(std::move(ctx), std::move(walk));
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
                 : find_stuck_reason(row, store_.now(), walk->older_than, walk->offers);
      if (!why) continue;
    }
    Value shown = row_json(row, runtime_.state_of(row.id));
    if (why && why->reason != "parked") {
      const bool has_single_owner =
          store_.owned() || is_owner_alive_;  // the store has a single owner
      std::string command = has_single_owner ? "aetheris serve FILE" : "aetheris worker FILE";
      for (const std::string& one : why->missing) {
        if (!one.starts_with(kVersion)) command += " --capability " + one;
      }
      std::vector<Value> commands{Value(command)};
      if (walk->unattended) commands = unattended_commands(row);
      walk->found.push_back(
          shown.with("stuck", Value::object({{field::commands, Value::array(std::move(commands))},
                                             {"message", why->message},
                                             {"missing", texts(why->missing)},
                                             {field::reason, why->reason},
                                             {"since", to_text(why->since)}})));
      continue;
    }
    const JobId job = row.id;
    ++walk->logs;
    return runtime_.read_state(job, [this, alive = alive_.watch(), ctx, walk,
                                     shown = std::move(shown)](
                                        Result<runtime::Runtime::JobSnapshot> read) mutable {
      if (!alive) return;
      if (!read && read.error().code == Code::unavailable) return ctx->refuse(read.error());
      if (!read) {  // an unreadable log must not hide other jobs
        if (!walk->unknown_outcomes) {
          walk->found.push_back(shown.with(
              "stuck",
              Value::object({{field::code, std::string(code_name(read.error().code))},
                             {field::commands,
                              Value::array({Value("aetheris verify " + shown["id"].as_string())})},
                             {"message", read.error().message},
                             {"missing", Value::array({})},
                             {field::reason, "parked"},
                             {"since", shown["updated_at"]}})));
        }
        return next_row(ctx, walk);
      }
      const Value body = job_body(*read, store_.now());
      if (walk->unknown_outcomes) {
        if (body[field::in_doubt].size() > 0) {
          walk->found.push_back(shown.with(field::in_doubt, body[field::in_doubt]));
        }
      } else if (body["parked"].is_object()) {
        Value message = body["parked"][field::reason];
        std::vector<std::string> missing;
        if (body["parked"].text(field::until) == park_until::kVersion) {
          missing = {runtime::version_capability(body.text(field::agent),
                                                 body.text(field::execution_version))};
          message = "no worker has the version " + missing[0].substr(kVersion.size());
        }
        walk->found.push_back(
            shown.with("stuck", Value::object({{field::commands, Value::array(commands_of(body))},
                                               {"message", message},
                                               {"missing", texts(missing)},
                                               {field::reason, "parked"},
                                               {"since", body["parked"]["since"]},
                                               {field::until, body["parked"][field::until]}})));
      }
      next_row(ctx, walk);
    });
  }
  Value next;
  if (!walk->over()) next = walk->statuses[walk->status] + ":" + walk->after;
  answer_large(
      ctx, Value::object({{"jobs", Value::array(std::move(walk->found))}, {"next_cursor", next}}));
}

// ---------------------------------------------------------------- metrics

void Api::gauges(std::move_only_function<void(const JobGauges*)> then) {
  if (gauges_ && steady_.since_start() - gauges_->taken_at < kGaugesTtl) {
    return then(gauges_.get());
  }
  store_.count_jobs([this, alive = alive_.watch(),
                     then = std::move(then)](Result<store::JobStats> job_stats) mutable {
    if (!alive) return;
    if (!job_stats) return then(nullptr);
    auto fresh = std::make_shared<JobGauges>();
    fresh->job_stats = *std::move(job_stats);
    fresh->offers = worker_offers(fresh->job_stats);
    fresh->stuck = fresh->job_stats.statuses["parked"];
    count_stuck(std::move(fresh), 0, {}, std::move(then));
  });
}

// Of jobs that are not parked: only rows are read, no logs.
void Api::count_stuck(std::shared_ptr<JobGauges> fresh, std::size_t status, std::string after,
                      std::move_only_function<void(const JobGauges*)> then) {
  constexpr std::string_view kCountedStatuses[] = {"running", "queued"};
  if (status == std::size(kCountedStatuses) || fresh->rows_read >= kCountedMax) {
    fresh->taken_at = steady_.since_start();
    gauges_ = fresh;
    return then(fresh.get());
  }
  store::Filter filter;
  filter.statuses = {std::string(kCountedStatuses[status])};
  apply_cursor(after, filter);
  filter.limit = kJobsMax;
  if (status == 1) filter.updated_before = store_.now() - kOlderThan + Duration(1);
  store_.query(std::move(filter),
               [this, alive = alive_.watch(), fresh, status,
                then = std::move(then)](Result<std::vector<store::JobRow>> rows) mutable {
                 if (!alive) return;
                 if (!rows) return then(nullptr);
                 const Instant now = store_.now();
                 for (const store::JobRow& row : *rows) {
                   fresh->stuck += find_stuck_reason(row, now, kOlderThan, fresh->offers) ? 1 : 0;
                 }
                 fresh->rows_read += rows->size();
                 const bool more = rows->size() == kJobsMax;
                 std::string last = more ? cursor_of(rows->back()) : "";
                 count_stuck(fresh, more ? status : status + 1, std::move(last), std::move(then));
               });
}

}  // namespace ae::api
