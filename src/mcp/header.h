// Header: what a message says of itself in HTTP headers, so that who stands between need not read the body.
//
// A modern request mirrors its revision, its method and the name of what it is about; who reads the body must hold the two
// against each other, or a request could be let through as another one than it is. Threads: pure functions.
#pragma once

#include <expected>
#include <optional>
#include <string>
#include <string_view>

#include "mcp/message.h"

namespace ae::mcp {

// As they came; nullopt = not there. A header that stands twice has no value that could be believed: `is_duplicated`.
struct Headers {
  std::optional<std::string> version = {};  // MCP-Protocol-Version
  std::optional<std::string> method = {};   // Mcp-Method
  std::optional<std::string> name = {};     // Mcp-Name
  bool is_duplicated = false;
};

// A text as a header's value: as it is, or as =?base64?…?= when it is not plain ASCII or looks like that itself.
std::string encode_header_value(std::string_view text);
// And back. nullopt: characters that no header has, or base64 that is none.
std::optional<std::string> decode_header_value(std::string_view value);

// What Mcp-Name says of a request with this method and these params; nullopt = it has no such header.
std::optional<std::string> mcp_name_of(std::string_view method, const Value& params);

// Of a modern request. Fails with kHeaderMismatch.
std::expected<void, RpcError> check_headers(const Headers& headers, const Message& request);

}  // namespace ae::mcp
