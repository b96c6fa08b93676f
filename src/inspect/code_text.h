// Why code did not go on, as lines of text that are safe to print.
//
// Threads: pure functions.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "json/value.h"

namespace ae {

// The exception of a job, its location and the first lines of its stack: `frames` at most, 0 = all.
std::vector<std::string> exception_lines(const Value& exception, std::size_t frames);
// How the code differs from the log.
std::vector<std::string> divergence_lines(const Value& divergence);

}  // namespace ae
