// Texts of a fixed length, written to memory of the caller and read from it: hex digits, UUIDs,
// instants. The functions that return strings are in base/hash.h, base/ids.h and base/time.h.
// Threads: pure functions.
#pragma once

#include <cstddef>
#include <string_view>

#include "base/ids.h"
#include "base/time.h"

namespace ae {

inline constexpr std::size_t kInstantTextSize = 27;

// Two lower-case digits for each byte. REQUIRES: `out` has room for them.
void write_hex(std::string_view bytes, char* out);
// False if a character is not a lower-case hex digit. REQUIRES: an even number of digits; `out` has
// room for the bytes.
bool read_hex(std::string_view hex, char* out);
// kUuidTextSize characters.
void write_text(const Uuid& uuid, char* out);
// kInstantTextSize characters, as to_text.
void write_text(Instant instant, char* out);

}  // namespace ae
