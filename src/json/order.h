// The total order of JSON values, as in jq: null < false < true < numbers < strings < arrays <
// objects.
//
// Strings compare by code points, arrays item by item, objects first by their sorted keys, then by
// the values under them. A comparison counts its work, so that hostile values cannot run without
// limit.
// Threads: pure functions.
#pragma once

#include <compare>
#include <cstddef>
#include <optional>
#include <string_view>

#include "json/value.h"

namespace ae {

// The order of `a` and `b`. Subtracts 1 from `work` per value and per 64 bytes of text. Returns
// nullopt if `work` is used up or the values nest deeper than 1,000 levels (`work` is then 0).
std::optional<std::strong_ordering> compare_values(const Value& a, const Value& b,
                                                   std::size_t& work);

// The cost, in the same units, of finding a key among `members` members, in addition to 1 for the
// look-up: one for each comparison of the binary search beyond the first few, and each may compare
// all of a long key.
std::size_t find_cost(std::size_t members, std::string_view key) noexcept;
// The cost of sorting `count` keys with `key_bytes` bytes in total.
std::size_t sort_cost(std::size_t count, std::size_t key_bytes) noexcept;

}  // namespace ae
