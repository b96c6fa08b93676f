// Target: the path and query of a request, as lists of decoded strings. Only a transport encodes
// them.
//
// Threads: values, pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"

namespace ae::api {

using Path = std::vector<std::string>;
using QueryPairs = std::vector<std::pair<std::string, std::string>>;

// "/api/jobs/a%2Fb?status=running": everything but letters, digits and -._~: is percent-encoded.
std::string target(const Path& path, const QueryPairs& query);

struct QueryParameter {
  std::string_view name;
  bool repeats = false;            // may appear more than once
  std::string_view alias_of = {};  // the name of the parameter that this is an older name of
};

class Query {
 public:
  Query() = default;
  explicit Query(QueryPairs pairs) : pairs_(std::move(pairs)) {}

  // Parameters under an older name get the name that handlers read.
  void rename_aliases(std::span<const QueryParameter> known);

  // Fails with input_invalid for an unknown name (a misspelled filter must not return everything)
  // and for a repeated name, which is ambiguous.
  Status check_names(std::span<const QueryParameter> known) const;
  // Fails with input_invalid if there is a parameter that cannot be used with `name`.
  Status check_combination(std::string_view name,
                           std::initializer_list<std::string_view> others) const;
  // The value of this name; nullptr if absent.
  const std::string* find(std::string_view name) const;
  std::vector<std::string> all(std::string_view name) const;
  // An unsigned integer. Fails with input_invalid.
  Result<std::optional<std::uint64_t>> number(std::string_view name) const;
  // `limit` of a list, from 1 to `most`. Fails with input_invalid.
  Result<std::size_t> limit(std::size_t default_limit, std::size_t most) const;

 private:
  QueryPairs pairs_;
};

}  // namespace ae::api
