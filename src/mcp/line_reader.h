// Lines: the framing of stdio. Bytes go in as they come, messages come out, one a line.
//
// A line above kMessageMax is thrown away up to its end and told once, so that who sends it costs no memory.
// Threads: a value of one thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "mcp/message.h"

namespace ae::mcp {

struct Line {
  std::string text = {};  // without the newline, or the carriage return before it
  bool too_long = false;  // `text` is empty then
};

class LineReader {
 public:
  // The lines that end within these bytes. Blank ones are none.
  std::vector<Line> feed(std::string_view bytes);
  // The last one, when the bytes end without a newline.
  std::vector<Line> end();

 private:
  void add(std::string_view bytes);
  void close(std::vector<Line>& out);

  std::string open_;
  bool too_long_ = false;
};

}  // namespace ae::mcp
