// Listing: the tools of one server, as it lists them and as they are pinned.
//
// What a tool says of itself reaches models and decides what they send. So it is pinned: a digest over everything that
// is said stands in the lock file, and a tool that says something else is not called until a person has accepted it.
// Threads: pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "json/value.h"

namespace ae::tools::mcp {

constexpr std::size_t kToolsMax = 1'000;      // of one server
constexpr std::size_t kPagesMax = 1'000;      // of one listing
constexpr std::size_t kNameMax = 64;          // bytes of a tool's name that we offer
constexpr std::size_t kToolMax = 256u << 10;  // bytes of what one tool says of itself
constexpr std::size_t kMirrorDepthMax = 16;   // levels of an inputSchema that may name headers

// Can an agent call a tool of this name? Letters, digits, _ - and ., at most kNameMax.
bool is_valid_tool_name(std::string_view name);

// Can a call carry the headers in which an inputSchema wants arguments once more (`x-mcp-header`)? Each a header's name,
// of a text, an integer or a truth value, and none twice in whatever case. Over HTTP, in the new era, a tool that asks for
// others is no tool.
bool has_valid_header_mirrors(const Value& schema);

// Stored (agents.lock.json): {name, title?, description?, inputSchema, outputSchema?, annotations?, execution?, digest}, of what
// a server lists. `execution` is {taskSupport: required} or not there: how tools may be called that need no task is of no
// account. Fails with input_invalid: what is wrong with it.
Result<Value> pin_tool(const Value& listed);
// The digest alone: 64 hex digits of SHA-256 over the canonical members but `digest`.
std::string digest_of(const Value& pinned);

}  // namespace ae::tools::mcp
