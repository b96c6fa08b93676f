// How every id is made. Hashed parts are joined by NUL, which no part can contain.
#include "base/ids.h"

#include <algorithm>
#include <initializer_list>
#include <memory>

#include "base/fixed_text.h"

namespace ae {
namespace {

constexpr std::size_t kShortHex = 16;

Hash hash_joined(std::initializer_list<std::string_view> parts) {
  std::size_t size = parts.size() - 1;
  for (const std::string_view part : parts) size += part.size();
  std::array<char, 512> short_text;
  std::unique_ptr<char[]> long_text;
  if (size > short_text.size()) long_text = std::make_unique_for_overwrite<char[]>(size);
  char* const text = long_text ? long_text.get() : short_text.data();
  char* at = text;
  for (const std::string_view part : parts) {
    at = std::ranges::copy(part, at).out;
    if (at != text + size) *at++ = '\0';
  }
  return sha256({text, size});
}

template <std::size_t Digits>
InlineText<Digits> hex_of(const Hash& hash) {
  std::array<char, Digits> text;
  write_hex({reinterpret_cast<const char*>(hash.bytes.data()), Digits / 2}, text.data());
  return std::string_view(text.data(), Digits);
}

void put_big_endian(std::uint8_t* out, int width, std::uint64_t value) {
  for (int i = width; i-- > 0; value >>= 8) out[i] = static_cast<std::uint8_t>(value);
}

std::uint64_t low_half(const Uuid& uuid) {
  std::uint64_t value = 0;
  for (std::size_t i = 8; i < 16; ++i) value = value << 8 | uuid.bytes[i];
  return value;
}

constexpr std::uint64_t kLow62 = (std::uint64_t{1} << 62) - 1;

bool has_dash_at(std::size_t i) { return i == 8 || i == 13 || i == 18 || i == 23; }

}  // namespace

void write_text(const Uuid& uuid, char* out) {
  const char* const bytes = reinterpret_cast<const char*>(uuid.bytes.data());
  write_hex({bytes, 4}, out);
  write_hex({bytes + 4, 2}, out + 9);
  write_hex({bytes + 6, 2}, out + 14);
  write_hex({bytes + 8, 2}, out + 19);
  write_hex({bytes + 10, 6}, out + 24);
  for (const std::size_t dash : {8U, 13U, 18U, 23U}) out[dash] = '-';
}

void append_text(const Uuid& uuid, std::string& out) {
  std::array<char, kUuidTextSize> text;
  write_text(uuid, text.data());
  out.append(text.data(), text.size());
}

std::string to_text(const Uuid& uuid) {
  std::string text;
  append_text(uuid, text);
  return text;
}

std::optional<Uuid> uuid_from_text(std::string_view text) {
  if (text.size() != 36) return std::nullopt;
  Uuid uuid;
  std::size_t nibble = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (has_dash_at(i)) {
      if (c != '-') return std::nullopt;
      continue;
    }
    int digit = 0;
    if (c >= '0' && c <= '9') {
      digit = c - '0';
    } else if (c >= 'a' && c <= 'f') {
      digit = c - 'a' + 10;
    } else {
      return std::nullopt;
    }
    std::uint8_t& byte = uuid.bytes[nibble / 2];
    byte = static_cast<std::uint8_t>(byte << 4 | digit);
    ++nibble;
  }
  return uuid;
}

Uuid uuid_v7(std::uint64_t unix_ms, std::uint64_t random_a, std::uint64_t random_b) {
  Uuid uuid;
  put_big_endian(uuid.bytes.data(), 6, unix_ms);
  put_big_endian(uuid.bytes.data() + 6, 2, 0x7000 | (random_a & 0x0FFF));
  put_big_endian(uuid.bytes.data() + 8, 8, std::uint64_t{2} << 62 | (random_b & kLow62));
  return uuid;
}

Uuid uuid_plus(const Uuid& base, std::uint64_t n) {
  const std::uint64_t low = low_half(base);
  Uuid uuid = base;
  put_big_endian(uuid.bytes.data() + 8, 8, (low & ~kLow62) | ((low + n) & kLow62));
  return uuid;
}

Result<JobId> job_id_from_text(std::string_view text) {
  const auto allowed = [](char c) {
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == ':' || c == '-';
  };
  bool good = !text.empty() && text.size() <= 64;
  for (const char c : text.substr(0, 65)) good = good && allowed(c);
  good = good && text != "." && text != "..";  // in a URL these name another resource
  if (good) return JobId(std::string(text));
  return fail(Code::input_invalid,
              "a job id has 1 to 64 characters of A-Z a-z 0-9 . _ : - and is neither . nor ..; "
              "omit it to have one generated");
}

JobId child_job_id(const JobId& parent, const StepId& command) {
  const Hash hash = hash_joined({parent.text, command.text, "child"});
  Uuid uuid;
  for (std::size_t i = 0; i < uuid.bytes.size(); ++i) uuid.bytes[i] = hash.bytes[i];
  uuid.bytes[6] = static_cast<std::uint8_t>((uuid.bytes[6] & 0x0F) | 0x80);
  uuid.bytes[8] = static_cast<std::uint8_t>((uuid.bytes[8] & 0x3F) | 0x80);
  return JobId(to_text(uuid));
}

DecisionId decision_id(const Hash& plan_hash) { return DecisionId(hex_of<kShortHex>(plan_hash)); }

StepId step_id(const JobId& job, const DecisionId& decision, std::string_view path,
               std::string_view node_type) {
  return StepId(hex_of<kShortHex>(hash_joined({job.text, decision.text, path, node_type})));
}

std::string model_tool_name(std::string_view model) {
  return std::string(kModelToolPrefix) + std::string(model);
}

Hash blinded_digest(std::string_view blind, std::string_view text) {
  if (blind.empty()) return sha256(text);
  Sha256 hash;
  hash.add("aetheris.blind.v1");
  hash.add(blind);
  hash.add(text);
  return hash.finish();
}

DigestText blinded_hash(std::string_view blind, std::string_view text) {
  return hex_of<64>(blinded_digest(blind, text));
}

IdempotencyKey idempotency_key(const JobId& job, const StepId& command, std::string_view tool,
                               std::string_view canonical_args, std::string_view blind) {
  const Hash hash = blind.empty()
                        ? hash_joined({job.text, command.text, tool, canonical_args})
                        : hash_joined({job.text, command.text, tool, canonical_args, blind});
  return IdempotencyKey(hex_of<64>(hash));
}

InvocationId invocation_id(const JobId& job, const StepId& command, const IdempotencyKey& key) {
  return InvocationId(hex_of<kShortHex>(hash_joined({job.text, command.text, key.text})));
}

namespace {
ExternalKey external_key_of(const JobId& job, const StepId& step, std::string_view last) {
  std::string text;
  text.reserve(64 + job.text.size());
  text += "aetheris:";
  text += job.text;
  text += ':';
  text += step.text;
  text += ':';
  text += last;
  return ExternalKey(std::move(text));
}
}  // namespace

ExternalKey external_key(const JobId& job, const StepId& step) {
  return external_key_of(job, step, "0");
}

ExternalKey chosen_external_key(const JobId& job, const StepId& step, const IdempotencyKey& key) {
  return external_key_of(job, step, std::string_view(key.text).substr(0, kShortHex));
}

ExternalKey attempt_external_key(const JobId& job, const StepId& step, const AttemptId& attempt) {
  return external_key_of(job, step, attempt.empty() ? "0" : attempt.text.view());
}

}  // namespace ae
