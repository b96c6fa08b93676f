#include "api/stuck.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "log/field_names.h"
#include "store/rules.h"

namespace ae::api {
namespace {

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
  for (const std::string& word : words) text.append(text.empty() ? "" : ", ").append(word);
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
    stuck.message = fmt::format("no worker runs the agent {}", row.agent);
    return stuck;
  }
  if (missing->empty()) return std::nullopt;
  stuck.missing = *missing;
  const auto version = std::ranges::find_if(
      *missing, [](const std::string& one) { return one.starts_with(kVersionPrefix); });
  if (version != missing->end()) {
    stuck.reason = "needs_version";
    stuck.message =
        fmt::format("no worker has the version {}", version->substr(kVersionPrefix.size()));
  } else {
    stuck.message = fmt::format("no worker has {}", joined(*missing));
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
    stuck.message = fmt::format("its worker {} is gone", row.claim_worker);
    if (why) {
      stuck.message += fmt::format(", and {}", why->message);
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
  if (row.claim) stuck.message += fmt::format("; {}, its last worker, is gone", row.claim_worker);
  return stuck;
}

std::vector<Value> unattended_commands(const store::JobRow& row) {
  return {Value(fmt::format("aetheris run FILE --job-id {}", row.id.text)),
          Value("aetheris serve FILE")};
}

Value unattended_json(const store::JobRow& row) {
  return Value::object({{field::commands, Value::array(unattended_commands(row))},
                        {"message", unattended_reason(row).message}});
}

std::optional<Value> not_offered_json(const store::JobRow& row,
                                      const std::vector<WorkerOffer>& offers) {
  const auto why = missing_worker(row, offers);
  if (!why) return std::nullopt;
  return Value::object(
      {{field::commands, Value::array({Value("aetheris serve FILE")})},
       {"message",
        fmt::format(
            "{}; stop the process that owns this store, then start one with a file that has it",
            why->message)}});
}

}  // namespace ae::api
