// trace_text: a job's trace (GET /api/jobs/{id}/trace) as a tree for a terminal.
//
// Deterministic: depends only on value, width and colours. Threads: a pure function.
#pragma once

#include <cstddef>
#include <string>

#include "base/time.h"
#include "cli/shared.h"
#include "cli/text.h"
#include "json/value.h"

namespace ae::cli {

struct TraceStyle {
  Paint paint = Paint(false);
  std::size_t width = 100;      // maximum, except for unbreakable words; 0 = no limit
  bool verbose = false;         // with call ids and keys
  std::string store_flag;       // appended to printed commands
  RetryChain retry_chain = {};  // of a failed job
};

std::string trace_text(const Value& trace, const TraceStyle& style);

// "12 ms", "3.4 s", "5 min"
std::string duration_shown(Duration duration);

}  // namespace ae::cli
