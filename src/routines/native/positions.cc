#include "routines/native/positions.h"

#include <fmt/core.h>

#include <algorithm>
#include <optional>

#include "engine/code/code.h"

namespace ae::routines {
namespace {

std::string joined(std::string_view scope, std::string_view name) {
  return scope.empty() ? std::string(name) : fmt::format("{}/{}", scope, name);
}

Status check_name(std::string_view name) {
  if (engine::is_request_name(name)) return {};
  return fail(Code::input_invalid,
              "the name of a request or scope has 1 to 64 letters, digits, '_', '.', ':' and '-', "
              "not \"{}\"",
              name.substr(0, 100));
}

std::unexpected<Error> no_position(std::string_view position) {
  return fail(Code::input_invalid,
              "\"{}\" is not a position: it has at most {} bytes, {} scopes, and keys of 1 to 128 "
              "letters, digits, '_', '.', ':' and '-'",
              position.substr(0, 100), engine::kPositionMax, engine::kScopesMax);
}

template <class Container>
void erase_inside(Container& container, std::string_view scope) {
  // '0' follows '/'.
  const auto from = container.lower_bound(fmt::format("{}/", scope));
  container.erase(from, container.lower_bound(fmt::format("{}0", scope)));
}

}  // namespace

Result<std::string> Positions::next(std::string_view scope, std::string_view name,
                                    std::string_view key) {
  AE_TRY(check_name(name));
  std::string position = joined(scope, name);
  if (!key.empty()) {
    position += fmt::format("@{}", key);
    // A key with '#' or '~' would be read as a number or as a content.
    if (key.find_first_of("#~") != key.npos || !engine::is_position(position)) {
      return no_position(position);
    }
    if (!keys_.insert(position).second) {
      return fail(Code::input_invalid, "the key \"{}\" of \"{}\" was used before in its scope", key,
                  name);
    }
    return position;
  }
  std::uint64_t& count = counts_[position];
  if (count > 0) position += fmt::format("#{}", count + 1);
  if (!engine::is_position(position)) return no_position(position);
  count++;
  return position;
}

Result<std::string> Positions::closed_scope(std::string_view scope, std::string_view name,
                                            std::optional<std::uint64_t> number) {
  AE_TRY(check_name(name));
  std::string position = joined(scope, name);
  if (number) {
    AE_TRY(use_scope(position, Use::numbered));
    position += fmt::format("/{}", *number);
  }
  if (!engine::is_position(position)) return no_position(position);
  if (counts_.contains(position) || !scopes_.emplace(position, Use::closed).second) {
    return fail(Code::input_invalid,
                "\"{}\" was used before; give each closed scope another name, or a number",
                position);
  }
  counts_[position]++;  // a request with this name is its second
  return position;
}

Result<std::string> Positions::loop(std::string_view scope, std::string_view name) {
  AE_TRY(check_name(name));
  std::string position = joined(scope, name);
  if (!scopes_.emplace(position, Use::turns).second) {
    return fail(Code::input_invalid, "\"{}\" was used before; give each loop another name",
                position);
  }
  return position;
}

Result<std::string> Positions::open_scope(std::string_view scope, std::string_view name) {
  AE_TRY(check_name(name));
  std::string position = joined(scope, name);
  AE_TRY(use_scope(position, Use::branches));
  return position;
}

// The branches of a map or race, and closed scopes with numbers, may use a name again.
Status Positions::use_scope(const std::string& position, Use use) {
  if (const auto [found, is_new] = scopes_.emplace(position, use); found->second == use) return {};
  return fail(
      Code::input_invalid,
      "the scope \"{}\" was used before: closed scopes, loops, and the branches of a map or "
      "race, have different names",
      position);
}

void Positions::forget_inside(std::string_view scope) {
  erase_inside(counts_, scope);
  erase_inside(keys_, scope);
  erase_inside(scopes_, scope);
}

}  // namespace ae::routines
