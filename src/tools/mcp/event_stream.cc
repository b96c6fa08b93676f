#include "tools/mcp/event_stream.h"

#include <charconv>
#include <utility>

namespace ae::tools::mcp {

bool EventStream::add(std::string_view bytes, const Event& event) {
  for (std::size_t at = 0; at < bytes.size() && !too_long_;) {
    if (std::exchange(after_cr_, false) && bytes[at] == '\n') {
      ++at;
      continue;
    }
    const std::size_t end = std::min(bytes.find_first_of("\r\n", at), bytes.size());
    if (part_.size() + (end - at) + data_.size() > event_max_) {
      too_long_ = true;
      break;
    }
    part_ += bytes.substr(at, end - at);
    if (end == bytes.size()) break;
    after_cr_ = bytes[end] == '\r';
    at = end + 1;
    line(std::exchange(part_, {}), event);
  }
  return !too_long_;
}

void EventStream::line(std::string_view line, const Event& event) {
  if (line.empty()) {
    last_id_ = id_;
    if (std::exchange(has_data_, false)) event(std::exchange(data_, {}));
    return;
  }
  const std::size_t colon = std::min(line.find(':'), line.size());
  const std::string_view field = line.substr(0, colon);
  std::string_view value = line.substr(std::min(colon + 1, line.size()));
  if (value.starts_with(' ')) value.remove_prefix(1);
  if (field == "data") {
    if (std::exchange(has_data_, true)) data_ += '\n';
    data_ += value;
  } else if (field == "id" && value.find('\0') == value.npos) {
    id_ = value;
  } else if (field == "retry") {
    std::int64_t ms = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), ms);
    if (error == std::errc() && end == value.data() + value.size() && ms >= 0 && ms < 86'400'000) {
      retry_ = std::chrono::milliseconds(ms);
    }
  }
}

}  // namespace ae::tools::mcp
