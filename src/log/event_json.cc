// Events as JSON: for the API, and the input of tests and exports.
#include <utility>

#include "log/event.h"
#include "log/events.h"
#include "log/field_json.h"

namespace ae {
namespace {

template <class Event>
Result<EventBody> event_as(const Value& payload) {
  Event event;
  AE_TRY(read_fields(payload, event));
  return event;
}

}  // namespace

Value payload_json(const EventBody& body) {
  return std::visit(
      []<class Event>(const Event& event) {
        if constexpr (std::is_same_v<Event, UnknownEvent>) {
          return event.payload;
        } else {
          return fields_json(event);
        }
      },
      body);
}

Result<EventBody> event_from_json(const EventKind& kind, const Value& payload) {
  AE_TRY(check_payload(kind, payload));
  switch (kind.type) {
#define AE_EVENT(Struct, name, number, event_class, schema, ...) \
  case EventType::name:                                          \
    return event_as<Struct>(payload);
#include "log/define_events.h"
  }
  return UnknownEvent{kind.type, std::string(kind.name), payload};
}

EventBody event_of(EventType type, const Value& payload) {
  const EventKind* const kind = event_kind(type);
  AE_CHECK(kind != nullptr, "an event type that is not in the table");
  auto event = event_from_json(*kind, payload);
  AE_CHECK(event.has_value(), event.error().message);
  return *std::move(event);
}

}  // namespace ae
