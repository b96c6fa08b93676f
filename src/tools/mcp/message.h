// Message: JSON-RPC 2.0, as MCP uses it in all revisions. Threads: values, pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "json/value.h"

namespace ae::tools::mcp {

constexpr std::size_t kMessageMax = 4u << 20;  // bytes per message, in both directions
constexpr std::size_t kBatchMax = 1'000;       // messages per batch (revision 2025-03-26)

struct Message {
  enum class Kind : std::uint8_t { request, notification, result, error };
  Kind kind = Kind::notification;
  Value id;            // of a request and its response; null: an error without id
  std::string method;  // of a request or notification
  Value body;          // params, result, or an error's data
  std::int64_t code = 0;
  std::string text;  // of an error
  // Our request on whose stream it arrived; 0: a stream shared by all requests.
  std::int64_t stream = 0;
};

// Parses one message or a batch. Fails with input_invalid or payload_too_large.
Result<std::vector<Message>> read_messages(std::string_view text);

// For JSON that is not a valid message: the ids of the requests that it seems to answer.
std::vector<std::int64_t> extract_response_ids(std::string_view text);

// The error text for an unreadable answer, with its first bytes. REQUIRES: `text` is scrubbed.
std::string describe_unreadable(const Error& error, std::string_view text);

Value request(std::int64_t id, std::string_view method, Value params);
Value notification(std::string_view method, Value params);
Value make_response(const Value& id, Value result);
Value make_error_response(const Value& id, std::int64_t code, std::string_view text);

// Codes with special handling.
constexpr std::int64_t kMethodNotFound = -32601;
constexpr std::int64_t kInvalidParams = -32602;
constexpr std::int64_t kHeaderMismatch = -32020;
constexpr std::int64_t kMissingCapability = -32021;
constexpr std::int64_t kUnsupportedVersion = -32022;

}  // namespace ae::tools::mcp
