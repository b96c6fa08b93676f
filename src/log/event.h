// Event: one event of a job's log as it is read; an EventBody (log/events.h) before it is sealed.
//
// Threads: values.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/error.h"
#include "base/ids.h"
#include "base/time.h"
#include "json/value.h"
#include "log/events.h"

namespace ae {

// The salt of a value field: its commitment is SHA256(salt ‖ canonical(value)).
struct Salt {
  InlineText<24> field;  // its name; of the message of an error, "<name>.message"
  std::array<std::uint8_t, 16> bytes{};
  bool operator==(const Salt&) const = default;
};

// An event as read from the log.
struct Event {
  std::uint64_t seq = 0;  // 1, 2, 3, … per job
  Uuid id;
  Instant created_at;  // set by the writer; not used for decisions
  EventBody body;
  std::vector<Salt> salts;  // of its value fields that are not erased
  Hash prev_hash;
  Hash hash;
  std::optional<AttemptId> attempt_id;
  EventType type{};
  std::uint8_t schema = 1;

  Event() {}  // NOLINT: `= default` would fill it with zeros first, when a vector makes it
  explicit Event(EventBody&& written) : body(std::move(written)) {}
};
// The event as `T`, one of the structs of log/events.h; null if it is another type.
template <class T>
const T* as(const Event& event) {
  return std::get_if<T>(&event.body);
}
// The step and the node of the event; "" if it has none.
std::string_view step_of(const Event& event) noexcept;
std::string_view node_of(const Event& event) noexcept;
// nullptr: the event has no such value, or the value is erased.
const Salt* salt_of(const Event& event, std::string_view field) noexcept;
// The name of the event's type, also of an unknown type.
std::string_view event_name(const Event& event) noexcept;

// Fails with log_corrupt: an unknown field, a missing required field, a wrong type. A redacted
// value is represented by {"$redacted": 64 hex digits}.
Status check_payload(const EventKind& kind, const Value& payload);

// {job_id, seq, id, type, schema, created_at, attempt_id?, payload, salts?, prev_hash, hash};
// `salts` is {"field": 32 hex digits}.
Value envelope(const JobId& job, const Event& event);

}  // namespace ae
