// JsonOf: a JSON field of an event whose content is a record, or a list of records or texts.
//
// The event holds the JSON as it is stored: open, seal and the hash chain preserve what this
// program does not expect in it. Writers set a struct; readers read one.
//
// Threads: values. See docs/decisions/0093-records-in-events.md.
#pragma once

#include <utility>

#include "base/error.h"
#include "json/value.h"

namespace ae {

// T: a struct of records.def, or a std::vector of one or of std::string.
template <class T>
class JsonOf {
 public:
  JsonOf() = default;  // null: absent
  JsonOf(const T& content);
  explicit JsonOf(Value json) : json_(std::move(json)) {}

  bool is_null() const { return json_.is_null(); }
  const Value& json() const { return json_; }
  Value& json() { return json_; }

  // Fails with log_corrupt: an unknown or missing field, a wrong type.
  Result<T> read() const;
  // Unknown fields and items of a wrong type are ignored; a field of a wrong type is 0 or empty.
  T read_leniently() const;

  bool operator==(const JsonOf&) const = default;

 private:
  Value json_;
};

}  // namespace ae
