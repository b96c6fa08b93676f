// Messages of JSON-RPC 2.0, as MCP speaks it in all its revisions.
// Threads: values, pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "json/value.h"

namespace ae::tools::mcp {

constexpr std::size_t kMessageMax = 4u << 20;  // bytes of one message, either way
constexpr std::size_t kBatchMax = 1'000;       // messages in one batch (revision 2025-03-26)

struct Message {
  enum class Kind : std::uint8_t { request, notification, result, error };
  Kind kind = Kind::notification;
  Value id;            // of a request and of what answers one; null: an error that cannot say
  std::string method;  // of a request or notification
  Value body;          // params, result, or an error's data
  std::int64_t code = 0;
  std::string text;  // of an error
  // The request of ours on whose own stream it came; 0: it came on one that is for all.
  std::int64_t stream = 0;
};

// One message, or a batch of them. Fails with input_invalid or payload_too_large.
Result<std::vector<Message>> read_messages(std::string_view text);

// Of a text that is no message, although it is JSON: the ids of what it seems to answer.
std::vector<std::int64_t> extract_response_ids(std::string_view text);

// Why a text that came instead of an answer could not be read, with the beginning of it. REQUIRES: no secret is in `text`.
std::string describe_unreadable(const Error& error, std::string_view text);

Value request(std::int64_t id, std::string_view method, Value params);
Value notification(std::string_view method, Value params);
Value make_response(const Value& id, Value result);
Value make_error_response(const Value& id, std::int64_t code, std::string_view text);

// Codes that we act on.
constexpr std::int64_t kMethodNotFound = -32601;
constexpr std::int64_t kInvalidParams = -32602;
constexpr std::int64_t kHeaderMismatch = -32020;
constexpr std::int64_t kMissingCapability = -32021;
constexpr std::int64_t kUnsupportedVersion = -32022;

}  // namespace ae::tools::mcp
