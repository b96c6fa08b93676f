// The permanent list of words that stored events spell with one byte.
//
// Stored: the list belongs to version 1 of the sealed form and never changes; a word that is not in it is stored as
// its text. Threads: constant tables.
#pragma once

#include <cstdint>
#include <string_view>

namespace ae {

// 0 when the word is not in the list.
std::uint8_t word_number(std::string_view word) noexcept;
// Empty when the number is not in the list.
std::string_view word_text(std::uint8_t number) noexcept;

}  // namespace ae
