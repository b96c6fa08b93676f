// EventHasher: builds the hashed bytes in one buffer and hashes them in one call.
#include "log/chain.h"

#include "base/bytes.h"

namespace ae {
namespace {

constexpr std::string_view kDomain = "aetheris.event.v1";
constexpr std::uint64_t kAbsent = ~std::uint64_t{0};

void put_part(std::string_view part, std::string& out) {
  put_big_endian64(part.size(), out);
  out += part;
}

void put_part(std::uint64_t number, std::string& out) {
  put_big_endian64(sizeof number, out);
  put_big_endian64(number, out);
}

}  // namespace

EventHasher::EventHasher(const JobId& job, Instant created_at,
                         const std::optional<AttemptId>& attempt) {
  text_.reserve(2048);
  put_part(job.text, job_);
  put_part(to_text(created_at), tail_);
  if (attempt) {
    put_part(attempt->text, tail_);
  } else {
    put_big_endian64(kAbsent, tail_);
  }
}

void EventHasher::begin(const Event& event) {
  text_ = kDomain;
  text_.append(reinterpret_cast<const char*>(event.prev_hash.bytes.data()),
               event.prev_hash.bytes.size());
  text_ += job_;
  put_part(event.seq, text_);
  put_big_endian64(kUuidTextSize, text_);
  append_text(event.id, text_);
  put_part(event_name(event), text_);
  put_part(event.schema, text_);
  text_ += tail_;
  put_big_endian64(0, text_);  // the length, set in `finish`
  payload_ = text_.size();
}

Hash EventHasher::finish() {
  std::string length;
  put_big_endian64(text_.size() - payload_, length);
  text_.replace(payload_ - length.size(), length.size(), length);
  return sha256(text_);
}

Hash commitment(std::string_view salt_and_canonical_value) {
  return sha256(salt_and_canonical_value);
}

void write_commitment(const Hash& commitment, std::string& out) {
  out += R"({"$sha256":")";
  append_hex({reinterpret_cast<const char*>(commitment.bytes.data()), commitment.bytes.size()},
             out);
  out += R"("})";
}

}  // namespace ae
