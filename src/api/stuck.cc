// The lists of jobs that do not go on by themselves, and the numbers of where jobs stand.
#include "api/stuck.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "api/asked.h"
#include "api/standing.h"
#include "api/views.h"
#include "core/json.h"
#include "runtime/row.h"
#include "store/rules.h"

namespace ae::api {
namespace {

constexpr std::string_view kVersion = "execution_version:";
constexpr Duration kOlderThan = std::chrono::minutes(5);
constexpr std::size_t kListDefault = 100;
constexpr std::size_t kStuckRowsAtOnce = 200;
constexpr std::size_t kCountedMax = 10'000;  // rows that are looked through for one number
constexpr Duration kStandingAge = std::chrono::seconds(5);

std::vector<std::string> missing_of(const WorkerOffer& offer,
                                    const std::vector<std::string>& needed) {
  std::vector<std::string> missing;
  for (const std::string& one : needed) {
    if (std::ranges::find(offer.offers, one) == offer.offers.end()) missing.push_back(one);
  }
  return missing;
}

// What is missing at the worker that is nearest to taking the job; nullopt: none runs its agent.
std::optional<std::vector<std::string>> least_missing(const store::JobRow& row,
                                                      const std::vector<WorkerOffer>& offers) {
  std::optional<std::vector<std::string>> least;
  for (const WorkerOffer& offer : offers) {
    if (!takes(offer, row.agent)) continue;
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

// Why nobody takes it; nullopt: somebody would.
std::optional<Stuck> nobody(const store::JobRow& row, const std::vector<WorkerOffer>& offers) {
  Stuck stuck{.reason = "no_worker", .since = {}, .missing = {}, .message = {}};
  if (offers.empty()) {
    stuck.message = "no worker is running";
    return stuck;
  }
  const auto missing = least_missing(row, offers);
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

std::optional<Stuck> stuck(const store::JobRow& row, Instant now, Duration older_than,
                           const std::vector<WorkerOffer>& offers) {
  if (row.status == "parked") {
    return Stuck{.reason = "parked", .since = row.updated_at, .missing = {}, .message = {}};
  }
  if (!store::may_run(row.status)) return std::nullopt;
  if (row.claim) {
    if (!row.lease_until) return std::nullopt;
    // Who comes to own a store ends every earlier lease, as of no time at all.
    const Instant since = std::max(*row.lease_until, row.updated_at);
    if (since + older_than > now) return std::nullopt;
    auto why = nobody(row, offers);
    Stuck stuck{.reason = "lease_expired", .since = since, .missing = {}, .message = {}};
    stuck.message = "its worker " + row.claim_worker + " is gone";
    if (why) {
      stuck.message += ", and " + why->message;
      stuck.missing = std::move(why->missing);
    }
    return stuck;
  }
  const Instant since = std::max(row.updated_at, row.not_before.value_or(row.updated_at));
  if (since + older_than > now) return std::nullopt;
  auto why = nobody(row, offers);
  if (why) why->since = since;
  return why;
}

Stuck unattended(const store::JobRow& row) {
  Stuck stuck{.reason = "no_worker", .since = row.updated_at, .missing = {}, .message = {}};
  stuck.message = "no process runs jobs of this store";
  if (row.claim) stuck.message += "; " + row.claim_worker + ", its last worker, is gone";
  return stuck;
}

std::vector<Value> unattended_commands(const store::JobRow& row) {
  return {Value("aetheris run FILE --job-id " + row.id.text), Value("aetheris serve FILE")};
}

Value unattended_json(const store::JobRow& row) {
  return Value::object(
      {{"commands", Value::array(unattended_commands(row))}, {"message", unattended(row).message}});
}

std::optional<Value> not_offered_json(const store::JobRow& row,
                                      const std::vector<WorkerOffer>& offers) {
  const auto why = nobody(row, offers);
  if (!why) return std::nullopt;
  return Value::object({{"commands", Value::array({Value("aetheris serve FILE")})},
                        {"message", why->message + "; stop the process that owns this store, then "
                                                   "start one with a file that has it"}});
}

std::vector<WorkerOffer> Api::worker_offers(const store::Census& census) const {
  std::vector<WorkerOffer> all;
  for (const auto& [name, worker] : census.workers) {
    if (worker.says.empty()) continue;
    if (auto offer = worker_offer(worker.says)) all.push_back(*std::move(offer));
  }
  // Of a store that nobody shares nothing is announced.
  if (store_.owned() && options_.runs && runtime_.options().claims) {
    all.push_back({runtime_.options().agents, runtime_.offered()});
  }
  return all;
}

// ---------------------------------------------------------------- lists

// A walk over jobs by status, page by page, newest first; each is shown or passed over.
struct Api::Walk {
  std::vector<std::string> statuses;
  std::size_t status = 0;
  std::string after;
  std::size_t wanted = kListDefault;
  Duration older_than = kOlderThan;
  bool doubts = false;  // calls in doubt; else what is stuck
  bool unattended = false;
  std::size_t logs = 0;  // that were read
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
      if (!one["commands"].is_array()) continue;
      for (const Value& command : one["commands"].items()) all.push_back(command);
    }
  };
  add(body["in_doubt"]);
  add(body["confirmations"]);
  if (all.empty() && body["parked"]["command"].is_string()) {
    all.push_back(body["parked"]["command"]);
  }
  return all;
}

}  // namespace

void Api::stuck_jobs(Ask ask) {
  auto walk = std::make_shared<Walk>();
  walk->statuses = {"parked", "running", "queued"};
  const auto wish = [&]() -> Status {
    AE_TRY(ask->query.only({"stuck", "older_than", "cursor", "limit"}));
    AE_TRY(read_flag(ask->query, "stuck"));
    if (const std::string* text = ask->query.find("older_than")) {
      auto age = duration_from_text(*text);
      if (!age) return std::unexpected(std::move(age).error().in("\"older_than\""));
      walk->older_than = *age;
    }
    return {};
  }();
  if (!wish) return ask->refuse(wish.error());
  store_.census([this, alive = std::weak_ptr(alive_), ask, walk](Result<store::Census> census) {
    if (!alive.lock()) return;
    if (!census) return ask->refuse(census.error());
    walk->offers = worker_offers(*census);
    walk->unattended = nobody_is_there();
    begin_walk(ask, walk);
  });
}

void Api::doubtful_jobs(Ask ask) {
  auto walk = std::make_shared<Walk>();
  // Ended jobs last: their logs are read for this, a page at a time.
  walk->statuses = {"parked", "waiting", "running", "queued", "failed", "cancelled", "completed"};
  walk->doubts = true;
  const auto wish = [&]() -> Status {
    AE_TRY(ask->query.only({"in_doubt", "cursor", "limit"}));
    return read_flag(ask->query, "in_doubt");
  }();
  if (!wish) return ask->refuse(wish.error());
  begin_walk(std::move(ask), std::move(walk));
}

void Api::begin_walk(Ask ask, std::shared_ptr<Walk> walk) {
  const auto wish = [&]() -> Status {
    AE_ASSIGN(walk->wanted, ask->query.limit(kListDefault, kJobsMax));
    const std::string* cursor = ask->query.find("cursor");
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
  if (!wish) return ask->refuse(wish.error());
  next_page(std::move(ask), std::move(walk));
}

void Api::next_page(Ask ask, std::shared_ptr<Walk> walk) {
  store::Filter filter;
  filter.status = walk->statuses[walk->status];
  go_on_after(walk->after, filter);
  filter.limit = kStuckRowsAtOnce;
  // A job that has stood still for long was not written to; of a lease that ran out the row says when.
  if (!walk->doubts && !walk->unattended && filter.status == "queued") {
    filter.updated_before = store_.now() - walk->older_than + Duration(1);
  }
  store_.query(std::move(filter), [this, alive = std::weak_ptr(alive_), ask,
                                   walk](Result<std::vector<store::JobRow>> rows) {
    if (!rows && rows.error().code == Code::not_found) {
      return ask->refuse({Code::input_invalid, "\"cursor\" does not match a job of this store"});
    }
    if (!rows) return ask->refuse(rows.error());
    walk->last_page = rows->size() < kStuckRowsAtOnce;
    for (store::JobRow& row : *rows) walk->rows.push_back(std::move(row));
    if (alive.lock()) next_row(ask, walk);
  });
}

void Api::next_row(Ask ask, std::shared_ptr<Walk> walk) {
  while (walk->found.size() < walk->wanted && walk->logs < kLogsMax && !walk->over()) {
    if (walk->rows.empty() && !walk->last_page) return next_page(std::move(ask), std::move(walk));
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
    std::optional<Stuck> why;
    if (!walk->doubts) {
      const bool left = walk->unattended && store::may_run(row.status);
      why = left ? unattended(row) : stuck(row, store_.now(), walk->older_than, walk->offers);
      if (!why) continue;
    }
    Value shown = row_json(row);
    if (why && why->reason != "parked") {
      const bool alone = store_.owned() || owner_lives_;  // one process runs this store
      std::string command = alone ? "aetheris serve FILE" : "aetheris worker FILE";
      for (const std::string& one : why->missing) {
        if (!one.starts_with(kVersion)) command += " --capability " + one;
      }
      std::vector<Value> commands{Value(command)};
      if (walk->unattended) commands = unattended_commands(row);
      walk->found.push_back(
          shown.with("stuck", Value::object({{"commands", Value::array(std::move(commands))},
                                             {"message", why->message},
                                             {"missing", texts(why->missing)},
                                             {"reason", why->reason},
                                             {"since", to_text(why->since)}})));
      continue;
    }
    const JobId job = row.id;
    ++walk->logs;
    return runtime_.read_state(job, [this, alive = std::weak_ptr(alive_), ask, walk,
                                     shown = std::move(shown)](
                                        Result<runtime::Runtime::Read> read) mutable {
      if (!alive.lock()) return;
      if (!read && read.error().code == Code::unavailable) return ask->refuse(read.error());
      if (!read) {  // a log that cannot be read hides nothing of the others
        if (!walk->doubts) {
          walk->found.push_back(shown.with(
              "stuck", Value::object({{"code", std::string(code_name(read.error().code))},
                                      {"commands", Value::array({Value("aetheris verify " +
                                                                       shown["id"].as_string())})},
                                      {"message", read.error().message},
                                      {"missing", Value::array({})},
                                      {"reason", "parked"},
                                      {"since", shown["updated_at"]}})));
        }
        return next_row(ask, walk);
      }
      const Value body = job_body(*read, store_.now());
      if (walk->doubts) {
        if (body["in_doubt"].size() > 0) {
          walk->found.push_back(shown.with("in_doubt", body["in_doubt"]));
        }
      } else if (body["parked"].is_object()) {
        Value message = body["parked"]["reason"];
        std::vector<std::string> missing;
        if (body["parked"].text("until") == "version") {
          missing = {
              runtime::version_capability(body.text("agent"), body.text("execution_version"))};
          message = "no worker has the version " + missing[0].substr(kVersion.size());
        }
        walk->found.push_back(
            shown.with("stuck", Value::object({{"commands", Value::array(commands_of(body))},
                                               {"message", message},
                                               {"missing", texts(missing)},
                                               {"reason", "parked"},
                                               {"since", body["parked"]["since"]},
                                               {"until", body["parked"]["until"]}})));
      }
      next_row(ask, walk);
    });
  }
  Value next;
  if (!walk->over()) next = walk->statuses[walk->status] + ":" + walk->after;
  ask->answer(
      200, Value::object({{"jobs", Value::array(std::move(walk->found))}, {"next_cursor", next}}));
}

// ---------------------------------------------------------------- numbers

void Api::standing(std::move_only_function<void(const Standing*)> then) {
  if (standing_ && steady_.since_start() - standing_->taken_at < kStandingAge) {
    return then(standing_.get());
  }
  store_.census([this, alive = std::weak_ptr(alive_),
                 then = std::move(then)](Result<store::Census> census) mutable {
    if (!alive.lock()) return;
    if (!census) return then(nullptr);
    auto fresh = std::make_shared<Standing>();
    fresh->census = *std::move(census);
    fresh->offers = worker_offers(fresh->census);
    fresh->stuck = fresh->census.statuses["parked"];
    count_stuck(std::move(fresh), 0, {}, std::move(then));
  });
}

// Of those that are not parked: rows are looked through, no log.
void Api::count_stuck(std::shared_ptr<Standing> fresh, std::size_t status, std::string after,
                      std::move_only_function<void(const Standing*)> then) {
  constexpr std::string_view kCountedStatuses[] = {"running", "queued"};
  if (status == std::size(kCountedStatuses) || fresh->looked_at >= kCountedMax) {
    fresh->taken_at = steady_.since_start();
    standing_ = fresh;
    return then(fresh.get());
  }
  store::Filter filter;
  filter.status = kCountedStatuses[status];
  go_on_after(after, filter);
  filter.limit = kJobsMax;
  if (status == 1) filter.updated_before = store_.now() - kOlderThan + Duration(1);
  store_.query(std::move(filter),
               [this, alive = std::weak_ptr(alive_), fresh, status,
                then = std::move(then)](Result<std::vector<store::JobRow>> rows) mutable {
                 if (!alive.lock()) return;
                 if (!rows) return then(nullptr);
                 const Instant now = store_.now();
                 for (const store::JobRow& row : *rows) {
                   fresh->stuck += stuck(row, now, kOlderThan, fresh->offers) ? 1 : 0;
                 }
                 fresh->looked_at += rows->size();
                 const bool more = rows->size() == kJobsMax;
                 std::string last = more ? cursor_of(rows->back()) : "";
                 count_stuck(fresh, more ? status : status + 1, std::move(last), std::move(then));
               });
}

}  // namespace ae::api
