// Outcomes, and records of invalid outputs.
#include "tools/output.h"

#include <algorithm>
#include <utility>

#include "base/utf8.h"
#include "log/field_names.h"

namespace ae::tools {
namespace {

// The length of the well-formed character at `at`, or 0.
std::size_t character_at(std::string_view bytes, std::size_t at) {
  const auto first = static_cast<unsigned char>(bytes[at]);
  const std::size_t length = first < 0x80 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  const std::string_view character = bytes.substr(at, length);
  return character.size() == length && is_utf8(character) ? length : 0;
}

// C0 and C1 controls and DEL, which a terminal interprets.
bool is_control(std::string_view character) {
  const auto first = static_cast<unsigned char>(character[0]);
  return first < 0x20 || first == 0x7F ||
         (first == 0xC2 && static_cast<unsigned char>(character[1]) < 0xA0);
}

void escape(std::string_view bytes, std::string& out) {
  for (const char c : bytes) {
    if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (c == '\r') {
      out += "\\r";
    } else {
      out += "\\x" + to_hex(std::string_view(&c, 1));
    }
  }
}

// Removes an incomplete character that a cut may have left at the end.
std::string_view trim_partial_character(std::string_view bytes) {
  for (std::size_t back = 1; back <= 3 && back <= bytes.size(); ++back) {
    const auto c = static_cast<unsigned char>(bytes[bytes.size() - back]);
    if ((c & 0xC0) == 0x80) continue;
    const std::size_t length = c < 0xC0 ? 1 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
    return length > back ? bytes.substr(0, bytes.size() - back) : bytes;
  }
  return bytes;
}

}  // namespace

std::string printable(std::string_view bytes, LineBreaks lines) {
  std::string out;
  out.reserve(bytes.size());
  for (std::size_t at = 0; at < bytes.size();) {
    const std::size_t length = character_at(bytes, at);
    const std::string_view piece = bytes.substr(at, std::max<std::size_t>(length, 1));
    const bool kept_space = lines == LineBreaks::keep && (piece[0] == '\n' || piece[0] == '\t');
    if (length == 0 || (is_control(piece) && !kept_space)) {
      escape(piece, out);
    } else {
      out += piece;
    }
    at += piece.size();
  }
  return out;
}

Value invalid_output(std::string_view reason, std::string_view bytes, std::size_t total) {
  return invalid_output(reason, bytes, sha256(bytes), total);
}

Value invalid_output(std::string_view reason, std::string_view head, const Hash& sha256,
                     std::size_t total) {
  if (head.size() > kHeadMax) head = trim_partial_character(head.substr(0, kHeadMax));
  return Value::object({{"invalid", true},
                        {field::reason, printable(reason, LineBreaks::escape)},
                        {"sha256", to_hex(sha256)},
                        {"size", static_cast<std::uint64_t>(total)},
                        {"head", printable(head, LineBreaks::escape)}});
}

Outcome make_outcome(OutcomeKind kind, bool definite, bool retryable, std::string code,
                     std::string message) {
  Outcome outcome;
  outcome.kind = kind;
  outcome.definite = definite;
  outcome.retryable = retryable;
  outcome.error_code = std::move(code);
  outcome.error_message = std::move(message);
  return outcome;
}

}  // namespace ae::tools
