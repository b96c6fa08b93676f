// Reads an agents file, with its policies, its lock and the agents of workers.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/command_line.h"
#include "app/code_command.h"
#include "app/instance.h"
#include "app/server_lock.h"
#include "app/toolbox.h"

namespace ae::app {
namespace {

Result<std::string> read_file(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return fail(Code::usage, "cannot read {}: {}", path, std::strerror(errno));
  std::string text;
  char buffer[65536];
  while (true) {
    const ssize_t size = ::read(file, buffer, sizeof buffer);
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) {
      const int error = errno;
      ::close(file);
      return fail(Code::usage, "cannot read {}: {}", path, std::strerror(error));
    }
    text.append(buffer, static_cast<std::size_t>(size));
    // The parser rejects a file that is too large; it need not be read completely.
    if (size == 0 || text.size() > (64u << 20)) break;
  }
  ::close(file);
  return text;
}

// The text of the file if there is none.
constexpr std::string_view kNoFile = R"({"aetheris": 1})";

agents::Source source_of(const LoadedAgents& loaded) {
  return {.name = loaded.path,
          .text = loaded.text,
          .env = [](std::string_view name) -> std::optional<std::string> {
            const char* value = std::getenv(std::string(name).c_str());
            return value ? std::optional<std::string>(value) : std::nullopt;
          },
          .native = has_native,
          .usable = {},
          .server_tools = [&loaded](std::string_view server, const Value&) -> Result<Value> {
            const auto found = loaded.server_tools.find(server);
            if (found != loaded.server_tools.end()) return found->second;
            return fail(Code::unavailable, "its tools were not listed when this file was read");
          },
          .code = loaded.code,
          .policies = &loaded.policies};
}

// A diagnostic is text: an error that becomes one has its command in the message.
template <class T>
Result<T> with_command(Result<T> result) {
  if (result) return result;
  return fail(result.error().code, api::message_with_command(result.error()));
}

}  // namespace

std::vector<agents::Diagnostic> read_agent(const LoadedAgents& loaded, std::string_view name,
                                           std::string_view json, agents::Agent& out) {
  std::vector<agents::Diagnostic> first = agents::load_agent(source_of(loaded), name, json, out);
  if (first.empty()) return first;
  for (const LoadedAgents& file : loaded.more) {
    if (agents::load_agent(source_of(file), name, json, out).empty()) return {};
  }
  return first;
}

Result<LoadedAgents> load_agents(const std::string& path, const AgentsFileOptions& load_options) {
  LoadedAgents loaded;
  loaded.code = load_options.code;
  loaded.folder = ".";
  if (path.empty()) {
    loaded.text = std::string(kNoFile);
    loaded.path = "code.json";
  } else {
    if (has_code_extension(path)) {
      return fail(Code::usage, "{} is code, not an agents file; `dev` and `run` take code", path);
    }
    AE_ASSIGN(loaded.text, read_file(path));
    loaded.path = path;
    loaded.read[path] = sha256(loaded.text);
    const std::size_t slash = path.rfind('/');
    if (slash != path.npos) loaded.folder = slash == 0 ? "/" : path.substr(0, slash);
  }
  if (!load_options.policies.empty()) {
    AE_ASSIGN(const std::string text, read_file(load_options.policies));
    loaded.read[load_options.policies] = sha256(text);
    loaded.diagnostics = agents::load_policies(
        {.name = load_options.policies, .text = text, .env = {}, .native = {}, .usable = {}},
        loaded.policies);
    if (!loaded.diagnostics.empty()) return loaded;
  }
  agents::Source source = source_of(loaded);
  source.needs_agents = load_options.needs_agents;
  source.usable = [&loaded](const agents::ToolDefinition& tool) {
    return with_command(check_usable(tool, loaded.folder));
  };
  if (path.empty()) {
    loaded.diagnostics = agents::load(source, loaded.file);
    return loaded;
  }
  AE_ASSIGN(ServerLock lock, ServerLock::read(path));
  source.server_tools = [&](std::string_view server, const Value& connection) -> Result<Value> {
    AE_ASSIGN(Value tools,
              with_command(lock.tools_of(server, connection, loaded.folder, load_options.servers)));
    loaded.server_tools.insert_or_assign(std::string(server), tools);
    return tools;
  };
  loaded.diagnostics = agents::load(source, loaded.file);
  AE_TRY(lock.write());
  loaded.read[lock_path_of(path)] = lock.content();
  loaded.notices = lock.notices();
  return loaded;
}

}  // namespace ae::app
