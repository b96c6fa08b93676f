// EventBody: the events as C++ types: one struct per entry of events.def, with the
// event's fields as members.
//
// An optional field is a std::optional or a Boxed, unless it holds JSON: null then means absent.
// Threads: values, constant tables.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>

#include "base/boxed.h"
#include "base/hash.h"
#include "base/ids.h"
#include "base/time.h"
#include "json/value.h"
#include "log/event_type.h"
#include "log/field_kind.h"
#include "log/json_of.h"

namespace ae {

// Defined in log/records.h.
#define AE_RECORD(Struct, name, ...) struct Struct;
#include "log/define_records.h"

#define AE_REQUIRED_AS(kind, member, name, number, meaning) \
  field_kind::RequiredInEvent<field_kind::kind> member{};
#define AE_OPTIONAL_AS(kind, member, name, number, meaning) \
  field_kind::OptionalInEvent<field_kind::kind> member{};
#define AE_EVENT(Struct, name, number, event_class, schema, ...) \
  struct Struct {                                                \
    static constexpr EventType kType = EventType::name;          \
    __VA_ARGS__                                                  \
    bool operator==(const Struct&) const = default;              \
  };
#include "log/define_events.h"

// A narrative event with a type or schema that this program does not know.
// It is preserved unchanged.
struct UnknownEvent {
  EventType type{};
  std::string name;
  Value payload;
  bool operator==(const UnknownEvent&) const = default;
};

using EventVariant = std::variant<UnknownEvent
#define AE_EVENT(Struct, name, number, event_class, schema, ...) , Struct
#include "log/define_events.h"
                                  >;

// One event, without its position in a log. std::get_if and std::visit take it. Its members are
// defined in events.cc, so that the copies and moves of all events are compiled once.
class EventBody : public EventVariant {
 public:
  EventBody() noexcept;  // an UnknownEvent
  EventBody(const EventBody& other);
  EventBody(EventBody&& other) noexcept;
  EventBody& operator=(const EventBody& other);
  EventBody& operator=(EventBody&& other) noexcept;
  ~EventBody();
  EventBody(const UnknownEvent& event);
  EventBody(UnknownEvent&& event) noexcept;
#define AE_EVENT(Struct, name, number, event_class, schema, ...) \
  EventBody(const Struct& event);                                \
  EventBody(Struct&& event) noexcept;                            \
  explicit EventBody(std::in_place_type_t<Struct> empty) noexcept;
#include "log/define_events.h"
  friend bool operator==(const EventBody& a, const EventBody& b);
};

// A field as visit_fields passes it: its table entry is known at compile time.
template <FieldKind Kind, std::uint8_t Number, bool Required>
struct FieldOf {
  std::string_view text;
  constexpr std::string_view name() const { return text; }
  static constexpr std::uint8_t number() { return Number; }
  static constexpr FieldKind kind() { return Kind; }
  static constexpr bool accepts_null() {
    return Required && (Kind == FieldKind::json || Kind == FieldKind::value);
  }
  static constexpr bool required() { return Required; }
};

// visit_fields(event, visit) calls visit(FieldOf, member) for each field, in
// canonical order of names.
#define AE_REQUIRED_AS(kind, member, name, number, meaning) \
  visit(FieldOf<field_kind::kind::kKind, number, true>{name}, event.member);
#define AE_OPTIONAL_AS(kind, member, name, number, meaning) \
  visit(FieldOf<field_kind::kind::kKind, number, false>{name}, event.member);
#define AE_EVENT(Struct, name, number, event_class, schema, ...)    \
  template <class Visit>                                            \
  constexpr void visit_fields(Struct& event, Visit&& visit) {       \
    __VA_ARGS__                                                     \
  }                                                                 \
  template <class Visit>                                            \
  constexpr void visit_fields(const Struct& event, Visit&& visit) { \
    __VA_ARGS__                                                     \
  }
#include "log/define_events.h"

// A std::optional or a Boxed.
template <class T>
concept OptionalMember = requires(const T& member) { member.has_value(); };

// A template: a conversion would give a reference to a temporary text.
template <OptionalMember Member>
const auto& or_empty(const Member& text) {
  static const std::remove_cvref_t<decltype(*text)> empty;
  return text ? *text : empty;
}

inline std::optional<std::string> none_if_empty(std::string_view text) {
  return text.empty() ? std::nullopt : std::optional<std::string>(text);
}

bool is_present(const auto&, const OptionalMember auto& member) { return member.has_value(); }
template <class Field, class T>
  requires field_kind::kNullIsAbsent<T>
bool is_present(const Field&, const T& member) {
  return Field::accepts_null() || !member.is_null();
}
bool is_present(const auto&, const auto&) { return true; }
// The JSON of a field of that kind.
inline const Value& stored_json(const Value& json) { return json; }
inline Value& stored_json(Value& json) { return json; }
template <class T>
const Value& stored_json(const JsonOf<T>& field) {
  return field.json();
}
template <class T>
Value& stored_json(JsonOf<T>& field) {
  return field.json();
}
// The content of a field that is present.
const auto& content_of(const OptionalMember auto& member) { return *member; }
const auto& content_of(const auto& member) { return member; }

EventType type_of(const EventBody& body) noexcept;
// The schema that this event is written with: the lowest that can express it. A program that knows
// only earlier schemas rejects the event (needs_version) instead of misreading it.
std::uint8_t schema_of(const EventBody& body) noexcept;
// The payload as JSON, for the API and exports, without absent fields.
Value payload_json(const EventBody& body);
// Builds an event from a payload. Fails with log_corrupt, like check_payload.
Result<EventBody> event_from_json(const EventKind& kind, const Value& payload);
// The same for a valid payload (AE_CHECK).
EventBody event_of(EventType type, const Value& payload);

}  // namespace ae
