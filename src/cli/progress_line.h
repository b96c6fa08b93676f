// ProgressLine: a line on stderr that is overwritten in place, on a terminal only.
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
  // Shows the text, at a limited rate; other updates are dropped.
  void show(const std::string& text);

 private:
  const bool shows_;
  bool drawn_ = false;
  std::chrono::steady_clock::time_point next_{};
};

}  // namespace ae::cli
