// The canonical writer of json.h, for a ByteBuffer.
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/byte_buffer.h"
#include "json/value.h"

namespace ae {

// As in json.h, with the same requirements.
void write_canonical(const Value& value, ByteBuffer& out);
void write_canonical_string(std::string_view text, ByteBuffer& out);
// REQUIRES: |number| <= 2^53-1.
void write_canonical_integer(std::int64_t number, ByteBuffer& out);

}  // namespace ae
