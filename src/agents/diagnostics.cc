// Diagnostics: order, lines and columns, and suggestions for misspelt words.
#include "agents/diagnostics.h"

#include <fmt/core.h>

#include <algorithm>
#include <numeric>

#include "json/json.h"
#include "log/field_names.h"

namespace ae::agents {
namespace {

bool is_character_start(char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }

std::size_t character_length(char first) {
  const auto c = static_cast<unsigned char>(first);
  return c < 0x80 ? 1 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
}

// ---- from a byte of a decoded string to its position in the file

struct Offset {
  std::size_t bytes = 0;  // in the source, from the scalar's first character
  bool known = false;     // else the start of the scalar is used
};

// The source bytes and decoded bytes of the escape at `at` (a backslash).
struct Escape {
  std::size_t source = 2, decoded = 1;
};

Escape escape_at(std::string_view source, std::size_t at) {
  const char c = at + 1 < source.size() ? source[at + 1] : '\0';
  const std::size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
  if (c == 'N' || c == '_') return {2, 2};
  if (c == 'L' || c == 'P') return {2, 3};
  if (digits == 0) return {};
  std::uint32_t code = 0;
  for (std::size_t i = at + 2; i < at + 2 + digits && i < source.size(); ++i) {
    const char d = source[i];
    code = code * 16 + static_cast<std::uint32_t>(d <= '9' ? d - '0' : (d | 0x20) - 'a' + 10);
  }
  if (code >= 0xD800 && code < 0xDC00) return {12, 4};  // JSON: the low surrogate follows
  return {2 + digits, code < 0x80 ? 1u : code < 0x800 ? 2u : code < 0x10000 ? 3u : 4u};
}

Offset inside_flow_scalar(std::string_view source, std::size_t inside) {
  const char quote = source[0] == '"' || source[0] == '\'' ? source[0] : '\0';
  std::size_t at = quote != '\0' ? 1 : 0;
  std::size_t decoded = 0;
  while (decoded < inside) {
    // Multi-line strings are folded: use the start of the string.
    if (at >= source.size() || source[at] == '\n' || source[at] == '\r') return {};
    if (quote == '"' && source[at] == '\\') {
      const Escape escape = escape_at(source, at);
      at += escape.source;
      decoded += escape.decoded;
    } else {
      at += quote == '\'' && source[at] == '\'' ? 2 : 1;
      ++decoded;
    }
  }
  return {.bytes = at, .known = true};
}

// A `|` string: line by line, without the indentation of its first non-empty line.
Offset inside_literal(std::string_view source, std::size_t inside) {
  std::size_t line = source.find('\n');
  if (line == source.npos) return {};
  ++line;
  std::size_t indent = 0;
  for (std::size_t at = line; at < source.size(); ++at) {
    if (source[at] == ' ') {
      ++indent;
    } else if (source[at] == '\n') {
      indent = 0;
    } else {
      break;
    }
  }
  for (std::size_t decoded = 0; line < source.size();) {
    const std::size_t end = std::min(source.find('\n', line), source.size());
    const std::size_t length = end - line > indent ? end - line - indent : 0;
    if (inside <= decoded + length) {
      return {.bytes = line + std::min(indent, end - line) + (inside - decoded), .known = true};
    }
    decoded += length + 1;
    line = end + 1;
  }
  return {};
}

std::size_t source_offset(std::string_view source, std::size_t inside) {
  constexpr std::size_t kExactOffsetMax = 64u << 10;  // beyond it, the start of the string is used
  if (inside == 0 || inside > kExactOffsetMax || source.empty()) return 0;
  if (source[0] == '>') return 0;
  const Offset found =
      source[0] == '|' ? inside_literal(source, inside) : inside_flow_scalar(source, inside);
  return found.known && found.bytes < source.size() ? found.bytes : 0;
}

// Walks the text once, forward.
class LineCursor {
 public:
  explicit LineCursor(std::string_view text) : text_(text) {}

  // REQUIRES: not before the current position.
  void go_to(std::size_t character) {
    while (character_ < character && at_ < text_.size()) step();
  }
  void go_to_byte(std::size_t byte) {
    while (at_ < byte && at_ < text_.size()) step();
  }
  std::string_view rest() const { return text_.substr(at_); }
  std::size_t at() const { return at_; }
  std::size_t line() const { return line_; }
  std::size_t column() const { return column_; }

 private:
  void step() {
    const char c = text_[at_];
    const bool crlf = c == '\r' && at_ + 1 < text_.size() && text_[at_ + 1] == '\n';
    at_ += std::min(character_length(c), text_.size() - at_);
    ++character_;
    if (c == '\n' || (c == '\r' && !crlf)) {
      ++line_;
      column_ = 1;
    } else {
      ++column_;
    }
  }

  std::string_view text_;
  std::size_t at_ = 0, character_ = 0, line_ = 1, column_ = 1;
};

// Lower case, `-` as `_`: differences that do not count.
std::string folded(std::string_view text) {
  std::string out(text.substr(0, 128));
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c | 0x20);
    if (c == '-') c = '_';
  }
  return out;
}

// Insertions, deletions, replacements and swaps of neighbours between two short texts.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  std::iota(last.begin(), last.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] =
          std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] == b[j - 1] ? 0u : 1u)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
    before.swap(last);
    last.swap(row);
  }
  return last[b.size()];
}

Value text_or_null(const std::string& text) { return text.empty() ? Value() : Value(text); }
Value number_or_null(std::size_t number) {
  return number == 0 ? Value() : Value(static_cast<std::uint64_t>(number));
}

}  // namespace

void Diagnostics::add(SourceLocation at, Details details) {
  if (full()) return;
  if (found_.size() + 1 == kDiagnosticsMax) {
    details = {.path = {}, .message = "too many errors; the first 1,000 are shown"};
  }
  found_.push_back({at, std::move(details)});
}

std::vector<Diagnostic> Diagnostics::finish(std::string_view file, std::string_view text) {
  std::ranges::stable_sort(found_, {}, [](const Found& f) { return f.at.character; });
  std::vector<Diagnostic> diagnostics;
  diagnostics.reserve(found_.size());
  LineCursor lines(text);
  for (Found& found : found_) {
    lines.go_to(found.at.character);
    LineCursor inside = lines;
    inside.go_to_byte(lines.at() + source_offset(lines.rest(), found.at.inside));
    diagnostics.push_back({.code = found.details.code,
                           .message = std::move(found.details.message),
                           .file = std::string(file),
                           .line = inside.line(),
                           .column = inside.column(),
                           .path = std::move(found.details.path),
                           .suggestion = std::move(found.details.suggestion)});
  }
  std::ranges::stable_sort(diagnostics, {},
                           [](const Diagnostic& f) { return std::pair(f.line, f.column); });
  return diagnostics;
}

ClosestName::ClosestName(std::string_view misspelt)
    : wanted_(folded(misspelt)), distance_(std::max<std::size_t>(wanted_.size() / 3, 1) + 1) {}

void ClosestName::consider(std::string_view known) {
  const std::string other = folded(known);
  const std::size_t length_difference =
      std::max(wanted_.size(), other.size()) - std::min(wanted_.size(), other.size());
  if (length_difference >= distance_) return;
  const std::size_t distance = edit_distance(wanted_, other);
  if (distance >= distance_ || distance >= other.size()) return;
  distance_ = distance;
  best_ = known;
}

std::string quote(std::string_view text) {
  constexpr std::size_t kMost = 80;
  std::size_t end = std::min(text.size(), kMost);
  while (end < text.size() && end > 0 && !is_character_start(text[end])) --end;
  std::string out;
  write_canonical_string(text.substr(0, end), out);
  out = fmt::format("`{}{}`", std::string_view(out).substr(1, out.size() - 2),
                    end < text.size() ? "…" : "");
  // JSON does not escape these; a terminal would interpret them.
  for (std::size_t at = 0; (at = out.find('\x7f', at)) != out.npos;) out.replace(at, 1, "\\u007f");
  for (std::size_t at = 0; (at = out.find('\xc2', at)) != out.npos; ++at) {
    if (at + 1 < out.size() && static_cast<unsigned char>(out[at + 1]) < 0xA0) {
      out.replace(at, 2, "\\u0080");
    }
  }
  return out;
}

std::string quote_first_names(const std::vector<std::string>& names) {
  constexpr std::size_t kShown = 5;
  std::string text;
  for (std::size_t i = 0; i < names.size() && i < kShown; ++i) {
    text += (i == 0 ? "" : ", ") + quote(names[i]);
  }
  return text + (names.size() > kShown ? ", …" : "");
}

std::string join_names(std::span<const std::string_view> names) {
  std::string out;
  for (const std::string_view word : names) {
    if (!out.empty()) out += ", ";
    out += word;
  }
  return out;
}

Value diagnostics_json(const std::vector<Diagnostic>& diagnostics) {
  std::vector<Value> list;
  list.reserve(diagnostics.size());
  for (const Diagnostic& diagnostic : diagnostics) {
    list.push_back(Value::object({{field::code, code_name(diagnostic.code)},
                                  {"message", diagnostic.message},
                                  {"file", diagnostic.file},
                                  {"line", number_or_null(diagnostic.line)},
                                  {"column", number_or_null(diagnostic.column)},
                                  {"path", diagnostic.path},
                                  {"suggestion", text_or_null(diagnostic.suggestion)}}));
  }
  return Value::object({{"ok", diagnostics.empty()}, {"faults", Value::array(std::move(list))}});
}

std::string diagnostics_text(const std::vector<Diagnostic>& diagnostics) {
  std::string out;
  for (const Diagnostic& diagnostic : diagnostics) {
    const std::string path = diagnostic.path.empty() ? "" : diagnostic.path + ": ";
    const std::string hint = diagnostic.suggestion.empty()
                                 ? ""
                                 : fmt::format(" (did you mean {}?)", diagnostic.suggestion);
    out += fmt::format("{}:{}:{}: {}{}{}\n", diagnostic.file, diagnostic.line, diagnostic.column,
                       path, diagnostic.message, hint);
  }
  return out;
}

}  // namespace ae::agents
