// Records: their field tables, and their JSON.
#include "log/records.h"

#include <array>
#include <utility>

#include "log/field_json.h"

namespace ae {

template <class Record>
Value record_json(const Record& record) {
  return field_json(record);
}
template <class Record>
Value record_list_json(const std::vector<Record>& records) {
  return field_json(records);
}
template <class Record>
Result<Record> record_from_json(const Value& json) {
  Record record;
  AE_TRY(read_json(json, record));
  return record;
}

namespace {

auto& slot_of(OptionalMember auto& member) { return member.emplace(); }
auto& slot_of(auto& member) { return member; }

template <IsRecord Record>
void read_readable(const Value& json, Record& record) {
  visit_fields(record, [&](auto field, auto& member) {
    const Value* const value = json.find(field.name());
    if (value == nullptr) return;
    auto& slot = slot_of(member);
    if (!has_kind(field.kind(), *value)) return;
    if (!read_json(*value, slot)) slot = {};
  });
}

template <class Item>
void read_readable(const Value& json, std::vector<Item>& list) {
  if (!json.is_array()) return;
  for (const Value& item : json.items()) {
    if constexpr (IsRecord<Item>) {
      if (item.is_object()) read_readable(item, list.emplace_back());
    } else {
      if (item.is_string()) list.push_back(item.as_string());
    }
  }
}

}  // namespace

template <class T>
JsonOf<T>::JsonOf(const T& content) : json_(field_json(content)) {}

template <class T>
Result<T> JsonOf<T>::read() const {
  T content;
  AE_TRY(read_json(json_, content));
  return content;
}

template <class T>
T JsonOf<T>::read_leniently() const {
  T content;
  read_readable(json_, content);
  return content;
}

template class JsonOf<std::vector<std::string>>;

#define AE_REQUIRED_AS(kind, member, name, left, meaning) \
  Field{name, 0, field_kind::kind::kKind, true},
#define AE_OPTIONAL_AS(kind, member, name, left, meaning) \
  Field{name, 0, field_kind::kind::kKind, false},
#define AE_RECORD(Struct, name, ...)                                     \
  std::span<const Field> Struct::fields() {                              \
    static constexpr auto kFields = std::to_array<Field>({__VA_ARGS__}); \
    return kFields;                                                      \
  }                                                                      \
  template Value record_json<Struct>(const Struct&);                     \
  template Value record_list_json<Struct>(const std::vector<Struct>&);   \
  template Result<Struct> record_from_json<Struct>(const Value&);        \
  template class JsonOf<Struct>;                                         \
  template class JsonOf<std::vector<Struct>>;
#include "log/define_records.h"

}  // namespace ae
