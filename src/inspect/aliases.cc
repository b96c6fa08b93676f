// with_aliases: older names of members in JSON for users.
#include "inspect/aliases.h"

#include <utility>

namespace ae::engine {

Value with_aliases(Value object) {
  for (const auto& [name, alias] : kAliases) {
    const Value* const found = object.find(name);
    if (found == nullptr) continue;
    Value value = *found;
    object = object.with(alias, std::move(value));
  }
  return object;
}

}  // namespace ae::engine
