// Fuzzes JSON Schema: `schema NUL value`. Compiling and validating never crash, hang or exhaust
// memory.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "json/json.h"
#include "schema/schema.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const std::string_view source = bytes.substr(0, bytes.find('\0'));
  const auto schema_value = ae::parse_json(source);
  if (!schema_value) return 0;
  const auto schema = ae::Schema::compile(*schema_value);
  const auto value = ae::parse_json(bytes.substr(std::min(source.size() + 1, bytes.size())));
  if (!schema || !value) return 0;
  const auto violations = schema->validate(*value);
  AE_CHECK(violations.size() <= 17 && violations.empty() == schema->check(*value).has_value());
  return 0;
}
