// field_json: fields of events as JSON for views; an absent field is null. Threads: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/hash.h"
#include "base/ids.h"
#include "base/time.h"
#include "engine/state/view_values.h"
#include "json/value.h"
#include "log/events.h"

namespace ae::engine {

inline Value field_json(const std::string& text) { return text; }
template <std::size_t Size>
Value field_json(const InlineText<Size>& text) {
  return text;
}
inline Value field_json(std::int64_t number) { return number; }
inline Value field_json(bool flag) { return flag; }
inline Value field_json(Instant instant) { return to_text(instant); }
inline Value field_json(const Hash& hash) { return to_hex(hash); }
template <class Tag, std::size_t Size>
Value field_json(const Id<Tag, Size>& id) {
  return id.text;
}
inline Value field_json(const RecordedError& error) {
  return Value::object({{"code", error.code}, {"message", error.message.value}});
}
template <class T>
Value field_json(const std::optional<T>& field) {
  return field ? field_json(*field) : Value();
}

inline std::string hex_or_empty(const std::optional<Hash>& hash) {
  return hash ? to_hex(*hash) : std::string();
}

}  // namespace ae::engine
