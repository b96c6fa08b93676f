// Comparing an observation with the recorded change: the same rules for every kind of verifier.
//
// Threads: pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "json/value.h"
#include "log/check_result.h"

namespace ae::tools {

// What a verifier observed. If `unreachable` is set, it observed nothing.
struct Observation {
  std::string unreachable;  // why
  bool absent = false;      // the resource does not exist
  std::string value;
};
// An observation that failed.
inline Observation failed_observation(std::string_view why) {
  return {.unreachable = std::string(why), .value = {}};
}

using SameFn = bool (*)(std::string_view recorded, std::string_view observation);
bool same_text(std::string_view recorded, std::string_view observation);
bool same_etag(std::string_view recorded,
               std::string_view observation);  // weak comparison, with or without quotes
bool same_time(std::string_view recorded,
               std::string_view observation);  // RFC 3339, HTTP date, or seconds
bool same_digest(std::string_view recorded,
                 std::string_view observation);  // with or without `sha256:`

// `recorded`: the member of `change` that this kind of verifier compares.
CheckResult compare(const Value& change, std::string_view recorded, const Observation& observation,
                    SameFn same);

// "Sun, 06 Nov 1994 08:49:37 GMT" as microseconds since 1970.
std::optional<std::int64_t> http_date(std::string_view text);

}  // namespace ae::tools
