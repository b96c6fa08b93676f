// LineReader: the framing of stdio. Bytes in, one message per line out.
//
// A line above kMessageMax is discarded up to its end and reported once, so it costs no memory.
// Threads: a value of one thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "mcp/protocol/message.h"

namespace ae::mcp {

struct Line {
  std::string text = {};  // without the newline, or the carriage return before it
  bool too_long = false;  // then `text` is empty
};

class LineReader {
 public:
  // The lines that end within these bytes, without blank ones.
  std::vector<Line> feed(std::string_view bytes);
  // The last line, if the bytes end without a newline.
  std::vector<Line> end();

 private:
  void add(std::string_view bytes);
  void close(std::vector<Line>& out);

  std::string partial_line_;
  bool too_long_ = false;
};

}  // namespace ae::mcp
