// Why the code of a parked job does not go on, and what to do, as lines of text.
//
// Threads: pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "inspect/code_text.h"
#include "json/value.h"

namespace ae::cli {

struct NextCommand;

// Is the job parked because of its code? Then it continues with `resume`.
bool is_parked_by_code(const Value& parked);
// Both of a parked job, shortened; `flag`: from store_flag.
std::vector<std::string> code_end_lines(const Value& job, const std::string& flag);
// For a failed job of code, which cannot be retried: a new job. `file`: its FILE.
NextCommand new_code_job(const Value& job, const std::string& file, const std::string& flag);

}  // namespace ae::cli
