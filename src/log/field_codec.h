// Field codec: the canonical JSON text of one field, which is hashed, and its stored bytes.
// Used by seal.cc and open.cc, which handle JSON values, errors and external keys: these
// depend on more than the field.
//
// Stored: permanent; docs/data.md lists the forms. Threads: pure functions.
#pragma once

#include <algorithm>
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

// REQUIRES: `text` has no character that JSON escapes.
inline void write_plain_string(std::string_view text, ByteBuffer& out) {
  char* at = out.extend(text.size() + 2);
  *at++ = '"';
  std::memcpy(at, text.data(), text.size());
  at[text.size()] = '"';
}

// The text of an id or a hash whose bytes are stored: `put_field` and `read_field` make sure that
// it is hex.
template <FieldKind Kind>
constexpr bool kIsHex = Kind == FieldKind::id8 || Kind == FieldKind::hash32;

template <FieldKind Kind, class T>
void write_canonical_field(const T& member, ByteBuffer& out) {
  if constexpr (std::is_same_v<T, Hash>) {
    char* const at = out.extend(2 * kHashSize + 2);
    at[0] = at[2 * kHashSize + 1] = '"';
    write_hex(bytes_of(member), at + 1);
  } else if constexpr (std::is_convertible_v<const T&, std::string_view>) {
    kIsHex<Kind> ? write_plain_string(member, out) : write_canonical_string(member, out);
  } else if constexpr (Kind == FieldKind::integer) {
    write_canonical_integer(member, out);
  } else if constexpr (Kind == FieldKind::boolean) {
    out += std::string_view(member ? "true" : "false");
  } else if constexpr (Kind == FieldKind::instant) {
    char* const at = out.extend(kInstantTextSize + 2);
    at[0] = at[kInstantTextSize + 1] = '"';
    write_text(member, at + 1);
  } else if constexpr (Kind == FieldKind::json) {
    write_canonical(member, out);
  } else {
    kIsHex<Kind> ? write_plain_string(member.text, out) : write_canonical_string(member.text, out);
  }
}

// ---- stored bytes

// Is it exact as a JSON number?
constexpr bool is_exact_integer(std::int64_t n) {
  constexpr std::int64_t kMax = (std::int64_t{1} << 53) - 1;
  return n >= -kMax && n <= kMax;
}

inline void put_hex(std::string_view hex, std::size_t size, ByteBuffer& out) {
  AE_CHECK(hex.size() == 2 * size && read_hex(hex, out.extend(size)),
           "an id or a hash of an event is not hex");
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
    put_hex(member, 8, out);
  } else {
    put_hex(member.text, Kind == FieldKind::id8 ? 8 : 32, out);
  }
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
    member = to_hex(in.bytes(8));
  } else {
    member.text = to_hex(in.bytes(Kind == FieldKind::id8 ? 8 : kHashSize));
  }
  return {};
}

}  // namespace ae
