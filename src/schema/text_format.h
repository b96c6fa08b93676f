// Text formats: those of JSON Schema (`format`) that a text is held to where a person fills it in. Elsewhere a format is a
// remark, as JSON Schema has it. Threads: pure functions.
#pragma once

#include <string_view>

namespace ae {

// What a text of this format is, in words: "an email address". Empty: a format that nothing is held to; the four of MCP's
// questions are email, uri, date and date-time.
std::string_view describe_format(std::string_view format);
// Is it one? True for a format that nothing is held to.
bool matches_format(std::string_view format, std::string_view text);

}  // namespace ae
