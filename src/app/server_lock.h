// ServerLock: what is pinned of the tools of MCP servers, in a file beside the agents file.
//
// The tools of a server are part of a plan, so they must not depend on how the server feels when a process starts. The
// first use asks the server and writes down what it says; from then on the file decides, and a server that says something
// else is not called for that tool until a person has accepted it.
// Stored: agents.lock.json (of agents.yaml): {lock: 1, servers: {NAME: {tools: [tools/mcp/listing.h …]}}}.
// Threads: one owner; asking a server blocks.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "app/site.h"
#include "core/error.h"
#include "core/value.h"

namespace ae::app {

constexpr std::size_t kLockMax = 64u << 20;  // bytes of the file

// agents.yaml → agents.lock.json
std::string lock_path_of(const std::string& agents_path);

class ServerLock {
 public:
  // No file is an empty one. Fails with plan_invalid (it says what to do), usage (it cannot be read).
  static Result<ServerLock> read(const std::string& agents_path);

  // As pinned. Asks the server when it is not, or when it is to be looked at or accepted what it says now, and says what
  // differs. Fails with unavailable, secret_missing, forbidden, plan_invalid.
  Result<Value> tools_of(std::string_view server, const Value& connection,
                         const std::string& folder, AskServers ask);
  // What was asked for, whole or not at all. Nothing when nothing was. Fails with unavailable.
  Status write();
  // What was pinned, or would be, for people.
  const std::vector<std::string>& said() const { return said_; }
  // Of the file, as it was read or written last; Hash() when there is none.
  const Hash& content() const { return content_; }

 private:
  std::string path_, agents_path_;
  std::map<std::string, Value, std::less<>> servers_;  // [tool…]
  std::vector<std::string> said_;
  bool changed_ = false;
  Hash content_;
};

}  // namespace ae::app
