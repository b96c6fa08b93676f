// The functions that every code agent may run, besides the tools that it uses: run:EFFECT performs
// a function of the code, fetch:EFFECT a request by HTTP. The worker that runs the code performs
// them.
//
// Threads: pure functions.
#pragma once

#include <array>
#include <string_view>

#include "agents/checks.h"

namespace ae::agents {

inline constexpr std::array<std::string_view, 6> kCodeFunctions = {
    "fetch:at_most_once", "fetch:idempotent", "fetch:read",
    "run:at_most_once",   "run:idempotent",   "run:read"};

bool is_code_function(std::string_view name);
// True for run:* and fetch:*.
bool is_code_function_pattern(std::string_view name);
// With their policies: the defaults of their effects.
CheckedTools code_functions();

}  // namespace ae::agents
