// Message: JSON-RPC 2.0 as MCP uses it, from text and back.
//
// A request has an id, which is a text or a whole number; a notification has none; a response has a result or an error.
// What is none of these is refused with the error that JSON-RPC has for it, and with the id where one could be read.
// Threads: pure functions.
#pragma once

#include <cstddef>
#include <expected>
#include <string>
#include <string_view>

#include "json/value.h"

namespace ae::mcp {

constexpr std::size_t kMessageMax = 4u << 20;  // bytes
constexpr std::size_t kDepthMax = 64;          // of its JSON
constexpr std::size_t kBatchMax = 100;         // messages of one array

// JSON-RPC's, and those that MCP has added.
constexpr int kParseError = -32700;
constexpr int kInvalidRequest = -32600;
constexpr int kMethodNotFound = -32601;
constexpr int kInvalidParams = -32602;
constexpr int kInternalError = -32603;
constexpr int kResourceNotFound = -32002;    // legacy alone; since then kInvalidParams
constexpr int kHeaderMismatch = -32020;      // modern, over HTTP
constexpr int kMissingCapability = -32021;   // modern; data.requiredCapabilities
constexpr int kUnsupportedVersion = -32022;  // data.supported, data.requested

struct RpcError {
  int code = kInternalError;
  std::string message;
  Value data = {};  // null = none
  Value id = {};    // of what it answers, where that is known; null = it is not
};

struct Message {
  enum class Kind { request, notification, response } kind = Kind::request;
  Value id = {};            // of a request or response
  std::string method = {};  // of a request or notification
  Value params = {};        // an object; null = none
  Value result = {};        // of a response; null = it is an error
  Value error = {};         // … and then this
};

// Text of at most kMessageMax bytes as JSON. Fails with kParseError.
std::expected<Value, RpcError> parse_message(std::string_view text);
// One message, of a value that is no array. Fails with kInvalidRequest, kInvalidParams (params that are no object).
std::expected<Message, RpcError> read_message(const Value& value);

// The beginning of a text for a message to people: whole characters, 80 bytes of them; bytes that are no UTF-8 become '?'.
std::string clip_text(std::string_view text);

Value request(const Value& id, std::string_view method, const Value& params);
Value notification(std::string_view method, const Value& params);
Value response(const Value& id, const Value& result);
// Where no id is known it has none, as MCP wants it.
Value error_response(const RpcError& error);

}  // namespace ae::mcp
