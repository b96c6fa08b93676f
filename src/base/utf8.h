// UTF-8: which bytes are text, where a text can be cut, and how a character is written. Threads: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace ae {

// True when the bytes are well-formed UTF-8 (no overlong forms, no surrogates, at most U+10FFFF).
bool is_utf8(std::string_view bytes) noexcept;
// How many bytes at the front are.
std::size_t valid_utf8_prefix(std::string_view bytes) noexcept;
// The beginning of a UTF-8 text, at most so many bytes of it, that cuts no character: for the words of an error.
std::string_view truncate_utf8(std::string_view text, std::size_t bytes) noexcept;
// REQUIRES: `c` is at most U+10FFFF and no surrogate.
void append_utf8(std::uint32_t c, std::string& out);

}  // namespace ae
