// Records: the JSON objects inside of the fields of events as C++ types, one struct per entry of
// records.def; and what the structs of decisions.def share with them.
//
// Threads: values, pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "json/value.h"
#include "log/event_type.h"
#include "log/events.h"

namespace ae {

// Does a field remain when the value that contains it is erased? `blinded`: if the job has a
// blind, so that a guess of a value cannot be confirmed with the hash.
enum class Retention : std::uint8_t { erased, kept, blinded };

// JSON in an optional field that is present when it is null.
struct NullableJson {
  Value value;
  bool operator==(const NullableJson&) const = default;
};

namespace field_kind {

using nullable = Stored<FieldKind::json, NullableJson>;

}  // namespace field_kind

#define AE_REQUIRED_AS(kind, member, name, left, meaning) \
  field_kind::Required<field_kind::kind> member{};
#define AE_OPTIONAL_AS(kind, member, name, left, meaning) \
  field_kind::Optional<field_kind::kind> member{};
#define AE_RECORD(Struct, name, ...)                 \
  struct Struct {                                    \
    static constexpr std::string_view kName = #name; \
    static std::span<const Field> fields();          \
    __VA_ARGS__                                      \
    bool operator==(const Struct&) const = default;  \
  };
#include "log/define_records.h"

// A field as visit_fields passes it.
template <FieldKind Kind, Retention Left, bool Required>
struct RecordFieldOf {
  std::string_view text;
  constexpr std::string_view name() const { return text; }
  static constexpr FieldKind kind() { return Kind; }
  static constexpr Retention retention() { return Left; }
  static constexpr bool required() { return Required; }
  static constexpr bool accepts_null() {
    return Required && (Kind == FieldKind::json || Kind == FieldKind::value);
  }
};

// visit_fields(record, visit) calls visit(RecordFieldOf, member) for each field, in canonical
// order of names.
#define AE_VISIT_FIELDS(Struct, ...)                                 \
  template <class Visit>                                             \
  constexpr void visit_fields(Struct& record, Visit&& visit) {       \
    __VA_ARGS__                                                      \
  }                                                                  \
  template <class Visit>                                             \
  constexpr void visit_fields(const Struct& record, Visit&& visit) { \
    __VA_ARGS__                                                      \
  }
#define AE_VISIT_REQUIRED(kind, member, name, left) \
  visit(RecordFieldOf<field_kind::kind::kKind, Retention::left, true>{name}, record.member);
#define AE_VISIT_OPTIONAL(kind, member, name, left) \
  visit(RecordFieldOf<field_kind::kind::kKind, Retention::left, false>{name}, record.member);

#define AE_REQUIRED_AS(kind, member, name, left, meaning) \
  AE_VISIT_REQUIRED(kind, member, name, left)
#define AE_OPTIONAL_AS(kind, member, name, left, meaning) \
  AE_VISIT_OPTIONAL(kind, member, name, left)
#define AE_RECORD(Struct, name, ...) AE_VISIT_FIELDS(Struct, __VA_ARGS__)
#include "log/define_records.h"

// A struct of records.def, as it is stored.
template <class Record>
Value record_json(const Record& record);
template <class Record>
Value record_list_json(const std::vector<Record>& records);
// Fails with log_corrupt: an unknown or missing field, a wrong type.
template <class Record>
Result<Record> record_from_json(const Value& json);

}  // namespace ae
