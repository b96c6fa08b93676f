// The measured plans: chains, maps and a wait, with one tool, `run`.
#pragma once

#include <memory>

#include "plan/plan.h"

namespace ae::bench {

std::shared_ptr<const engine::Plan> chain_plan(int steps);
std::shared_ptr<const engine::Plan> map_plan(int items);
std::shared_ptr<const engine::Plan> signal_plan();  // waits for the signal `go`, then one step

}  // namespace ae::bench
