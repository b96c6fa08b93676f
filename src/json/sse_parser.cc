// Lines end with CR, LF or both; an empty line ends an event.
#include "json/sse_parser.h"

#include <charconv>
#include <cstdint>
#include <utility>

namespace ae {
namespace {

constexpr std::int64_t kRetryMax = 86'400'000;  // milliseconds; larger delays are ignored

std::optional<Duration> milliseconds_of(std::string_view text) {
  std::int64_t ms = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), ms);
  const bool sound = error == std::errc() && end == text.data() + text.size();
  if (!sound || ms < 0 || ms >= kRetryMax) return std::nullopt;
  return std::chrono::milliseconds(ms);
}

}  // namespace

std::unexpected<Error> SseParser::too_large(std::string_view what) {
  refused_ = true;
  return fail(Code::payload_too_large, "{} of the stream is too long", what);
}

Status SseParser::feed(std::string_view bytes, std::vector<SseEvent>& events) {
  if (refused_) return too_large("a part");
  while (!bytes.empty()) {
    if (std::exchange(after_cr_, false) && bytes.front() == '\n') {
      bytes.remove_prefix(1);
      continue;
    }
    const std::size_t end = bytes.find_first_of("\r\n");
    const std::string_view part = bytes.substr(0, end);
    if (part.size() > limits_.line_max - line_.size()) return too_large("a line");
    line_ += part;
    if (end == bytes.npos) break;
    after_cr_ = bytes[end] == '\r';
    bytes.remove_prefix(end + 1);
    AE_TRY(line(std::exchange(line_, {}), events));
  }
  return {};
}

Status SseParser::line(std::string_view text, std::vector<SseEvent>& events) {
  constexpr std::string_view kMark = "\xEF\xBB\xBF";
  if (std::exchange(at_begin_, false) && text.starts_with(kMark)) text.remove_prefix(kMark.size());
  if (text.empty()) {
    last_id_ = id_;
    if (std::exchange(has_data_, false)) events.push_back(std::exchange(event_, {}));
    event_ = {};
    return {};
  }
  const std::size_t colon = text.find(':');
  const std::string_view field = text.substr(0, colon);
  std::string_view value = colon == text.npos ? std::string_view() : text.substr(colon + 1);
  if (value.starts_with(' ')) value.remove_prefix(1);
  if (field == "event") {
    event_.name = value;
  } else if (field == "data") {
    if (value.size() + 1 > limits_.event_max - event_.data.size()) return too_large("an event");
    if (std::exchange(has_data_, true)) event_.data += '\n';
    event_.data += value;
  } else if (field == "id" && value.find('\0') == value.npos) {
    id_ = value;
  } else if (field == "retry") {
    if (const auto retry = milliseconds_of(value)) retry_ = retry;
  }
  return {};
}

}  // namespace ae
