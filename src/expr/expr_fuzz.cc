// Fuzzes expressions: `source NUL input`. Evaluation stays within its fuel, is deterministic, and
// its result is never larger than the fuel allows; with less fuel the result is the same or none.
// The result can be written, and reads back as the same value.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

#include "base/utf8.h"
#include "expr/expr.h"
#include "json/json.h"

namespace {

class InputScope final : public ae::ExprScope {
 public:
  explicit InputScope(ae::Value input) : input_(std::move(input)) {}
  const ae::Value* root(std::string_view) const override { return &input_; }
  const ae::Value* step(std::string_view id) const override { return input_.find(id); }
  ae::Value steps() const override { return input_; }

 private:
  ae::Value input_;
};

constexpr ae::ExprLimits kLimits{.fuel = 20'000, .values_max = 50'000, .bytes_max = 4u << 20};
constexpr ae::ExprLimits kHalf{.fuel = 10'000, .values_max = 50'000, .bytes_max = 4u << 20};
// The size of text that the fuel allows: a member or 64 bytes per step, and each may contain the
// input.
constexpr std::size_t kTextMax = 64u << 20;

template <class Compiled>
void check(const Compiled& compiled, const ae::ExprScope& scope) {
  const ae::Result<ae::Value> value = compiled.eval(scope, kLimits);
  const ae::Result<ae::Value> again = compiled.eval(scope, kLimits);
  const ae::Result<ae::Value> half = compiled.eval(scope, kHalf);
  AE_CHECK(value.has_value() == again.has_value());
  if (!value) {
    AE_CHECK(value.error().message == again.error().message, value.error().message);
    AE_CHECK(!half.has_value(), value.error().message);
    return;
  }
  AE_CHECK(*value == *again && (!half || *half == *value));
  // Even with shared parts, made values are within the limits, and read values are a part of the
  // input.
  const ae::Value::Extent read_at_most = scope.root("")->extent();
  AE_CHECK(ae::expr::is_within_limits(*value, kLimits) ||
           value->extent().values <= read_at_most.values);
  AE_CHECK(!ae::canonical_exceeds(*value, kTextMax));
  const std::string text = ae::canonical(*value);
  const auto read = ae::parse_json(text);
  AE_CHECK(read.has_value() && *read == *value, text);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const std::string_view source = bytes.substr(0, bytes.find('\0'));
  auto input = ae::parse_json(bytes.substr(std::min(source.size() + 1, bytes.size())));
  const InputScope scope(input ? *std::move(input) : ae::Value());
  if (const auto expr = ae::Expr::parse(source, kLimits)) check(*expr, scope);
  if (!ae::is_utf8(source)) return 0;
  if (const auto filled = ae::Template::compile(ae::Value(source), kLimits)) {
    check(*filled, scope);
  }
  return 0;
}
