// ServerLock: the pinned tools of MCP servers, in a file beside the agents file.
//
// The tools of a server are part of a plan, so a plan must not depend on what the server lists at a
// start. The first use lists them and pins the result. After that the file is authoritative: a tool
// that the server lists differently is not called until an operator accepts the change.
// Stored: agents.lock.json (of agents.yaml): {lock: 1, servers: {NAME: {tools:
// [mcp/client/listing.h …]}}}. Threads: one owner; listing a server blocks.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "app/instance.h"
#include "base/error.h"
#include "json/value.h"

namespace ae::app {

constexpr std::size_t kLockMax = 64u << 20;  // bytes of the file

// agents.yaml → agents.lock.json
std::string lock_path_of(const std::string& agents_path);

class ServerLock {
 public:
  // A missing file is an empty one. Fails with plan_invalid (the message has the remedy), usage (it
  // cannot be read).
  static Result<ServerLock> read(const std::string& agents_path);

  // The pinned tools. Lists the server if they are not pinned, or if `listing` asks to compare or
  // pin them, and adds the differences to the notices. Fails with unavailable, secret_missing,
  // forbidden, plan_invalid.
  Result<Value> tools_of(std::string_view server, const Value& connection,
                         const std::string& folder, ServerListing pin_mode);
  // Writes new pins atomically; a no-op if there are none. Fails with unavailable.
  Status write();
  // For the user: what was pinned, or would be.
  const std::vector<std::string>& notices() const { return notices_; }
  // The hash of the file as last read or written; Hash() if it does not exist.
  const Hash& content() const { return content_; }

 private:
  std::string path_, agents_path_;
  std::map<std::string, Value, std::less<>> servers_;  // [tool…]
  std::vector<std::string> notices_;
  bool changed_ = false;
  Hash content_;
};

}  // namespace ae::app
