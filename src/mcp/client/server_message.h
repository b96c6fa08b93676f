// Messages of a server: reads them, and makes the reply to a request of a response.
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <expected>
#include <string>
#include <string_view>
#include <vector>

#include "mcp/client/transport.h"
#include "mcp/protocol/message.h"

namespace ae::mcp::client {

// Parses one message or a batch (revision 2025-03-26). Fails with kParseError, kInvalidRequest.
std::expected<std::vector<Message>, RpcError> read_messages(std::string_view text);

// For JSON that is not a valid message: the ids of the requests that it seems to answer.
std::vector<std::int64_t> extract_response_ids(std::string_view text);

// The error text for an unreadable answer, with its first bytes. REQUIRES: `text` is scrubbed.
std::string describe_unreadable(const RpcError& error, std::string_view text);

// REQUIRES: a response.
Reply to_reply(Message response);

}  // namespace ae::mcp::client
