// trace_text: a job's trace (GET /api/jobs/{id}/trace) as a tree for a terminal.
//
// Pure: the same value, width and colours give the same text. Threads: a pure function.
#pragma once

#include <cstddef>
#include <string>

#include "cli/commands.h"
#include "cli/text.h"
#include "core/time.h"
#include "core/value.h"

namespace ae::cli {

struct TraceStyle {
  Paint paint = Paint(false);
  std::size_t width = 100;  // nothing is longer, but words that cannot be cut; 0 = no limit
  bool verbose = false;     // with call ids and keys
  std::string store_flag;   // goes with the commands that it prints
  Retried retried = {};     // of a job that failed
};

std::string trace_text(const Value& trace, const TraceStyle& style);

// "12 ms", "3.4 s", "5 min"
std::string duration_shown(Duration duration);

}  // namespace ae::cli
