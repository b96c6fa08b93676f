// escape_hidden: text from jobs, with every character escaped that is invisible to a reader or
// interpreted by a terminal.
//
// Approvers decide by what the screen shows, so nothing in it may be hidden: control characters,
// direction marks, format characters (Unicode Cf), line and paragraph separators (Zl, Zp), and
// characters that are ignored or blank when displayed (Default_Ignorable_Code_Point, the braille
// blank). This includes the joiners and variation selectors of emoji, because data can be hidden in
// them.
// Threads: pure functions.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace ae {

struct CodePoint {
  char32_t point = 0;
  std::size_t bytes = 1;
};
// Each byte that is not UTF-8 counts as one U+FFFD. REQUIRES: the text is not empty.
CodePoint first_code_point(std::string_view text);

bool is_hidden(char32_t point);

// For display: \xNN below U+0080, \u{200B} above; \n and \t for newline and tab, unless
// `keep_lines`.
std::string escape_hidden(std::string_view text, bool keep_lines = false);
// For JSON text, as JSON escapes (\u200b): it parses to the same value.
std::string escape_hidden_json(std::string_view json);

}  // namespace ae
