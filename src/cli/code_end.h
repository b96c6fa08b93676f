// Why the code of a parked job does not go on, and what to do, as lines of text.
//
// Threads: pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "json/value.h"

namespace ae::cli {

struct NextCommand;

// Is the job parked because of its code? Then it continues with `resume`.
bool is_parked_by_code(const Value& parked);
// The exception of a job, its location and the first lines of its stack: `frames` at most, 0 = all.
std::vector<std::string> exception_lines(const Value& exception, std::size_t frames);
// Both of a parked job, shortened; `flag`: from store_flag.
std::vector<std::string> code_end_lines(const Value& job, const std::string& flag);
// For a failed job of code, which cannot be retried: a new job. `file`: its FILE.
NextCommand new_code_job(const Value& job, const std::string& file, const std::string& flag);
// How the code differs from the log.
std::vector<std::string> divergence_lines(const Value& divergence);

}  // namespace ae::cli
