// How what was seen is compared with what was recorded: the same rules for every kind of verifier.
//
// Threads: pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "json/value.h"
#include "log/sighting.h"

namespace ae::tools {

// What somebody saw. Nothing but `unreachable` set: nobody saw anything.
struct Seen {
  std::string unreachable;  // why
  bool absent = false;      // it is gone
  std::string value;
};
// What could not be read.
inline Seen cannot(std::string_view why) { return {.unreachable = std::string(why), .value = {}}; }

using SameFn = bool (*)(std::string_view recorded, std::string_view seen);
bool same_text(std::string_view recorded, std::string_view seen);
bool same_etag(std::string_view recorded,
               std::string_view seen);  // weak comparison, quotes or none
bool same_time(std::string_view recorded,
               std::string_view seen);  // RFC 3339, HTTP date, or seconds
bool same_digest(std::string_view recorded, std::string_view seen);  // `sha256:` before it or not

// `recorded`: the member of `change` that this kind compares.
Sighting compare(const Value& change, std::string_view recorded, const Seen& seen, SameFn same);

// "Sun, 06 Nov 1994 08:49:37 GMT" as microseconds since 1970.
std::optional<std::int64_t> http_date(std::string_view text);

}  // namespace ae::tools
