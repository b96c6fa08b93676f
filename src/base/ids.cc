// How every id is made. Hashed parts are joined by NUL, which no part can contain.
#include "base/ids.h"

#include <cstring>
#include <initializer_list>
#include <type_traits>

#include "base/byte_buffer.h"
#include "base/bytes.h"
#include "base/fixed_text.h"

namespace ae {
namespace {

constexpr std::size_t kShortHex = 16;

Hash hash_joined(std::initializer_list<std::string_view> parts) {
  std::array<char, 512> first;
  ByteBuffer text(first);
  for (const std::string_view part : parts) {
    text += part;
    text += '\0';
  }
  return sha256(text.view(0, text.size() - 1));
}

template <std::size_t Digits>
InlineText<Digits> hex_of(const Hash& hash) {
  std::array<char, Digits> text;
  write_hex<Digits / 2>(hash.bytes.data(), text.data());
  return std::string_view(text.data(), Digits);
}

void put_big_endian(std::uint8_t* out, int width, std::uint64_t value) {
  for (int i = width; i-- > 0; value >>= 8) out[i] = static_cast<std::uint8_t>(value);
}

constexpr std::uint64_t kLow62 = (std::uint64_t{1} << 62) - 1;

// The digits of a UUID's text are in five groups, each but the first after a dash. Calls
// visit(place in the text, place among the 32 digits, size), with constants.
template <class Visit>
constexpr void visit_digit_groups(Visit&& visit) {
  visit(0, 0, std::integral_constant<std::size_t, 8>());
  visit(9, 8, std::integral_constant<std::size_t, 4>());
  visit(14, 12, std::integral_constant<std::size_t, 4>());
  visit(19, 16, std::integral_constant<std::size_t, 4>());
  visit(24, 20, std::integral_constant<std::size_t, 12>());
}
constexpr std::array<std::size_t, 4> kDashes = {8, 13, 18, 23};

}  // namespace

void write_text(const Uuid& uuid, char* out) {
  std::array<char, 32> digits;
  write_hex<sizeof uuid.bytes>(uuid.bytes.data(), digits.data());
  visit_digit_groups([&](std::size_t in_text, std::size_t in_digits, auto size) {
    std::memcpy(out + in_text, digits.data() + in_digits, size());
  });
  for (const std::size_t dash : kDashes) out[dash] = '-';
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
  if (text.size() != kUuidTextSize) return std::nullopt;
  for (const std::size_t dash : kDashes) {
    if (text[dash] != '-') return std::nullopt;
  }
  std::array<char, 32> digits;
  visit_digit_groups([&](std::size_t in_text, std::size_t in_digits, auto size) {
    std::memcpy(digits.data() + in_digits, text.data() + in_text, size());
  });
  Uuid uuid;
  char* const bytes = reinterpret_cast<char*>(uuid.bytes.data());
  if (!read_hex<sizeof uuid.bytes>(digits.data(), bytes)) return std::nullopt;
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
  char low_half[8];
  std::memcpy(low_half, base.bytes.data() + 8, sizeof low_half);
  const std::uint64_t low = read_big_endian64(low_half);
  write_big_endian64((low & ~kLow62) | ((low + n) & kLow62), low_half);
  Uuid uuid = base;
  std::memcpy(uuid.bytes.data() + 8, low_half, sizeof low_half);
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
  std::array<char, 256> first;
  ByteBuffer text(first);
  for (const std::string_view part :
       {std::string_view("aetheris:"), job.text.view(), std::string_view(":"), step.text.view(),
        std::string_view(":"), last}) {
    text += part;
  }
  return ExternalKey(text.view());
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
