// SseParser: server-sent events, cut out of bytes that come in whatever pieces.
//
// Of an event it keeps its name and its data, of the stream where and when it may be taken up again; comments are passed
// over. Within limits: a line or an event beyond them refuses the stream, and everything after. Threads: one owner.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/time.h"

namespace ae {

struct SseEvent {
  std::string name;  // "" = it has none
  std::string data;  // its data lines, joined by newlines
};

struct SseLimits {
  std::size_t line_max = 4u << 20;   // bytes
  std::size_t event_max = 4u << 20;  // of data
};

class SseParser {
 public:
  explicit SseParser(SseLimits limits = {}) : limits_(limits) {}

  // Appends the events that these bytes complete, those before a failure too. Fails with payload_too_large; then it fails
  // for ever.
  Status feed(std::string_view bytes, std::vector<SseEvent>& events);

  // Of the last event that was ended; "" = none said one.
  const std::string& last_id() const { return last_id_; }
  std::optional<Duration> retry() const { return retry_; }

 private:
  Status line(std::string_view text, std::vector<SseEvent>& events);
  std::unexpected<Error> too_large(std::string_view what);

  SseLimits limits_;
  std::string line_;  // begun, not ended
  SseEvent event_;
  std::string id_, last_id_;
  std::optional<Duration> retry_;
  bool has_data_ = false;
  bool after_cr_ = false;  // a line feed that follows ends no line of its own
  bool at_begin_ = true;   // where a byte order mark may stand
  bool refused_ = false;
};

}  // namespace ae
