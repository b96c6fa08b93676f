// EventStream: server-sent events, put together from bytes as they come.
// Threads: one owner.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "core/time.h"

namespace ae::tools::mcp {

class EventStream {
 public:
  // `event` hears the data of each whole event that has any.
  using Event = std::function<void(std::string data)>;

  // False: a line or an event is longer than `event_max`; nothing more is heard.
  bool add(std::string_view bytes, const Event& event);

  // Where it can be taken up again, and when, if the server said so.
  const std::string& last_id() const { return last_id_; }
  std::optional<Duration> retry() const { return retry_; }

  explicit EventStream(std::size_t event_max) : event_max_(event_max) {}

 private:
  void line(std::string_view line, const Event& event);

  std::size_t event_max_;
  std::string part_;  // of a line
  std::string data_;
  bool has_data_ = false, after_cr_ = false, too_long_ = false;
  std::string id_, last_id_;
  std::optional<Duration> retry_;
};

}  // namespace ae::tools::mcp
