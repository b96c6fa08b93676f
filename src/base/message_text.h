// Messages of errors and exceptions, as text that is safe to print (base/escape_hidden.h).
//
// Threads: pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ae {

// The lines of a message without trailing blanks and empty lines. Each is safe to print.
std::vector<std::string> message_lines(std::string_view message);
// The same as one text; `indent` precedes all lines but the first.
std::string message_text(std::string_view message, std::string_view indent = "  ");
// The first line, with " …" if there are more.
std::string first_line(std::string_view message);

}  // namespace ae
