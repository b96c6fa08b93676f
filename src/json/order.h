// The total order of JSON values, as jq has it: null < false < true < numbers < texts < arrays < objects.
//
// Texts compare by code points, arrays item by item, objects first by their sorted keys and then by
// the values under them. Comparing counts its work, so that a hostile pair of values stops by count.
// Threads: pure functions.
#pragma once

#include <compare>
#include <cstddef>
#include <optional>
#include <string_view>

#include "json/value.h"

namespace ae {

// How `a` stands to `b`. Takes one from `work` per value and per 64 bytes of text; nothing when
// `work` is used up or the values nest deeper than 1,000 levels (`work` is then 0).
std::optional<std::strong_ordering> compare_values(const Value& a, const Value& b,
                                                   std::size_t& work);

// What it costs, in the same units, to look for a key among so many members, beyond one for the look-up itself: among
// many, a step for each comparison of the search, and each of them may compare all of a long key.
std::size_t find_cost(std::size_t members, std::string_view key) noexcept;
// The same of sorting so many keys.
std::size_t sort_cost(std::size_t count, std::size_t key_bytes) noexcept;

}  // namespace ae
