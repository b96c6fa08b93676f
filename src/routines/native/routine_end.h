// How a routine ends, from what its body returned or threw; errors as failures and back.
//
// Threads: pure functions.
#pragma once

#include <exception>
#include <string_view>

#include "base/error.h"
#include "engine/heart/routine.h"

namespace ae::routines {

engine::RoutineEnd exception_end(std::string_view name, std::string_view message);
engine::RoutineEnd exception_end(const std::exception_ptr& thrown);
engine::Failure failure_of(const Error& error);
// Of a code that base/error.h does not have: tool_failed, and the message begins with the code.
Error error_of(const engine::Failure& failure);

}  // namespace ae::routines
