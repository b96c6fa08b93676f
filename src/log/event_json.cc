// Events as JSON: for the API, and the input of tests and exports.
#include <utility>
#include <vector>

#include "log/event.h"
#include "log/events.h"

namespace ae {
namespace {

Value to_json(const std::string& text) { return text; }
template <std::size_t Size>
Value to_json(const InlineText<Size>& text) {
  return text;
}
Value to_json(std::int64_t number) { return number; }
Value to_json(bool flag) { return flag; }
Value to_json(const Value& value) { return value; }
Value to_json(const Erasable& field) { return field.value; }
Value to_json(Instant instant) { return to_text(instant); }
Value to_json(const Hash& hash) { return to_hex(hash); }
template <class Tag, std::size_t Size>
Value to_json(const Id<Tag, Size>& id) {
  return id.text;
}
Value to_json(const RecordedError& error) {
  return Value::object({{"code", error.code}, {"message", error.message.value}});
}

void from_json(const Value& json, std::string& text) { text = json.as_string(); }
template <std::size_t Size>
void from_json(const Value& json, InlineText<Size>& text) {
  text = json.as_string();
}
void from_json(const Value& json, std::int64_t& number) { number = json.as_int(); }
void from_json(const Value& json, bool& flag) { flag = json.as_bool(); }
void from_json(const Value& json, Instant& instant) {
  instant = *instant_from_text(json.as_string());
}
void from_json(const Value& json, Hash& hash) { hash = *hash_from_hex(json.as_string()); }
void from_json(const Value& json, Value& value) { value = json; }
void from_json(const Value& json, Erasable& field) { field = json; }
template <class Tag, std::size_t Size>
void from_json(const Value& json, Id<Tag, Size>& id) {
  id.text = json.as_string();
}
void from_json(const Value& json, RecordedError& error) {
  error = {json["code"].as_string(), json["message"]};
}

template <class T>
void read_member(const Value& json, T& member) {
  from_json(json, member);
}
template <class T>
void read_member(const Value& json, std::optional<T>& member) {
  from_json(json, member.emplace());
}

template <class Event>
EventBody event_as(const Value& payload) {
  Event event;
  visit_fields(event, [&payload](auto field, auto& member) {
    const Value* json = payload.find(field.name());
    if (json != nullptr && (!json->is_null() || field.accepts_null())) read_member(*json, member);
  });
  return event;
}

}  // namespace

Value payload_json(const EventBody& body) {
  return std::visit(
      []<class Event>(const Event& event) {
        if constexpr (std::is_same_v<Event, UnknownEvent>) {
          return event.payload;
        } else {
          std::vector<Member> payload;
          visit_fields(event, [&payload](auto field, const auto& member) {
            if (is_present(field, member)) {
              payload.emplace_back(field.name(), to_json(content_of(member)));
            }
          });
          return Value::object(std::move(payload));
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
