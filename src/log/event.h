// The event table: every kind of event a job's log can hold, with its number, class, schema and fields.
//
// One table (event_table.cc) from which the codec, the docs and the checks come. Stored: numbers, kinds and words
// are permanent; a field or type is added, never renumbered or reused. A type without behaviour of its own needs
// no other file. Threads: values, constant tables. See docs/data.md and docs/decisions/0002-stored-format.md.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/ids.h"
#include "base/time.h"
#include "json/value.h"

namespace ae {

// Order is free, numbers are permanent (event_table.cc). Spelled as stored and shown.
enum class EventType : std::uint8_t {
  // history
  job_created = 1,
  plan_generated = 2,
  decision_recorded = 3,
  node_started = 4,
  command_emitted = 5,
  command_committed = 6,
  tool_invocation_started = 7,
  tool_invocation_finished = 8,
  node_finished = 9,
  step_committed = 10,
  step_compensated = 11,
  state_changed = 12,
  job_completed = 13,
  job_failed = 14,
  job_cancelled = 15,
  fork_imported = 16,
  // coordination
  job_running = 32,
  job_requeued = 33,
  job_waiting = 34,
  job_parked = 35,
  job_resumed = 36,
  job_cancel_requested = 37,
  wait_opened = 38,
  wait_completed = 39,
  agent_message = 40,
  job_pause_requested = 41,
  // recorded effects
  time_recorded = 64,
  timer_fired = 65,
  random_recorded = 66,
  uuid_recorded = 67,
  http_recorded = 68,
  // narrative: from 128 up; unknown ones are carried and ignored
  recovery_started = 128,
  recovery_completed = 129,
  confirmation_checked = 130,
  progress = 131,
  agent_thought_recorded = 132,
  state_checkpointed = 133,
  outcome_noted = 134,
  version_mismatched = 135,
};

enum class EventClass : std::uint8_t { history, coordination, recorded_effect, narrative };

// How a field is stored; what it looks like in the JSON payload is in brackets.
enum class FieldKind : std::uint8_t {
  text,     // [string]
  word,     // [string] from the permanent word list; other texts are kept as they are
  id8,      // [16 hex digits]
  hash32,   // [64 hex digits]
  uuid,     // [UUID text]
  integer,  // [integer]
  boolean,  // [true | false]
  instant,  // [RFC 3339, microseconds, Z]
  json,     // [any JSON], hashed as it stands; by content hash when large
  value,    // [any JSON], a *value field*: the chain sees only its salted hash (SPEC §13)
  error,  // [{code, message}]; code as it stands, message as a value field named "<field>.message"
  external_key,  // [string]; one byte when it is the key of this job, step and attempt
};

struct Field {
  std::string_view name;
  std::uint8_t number;  // permanent, 1–31
  FieldKind kind;
  bool required;
};

// Null is a value of its own only where a value must stand; in any other field it means absent.
constexpr bool takes_null(const Field& field) {
  return field.required && (field.kind == FieldKind::json || field.kind == FieldKind::value);
}

struct EventKind {
  EventType type;
  std::string_view name;
  EventClass event_class;
  std::uint8_t schema;            // the newest version this program writes and reads (schema_of)
  std::span<const Field> fields;  // in canonical order of their names
};

// All kinds, by number.
std::span<const EventKind> event_kinds();
// The version that an event of this payload is written with: the lowest that says all of it. What a program that knows only
// an earlier one would take for something else has a later one, so that it says needs_version instead.
std::uint8_t schema_of(const EventKind& kind, const Value& payload);
// nullptr for a number or name this program does not know.
const EventKind* event_kind(EventType type) noexcept;
const EventKind* event_kind(std::string_view name) noexcept;
std::string_view event_name(EventType type) noexcept;

// An event as the engine makes it: what happened, not yet sealed.
struct EventDraft {
  EventType type;
  Value payload;  // an object with the fields of its kind; null members are absent (takes_null)
};

// An event as it stands in the log.
struct Event {
  std::uint64_t seq = 0;  // 1, 2, 3, … per job
  Uuid id;
  EventType type{};
  std::uint8_t schema = 1;
  Instant created_at;  // the writer's claim; used by no decision
  std::optional<AttemptId> attempt_id;
  Value payload;
  Value salts;  // {"field": 32 hex digits} of its value fields; null when there are none
  Hash prev_hash;
  Hash hash;
  std::string unknown_name;  // its type's name, when this program does not know it (narrative only)
};
// The name of the event's type, also of an unknown one.
std::string_view event_name(const Event& event) noexcept;

// Fails with log_corrupt: an unknown field, a missing required one, a wrong type. Where a value has been redacted,
// {"$redacted": 64 hex digits} stands for it.
Status check_payload(const EventKind& kind, const Value& payload);

// {job_id, seq, id, type, schema, created_at, attempt_id?, payload, salts?, prev_hash, hash}
Value envelope(const JobId& job, const Event& event);

}  // namespace ae
