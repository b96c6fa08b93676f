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
                         const std::optional<AttemptId>& attempt) {
  text_ += kDomain;
  text_.extend(sizeof Hash::bytes);
  put_part(job.text, text_);
  put_part(std::uint64_t{0}, text_);
  put_big_endian64(kUuidTextSize, text_);
  text_.extend(kUuidTextSize);
  head_size_ = text_.size();
  put_part(std::uint64_t{0}, tail_);
  put_big_endian64(kInstantTextSize, tail_);
  write_text(created_at, tail_.extend(kInstantTextSize));
  if (attempt) {
    put_part(attempt->text, tail_);
  } else {
    put_big_endian64(kAbsent, tail_);
  }
  put_big_endian64(0, tail_);  // the length, set in `finish`
}

void EventHasher::begin(const Event& event, std::string_view type) {
  text_.truncate(head_size_);
  char* at = text_.extend(kNumberSize + type.size() + tail_.size());
  std::memcpy(text_.data() + kDomain.size(), event.prev_hash.bytes.data(),
              sizeof event.prev_hash.bytes);
  write_text(event.id, at - kUuidTextSize);
  write_big_endian64(event.seq, at - kUuidTextSize - 2 * kNumberSize);
  write_big_endian64(type.size(), at);
  at += kNumberSize;
  std::memcpy(at, type.data(), type.size());
  at += type.size();
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
  write_hex<sizeof commitment.bytes>(commitment.bytes.data(), at);
  at += 2 * commitment.bytes.size();
  std::memcpy(at, kAfter.data(), kAfter.size());
}

}  // namespace ae
