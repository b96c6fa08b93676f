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
template <class Record>
Result<std::vector<Record>> record_list_from_json(const Value& json) {
  std::vector<Record> records;
  AE_TRY(read_json(json, records));
  return records;
}

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
  template Result<std::vector<Struct>> record_list_from_json<Struct>(const Value&);
#include "log/define_records.h"

}  // namespace ae
