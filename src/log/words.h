// Words: the permanent list of words that stored events encode in one byte.
//
// Stored: the list is part of version 1 of the sealed form and never changes; other words are
// stored as text. Threads: constant tables.
#pragma once

#include <cstdint>
#include <string_view>

namespace ae {

// 0 if the word is not in the list.
std::uint8_t word_number(std::string_view word) noexcept;
// Empty if the number is not in the list.
std::string_view word_text(std::uint8_t number) noexcept;

}  // namespace ae
