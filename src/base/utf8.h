// UTF-8: validation, truncation and encoding. Threads: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace ae {

// True when the bytes are well-formed UTF-8 (no overlong forms, no surrogates, at most U+10FFFF).
bool is_utf8(std::string_view bytes) noexcept;
// The length in bytes of the longest well-formed prefix.
std::size_t valid_utf8_prefix(std::string_view bytes) noexcept;
// The longest prefix of a UTF-8 text of at most `bytes` bytes that splits no character, for error
// messages.
std::string_view truncate_utf8(std::string_view text, std::size_t bytes) noexcept;
// REQUIRES: `c` is at most U+10FFFF and no surrogate.
void append_utf8(std::uint32_t c, std::string& out);

}  // namespace ae
