// Visible: text from jobs, with each character escaped that a reader would not see, or that a terminal would obey.
//
// A person approves what the screen shows, so nothing of it may be hidden: control characters, marks that turn the direction
// of text, format characters (Unicode Cf), line and paragraph separators (Zl, Zp), and what is ignored or blank when it is
// shown (Default_Ignorable_Code_Point, the braille blank). Joiners and variation selectors of emoji are among them: data can
// be hidden in those. Threads: pure functions.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace ae {

struct CodePoint {
  char32_t point = 0;
  std::size_t bytes = 1;
};
// Bytes that are not UTF-8 are U+FFFD, one at a time. REQUIRES: the text is not empty.
CodePoint first_code_point(std::string_view text);

bool is_hidden(char32_t point);

// For people: \xNN below U+0080, \u{200B} above; \n and \t for a newline and a tab, which `keep_lines` leaves.
std::string escape_hidden(std::string_view text, bool keep_lines = false);
// For JSON text, in JSON's own way (\u200b): it parses to the same value.
std::string escape_hidden_json(std::string_view json);

}  // namespace ae
