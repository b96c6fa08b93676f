// Listing: the tools of one server, as listed and as pinned.
//
// Tool descriptions reach models and influence what they send, so they are pinned: the lock file
// holds a digest of each definition, and a tool whose definition differs is not called until an
// operator accepts it.
// Threads: pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "json/value.h"

namespace ae::mcp::client {

constexpr std::size_t kToolsMax = 1'000;      // per server
constexpr std::size_t kPagesMax = 1'000;      // per listing
constexpr std::size_t kNameMax = 64;          // bytes of a tool name
constexpr std::size_t kToolMax = 256u << 10;  // bytes of one tool's definition
constexpr std::size_t kMirrorDepthMax = 16;  // levels of an inputSchema searched for `x-mcp-header`

// Valid names have letters, digits, _ - and ., at most kNameMax.
bool is_valid_tool_name(std::string_view name);

// Whether calls can mirror arguments in headers as this inputSchema requires (`x-mcp-header`). Each
// must be a valid header name, of a string, integer or boolean, unique ignoring case. A tool of a
// modern HTTP server with other headers is rejected.
bool has_valid_header_mirrors(const Value& schema);

// Stored (agents.lock.json): {name, title?, description?, inputSchema, outputSchema?, annotations?,
// execution?, digest}, from a listed tool. `execution` is {taskSupport: required} or absent: with
// any other value the tool can be called without a task. Fails with input_invalid.
Result<Value> pin_tool(const Value& listed);
// The digest: 64 hex digits, SHA-256 over the canonical members except `digest`.
std::string digest_of(const Value& pinned);

}  // namespace ae::mcp::client
