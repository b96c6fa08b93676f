// EventHasher: builds the hashed bytes in one buffer and hashes them in one call.
#include "log/chain.h"

#include <cstring>

#include "base/bytes.h"
#include "base/fixed_text.h"
#include "log/field_codec.h"

namespace ae {
namespace {

constexpr std::string_view kDomain = "aetheris.event.v1";
constexpr std::uint64_t kAbsent = ~std::uint64_t{0};
constexpr std::size_t kNumberSize = 8;

void put_part(std::string_view part, ByteBuffer& out) {
  put_big_endian64(part.size(), out);
  out += part;
}

void put_part(std::uint64_t number, ByteBuffer& out) {
  put_big_endian64(kNumberSize, out);
  put_big_endian64(number, out);
}

}  // namespace

EventHasher::EventHasher(const JobId& job, Instant created_at,
                         const std::optional<AttemptId>& attempt)
    : head_(256), tail_(128), text_(2048) {
  head_ += kDomain;
  head_.extend(sizeof Hash::bytes);
  put_part(job.text, head_);
  put_part(std::uint64_t{0}, head_);
  put_big_endian64(kUuidTextSize, head_);
  head_.extend(kUuidTextSize);
  put_part(std::uint64_t{0}, tail_);
  put_part(to_text(created_at), tail_);
  if (attempt) {
    put_part(attempt->text, tail_);
  } else {
    put_big_endian64(kAbsent, tail_);
  }
  put_big_endian64(0, tail_);  // the length, set in `finish`
}

void EventHasher::begin(const Event& event) {
  const std::string_view name = event_name(event);
  text_.clear();
  char* at = text_.extend(head_.size() + kNumberSize + name.size() + tail_.size());
  std::memcpy(at, head_.data(), head_.size());
  std::memcpy(at + kDomain.size(), event.prev_hash.bytes.data(), event.prev_hash.bytes.size());
  at += head_.size();
  write_text(event.id, at - kUuidTextSize);
  write_big_endian64(event.seq, at - kUuidTextSize - 2 * kNumberSize);
  write_big_endian64(name.size(), at);
  std::memcpy(at + kNumberSize, name.data(), name.size());
  at += kNumberSize + name.size();
  std::memcpy(at, tail_.data(), tail_.size());
  write_big_endian64(event.schema, at + kNumberSize);
  payload_ = text_.size();
}

Hash EventHasher::finish() {
  write_big_endian64(text_.size() - payload_, text_.data() + payload_ - kNumberSize);
  return sha256(text_.view());
}

Hash commitment(std::string_view salt_and_canonical_value) {
  return sha256(salt_and_canonical_value);
}

void write_commitment(const Hash& commitment, ByteBuffer& out) {
  constexpr std::string_view kBefore = R"({"$sha256":")";
  constexpr std::string_view kAfter = R"("})";
  char* at = out.extend(kBefore.size() + 2 * commitment.bytes.size() + kAfter.size());
  std::memcpy(at, kBefore.data(), kBefore.size());
  at += kBefore.size();
  write_hex(bytes_of(commitment), at);
  at += 2 * commitment.bytes.size();
  std::memcpy(at, kAfter.data(), kAfter.size());
}

}  // namespace ae
