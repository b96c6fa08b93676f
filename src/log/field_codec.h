// Field codec: the canonical JSON text of one field, which is hashed, and its stored bytes.
// Used by seal.cc and open.cc, which handle JSON values, errors and external keys: these
// depend on more than the field.
//
// Stored: permanent; docs/data.md lists the forms. Threads: pure functions.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

#include "base/byte_buffer.h"
#include "base/bytes.h"
#include "base/error.h"
#include "base/fixed_text.h"
#include "base/hash.h"
#include "base/ids.h"
#include "base/time.h"
#include "json/canonical_buffer.h"
#include "json/value.h"
#include "log/event_type.h"
#include "log/events.h"
#include "log/sealed_form.h"
#include "log/words.h"

namespace ae {

inline std::string_view bytes_of(const Hash& hash) {
  return {reinterpret_cast<const char*>(hash.bytes.data()), hash.bytes.size()};
}
inline Hash hash_of(std::string_view bytes) {
  Hash hash;
  if (bytes.size() == hash.bytes.size()) std::ranges::copy(bytes, hash.bytes.begin());
  return hash;
}
inline bool in_range(Instant t) { return t >= kInstantMin && t <= kInstantMax; }

// ---- canonical text

// The name of a member, after a brace or a comma. Inlined, so that the name is a constant.
[[gnu::always_inline]] inline void write_name(char before, std::string_view name, ByteBuffer& out) {
  char* at = out.extend(name.size() + 4);
  *at++ = before;
  *at++ = '"';
  std::memcpy(at, name.data(), name.size());
  at += name.size();
  *at++ = '"';
  *at = ':';
}

// Of an id or a hash as text.
constexpr std::size_t digits_of(FieldKind kind) { return kind == FieldKind::id8 ? 16 : 64; }

// The digits of an id or a hash. `put_field` and `read_field` make sure that they are hex.
template <std::size_t Digits>
void write_hex_string(std::string_view hex, ByteBuffer& out) {
  AE_CHECK(hex.size() == Digits, "an id or a hash of an event is not hex");
  char* const at = out.extend(Digits + 2);
  at[0] = at[Digits + 1] = '"';
  std::memcpy(at + 1, hex.data(), Digits);
}

template <FieldKind Kind, class T>
void write_canonical_field(const T& member, ByteBuffer& out) {
  if constexpr (std::is_same_v<T, Hash>) {
    char* const at = out.extend(2 * kHashSize + 2);
    at[0] = at[2 * kHashSize + 1] = '"';
    write_hex<kHashSize>(member.bytes.data(), at + 1);
  } else if constexpr (std::is_same_v<T, ShortDigest>) {
    write_hex_string<digits_of(Kind)>(member, out);
  } else if constexpr (Kind == FieldKind::id8 || Kind == FieldKind::hash32) {
    write_hex_string<digits_of(Kind)>(member.text, out);
  } else if constexpr (Kind == FieldKind::integer) {
    write_canonical_integer(member, out);
  } else if constexpr (Kind == FieldKind::boolean) {
    out += std::string_view(member ? "true" : "false");
  } else if constexpr (Kind == FieldKind::instant) {
    char* const at = out.extend(kInstantTextSize + 2);
    at[0] = at[kInstantTextSize + 1] = '"';
    write_text(member, at + 1);
  } else if constexpr (Kind == FieldKind::external_key) {
    write_canonical_string(member.text, out);
  } else {
    write_canonical_string(member, out);
  }
}

// ---- stored bytes

// Is it exact as a JSON number?
constexpr bool is_exact_integer(std::int64_t n) {
  constexpr std::int64_t kMax = (std::int64_t{1} << 53) - 1;
  return n >= -kMax && n <= kMax;
}

template <std::size_t Digits>
void put_hex(std::string_view hex, ByteBuffer& out) {
  const bool is_hex =
      hex.size() == Digits && read_hex<Digits / 2>(hex.data(), out.extend(Digits / 2));
  AE_CHECK(is_hex, "an id or a hash of an event is not hex");
}

template <FieldKind Kind, class T>
void put_field(const T& member, ByteBuffer& out) {
  if constexpr (Kind == FieldKind::text) {
    put_text(member, out);
  } else if constexpr (Kind == FieldKind::word) {
    const std::uint8_t number = word_number(member);
    put_byte(number, out);
    if (number == 0) put_text(member, out);
  } else if constexpr (Kind == FieldKind::integer) {
    AE_CHECK(is_exact_integer(member), "an integer of an event is too large");
    put_varint(zig_zag(member), out);
  } else if constexpr (Kind == FieldKind::boolean) {
    put_byte(member ? 1 : 0, out);
  } else if constexpr (Kind == FieldKind::instant) {
    put_big_endian64(static_cast<std::uint64_t>(std::clamp(member, kInstantMin, kInstantMax).us),
                     out);
  } else if constexpr (std::is_same_v<T, Hash>) {
    out += bytes_of(member);
  } else if constexpr (std::is_same_v<T, ShortDigest>) {
    put_hex<digits_of(Kind)>(member, out);
  } else {
    put_hex<digits_of(Kind)>(member.text, out);
  }
}

// The text of the next bytes; empty if there are too few.
template <std::size_t Digits>
InlineText<Digits> hex_text(ByteReader& in) {
  const std::string_view bytes = in.bytes(Digits / 2);
  if (bytes.empty()) return {};
  std::array<char, Digits> hex;
  write_hex<Digits / 2>(reinterpret_cast<const std::uint8_t*>(bytes.data()), hex.data());
  return std::string_view(hex.data(), hex.size());
}

// Why the bytes are not a valid field; empty: valid. If they end too early, the reader is not ok.
template <FieldKind Kind, class T>
std::string_view read_field(ByteReader& in, T& member) {
  if constexpr (Kind == FieldKind::text) {
    member = in.text();
  } else if constexpr (Kind == FieldKind::word) {
    const std::uint8_t number = in.byte();
    const std::string_view word = number == 0 ? in.text() : word_text(number);
    if (number == 0 && word_number(word) != 0) return " spells out a word of the list";
    if (number != 0 && word.empty()) return " is a word that is not in the list";
    member = word;
  } else if constexpr (Kind == FieldKind::integer) {
    member = un_zig_zag(in.varint());
    if (!is_exact_integer(member)) return " is too large a number";
  } else if constexpr (Kind == FieldKind::boolean) {
    const std::uint8_t bit = in.byte();
    if (bit > 1) return " is neither true nor false";
    member = bit == 1;
  } else if constexpr (Kind == FieldKind::instant) {
    member = {static_cast<std::int64_t>(in.big_endian64())};
    if (!in_range(member)) return " is a time out of range";
  } else if constexpr (std::is_same_v<T, Hash>) {
    member = hash_of(in.bytes(kHashSize));
  } else if constexpr (std::is_same_v<T, ShortDigest>) {
    member = hex_text<digits_of(Kind)>(in);
  } else {
    member.text = hex_text<digits_of(Kind)>(in);
  }
  return {};
}

}  // namespace ae
