// Lexer of the expression language: converts text to tokens, one at a time.
//
// A quoted text is read in pieces, because `\( … )` inside of it is an expression again: the parser
// calls `read_text` after a quote, and after the `)` of each interpolation.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace ae::expr {

enum class Tok {
  end,
  field,     // .name
  dot,       // .
  name,      // if, map, …
  variable,  // $name
  format,    // @name
  number,
  quote,  // "
  sign,   // ( ) [ ] { } | , : ; ? + - * / % // == != < <= > >= .. and the rejected = |= += …
  bad,    // `text` is the error message
};

struct Token {
  Tok kind = Tok::end;
  std::size_t at = 0;     // byte offset of its first character
  std::size_t after = 0;  // byte offset after its last character
  std::string_view text;  // the name without . $ @; the sign; the digits; the error message
};

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(source) {}

  Token next();

  enum class TextEnd { closed, interpolation, bad };
  // Appends the text up to the closing quote or the next `\(`, and moves past it. On `bad`, `fault`
  // has the reason and the position.
  struct LexError {
    std::size_t at = 0;
    std::string_view what;
  };
  TextEnd read_text(std::string& out, LexError& fault);

  std::string_view source() const { return source_; }

 private:
  void skip_blanks();
  Token token(Tok kind, std::size_t at, std::string_view text) const;
  bool escape(std::string& out, LexError& fault);
  bool unicode_escape(std::string& out, LexError& fault);

  std::string_view source_;
  std::size_t at_ = 0;
};

// "line 2, column 5" for a byte offset; columns count code points from 1.
std::string position(std::string_view source, std::size_t offset);

// The offset of the `}` that ends the expression starting at `from`, or npos. Ignores braces inside
// of quoted texts and comments.
std::size_t expression_end(std::string_view text, std::size_t from);

}  // namespace ae::expr
