#include "cli/progress_line.h"

#include <cstdio>

namespace ae::cli {

ProgressLine::~ProgressLine() {
  if (drawn_) std::fputs("\r\x1b[K", stderr);
}

void ProgressLine::show(const std::string& text) {
  const auto now = std::chrono::steady_clock::now();
  if (!shows_ || now < next_) return;
  next_ = now + std::chrono::milliseconds(100);
  drawn_ = true;
  std::fprintf(stderr, "\r\x1b[K%s", text.c_str());
}

}  // namespace ae::cli
