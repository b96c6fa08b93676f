// plan_changes: the differences between two plans, for the author of the agents file.
//
// Threads: pure functions.
#pragma once

#include "json/value.h"

namespace ae::engine {

// [{change: added | removed | changed, path, fields}] for two task graphs: one entry for each node
// (`nodes.ID`), tool (`tools.NAME`) and other part (`output`) that differs, in the order of the
// second graph, removed ones last. `fields` lists the differing members of a changed node or tool;
// otherwise it is empty.
Value plan_changes(const Value& before, const Value& after);

}  // namespace ae::engine
