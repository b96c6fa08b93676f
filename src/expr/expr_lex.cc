// The lexer of the expression language.
#include "expr/expr_lex.h"

#include <fmt/core.h>

#include <cstdint>

#include "base/utf8.h"

namespace ae::expr {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name_start(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_name(char c) { return is_name_start(c) || is_digit(c); }

int hex_digit(char c) {
  if (is_digit(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// Longest first.
constexpr std::string_view kSigns[] = {
    "//=", "..", "//", "==", "!=", "<=", ">=", "|=", "+=", "-=", "*=", "/=", "%=", "(", ")", "[",
    "]",   "{",  "}",  "|",  ",",  ":",  ";",  "?",  "+",  "-",  "*",  "/",  "%",  "<", ">", "="};

}  // namespace

std::string position(std::string_view source, std::size_t offset) {
  std::size_t line = 1;
  std::size_t column = 1;
  for (std::size_t i = 0; i < offset && i < source.size(); ++i) {
    if (source[i] == '\n') {
      ++line;
      column = 1;
    } else if ((static_cast<unsigned char>(source[i]) & 0xC0) != 0x80) {
      ++column;
    }
  }
  return fmt::format("line {}, column {}", line, column);
}

void Lexer::skip_blanks() {
  while (at_ < source_.size()) {
    const char c = source_[at_];
    if (c == '#') {
      while (at_ < source_.size() && source_[at_] != '\n') ++at_;
    } else if (c == ' ' || c == '\t' || c == '\n' || c == '\r') {
      ++at_;
    } else {
      return;
    }
  }
}

Token Lexer::token(Tok kind, std::size_t at, std::string_view text) const {
  return {.kind = kind, .at = at, .after = at_, .text = text};
}

Token Lexer::next() {
  skip_blanks();
  const std::size_t start = at_;
  const auto peek = [&](std::size_t k) {
    return at_ + k < source_.size() ? source_[at_ + k] : '\0';
  };
  const auto name = [&](Tok kind, std::size_t skip) {
    at_ += skip;
    const std::size_t from = at_;
    while (at_ < source_.size() && is_name(source_[at_])) ++at_;
    return token(kind, start, source_.substr(from, at_ - from));
  };
  if (at_ == source_.size()) return token(Tok::end, start, {});
  const char c = peek(0);
  if (is_name_start(c)) return name(Tok::name, 0);
  if (c == '.' && is_name_start(peek(1))) return name(Tok::field, 1);
  if (c == '$' && is_name_start(peek(1))) return name(Tok::variable, 1);
  if (c == '@' && is_name_start(peek(1))) return name(Tok::format, 1);
  if (c == '"') {
    ++at_;
    return token(Tok::quote, start, source_.substr(start, 1));
  }
  if (is_digit(c) || (c == '.' && is_digit(peek(1)))) {
    while (is_digit(peek(0))) ++at_;
    if (peek(0) == '.' && peek(1) != '.') ++at_;
    while (is_digit(peek(0))) ++at_;
    const std::size_t sign = peek(1) == '+' || peek(1) == '-' ? 1 : 0;
    if ((peek(0) == 'e' || peek(0) == 'E') && is_digit(peek(1 + sign))) {
      at_ += 1 + sign;
      while (is_digit(peek(0))) ++at_;
    }
    return token(Tok::number, start, source_.substr(start, at_ - start));
  }
  for (const std::string_view s : kSigns) {
    if (source_.substr(at_).starts_with(s)) {
      at_ += s.size();
      return token(Tok::sign, start, s);
    }
  }
  if (c == '.') {
    ++at_;
    return token(Tok::dot, start, source_.substr(start, 1));
  }
  if (c == '\'') return token(Tok::bad, start, "strings need double quotes");
  if (c == '$') return token(Tok::bad, start, "`$` begins the name of a variable, as in `$x`");
  if (c == '&') return token(Tok::bad, start, "write `and` as a word");
  if (c == '!') return token(Tok::bad, start, "`not` is a function: `… | not`");
  return token(Tok::bad, start, "unexpected character");
}

Lexer::TextEnd Lexer::read_text(std::string& out, LexError& fault) {
  while (at_ < source_.size()) {
    const char c = source_[at_];
    if (c == '"') {
      ++at_;
      return TextEnd::closed;
    }
    if (c != '\\') {
      out += c;
      ++at_;
      continue;
    }
    if (at_ + 1 < source_.size() && source_[at_ + 1] == '(') {
      at_ += 2;
      return TextEnd::interpolation;
    }
    if (!escape(out, fault)) return TextEnd::bad;
  }
  fault = {.at = at_, .what = "the string is not closed: a \" is missing"};
  return TextEnd::bad;
}

// REQUIRES: a backslash at `at_`.
bool Lexer::escape(std::string& out, LexError& fault) {
  const char c = at_ + 1 < source_.size() ? source_[at_ + 1] : '\0';
  if (c == 'u') return unicode_escape(out, fault);
  constexpr std::string_view kLetters = "nrtbf\"\\/";
  constexpr std::string_view kMeaning = "\n\r\t\b\f\"\\/";
  const std::size_t i = c == '\0' ? kLetters.npos : kLetters.find(c);
  if (i == kLetters.npos) {
    fault = {.at = at_,
             .what = "not an escape; these are: \\n \\r \\t \\b \\f \\\" \\\\ \\/ \\uXXXX \\( )"};
    return false;
  }
  out += kMeaning[i];
  at_ += 2;
  return true;
}

bool Lexer::unicode_escape(std::string& out, LexError& fault) {
  const auto unit = [&](std::size_t from) -> std::int32_t {
    if (from + 6 > source_.size() || source_.substr(from, 2) != "\\u") return -1;
    std::int32_t value = 0;
    for (std::size_t i = from + 2; i < from + 6; ++i) {
      const int digit = hex_digit(source_[i]);
      if (digit < 0) return -1;
      value = value * 16 + digit;
    }
    return value;
  };
  const std::int32_t high = unit(at_);
  if (high < 0) {
    fault = {.at = at_, .what = "\\u needs four hexadecimal digits"};
    return false;
  }
  if (high < 0xD800 || high > 0xDFFF) {
    append_utf8(static_cast<std::uint32_t>(high), out);
    at_ += 6;
    return true;
  }
  const std::int32_t low = high < 0xDC00 ? unit(at_ + 6) : -1;
  if (low < 0xDC00 || low > 0xDFFF) {
    fault = {.at = at_, .what = "half of a surrogate pair is not a character"};
    return false;
  }
  append_utf8(static_cast<std::uint32_t>(0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00)), out);
  at_ += 12;
  return true;
}

std::size_t expression_end(std::string_view text, std::size_t from) {
  // The open constructs: '{' a brace, '"' a quoted text, '(' an interpolation or parenthesis.
  std::string open;
  for (std::size_t i = from; i < text.size(); ++i) {
    const char c = text[i];
    if (!open.empty() && open.back() == '"') {
      if (c == '"') open.pop_back();
      if (c == '\\' && ++i < text.size() && text[i] == '(') open += '(';
      continue;
    }
    if (c == '"' || c == '{' || c == '(') open += c;
    if (c == '#') {
      while (i + 1 < text.size() && text[i + 1] != '\n') ++i;
    }
    if (c == ')' && !open.empty() && open.back() == '(') open.pop_back();
    if (c == '}') {
      while (!open.empty() && open.back() == '(') open.pop_back();  // the parser reports it
      if (open.empty()) return i;
      if (open.back() == '{') open.pop_back();
    }
  }
  return text.npos;
}

}  // namespace ae::expr
