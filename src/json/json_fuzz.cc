// Fuzzes the JSON reader: accepted text has one canonical text, which reads back as the same value.
#include <cstddef>
#include <cstdint>

#include "json/json.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto value = ae::parse_json({reinterpret_cast<const char*>(data), size});
  if (!value) return 0;
  const std::string text = ae::canonical(*value);
  const auto again = ae::parse_json(text);
  AE_CHECK(again.has_value(), text);
  AE_CHECK(*again == *value && ae::canonical(*again) == text, text);
  AE_CHECK(ae::parse_json(ae::pretty(*value)) == value, text);
  return 0;
}
