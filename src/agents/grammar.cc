#include "agents/grammar.h"

#include <algorithm>

#include "base/error.h"

namespace ae::agents {

bool contains(Names names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

Names Shape::keys_of(std::string_view kind) const {
  const auto found = std::ranges::find(kinds, kind);
  AE_CHECK(found != kinds.end(), kind);
  return keys_of_kinds[static_cast<std::size_t>(found - kinds.begin())];
}

std::vector<std::string_view> Shape::kinds_with(std::string_view key) const {
  std::vector<std::string_view> found;
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    if (contains(keys_of_kinds[i], key)) found.push_back(kinds[i]);
  }
  return found;
}

std::string_view Shape::key_of(std::string_view name) const {
  const auto found = std::ranges::find(aliases, name, &KeyAlias::alias);
  return found == aliases.end() ? name : found->key;
}

}  // namespace ae::agents
