// Budget: how much a job may use, what it has used, and what its calls under way may use yet.
//
//   a call is declared   what it may use is reserved, and stands in its tool_invocation_started (`reserved`)
//   it is over           what it did use is spent: what the answer counts, or, when nobody knows, all that was reserved; of
//                        an answer that does not say all (llm/usage.h) whichever is more
//   the next fits not    nothing is declared; what is under way is awaited; the job parks until `budget`
//
// A model's call uses tokens, money and one model call, in each try that was sent; a tool's uses one tool call, however
// often it is tried, and one more for each round of answers that it is called again with (engine/questions/questions.h). What asks about a call in doubt, or undoes one, uses nothing: it is never held back (decision 0054).
// Stored: limits, in the task graph, in job_created and in decision_recorded{budget},
//   {"tokens"?, "cost_micros"?, "model_calls"?, "tool_calls"?: whole numbers, "wall"?: duration, "soft"?: percent}
// beside which job_created has "wall_until"? and, of a fork, "spent"? {"tokens"?, "cost_micros"?, "model_calls"?, "tool_calls"?}
// and `reserved` {"input_tokens", "output_tokens", "cost_micros"?}. Threads: values and pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/time.h"
#include "json/value.h"
#include "plan/price.h"

namespace ae::engine {

enum class Limit : std::uint8_t { tokens, cost, model_calls, tool_calls, wall };
std::string_view to_text(Limit limit);
// Those that are numbers; `wall` is a time.
constexpr Limit kCountedLimits[] = {Limit::tokens, Limit::cost, Limit::model_calls,
                                    Limit::tool_calls};

constexpr std::uint64_t kBudgetMax = 1'000'000'000'000'000;
// Tokens that may be read, tokens that may be written, or cost, of one try: 64 side by side stay numbers of JSON.
constexpr std::uint64_t kReservedMax = 70'000'000'000'000;
// What a request that names no max_tokens is taken to be answered with, and what an image is taken for.
constexpr std::uint64_t kDefaultOutputTokens = 1'024, kImageTokens = 1'500;

struct Usage {
  std::uint64_t tokens = 0, cost_micros = 0, model_calls = 0, tool_calls = 0;
};
std::uint64_t& amount_of(Usage& use, Limit limit);
std::uint64_t amount_of(const Usage& use, Limit limit);
bool can_add(const Usage& to,
             const Usage& more);                // without coming to a number that nothing can hold
void add(Usage& to, const Usage& more);         // as far as numbers go
void subtract(Usage& from, const Usage& less);  // REQUIRES: it holds as much

struct Limits {
  std::optional<std::uint64_t> tokens, cost_micros, model_calls, tool_calls;
  std::optional<Duration> wall;
  std::uint32_t soft = 0;  // percent of a limit: then the model of a loop is told; 0 = never

  std::optional<std::uint64_t>& max_of(Limit limit);
  const std::optional<std::uint64_t>& max_of(Limit limit) const;
  bool any() const { return tokens || cost_micros || model_calls || tool_calls || wall; }
};
// Fails with plan_invalid.
Result<Limits> limits_of(const Value& stored);
Value to_json(const Limits& limits);
// What is used, as a fork's job_created holds it of its origin (`spent`): the numbers that are not 0. nullopt: it is none.
std::optional<Usage> spent_of(const Value& stored);
Value to_json(const Usage& use);
// As people write it: {tokens, cost: "2.50", model_calls, tool_calls, wall: "1h"}, no soft. Fails with input_invalid.
Result<Limits> parse_limits(const Value& asked);
// An agent's limits, as a request lowers them. Fails with input_invalid: it would raise one.
Result<Limits> lower_limits(const Limits& agent, const Limits& asked);

// "2.5" is 2,500,000. At most six digits behind the point. Fails with input_invalid.
Result<std::uint64_t> cost_from_text(std::string_view decimal);
std::string cost_text(std::uint64_t micros);
// Of a limit: costs as cost_text has them, others as whole numbers.
std::string amount_text(Limit limit, std::uint64_t amount);

// What one try of a model's call may use.
struct Reservation {
  std::uint64_t input_tokens = 0, output_tokens = 0, cost_micros = 0;
};
std::optional<Reservation> reservation_of(const Value& stored);
Value to_json(const Reservation& reservation);
Usage model_use(const Reservation& reservation);

// So many tokens a message is taken for: a third of its bytes as canonical JSON, rounded up; an image by its own number.
std::uint64_t estimate_tokens(const Value& message);
// The same of a whole request, with its tools and its schema.
std::uint64_t estimate_input_tokens(const Value& request);
// `max_tokens` of the request, or the usual number.
std::uint64_t estimate_output_tokens(const Value& request);
Reservation make_reservation(const std::optional<Price>& price, std::uint64_t input,
                             std::uint64_t output);

// A call that did not fit.
struct ExceededLimit {
  Limit limit = Limit::tokens;
  std::uint64_t asked = 0;  // that it asks for
};

struct Budget {
  Limits limits;
  std::optional<Instant> wall_from;   // the job's creation, when it has a `wall` ...
  std::optional<Instant> wall_until;  // ... which ends then, pauses and waits included
  bool wall_passed = false;
  // A raise was erased: a limit that is not set holds as much as nobody knows, until it is raised again.
  bool erased = false;
  Usage spent, reserved;
  std::optional<ExceededLimit> exceeded;  // somebody has to raise it

  // Does it count what calls use?
  bool is_tracked() const { return limits.any() || erased; }
  std::uint64_t used(Limit limit) const {
    return amount_of(spent, limit) + amount_of(reserved, limit);
  }
  // The limits that leave no room for `more`; empty = there is room.
  std::vector<ExceededLimit> exceeded_by(const Usage& more) const;
  // Has so much of it been spent that a model is to be told?
  bool is_low(Limit limit) const;
};

}  // namespace ae::engine
