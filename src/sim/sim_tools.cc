#include "sim/sim_tools.h"

#include "core/json.h"

namespace ae::sim {

std::string SimTool::canonical_args(const tools::Call& call) { return canonical(call.args); }

}  // namespace ae::sim
