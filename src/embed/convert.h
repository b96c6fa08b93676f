// Conversions between the types of the public headers (include/aetheris) and ours.
//
// Threads: pure functions.
#pragma once

#include <aetheris/aetheris.h>
#include "base/error.h"
#include "json/value.h"

namespace ae::embed {

// Fails with input_invalid: a number outside of our limits, a text that is not UTF-8, too deep.
Result<Value> to_internal(const aetheris::Value& value);
aetheris::Value to_public(const Value& value);

aetheris::Error to_public(const Error& error);
template <class T>
std::unexpected<aetheris::Error> failed(const Result<T>& result) {
  return std::unexpected(to_public(result.error()));
}
inline aetheris::Status to_public(const Status& status) {
  if (!status) return failed(status);
  return {};
}

}  // namespace ae::embed
