// plan_changes: what differs between two plans, for the person who changed the agents file.
//
// Threads: pure functions.
#pragma once

#include "json/value.h"

namespace ae::engine {

// [{change: added | removed | changed, path, fields}] of two task graphs: one entry for each node (`nodes.ID`), tool
// (`tools.NAME`) and other part (`output`) that differs, in the order of the second graph, removed ones last. `fields`
// names what differs inside of a changed node or tool; it is empty elsewhere.
Value plan_changes(const Value& before, const Value& after);

}  // namespace ae::engine
