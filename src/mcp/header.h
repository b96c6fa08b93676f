// Headers: the HTTP headers that mirror an MCP message, so that proxies need not parse the body.
//
// A modern request repeats its revision, its method and the name of its target. The receiver must
// compare them with the body; otherwise a request could pass a proxy as a different one. Threads:
// pure functions.
#pragma once

#include <expected>
#include <optional>
#include <string>
#include <string_view>

#include "mcp/message.h"

namespace ae::mcp {

// As received; nullopt: absent. A duplicated header has no trustworthy value: `is_duplicated`.
struct Headers {
  std::optional<std::string> version = {};  // MCP-Protocol-Version
  std::optional<std::string> method = {};   // Mcp-Method
  std::optional<std::string> name = {};     // Mcp-Name
  bool is_duplicated = false;
};

// Encodes a text as a header value: unchanged, or as =?base64?…?= if it is not plain ASCII or looks
// encoded itself.
std::string encode_header_value(std::string_view text);
// Decodes it. nullopt: characters that a header cannot have, or invalid base64.
std::optional<std::string> decode_header_value(std::string_view value);

// The value of Mcp-Name for a request with this method and params; nullopt: it has no such header.
std::optional<std::string> mcp_name_of(std::string_view method, const Value& params);

// For a modern request. Fails with kHeaderMismatch.
std::expected<void, RpcError> check_headers(const Headers& headers, const Message& request);

}  // namespace ae::mcp
