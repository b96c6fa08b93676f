#include "api/job_filter.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "api/jobs.h"
#include "inspect/summary.h"
#include "log/field_names.h"
#include "plan/budget.h"
#include "store/rules.h"

namespace ae::api {
namespace {

constexpr std::size_t kJobsDefault = 100;

Result<std::pair<std::string, std::string>> label(const std::string& text) {
  std::size_t at = text.find(':');
  if (at == text.npos) at = text.find('=');
  if (at == 0 || at == text.npos) {
    return fail(Code::input_invalid, "a label must be NAME:VALUE, not \"" + text + "\"");
  }
  return std::pair(text.substr(0, at), text.substr(at + 1));
}

// An instant, or a duration before now. Fails with input_invalid.
Result<std::optional<Instant>> time_parameter(const Query& query, std::string_view name,
                                              Instant now) {
  const std::string* text = query.find(name);
  if (!text) return std::nullopt;
  if (const auto at = instant_from_text(*text)) return at;
  if (const auto before = duration_from_text(*text)) return now - *before;
  return fail(Code::input_invalid, "\"" + std::string(name) +
                                       "\" must be a time in UTC (2025-01-31T09:30:00Z) or a "
                                       "duration before now (24h)");
}

Result<std::vector<std::pair<std::string, std::string>>> labels_of(const Query& query) {
  std::vector<std::pair<std::string, std::string>> labels;
  for (const std::string& text : query.all("label")) {
    AE_ASSIGN(auto pair, label(text));
    labels.push_back(std::move(pair));
  }
  return labels;
}

Result<std::vector<std::string>> statuses_of(const Query& query) {
  std::vector<std::string> statuses = query.all("status");
  for (const std::string& status : statuses) {
    if (std::ranges::find(store::kJobStatuses, status) == store::kJobStatuses.end()) {
      return fail(Code::input_invalid,
                  "\"status\" must be queued, running, waiting, parked, completed, failed or "
                  "cancelled");
    }
  }
  return statuses;
}

// A list in the order of ends has only jobs that have ended. The last change of a job that has
// ended is its end.
Status apply_order(const Query& query, store::Filter& filter) {
  const std::string* sort = query.find("sort");
  if (!sort || *sort == "created") return {};
  filter.order = store::JobOrder::changed;
  if (*sort == "changed") return {};
  if (*sort != "ended") {
    return fail(Code::input_invalid, "\"sort\" must be created, changed or ended");
  }
  if (filter.statuses.empty()) {
    filter.statuses.assign(store::kJobStatuses.begin(), store::kJobStatuses.end());
  }
  std::erase_if(filter.statuses, [](const std::string& one) { return !store::has_ended(one); });
  if (!filter.statuses.empty()) return {};
  return fail(Code::input_invalid,
              "\"sort=ended\" lists jobs that have ended: \"status\" must be completed, failed or "
              "cancelled");
}

Status apply_list_cursor(std::string_view cursor, store::Filter& filter) {
  if (filter.order == store::JobOrder::created) {
    apply_cursor(cursor, filter);
    return {};
  }
  const std::size_t at = cursor.rfind('@');
  std::int64_t us = 0;
  if (at != cursor.npos) {
    apply_cursor(cursor.substr(0, at), filter);
    const char* const end = cursor.data() + cursor.size();
    const auto read = std::from_chars(cursor.data() + at + 1, end, us);
    if (read.ec != std::errc() || read.ptr != end) filter.after_number.reset();
  }
  if (!filter.after_number) {
    return fail(Code::input_invalid, "\"cursor\" must be one that a list in this order returned");
  }
  filter.after_changed_at = Instant{us};
  return {};
}

Status apply_summary_filters(const Query& query, store::Filter& filter) {
  if (const std::string* kind = query.find(field::kind)) {
    if (std::ranges::find(engine::kJobKinds, *kind) == std::end(engine::kJobKinds)) {
      return fail(Code::input_invalid, "\"kind\" must be plan, loop, planner or code");
    }
    filter.kind = *kind;
  }
  if (const std::string* cost = query.find("cost_min")) {
    auto micros = engine::cost_from_text(*cost);
    if (!micros) return std::unexpected(std::move(micros).error().with_context("\"cost_min\""));
    filter.cost_min = *micros;
  }
  return {};
}

}  // namespace

Result<store::Filter> job_filter(const Query& query, Instant now) {
  if (query.find("older_than")) {
    return fail(Code::input_invalid, "\"older_than\" needs \"stalled\"");
  }
  store::Filter wanted;
  AE_ASSIGN(wanted.statuses, statuses_of(query));
  for (const auto& [name, text] :
       {std::pair(field::agent, &wanted.agent), std::pair(field::queue, &wanted.queue),
        std::pair(field::error, &wanted.error),
        std::pair(field::forked_from, &wanted.forked_from)}) {
    if (const auto* value = query.find(name)) *text = *value;
  }
  AE_TRY(apply_summary_filters(query, wanted));
  AE_ASSIGN(wanted.created_from, time_parameter(query, "since", now));
  AE_ASSIGN(wanted.created_before, time_parameter(query, field::until, now));
  AE_ASSIGN(wanted.updated_from, time_parameter(query, "updated_since", now));
  AE_ASSIGN(wanted.labels, labels_of(query));
  AE_TRY(apply_order(query, wanted));
  if (const auto* cursor = query.find("cursor")) AE_TRY(apply_list_cursor(*cursor, wanted));
  AE_ASSIGN(wanted.limit, query.limit(kJobsDefault, kJobsMax));
  return wanted;
}

Result<store::CountFilter> count_filter(const Query& query, Instant now) {
  store::CountFilter wanted;
  if (const auto* agent = query.find(field::agent)) wanted.agent = *agent;
  if (const auto* queue = query.find(field::queue)) wanted.queue = *queue;
  AE_ASSIGN(wanted.created_from, time_parameter(query, "since", now));
  AE_ASSIGN(wanted.labels, labels_of(query));
  return wanted;
}

std::string list_cursor(const store::JobRow& row, store::JobOrder order) {
  std::string cursor = cursor_of(row);
  if (order == store::JobOrder::changed) {
    cursor += "@" + std::to_string(row.summary->changed_at.us);
  }
  return cursor;
}

}  // namespace ae::api
