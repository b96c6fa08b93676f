#include "mcp/server/line_reader.h"

#include <utility>

namespace ae::mcp {

void LineReader::add(std::string_view bytes) {
  if (too_long_) return;
  if (partial_line_.size() + bytes.size() > kMessageMax + 1) {  // + 1: a carriage return
    too_long_ = true;
    std::string().swap(partial_line_);
    return;
  }
  partial_line_ += bytes;
}

void LineReader::close(std::vector<Line>& out) {
  Line line{.text = std::exchange(partial_line_, {}), .too_long = std::exchange(too_long_, false)};
  if (line.text.ends_with('\r')) line.text.pop_back();
  if (line.text.find_first_not_of(" \t") == line.text.npos && !line.too_long) return;
  out.push_back(std::move(line));
}

std::vector<Line> LineReader::feed(std::string_view bytes) {
  std::vector<Line> out;
  while (true) {
    const std::size_t at = bytes.find('\n');
    add(bytes.substr(0, at));
    if (at == bytes.npos) return out;
    close(out);
    bytes.remove_prefix(at + 1);
  }
}

std::vector<Line> LineReader::end() {
  std::vector<Line> out;
  close(out);
  return out;
}

}  // namespace ae::mcp
