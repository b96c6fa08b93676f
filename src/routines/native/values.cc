#include "routines/native/values.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/bytes.h"
#include "base/ids.h"
#include "base/utf8.h"
#include "json/json.h"

namespace ae::routines {
namespace {

constexpr std::int64_t kMicrosPerMilli = 1'000;
constexpr std::uint64_t kNumbersPerBlock = 4;
constexpr std::size_t kDepthMax = kJsonDepthMax - 10;  // events have some levels of their own

// REQUIRES: its depth and its size are limited.
bool is_well_formed(const Value& value) {
  if (value.is_string()) return is_utf8(value.as_string());
  if (value.is_array()) return std::ranges::all_of(value.items(), is_well_formed);
  if (!value.is_object()) return true;
  return std::ranges::all_of(value.members(), [](const Member& member) {
    return is_utf8(member.first) && is_well_formed(member.second);
  });
}

}  // namespace

Value time_value(Instant at) {
  const std::int64_t ms = at.us / kMicrosPerMilli - (at.us % kMicrosPerMilli < 0 ? 1 : 0);
  return Value::object({{"ms", ms}, {"time", to_text(at)}});
}

std::optional<Instant> time_of(const Value& value) {
  const auto at = instant_from_text(value.text("time"));
  return at ? std::optional(*at) : std::nullopt;
}

RandomNumbers::RandomNumbers(const Hash& seed, std::string_view scope)
    : prefix_("aetheris.random.v1") {
  prefix_.append(reinterpret_cast<const char*>(seed.bytes.data()), seed.bytes.size());
  put_big_endian64(scope.size(), prefix_);
  prefix_ += scope;
}

double RandomNumbers::next() {
  const std::uint64_t group = drawn_ % kNumbersPerBlock;
  if (group == 0) {
    std::string block = prefix_;
    put_big_endian64(drawn_ / kNumbersPerBlock, block);
    block_ = sha256(block);
  }
  drawn_++;
  const std::uint64_t bits =
      read_big_endian64(reinterpret_cast<const char*>(block_.bytes.data()) + group * 8);
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

Entropy::Entropy(const std::array<std::uint64_t, 4>& words) {
  for (const std::uint64_t word : words) put_big_endian64(word, seed_);
}

Hash Entropy::next() {
  std::string block = seed_;
  put_big_endian64(drawn_++, block);
  return sha256(block);
}

std::string uuid_v4(const Hash& random) {
  Uuid uuid;
  std::copy_n(random.bytes.begin(), uuid.bytes.size(), uuid.bytes.begin());
  uuid.bytes[6] = static_cast<std::uint8_t>((uuid.bytes[6] & 0x0fU) | 0x40U);
  uuid.bytes[8] = static_cast<std::uint8_t>((uuid.bytes[8] & 0x3fU) | 0x80U);
  return to_text(uuid);
}

Status check_recordable(const Value& value, std::size_t bytes, std::string_view what) {
  if (value.extent().depth > kDepthMax) {
    return fail(Code::input_invalid, "{}: nesting deeper than {}", what, kDepthMax);
  }
  if (canonical_exceeds(value, bytes)) {
    return fail(Code::payload_too_large, "{}: more than {} KiB as canonical JSON", what,
                bytes >> 10);
  }
  if (is_well_formed(value)) return {};
  return fail(Code::input_invalid, "{}: a text that is not UTF-8", what);
}

}  // namespace ae::routines
