// field_json: fields of events as JSON for views; an absent field is null. Threads: pure functions.
#pragma once

#include <optional>
#include <string>

#include "base/hash.h"
#include "engine/state/view_values.h"
#include "json/value.h"
#include "log/field_json.h"

namespace ae::engine {

using ae::field_json;

Value field_json(const OptionalMember auto& field) { return field ? field_json(*field) : Value(); }

inline std::string hex_or_empty(const std::optional<Hash>& hash) {
  return hash ? to_hex(*hash) : std::string();
}

}  // namespace ae::engine
