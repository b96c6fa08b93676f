// Parses decimals; computes costs in 128 bits.
#include "plan/price.h"

#include "log/field_names.h"
#include "plan/decimal.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace ae::engine {
namespace {

__extension__ using Wide = unsigned __int128;

constexpr std::size_t kPriceWholeMax = 7;  // digits of 1,000,000

std::unexpected<Error> price_error() {
  return fail(Code::input_invalid,
              "a price is a number of 0 to 1,000,000 per million tokens, with at most 6 decimals");
}

Result<std::uint64_t> amount_at(const Value& value, std::string_view key) {
  const Value& amount = value[key];
  if (!amount.is_integer() || amount.as_int() < 0 ||
      static_cast<std::uint64_t>(amount.as_int()) > kPriceMax) {
    return fail(Code::plan_invalid,
                "`price` has no `{}`: millionths per million tokens, a whole number", key);
  }
  return static_cast<std::uint64_t>(amount.as_int());
}

std::optional<std::uint64_t> count(const Value& usage, std::string_view name) {
  const Value& tokens = usage[name];
  if (!tokens.is_integer() || tokens.as_int() < 0) return std::nullopt;
  return static_cast<std::uint64_t>(tokens.as_int());
}

}  // namespace

Result<std::uint64_t> price_from_text(std::string_view decimal) {
  const std::size_t point = decimal.find('.');
  const std::string_view integer_part = decimal.substr(0, point);
  std::string part(point == decimal.npos ? "" : decimal.substr(point + 1));
  if (integer_part.empty() || integer_part.size() > kPriceWholeMax || !is_digits(integer_part) ||
      !is_digits(part) || part.size() > kDecimalsMax || (point != decimal.npos && part.empty())) {
    return price_error();
  }
  part.resize(kDecimalsMax, '0');
  std::uint64_t amount = 0;
  for (const char c : std::string(integer_part) + part) {
    amount = amount * 10 + static_cast<std::uint64_t>(c - '0');
  }
  if (amount > kPriceMax) return price_error();
  return amount;
}

Result<Price> price_of(const Value& value) {
  if (!value.is_object()) return fail(Code::plan_invalid, "`price` is not an object");
  for (const auto& [key, amount] : value.members()) {
    if (key != field::input && key != "output" && key != "cached") {
      return fail(Code::plan_invalid, "`price` has the unknown member `{}`", key);
    }
  }
  Price price;
  AE_ASSIGN(price.input, amount_at(value, field::input));
  AE_ASSIGN(price.output, amount_at(value, "output"));
  if (value.find("cached") != nullptr) {
    AE_ASSIGN(price.cached, amount_at(value, "cached"));
  }
  return price;
}

Value to_json(const Price& price) {
  std::vector<Member> members = {{field::input, price.input}, {"output", price.output}};
  if (price.cached) members.emplace_back("cached", *price.cached);
  return Value::object(std::move(members));
}

std::optional<std::uint64_t> cost_micros(const Price& price, const Value& usage) {
  const auto input = count(usage, "input_tokens");
  const auto output = count(usage, "output_tokens");
  if (!input || !output) return std::nullopt;
  const std::uint64_t cached = std::min(count(usage, "cached_tokens").value_or(0), *input);
  // Three products of less than 2^53 and 2^40.
  const Wide sum = Wide{*input - cached} * price.input +
                   Wide{cached} * price.cached.value_or(price.input) + Wide{*output} * price.output;
  return static_cast<std::uint64_t>(
      std::min<Wide>((sum + kMillion / 2) / kMillion, Wide{kNumberMax}));
}

}  // namespace ae::engine
