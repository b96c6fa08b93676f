// Positions: names the requests of one routine (engine/code/code.h): the first `charge` of scope
// `items/2` is items/2/charge, the second items/2/charge#2, one with a key items/2/charge@KEY.
//
// Positions depend on the names and on the order of requests only, so a new routine names the same
// requests in the same way. Threads: a value; one owner.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "base/error.h"

namespace ae::routines {

class Positions {
 public:
  // Of the next request with this name, or of the one with this key. Fails with input_invalid: not
  // a position, or the key was used before.
  Result<std::string> next(std::string_view scope, std::string_view name, std::string_view key);
  // Of a closed scope: `name`, or `name/number`. Fails with input_invalid: also if the name was
  // used before.
  Result<std::string> closed_scope(std::string_view scope, std::string_view name,
                                   std::optional<std::uint64_t> number);
  // Of a loop. Fails with input_invalid: also if the name was used before.
  Result<std::string> loop(std::string_view scope, std::string_view name);
  // The scope of the branches of a map or race, which may be used again: its names count on.
  Result<std::string> open_scope(std::string_view scope, std::string_view name);
  // This closed scope has ended: no position inside of it is requested any more.
  void forget_inside(std::string_view scope);

 private:
  std::map<std::string, std::uint64_t> counts_;  // of requests, by position without #n
  std::set<std::string> keys_;                   // positions with a key
  enum class Use : std::uint8_t { closed, numbered, turns, branches };
  Status use_scope(const std::string& position, Use use);
  std::map<std::string, Use> scopes_;
};

}  // namespace ae::routines
