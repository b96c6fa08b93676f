// Field JSON: the JSON of one field of an event, and of structs whose fields a table declares.
// Used by event_json.cc, records.cc and decisions.cc.
//
// Stored: permanent; docs/data.md lists the forms. Threads: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/hash.h"
#include "base/ids.h"
#include "base/time.h"
#include "json/value.h"
#include "log/event_type.h"
#include "log/events.h"
#include "log/field_names.h"
#include "log/records.h"

namespace ae {

// A struct of records.def or decisions.def.
template <class T>
concept IsRecord = requires {
  T::kName;
  T::fields();
};

// ---- to JSON

inline Value field_json(const std::string& text) { return text; }
template <std::size_t Size>
Value field_json(const InlineText<Size>& text) {
  return text;
}
inline Value field_json(std::int64_t number) { return number; }
inline Value field_json(bool flag) { return flag; }
inline Value field_json(const Value& value) { return value; }
inline Value field_json(const NullableJson& json) { return json.value; }
inline Value field_json(const Erasable& field) { return field.value; }
template <class T>
Value field_json(const JsonOf<T>& field) {
  return field.json();
}
inline Value field_json(const std::vector<std::string>& texts) {
  return Value::array(std::vector<Value>(texts.begin(), texts.end()));
}
inline Value field_json(Instant instant) { return to_text(instant); }
inline Value field_json(const Hash& hash) { return to_hex(hash); }
template <class Tag, std::size_t Size>
Value field_json(const Id<Tag, Size>& id) {
  return id.text;
}
inline Value field_json(const RecordedError& error) {
  return Value::object({{field::code, error.code}, {"message", error.message.value}});
}

// The fields that are present. REQUIRES: visit_fields is declared for T.
template <class T>
Value fields_json(const T& fields) {
  std::vector<Member> members;
  visit_fields(fields, [&members](auto field, const auto& member) {
    if (is_present(field, member)) {
      members.emplace_back(field.name(), field_json(content_of(member)));
    }
  });
  return Value::object(std::move(members));
}
template <IsRecord T>
Value field_json(const T& record) {
  return fields_json(record);
}
template <IsRecord T>
Value field_json(const std::vector<T>& records) {
  std::vector<Value> items;
  items.reserve(records.size());
  for (const T& record : records) items.push_back(fields_json(record));
  return Value::array(std::move(items));
}

// ---- from JSON. REQUIRES: check_fields has accepted the field.

inline Status read_json(const Value& json, std::string& text) {
  text = json.as_string();
  return {};
}
template <std::size_t Size>
Status read_json(const Value& json, InlineText<Size>& text) {
  text = json.as_string();
  return {};
}
inline Status read_json(const Value& json, std::int64_t& number) {
  number = json.as_int();
  return {};
}
inline Status read_json(const Value& json, bool& flag) {
  flag = json.as_bool();
  return {};
}
inline Status read_json(const Value& json, Instant& instant) {
  instant = *instant_from_text(json.as_string());
  return {};
}
inline Status read_json(const Value& json, Hash& hash) {
  hash = *hash_from_hex(json.as_string());
  return {};
}
inline Status read_json(const Value& json, Value& value) {
  value = json;
  return {};
}
inline Status read_json(const Value& json, NullableJson& value) {
  value.value = json;
  return {};
}
inline Status read_json(const Value& json, Erasable& field) {
  field = json;
  return {};
}
template <class T>
Status read_json(const Value& json, JsonOf<T>& field) {
  field.json() = json;
  return {};
}
template <class Tag, std::size_t Size>
Status read_json(const Value& json, Id<Tag, Size>& id) {
  id.text = json.as_string();
  return {};
}
// Of a recorded error.
inline const Value& code_in(const Value& error) { return error[field::code]; }
inline Status read_json(const Value& json, RecordedError& error) {
  error = {code_in(json).as_string(), json["message"]};
  return {};
}
template <IsRecord T>
Status read_json(const Value& json, T& record);
template <IsRecord T>
Status read_json(const Value& json, std::vector<T>& records);
Status read_json(const Value& json, OptionalMember auto& member) {
  return read_json(json, member.emplace());
}

template <class T>
Status read_fields(const Value& json, T& fields) {
  Status status;
  visit_fields(fields, [&](auto field, auto& member) {
    const Value* value = json.find(field.name());
    const bool present = value != nullptr && (!value->is_null() || field.accepts_null());
    if (status && present) status = read_json(*value, member);
  });
  return status;
}
// Does its own check: a record is inside of a json field.
template <IsRecord T>
Status read_json(const Value& json, T& record) {
  AE_TRY(check_fields({.of = T::kName, .fields = T::fields()}, json));
  return read_fields(json, record);
}
template <IsRecord T>
Status read_json(const Value& json, std::vector<T>& records) {
  if (!json.is_array()) {
    return fail(Code::log_corrupt, "the value of {} is not a list", T::kName);
  }
  records.reserve(json.size());
  for (const Value& item : json.items()) AE_TRY(read_json(item, records.emplace_back()));
  return {};
}

// Does its own check, as a record does.
inline Status read_json(const Value& json, std::vector<std::string>& texts) {
  if (!json.is_array()) return fail(Code::log_corrupt, "a list of texts is not a list");
  texts.reserve(json.size());
  for (const Value& item : json.items()) {
    if (!item.is_string())
      return fail(Code::log_corrupt, "an item of a list of texts is not a text");
    texts.push_back(item.as_string());
  }
  return {};
}

}  // namespace ae
