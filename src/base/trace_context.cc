#include "base/trace_context.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <set>

#include "base/byte_buffer.h"
#include "base/hash.h"

namespace ae {
namespace {

constexpr std::size_t kParentSize = 55;  // 2 + 1 + 32 + 1 + 16 + 1 + 2
constexpr std::size_t kStateMax = 2048;  // bytes; the standard requires 512
constexpr std::size_t kMembersMax = 32;
constexpr std::uint8_t kKnownFlags = 0x03;

bool is_hex(std::string_view text) {
  return std::ranges::all_of(
      text, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

bool is_zero(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c == '0'; });
}

unsigned hex_digit(char c) { return static_cast<unsigned>(c <= '9' ? c - '0' : c - 'a' + 10); }

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

bool is_key_part(std::string_view text, std::size_t most) {
  return !text.empty() && text.size() <= most && std::ranges::all_of(text, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-' || c == '*' ||
           c == '/';
  });
}

bool starts_with_key_char(std::string_view key, bool digit_too) {
  const char c = key.front();
  return (c >= 'a' && c <= 'z') || (digit_too && c >= '0' && c <= '9');
}

// simple-key = lcalpha 0*255(…); tenant-id@system-id, with at most 241 and 14 characters.
bool is_key(std::string_view key) {
  const std::size_t at = key.find('@');
  if (at == key.npos) return is_key_part(key, 256) && starts_with_key_char(key, true);
  const std::string_view tenant = key.substr(0, at), system = key.substr(at + 1);
  return is_key_part(tenant, 241) && starts_with_key_char(tenant, true) &&
         is_key_part(system, 14) && starts_with_key_char(system, false);
}

bool is_value(std::string_view value) {
  return !value.empty() && value.size() <= 256 && value.back() != ' ' &&
         std::ranges::all_of(value,
                             [](char c) { return c >= 0x20 && c <= 0x7e && c != ',' && c != '='; });
}

bool is_state(std::string_view text) {
  if (text.size() > kStateMax) return false;
  std::set<std::string_view> keys;
  for (std::size_t from = 0; from <= text.size();) {
    const std::size_t end = std::min(text.find(',', from), text.size());
    const std::string_view member = trimmed(text.substr(from, end - from));
    from = end + 1;
    if (member.empty()) continue;  // empty members are allowed
    const std::size_t equals = member.find('=');
    if (equals == member.npos || !is_key(member.substr(0, equals)) ||
        !is_value(member.substr(equals + 1)) || !keys.insert(member.substr(0, equals)).second) {
      return false;
    }
  }
  return keys.size() <= kMembersMax;
}

// The first `size` hex digits of the hash of the parts, joined by NUL; `size` is even. About one in
// 2^64 would be all zeros, which means "no id", so it is changed.
std::string hash_digits(std::initializer_list<std::string_view> parts, std::size_t size) {
  std::array<char, 256> first;
  ByteBuffer joined(first);
  for (const std::string_view part : parts) {
    if (joined.size() > 0) joined += '\0';
    joined += part;
  }
  const Hash hash = sha256(joined.view());
  std::string id = to_hex({reinterpret_cast<const char*>(hash.bytes.data()), size / 2});
  if (is_zero(id)) id.back() = '1';
  return id;
}

}  // namespace

std::optional<TraceContext> trace_context(std::string_view traceparent,
                                          std::string_view tracestate) {
  const std::string_view parent = trimmed(traceparent);
  if (parent.size() < kParentSize) return std::nullopt;
  const std::string_view version = parent.substr(0, 2), trace = parent.substr(3, 32),
                         span = parent.substr(36, 16), flags = parent.substr(53, 2);
  const bool dashes = parent[2] == '-' && parent[35] == '-' && parent[52] == '-';
  if (!dashes || !is_hex(version) || version == "ff" || !is_hex(trace) || is_zero(trace) ||
      !is_hex(span) || is_zero(span) || !is_hex(flags)) {
    return std::nullopt;
  }
  // A later version may append more fields after another dash.
  const bool longer = parent.size() > kParentSize;
  if (longer && (version == "00" || parent[kParentSize] != '-')) return std::nullopt;
  TraceContext context{.trace_id = std::string(trace), .parent_id = std::string(span)};
  context.flags =
      static_cast<std::uint8_t>((hex_digit(flags[0]) << 4 | hex_digit(flags[1])) & kKnownFlags);
  const std::string_view state = trimmed(tracestate);
  if (is_state(state)) context.state = state;
  return context;
}

std::string traceparent(std::string_view trace_id, std::string_view span_id, std::uint8_t flags) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  text.reserve(kParentSize);
  text.append("00-").append(trace_id).append("-").append(span_id).append("-");
  text += kDigits[flags >> 4];
  text += kDigits[flags & 15];
  return text;
}

std::string trace_id_of(const JobId& job) {
  return hash_digits({"aetheris.trace.v1", job.text}, 32);
}

TraceContext trace_of(const JobId& job, std::string_view traceparent, std::string_view tracestate) {
  if (auto context = trace_context(traceparent, tracestate)) return *std::move(context);
  // The caller sent no context and so no decision against sampling: the trace is sampled.
  return {.trace_id = trace_id_of(job), .parent_id = {}, .flags = 1, .state = {}};
}

std::string span_id_of(const JobId& job, const InvocationId& invocation, std::uint32_t try_no) {
  return hash_digits({"aetheris.span.v1", job.text, invocation.text, std::to_string(try_no)}, 16);
}

std::string span_id_of(const JobId& job) { return hash_digits({"aetheris.span.v1", job.text}, 16); }

}  // namespace ae
