// ProgressLine: one line on stderr that is written over itself, on a terminal only.
//
// Threads: one.
#pragma once

#include <chrono>
#include <string>

#include "cli/terminal.h"

namespace ae::cli {

class ProgressLine {
 public:
  explicit ProgressLine(const Terminal& terminal) : shows_(terminal.shows_progress()) {}
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;
  // Now and then; the rest is passed over.
  void show(const std::string& text);

 private:
  const bool shows_;
  bool drawn_ = false;
  std::chrono::steady_clock::time_point next_{};
};

}  // namespace ae::cli
