// SseParser: parses server-sent events from bytes that arrive in arbitrary chunks.
//
// It keeps the name and data of each event, and the stream's last event id and retry delay; it
// skips comments. A line or an event beyond the limits fails the stream, and every later feed.
// Threads: one owner.
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
  std::string name;  // "" = none
  std::string data;  // its data lines, joined by newlines
};

struct SseLimits {
  std::size_t line_max = 4u << 20;   // bytes
  std::size_t event_max = 4u << 20;  // of data
};

class SseParser {
 public:
  explicit SseParser(SseLimits limits = {}) : limits_(limits) {}

  // Appends the events that these bytes complete, also those before a failure. Fails with
  // payload_too_large; after that, permanently.
  Status feed(std::string_view bytes, std::vector<SseEvent>& events);

  // The id of the last completed event; "" = none.
  const std::string& last_id() const { return last_id_; }
  std::optional<Duration> retry() const { return retry_; }

 private:
  Status line(std::string_view text, std::vector<SseEvent>& events);
  std::unexpected<Error> too_large(std::string_view what);

  SseLimits limits_;
  std::string line_;  // the incomplete last line
  SseEvent event_;
  std::string id_, last_id_;
  std::optional<Duration> retry_;
  bool has_data_ = false;
  bool after_cr_ = false;  // a line feed that follows is part of the same line end
  bool at_begin_ = true;   // a byte order mark is allowed here
  bool refused_ = false;
};

}  // namespace ae
