// json_patch: the changes that lead from one JSON value to another, as a JSON Patch (RFC 6902).
//
//  {changes: [{op, path, value, before, step_id, node_id}…], capped}
//    op: add remove replace. value: null if it is removed. before: null if it is added
//    step_id, node_id: of the innermost object with a step_id that the change is in; null: there is
//    none
//    capped: there are more than kChangesMax changes; the list is cut
//  `before`, `step_id` and `node_id` are not part of RFC 6902, which ignores them.
//
// Objects of two lists are the same if they have the same step_id, correlation_key, idempotency_key
// or id, the first of these that all of them have. Threads: pure functions.
#pragma once

#include <cstddef>

#include "json/value.h"

namespace ae::engine {

inline constexpr std::size_t kChangesMax = 1'000;
Value json_patch(const Value& before, const Value& after);

}  // namespace ae::engine
