#include "app/server_lock.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>
#include <utility>

#include "base/counted.h"
#include "json/json.h"
#include "mcp/client/listing.h"
#include "mcp/client/server.h"
#include "mcp/client/tool_diff.h"
#include "net/asio_loop.h"
#include "net/http_client.h"
#include "tools/command/stdio_processes.h"

namespace ae::app {
namespace {

using mcp::client::Session;

// An error about the lock file of these agents.
std::unexpected<Error> invalid_lock_error(const std::string& agents_path, const std::string& what) {
  return fail(Code::plan_invalid,
              Action{.act = act::kAcceptTools, .arguments = {{"file", agents_path}}},
              "{}: {}; restore the file, or remove it and check what is pinned then",
              lock_path_of(agents_path), what);
}

Result<Value> validate_tools(const std::string& agents_path, const std::string& server,
                             const Value& tools) {
  if (!tools.is_array() || tools.size() > mcp::client::kToolsMax) {
    return invalid_lock_error(agents_path, fmt::format("the tools of {} are not a list", server));
  }
  std::string_view before;
  for (const Value& tool : tools.items()) {
    const std::string_view name = tool.text("name");
    if (!mcp::client::is_valid_tool_name(name) || name <= before ||
        !tool["inputSchema"].is_object()) {
      return invalid_lock_error(agents_path,
                                fmt::format("a tool of {} is invalid, or not in order", server));
    }
    if (tool.text("digest") != mcp::client::digest_of(tool)) {
      return invalid_lock_error(
          agents_path,
          fmt::format("the digest of {}.{} does not match its definition", server, name));
    }
    before = name;
  }
  return tools;
}

// Blocks until the server has listed all tools, then disconnects.
Result<Session::ToolList> listing(const Value& connection, const std::string& folder) {
  const char* secrets_file = std::getenv("AETHERIS_SECRETS_FILE");
  net::AsioLoop loop;
  tools::EnvironmentSecrets secrets(secrets_file != nullptr ? secrets_file : "");
  net::HttpClient client(loop);
  tools::Processes processes(loop);
  tools::SupervisedStdioProcesses stdio_processes(processes, secrets);
  const auto server = mcp::client::Server::make(connection, folder,
                                                {.loop = loop,
                                                 .stdio_processes = stdio_processes,
                                                 .client = client,
                                                 .secrets = secrets,
                                                 .version = std::string(kVersion)});
  std::optional<Result<Session::ToolList>> listed;
  server->list([&](Result<Session::ToolList> answer) {
    listed.emplace(std::move(answer));
    loop.stop();
  });
  loop.run();
  server->close();
  return *std::move(listed);
}

// The differences to the pinned tools: "read_file changed, old_one gone, new_one new"
std::string difference_text(const Value& before, const Value& now) {
  std::map<std::string, std::string> was, words;
  for (const Value& tool : before.items()) {
    was[std::string(tool.text("name"))] = tool.text("digest");
    words[std::string(tool.text("name"))] = "gone";
  }
  for (const Value& tool : now.items()) {
    const std::string name(tool.text("name"));
    const auto found = was.find(name);
    words[name] = found == was.end()                     ? "new"
                  : found->second == tool.text("digest") ? ""
                                                         : "changed";
  }
  std::string text;
  for (const auto& [name, word] : words) {
    if (word.empty()) continue;
    if (!text.empty()) text += ", ";
    text += fmt::format("{} {}", name, word);
  }
  return text.empty() ? "nothing has changed" : text;
}

}  // namespace

std::string lock_path_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  const std::size_t begin = slash == path.npos ? 0 : slash + 1;
  const std::size_t dot = path.rfind('.');
  return path.substr(0, dot == path.npos || dot <= begin ? path.size() : dot) + ".lock.json";
}

Result<ServerLock> ServerLock::read(const std::string& agents_path) {
  ServerLock lock;
  lock.agents_path_ = agents_path;
  lock.path_ = lock_path_of(agents_path);
  errno = 0;
  std::ifstream file(lock.path_, std::ios::binary);
  if (!file) {
    if (errno == ENOENT || errno == ENOTDIR) return lock;
    return fail(Code::usage, "cannot read {}: {}", lock.path_, std::strerror(errno));
  }
  std::string text;
  char buffer[65536];
  while (text.size() <= kLockMax && (file.read(buffer, sizeof buffer), file.gcount() > 0)) {
    text.append(buffer, static_cast<std::size_t>(file.gcount()));
  }
  if (text.size() > kLockMax) return invalid_lock_error(agents_path, "it has more than 64 MiB");
  lock.content_ = sha256(text);
  const auto value = parse_json(text, {.depth_max = 128});
  if (!value) return invalid_lock_error(agents_path, value.error().message);
  if ((*value)["lock"] != Value(1)) {
    return fail(Code::plan_invalid, "{}: this version reads lock files of version 1", lock.path_);
  }
  if (!(*value)["servers"].is_object()) return invalid_lock_error(agents_path, "it has no servers");
  for (const auto& [name, server] : (*value)["servers"].members()) {
    AE_ASSIGN(Value tools, validate_tools(agents_path, name, server["tools"]));
    lock.servers_.emplace(name, std::move(tools));
  }
  return lock;
}

Result<Value> ServerLock::tools_of(std::string_view server, const Value& connection,
                                   const std::string& folder, ServerListing pin_mode) {
  const auto known = servers_.find(server);
  if (known != servers_.end() && pin_mode == ServerListing::if_unpinned) return known->second;
  if (pin_mode == ServerListing::never) {
    if (known != servers_.end()) return known->second;
    return fail(Code::unavailable,
                Action{.act = act::kPinTools, .arguments = {{"file", agents_path_}}},
                "its tools are not pinned yet");
  }
  auto listed = listing(connection, folder);
  if (!listed) {
    return std::unexpected(
        std::move(listed).error().with_context("listing the tools of the server"));
  }
  std::vector<Value> tools;
  for (auto& [name, tool] : listed->tools) tools.push_back(std::move(tool));
  Value now = Value::array(std::move(tools));
  const bool compares_only = pin_mode == ServerListing::to_compare;
  const Value before = known == servers_.end() ? Value::array({}) : known->second;
  std::string line =
      known == servers_.end()
          ? fmt::format("{}: {} of this MCP server {} in {}", server, counted(now.size(), "tool"),
                        compares_only ? "to be pinned" : "pinned", path_)
          : fmt::format("{}: {} ({})", server, difference_text(before, now), path_);
  if (compares_only) line += ", nothing was pinned";
  if (listed->rejected > 0)
    line += fmt::format("; {} with a name or a shape that is not offered left out",
                        counted(listed->rejected, "tool"));
  notices_.push_back(std::move(line));
  if (compares_only || known != servers_.end()) {
    for (const std::string& one : mcp::client::diff_tools(before, now)) {
      notices_.push_back(fmt::format("  {}.{}", server, one));
    }
  }
  if (compares_only) return known == servers_.end() ? now : before;
  servers_.insert_or_assign(std::string(server), now);
  changed_ = true;
  return now;
}

Status ServerLock::write() {
  if (!std::exchange(changed_, false)) return {};
  std::vector<Member> servers;
  servers.reserve(servers_.size());
  for (const auto& [name, tools] : servers_) {
    servers.emplace_back(name, Value::object({{"tools", tools}}));
  }
  const std::string text =
      pretty(Value::object({{"lock", 1}, {"servers", Value::object(std::move(servers))}})) + "\n";
  const std::string other = fmt::format("{}.{}.tmp", path_, ::getpid());
  const auto failed = [&] {
    const std::string why = std::strerror(errno);
    ::unlink(other.c_str());
    return fail(Code::unavailable, Action{.act = act::kAcceptTools},
                "cannot write {}: {}; create it elsewhere, and put it next to the agents file",
                path_, why);
  };
  const int file = ::open(other.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0) return failed();
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t size = ::write(file, text.data() + done, text.size() - done);
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) break;
    done += static_cast<std::size_t>(size);
  }
  const bool whole = done == text.size() && ::fsync(file) == 0;
  ::close(file);
  if (!whole || std::rename(other.c_str(), path_.c_str()) != 0) return failed();
  content_ = sha256(text);
  return {};
}

}  // namespace ae::app
