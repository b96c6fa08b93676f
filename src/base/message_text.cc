#include "base/message_text.h"

#include <algorithm>

#include "base/escape_hidden.h"

namespace ae {

std::vector<std::string> message_lines(std::string_view message) {
  std::vector<std::string> lines;
  while (!message.empty()) {
    const std::size_t end = std::min(message.find('\n'), message.size());
    std::string line(message.substr(0, end));
    message.remove_prefix(std::min(end + 1, message.size()));
    std::ranges::replace(line, '\t', ' ');
    line.erase(line.find_last_not_of(" \r") + 1);
    if (!line.empty()) lines.push_back(escape_hidden(line));
  }
  return lines;
}

std::string message_text(std::string_view message, std::string_view indent) {
  std::string text;
  for (const std::string& line : message_lines(message)) {
    if (!text.empty()) text.append("\n").append(indent);
    text += line;
  }
  return text;
}

std::string first_line(std::string_view message) {
  const std::vector<std::string> lines = message_lines(message);
  if (lines.empty()) return {};
  return lines[0] + (lines.size() > 1 ? " …" : "");
}

}  // namespace ae
