// Budget: the limits of a job, what it has used, and what its calls in flight have reserved.
//
//   a call is declared      what it may use is reserved and recorded in its tool_invocation_started
//                            (`reserved`)
//   the call ends            what it used is spent: the usage that the answer reports; the whole
//                            reservation if the usage is unknown; the larger of the two if the
//                            answer reports only a part (llm/usage.h)
//   the next call exceeds    nothing is declared; calls in flight are awaited; then the job parks
//   a limit                  `until: budget`
//
// A model call uses tokens, cost and one model call for each try that was sent. A tool call uses
// one tool call regardless of its number of tries, and one more for each round of answers that it
// is called again with (engine/questions/questions.h). Probes and compensations use nothing: they
// are never held back (decision 0054).
// Stored: limits, in the task graph, in job_created and in decision_recorded{budget} (JobBudget),
// and reservations, in tool_invocation_started (TokenReservation). See log/records.def. Threads:
// values and pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/time.h"
#include "json/value.h"
#include "log/records.h"
#include "plan/price.h"

namespace ae::engine {

enum class Limit : std::uint8_t { tokens, cost, model_calls, tool_calls, wall };
std::string_view to_text(Limit limit);
// The limits that are numbers; `wall` is a duration.
constexpr Limit kCountedLimits[] = {Limit::tokens, Limit::cost, Limit::model_calls,
                                    Limit::tool_calls};

constexpr std::uint64_t kBudgetMax = 1'000'000'000'000'000;
// Maximum input tokens, output tokens or cost of one try: the sum of 64 concurrent calls still fits
// into a JSON number.
constexpr std::uint64_t kReservedMax = 70'000'000'000'000;
// Assumed output tokens of a request without max_tokens, and assumed tokens of an image.
constexpr std::uint64_t kDefaultOutputTokens = 1'024, kImageTokens = 1'500;

struct Usage {
  std::uint64_t tokens = 0, cost_micros = 0, model_calls = 0, tool_calls = 0;
};
std::uint64_t& amount_of(Usage& use, Limit limit);
std::uint64_t amount_of(const Usage& use, Limit limit);
bool can_add(const Usage& to,
             const Usage& more);                // is the sum within kNumberMax?
void add(Usage& to, const Usage& more);         // saturates at kNumberMax
void subtract(Usage& from, const Usage& less);  // REQUIRES: `from` is at least `less`

struct Limits {
  std::optional<std::uint64_t> tokens, cost_micros, model_calls, tool_calls;
  std::optional<Duration> wall;
  std::uint32_t soft = 0;  // percent of a limit at which a loop's model is notified; 0 = never

  std::optional<std::uint64_t>& max_of(Limit limit);
  const std::optional<std::uint64_t>& max_of(Limit limit) const;
  bool any() const { return tokens || cost_micros || model_calls || tool_calls || wall; }
};
// Without `spent` and `wall_until`. Fails with plan_invalid.
Result<Limits> limits_of(const JobBudget& stored);
Result<Limits> limits_of(const Value& stored);
JobBudget to_record(const Limits& limits);
Value to_json(const Limits& limits);
// The usage of its origin that a fork's job_created holds (`spent`): the numbers that are not 0.
// nullopt: not valid.
std::optional<Usage> spent_of(const BudgetUse& stored);
BudgetUse to_record(const Usage& use);
// Reads the format of requests: {tokens, cost: "2.50", model_calls, tool_calls, wall: "1h"}, no
// soft. Fails with input_invalid.
Result<Limits> parse_limits(const Value& requested);
// The agent's limits, lowered by a request. Fails with input_invalid if the request would raise
// one.
Result<Limits> lower_limits(const Limits& agent, const Limits& requested);

// "2.5" is 2,500,000. At most six digits after the point. Fails with input_invalid.
Result<std::uint64_t> cost_from_text(std::string_view decimal);
std::string cost_text(std::uint64_t micros);
// Text of an amount: costs as cost_text, others as whole numbers.
std::string amount_text(Limit limit, std::uint64_t amount);

// The maximum use of one try of a model call.
// Of a child job: its limits, and one tool call more, for the call that creates it.
struct Reservation {
  std::uint64_t input_tokens = 0, output_tokens = 0, cost_micros = 0;
  std::uint64_t model_calls = 0, tool_calls = 0;  // of a child job
};
// nullopt: not valid.
std::optional<Reservation> reservation_of(const TokenReservation& stored);
TokenReservation to_record(const Reservation& reservation);
Usage model_use(const Reservation& reservation);
// Of a call that creates a child job: the call itself counts as a tool call.
Usage child_use(const Reservation& reservation);

// Estimated tokens of a message: a third of its bytes as canonical JSON, rounded up; kImageTokens
// for an image.
std::uint64_t estimate_tokens(const Value& message);
// As estimate_tokens, for a whole request with its tools and its schema.
std::uint64_t estimate_input_tokens(const Value& request);
// `max_tokens` of the request, or kDefaultOutputTokens.
std::uint64_t estimate_output_tokens(const Value& request);
Reservation make_reservation(const std::optional<Price>& price, std::uint64_t input,
                             std::uint64_t output);

// A limit that a call would exceed.
struct ExceededLimit {
  Limit limit = Limit::tokens;
  std::uint64_t requested = 0;  // amount that the call needs
};

struct Budget {
  Limits limits;
  std::optional<Instant> wall_from;   // the job's creation, if it has a `wall` …
  std::optional<Instant> wall_until;  // … which ends at this time; pauses and waits count
  bool wall_passed = false;
  // A budget raise was erased: a limit that is not set has an unknown value until it is raised
  // again.
  bool erased = false;
  Usage spent, reserved;
  std::optional<ExceededLimit> exceeded;  // must be raised to continue

  // Is usage counted against limits?
  bool is_tracked() const { return limits.any() || erased; }
  std::uint64_t used(Limit limit) const {
    return amount_of(spent, limit) + amount_of(reserved, limit);
  }
  // The limits that `more` would exceed; empty = none.
  std::vector<ExceededLimit> exceeded_by(const Usage& more) const;
  // Has enough of it been spent that the model must be notified (`soft`)?
  bool is_soft_limit_reached(Limit limit) const;
};

}  // namespace ae::engine
