// Message: JSON-RPC 2.0 as MCP uses it; parsing and construction.
//
// A request has an id, which is a string or an integer; a notification has none; a response has a
// result or an error. Anything else is rejected with the matching JSON-RPC error, and with the id
// if one could be read. Messages of servers are read leniently, because an unreadable response ends
// a call whose outcome is then unknown. Threads: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <expected>
#include <string>
#include <string_view>

#include "json/value.h"

namespace ae::mcp {

constexpr std::size_t kMessageMax = 4u << 20;   // bytes
constexpr std::size_t kDepthMax = 64;           // nesting depth of the JSON
constexpr std::size_t kBatchMax = 100;          // messages per batch of a client
constexpr std::size_t kServerBatchMax = 1'000;  // … of a server

// Codes of JSON-RPC, and those that MCP adds.
constexpr int kParseError = -32700;
constexpr int kInvalidRequest = -32600;
constexpr int kMethodNotFound = -32601;
constexpr int kInvalidParams = -32602;
constexpr int kInternalError = -32603;
constexpr int kResourceNotFound = -32002;    // legacy only; later kInvalidParams
constexpr int kHeaderMismatch = -32020;      // modern, over HTTP
constexpr int kMissingCapability = -32021;   // modern; data.requiredCapabilities
constexpr int kUnsupportedVersion = -32022;  // data.supported, data.requested

struct RpcError {
  int code = kInternalError;
  std::string message;
  Value data = {};  // null: none
  Value id = {};    // of the request; null: unknown
};

struct Message {
  enum class Kind { request, notification, response } kind = Kind::request;
  Value id = {};            // of a request or response
  std::string method = {};  // of a request or notification
  Value params = {};        // an object; null: none; of a server: any value
  Value result = {};        // of a response without `error`
  Value error = {};         // of a response; null: it has a result
};

// Who sent a message. A message of a server may also have: `id: null` in a notification or a
// response, `params` of any type, an `error` without an integer code, `error: null` beside a
// result, and integers beyond ±(2^53−1), which become strings: schemas contain them, and they are
// not used for arithmetic.
enum class Sender : std::uint8_t { client, server };

// Parses at most kMessageMax bytes as JSON. Fails with kParseError.
std::expected<Value, RpcError> parse_message(std::string_view text, Sender sender = Sender::client);
// Reads one message from a value that is not an array. Fails with kInvalidRequest, kInvalidParams
// (params of a client is not an object).
std::expected<Message, RpcError> read_message(const Value& value, Sender sender = Sender::client);

// The beginning of a text, for error messages: at most 80 bytes of whole characters; if the text is
// not UTF-8, non-ASCII bytes become '?'.
std::string clip_text(std::string_view text);

Value request(const Value& id, std::string_view method, const Value& params);
Value notification(std::string_view method, const Value& params);
Value response(const Value& id, const Value& result);
// Without an id if it is unknown, as MCP requires.
Value error_response(const RpcError& error);

}  // namespace ae::mcp
