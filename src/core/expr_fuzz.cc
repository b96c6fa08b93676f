// Fuzzes expressions: `source NUL input`. What evaluation gives can be written and read back as the
// same value; and a template of the same text never does worse.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

#include "core/expr.h"
#include "core/json.h"

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

void check(const ae::Result<ae::Value>& value) {
  if (!value) return;
  const std::string text = ae::canonical(*value);
  const auto again = ae::parse_json(text);
  AE_CHECK(again.has_value() && *again == *value, text);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const std::string_view source = bytes.substr(0, bytes.find('\0'));
  auto input = ae::parse_json(bytes.substr(std::min(source.size() + 1, bytes.size())));
  const InputScope scope(input ? *std::move(input) : ae::Value());
  constexpr ae::ExprLimits kLimits{.fuel = 20'000};
  if (const auto expr = ae::Expr::parse(source, kLimits)) check(expr->eval(scope, kLimits));
  if (!ae::is_utf8(source)) return 0;
  if (const auto filled = ae::Template::compile(ae::Value(source), kLimits)) {
    check(filled->eval(scope, kLimits));
  }
  return 0;
}
