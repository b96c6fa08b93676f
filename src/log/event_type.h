// EventKind: the number, class, schema and fields of each event type, from the
// event table (events.def).
//
// Stored: numbers and names are permanent. Threads: constant tables. See docs/data.md and
// docs/decisions/0002-stored-format.md.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "base/error.h"
#include "json/value.h"

namespace ae {

// Numbers are permanent. Spelled as stored and shown.
enum class EventType : std::uint8_t {
#define AE_EVENT(Struct, name, number, event_class, schema, ...) name = number,
#include "log/define_events.h"
};

enum class EventClass : std::uint8_t { history, coordination, recorded_effect, narrative };

// How a field is stored; its JSON form is in brackets.
enum class FieldKind : std::uint8_t {
  text,     // [string]
  word,     // [string] from the permanent word list; other strings are stored as text
  id8,      // [16 hex digits]
  hash32,   // [64 hex digits]
  uuid,     // [UUID text]
  integer,  // [integer]
  boolean,  // [true | false]
  instant,  // [RFC 3339, microseconds, Z]
  json,     // [any JSON], hashed unchanged; a blob if large
  value,    // [any JSON], a *value field*: only its salted hash is in the chain (SPEC §13)
  error,    // [{code, message}]; code as text, message as a value field named "<field>.message"
  external_key,  // [string]; one byte if it is the key of this job, step and attempt
};

struct Field {
  std::string_view name;
  std::uint8_t number;  // permanent, 1–31; 0: not of an event
  FieldKind kind;
  bool required;
};

// Null is a value only in a required json or value field; in other fields it means absent.
constexpr bool accepts_null(const Field& field) {
  return field.required && (field.kind == FieldKind::json || field.kind == FieldKind::value);
}

// Is it the JSON of this kind?
bool has_kind(FieldKind kind, const Value& json);

// Are these the fields of the JSON object? Fails with log_corrupt: an unknown field, a missing
// required field, a wrong type.
struct FieldCheck {
  std::string_view of;            // the name of the object, for the message
  std::span<const Field> fields;  // in canonical order of names
  bool partial = false;           // required fields may be absent
};
Status check_fields(const FieldCheck& check, const Value& json);

struct EventKind {
  EventType type;
  std::string_view name;
  EventClass event_class;
  std::uint8_t schema;            // the newest that this program reads and writes (schema_of)
  std::span<const Field> fields;  // in canonical order of names
};

// All kinds, by number.
std::span<const EventKind> event_kinds();
// nullptr for a number or name that this program does not know.
const EventKind* event_kind(EventType type) noexcept;
const EventKind* event_kind(std::string_view name) noexcept;
std::string_view event_name(EventType type) noexcept;

}  // namespace ae
