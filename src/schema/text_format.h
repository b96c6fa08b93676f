// Text formats: the JSON Schema formats (`format`) that are enforced where users fill in forms.
// Elsewhere a format is an annotation, as in JSON Schema. Threads: pure functions.
#pragma once

#include <string_view>

namespace ae {

// A description of the format: "an email address". Empty for a format that is not enforced. The
// four of MCP's questions are enforced: email, uri, date and date-time.
std::string_view describe_format(std::string_view format);
// True if the text has the format, or the format is not enforced.
bool matches_format(std::string_view format, std::string_view text);

}  // namespace ae
