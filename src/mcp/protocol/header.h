// Header values: how MCP writes a text as the value of an HTTP header. Threads: pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace ae::mcp {

// Encodes a text as a header value: unchanged, or as =?base64?…?= if it is empty, not plain ASCII,
// or looks encoded itself.
std::string encode_header_value(std::string_view text);
// Decodes it. nullopt: characters that a header cannot have, or invalid base64.
std::optional<std::string> decode_header_value(std::string_view value);

}  // namespace ae::mcp
