// RequestHeaders: the HTTP headers that mirror an MCP message, so that proxies need not parse the
// body.
//
// A modern request repeats its revision, its method and the name of its target. The receiver must
// compare them with the body; otherwise a request could pass a proxy as a different one. Threads:
// pure functions.
#pragma once

#include <expected>
#include <optional>
#include <string>

#include "mcp/protocol/message.h"

namespace ae::mcp {

// As received; nullopt: absent. A duplicated header has no trustworthy value: `is_duplicated`.
struct RequestHeaders {
  std::optional<std::string> version = {};  // MCP-Protocol-Version
  std::optional<std::string> method = {};   // Mcp-Method
  std::optional<std::string> name = {};     // Mcp-Name
  bool is_duplicated = false;
};

// For a modern request. Fails with kHeaderMismatch.
std::expected<void, RpcError> check_headers(const RequestHeaders& headers, const Message& request);

}  // namespace ae::mcp
