#include "core/redacted.h"

#include <algorithm>

#include "core/hash.h"

namespace ae {

bool is_redacted(const Value& value) {
  return value.is_object() && value.size() == 1 && hash_from_hex(value.text("$redacted"));
}

bool holds_redacted(const Value& value) {
  if (value.is_object()) {
    return is_redacted(value) || std::ranges::any_of(value.members(), [](const Member& member) {
             return holds_redacted(member.second);
           });
  }
  return value.is_array() && std::ranges::any_of(value.items(), holds_redacted);
}

}  // namespace ae
