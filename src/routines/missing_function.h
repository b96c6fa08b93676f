// first_missing_function: a function of a plan that a worker of its code does not offer.
//
// Threads: pure functions.
#pragma once

#include <algorithm>
#include <string>

#include "plan/plan.h"

namespace ae::routines {

// The first function that the plan grants the code of the node, and that the worker would have to
// register; "" = it offers all. `offers(name)`: does the worker offer this function?
template <class Offers>
std::string first_missing_function(const engine::Plan& plan, std::uint32_t node,
                                   const Offers& offers) {
  const engine::CodeSpec& code = *plan.nodes[node].code;
  const auto missing = std::ranges::find_if(code.tools, [&](std::uint32_t index) {
    const engine::ToolPolicy& tool = plan.tools[index];
    return tool.function && !tool.is_stated_in_code() && !offers(tool.name);
  });
  return missing == code.tools.end() ? std::string() : plan.tools[*missing].name;
}

}  // namespace ae::routines
