// Reads and writes limits; computes usage.
#include "plan/budget.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/utf8.h"
#include "json/json.h"
#include "plan/decimal.h"

namespace ae::engine {
namespace {

constexpr std::size_t kCostWholeMax = 9;  // digits of the largest cost before the point
constexpr std::uint64_t kBytesPerToken = 3;

// Names in the stored format and in job_view.
constexpr std::string_view kStored[] = {"tokens", "cost_micros", "model_calls", "tool_calls"};

std::string_view stored_name(Limit limit) { return kStored[static_cast<std::size_t>(limit)]; }

std::uint64_t sum(std::uint64_t a, std::uint64_t b) { return std::min(a + b, kNumberMax); }

std::optional<Limit> limit_of_stored(std::string_view name) {
  const auto counted = std::ranges::find(kStored, name);
  if (counted == std::end(kStored)) return std::nullopt;
  return static_cast<Limit>(counted - std::begin(kStored));
}

// The amount of a limit in a JobBudget or a BudgetUse.
auto& stored_amount(auto& record, Limit limit) {
  switch (limit) {
    case Limit::tokens:
      return record.tokens;
    case Limit::cost:
      return record.cost_micros;
    case Limit::model_calls:
      return record.model_calls;
    default:
      return record.tool_calls;
  }
}

std::optional<std::uint64_t> amount_in(std::int64_t n) {
  return n >= 0 && static_cast<std::uint64_t>(n) <= kBudgetMax
             ? std::optional(static_cast<std::uint64_t>(n))
             : std::nullopt;
}

std::optional<std::uint64_t> amount_in(const Value& value) {
  return value.is_integer() ? amount_in(value.as_int()) : std::nullopt;
}

std::uint64_t tokens_of_bytes(std::size_t bytes) {
  return (bytes + kBytesPerToken - 1) / kBytesPerToken;
}

}  // namespace

std::string_view to_text(Limit limit) {
  constexpr std::string_view kText[] = {"tokens", "cost", "model_calls", "tool_calls", "wall"};
  return kText[static_cast<std::size_t>(limit)];
}

std::uint64_t& amount_of(Usage& use, Limit limit) {
  switch (limit) {
    case Limit::tokens:
      return use.tokens;
    case Limit::cost:
      return use.cost_micros;
    case Limit::model_calls:
      return use.model_calls;
    default:
      return use.tool_calls;
  }
}

std::uint64_t amount_of(const Usage& use, Limit limit) {
  Usage copy = use;
  return amount_of(copy, limit);
}

bool can_add(const Usage& to, const Usage& more) {
  return std::ranges::all_of(kCountedLimits, [&](Limit limit) {
    return amount_of(to, limit) + amount_of(more, limit) <= kNumberMax;
  });
}

void add(Usage& to, const Usage& more) {
  for (const Limit limit : kCountedLimits)
    amount_of(to, limit) = sum(amount_of(to, limit), amount_of(more, limit));
}

void subtract(Usage& from, const Usage& less) {
  for (const Limit limit : kCountedLimits) {
    AE_CHECK(amount_of(from, limit) >= amount_of(less, limit), std::string(to_text(limit)));
    amount_of(from, limit) -= amount_of(less, limit);
  }
}

std::optional<std::uint64_t>& Limits::max_of(Limit limit) {
  switch (limit) {
    case Limit::tokens:
      return tokens;
    case Limit::cost:
      return cost_micros;
    case Limit::model_calls:
      return model_calls;
    default:
      return tool_calls;
  }
}

const std::optional<std::uint64_t>& Limits::max_of(Limit limit) const {
  return const_cast<Limits*>(this)->max_of(limit);
}

Result<Limits> limits_of(const JobBudget& stored) {
  Limits limits;
  for (const Limit limit : kCountedLimits) {
    const auto& amount = stored_amount(stored, limit);
    if (!amount) continue;
    auto& max = limits.max_of(limit) = amount_in(*amount);
    if (!max) {
      return fail(Code::plan_invalid, "`budget.{}` must be a whole number, at most {}",
                  stored_name(limit), kBudgetMax);
    }
  }
  if (stored.wall) {
    const auto wall = duration_from_text(*stored.wall);
    if (!wall || wall->count() < 1'000) {
      return fail(Code::plan_invalid, "`budget.wall` must be a duration of at least 1ms");
    }
    limits.wall = *wall;
  }
  if (stored.soft) {
    if (*stored.soft < 1 || *stored.soft > 100) {
      return fail(Code::plan_invalid, "`budget.soft` must be a whole number from 1 to 100");
    }
    limits.soft = static_cast<std::uint32_t>(*stored.soft);
  }
  return limits;
}

// A member of another type has the error of an invalid value.
Result<Limits> limits_of(const Value& value) {
  if (!value.is_object()) return fail(Code::plan_invalid, "`budget` must be an object");
  const auto integer_or = [](const Value& member, std::int64_t otherwise) {
    return member.is_integer() ? member.as_int() : otherwise;
  };
  JobBudget stored;
  for (const auto& [key, member] : value.members()) {
    if (const auto limit = limit_of_stored(key)) {
      stored_amount(stored, *limit) = integer_or(member, -1);
    } else if (key == "wall") {
      stored.wall = member.is_string() ? member.as_string() : std::string();
    } else if (key == "soft") {
      stored.soft = integer_or(member, 0);
    } else if (key != "wall_until" && key != "spent") {  // next to the limits in job_created
      return fail(Code::plan_invalid, "`budget` has the unknown member `{}`", key);
    }
  }
  return limits_of(stored);
}

JobBudget to_record(const Limits& limits) {
  JobBudget stored;
  for (const Limit limit : kCountedLimits) {
    if (const auto& max = limits.max_of(limit)) {
      stored_amount(stored, limit) = static_cast<std::int64_t>(*max);
    }
  }
  if (limits.wall) stored.wall = ae::to_text(*limits.wall);
  if (limits.soft > 0) stored.soft = limits.soft;
  return stored;
}

Value to_json(const Limits& limits) { return record_json(to_record(limits)); }

std::optional<Usage> spent_of(const BudgetUse& stored) {
  Usage use;
  for (const Limit limit : kCountedLimits) {
    const auto n = amount_in(stored_amount(stored, limit).value_or(0));
    if (!n) return std::nullopt;
    amount_of(use, limit) = *n;
  }
  return use;
}

BudgetUse to_record(const Usage& use) {
  BudgetUse stored;
  for (const Limit limit : kCountedLimits) {
    const std::uint64_t n = std::min(amount_of(use, limit), kBudgetMax);
    if (n > 0) stored_amount(stored, limit) = static_cast<std::int64_t>(n);
  }
  return stored;
}

Result<Limits> parse_limits(const Value& requested) {
  if (!requested.is_object() || requested.size() == 0) {
    return fail(Code::input_invalid,
                "a budget is an object with some of tokens, cost, model_calls, tool_calls, wall");
  }
  Limits limits;
  for (const auto& [key, value] : requested.members()) {
    if (key == "cost") {
      const std::string text = value.is_string()   ? value.as_string()
                               : value.is_number() ? canonical(value)
                                                   : std::string();
      AE_ASSIGN(limits.cost_micros, cost_from_text(text));
    } else if (key == "wall") {
      auto wall = duration_from_text(value.is_string() ? value.as_string() : "");
      if (!wall || wall->count() < 1'000) {
        return fail(Code::input_invalid, "\"wall\" is a duration of at least 1ms, as in 2h");
      }
      limits.wall = *wall;
    } else if (key == "tokens" || key == "model_calls" || key == "tool_calls") {
      const auto n = amount_in(value);
      if (!n) {
        return fail(Code::input_invalid, "\"{}\" is a whole number, at most {}", key, kBudgetMax);
      }
      limits.max_of(*limit_of_stored(key)) = *n;
    } else {
      return fail(Code::input_invalid,
                  "a budget has no \"{}\": it has tokens, cost, model_calls, tool_calls and wall",
                  truncate_utf8(key, 64));
    }
  }
  return limits;
}

Result<Limits> lower_limits(const Limits& agent, const Limits& requested) {
  Limits limits = agent;
  const auto too_high = [](Limit limit, const std::string& max) {
    return fail(Code::input_invalid,
                "the budget of {} is more than the agent's, {}: a request may only lower it",
                to_text(limit), max);
  };
  for (const Limit limit : kCountedLimits) {
    const auto& requested_max = requested.max_of(limit);
    if (!requested_max) continue;
    auto& max = limits.max_of(limit);
    if (max && *requested_max > *max) return too_high(limit, amount_text(limit, *max));
    max = requested_max;
  }
  if (requested.wall) {
    if (limits.wall && *requested.wall > *limits.wall) {
      return too_high(Limit::wall, ae::to_text(*limits.wall));
    }
    limits.wall = requested.wall;
  }
  return limits;
}

Result<std::uint64_t> cost_from_text(std::string_view decimal) {
  const std::size_t point = decimal.find('.');
  const std::string_view integer_part = decimal.substr(0, point);
  std::string digits(point == decimal.npos ? "" : decimal.substr(point + 1));
  if (integer_part.empty() || integer_part.size() > kCostWholeMax || !is_digits(integer_part) ||
      !is_digits(digits) || digits.size() > kDecimalsMax ||
      (point != decimal.npos && digits.empty())) {
    return fail(Code::input_invalid,
                "a cost is a number such as 2.50, in the unit of the models' prices, with at most "
                "9 digits before the point and 6 behind it");
  }
  digits.resize(kDecimalsMax, '0');
  std::uint64_t micros = 0;
  for (const char c : std::string(integer_part) + digits) {
    micros = micros * 10 + static_cast<std::uint64_t>(c - '0');
  }
  return micros;
}

std::string amount_text(Limit limit, std::uint64_t amount) {
  return limit == Limit::cost ? cost_text(amount) : std::to_string(amount);
}

std::string cost_text(std::uint64_t micros) {
  std::string text = fmt::format("{}.{:06}", micros / kMillion, micros % kMillion);
  while (text.back() == '0') text.pop_back();
  if (text.back() == '.') text.pop_back();
  return text;
}

std::optional<Reservation> reservation_of(const TokenReservation& stored) {
  const auto input = amount_in(stored.input_tokens), output = amount_in(stored.output_tokens);
  const auto cost = amount_in(stored.cost_micros.value_or(0));
  const auto model_calls = amount_in(stored.model_calls.value_or(0));
  const auto tool_calls = amount_in(stored.tool_calls.value_or(0));
  if (!input || !output || !cost || !model_calls || !tool_calls) return std::nullopt;
  return Reservation{.input_tokens = *input,
                     .output_tokens = *output,
                     .cost_micros = *cost,
                     .model_calls = *model_calls,
                     .tool_calls = *tool_calls};
}

TokenReservation to_record(const Reservation& reservation) {
  TokenReservation stored{.input_tokens = static_cast<std::int64_t>(reservation.input_tokens),
                          .output_tokens = static_cast<std::int64_t>(reservation.output_tokens)};
  if (reservation.cost_micros > 0) {
    stored.cost_micros = static_cast<std::int64_t>(reservation.cost_micros);
  }
  if (reservation.model_calls > 0) {
    stored.model_calls = static_cast<std::int64_t>(reservation.model_calls);
  }
  if (reservation.tool_calls > 0) {
    stored.tool_calls = static_cast<std::int64_t>(reservation.tool_calls);
  }
  return stored;
}

Usage child_use(const Reservation& reservation) {
  return {.tokens = sum(reservation.input_tokens, reservation.output_tokens),
          .cost_micros = reservation.cost_micros,
          .model_calls = reservation.model_calls,
          .tool_calls = std::max<std::uint64_t>(reservation.tool_calls, 1)};
}

Usage model_use(const Reservation& reservation) {
  return {.tokens = sum(reservation.input_tokens, reservation.output_tokens),
          .cost_micros = reservation.cost_micros,
          .model_calls = 1,
          .tool_calls = 0};
}

std::uint64_t estimate_tokens(const Value& message) {
  const Value& content = message["content"];
  if (!content.is_array()) return tokens_of_bytes(canonical(message).size());
  std::uint64_t tokens = 0;
  for (const Value& piece : content.items()) {
    const bool image = piece.text("type") == "image";
    tokens += image ? kImageTokens : tokens_of_bytes(canonical(piece).size());
  }
  return tokens;
}

std::uint64_t estimate_input_tokens(const Value& request) {
  std::uint64_t tokens = 0;
  for (const char* key : {"tools", "schema"}) {
    if (const Value* value = request.find(key)) tokens += tokens_of_bytes(canonical(*value).size());
  }
  const Value& messages = request["messages"];
  if (!messages.is_array()) return tokens;
  for (const Value& message : messages.items()) tokens += estimate_tokens(message);
  return tokens;
}

std::uint64_t estimate_output_tokens(const Value& request) {
  return amount_in(request["max_tokens"]).value_or(kDefaultOutputTokens);
}

Reservation make_reservation(const std::optional<Price>& price, std::uint64_t input,
                             std::uint64_t output) {
  Reservation reservation{.input_tokens = std::min(input, kReservedMax),
                          .output_tokens = std::min(output, kReservedMax)};
  if (price) {
    const auto cost =
        cost_micros(*price, Value::object({{"input_tokens", reservation.input_tokens},
                                           {"output_tokens", reservation.output_tokens}}));
    reservation.cost_micros = std::min(cost.value_or(0), kReservedMax);
  }
  return reservation;
}

std::vector<ExceededLimit> Budget::exceeded_by(const Usage& more) const {
  std::vector<ExceededLimit> result;
  if (wall_passed) result.push_back({.limit = Limit::wall, .requested = 0});
  for (const Limit limit : kCountedLimits) {
    const std::uint64_t requested = amount_of(more, limit);
    const auto& max = limits.max_of(limit);
    if (max && requested > 0 && sum(used(limit), requested) > *max) {
      result.push_back({.limit = limit, .requested = requested});
    }
  }
  return result;
}

bool Budget::is_soft_limit_reached(Limit limit) const {
  const auto& max = limits.max_of(limit);
  return max && limits.soft > 0 && amount_of(spent, limit) * 100 >= *max * limits.soft;
}

}  // namespace ae::engine
