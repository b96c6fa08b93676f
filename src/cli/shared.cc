// Functions shared by commands.
#include <fcntl.h>
#include <fmt/core.h>
#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>

#include "agents/agents_file.h"
#include "api/problem.h"
#include "cli/shared.h"
#include "json/json.h"
#include "log/field_names.h"

namespace ae::cli {
namespace {

constexpr std::size_t kArgumentMax = 16u << 20;

Result<std::string> read_all(const std::string& path) {
  const bool stdin_wanted = path == "-";
  const int file = stdin_wanted ? STDIN_FILENO : ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return fail(Code::usage, "cannot read {}: {}", path, std::strerror(errno));
  std::string text;
  char buffer[65536];
  while (text.size() <= kArgumentMax) {
    const ssize_t size = ::read(file, buffer, sizeof buffer);
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) {
      const int error = errno;
      if (!stdin_wanted) ::close(file);
      return fail(Code::usage, "cannot read {}: {}", path, std::strerror(error));
    }
    if (size == 0) break;
    text.append(buffer, static_cast<std::size_t>(size));
  }
  if (!stdin_wanted) ::close(file);
  return text;
}

}  // namespace

Result<app::StoreUrl> store_of(const CommonOptions& options) {
  return options.store.empty() ? app::find_store() : app::store_url(options.store);
}

Value number_or_text(const std::string& text) {
  auto value = parse_json(text);
  return value && value->is_number() ? *std::move(value) : Value(text);
}

std::expected<app::LoadedAgents, int> load_valid_agents(const std::string& path,
                                                        const app::AgentsFileOptions& load_options,
                                                        Terminal& terminal) {
  auto loaded = app::load_agents(path, load_options);
  if (!loaded) return std::unexpected(terminal.fail_with(loaded.error()));
  for (const std::string& line : loaded->notices) terminal.note(safe(line));
  if (loaded->diagnostics.empty()) return std::move(*loaded);
  const Error error{Code::plan_invalid, fmt::format("{} has errors; nothing was started",
                                                    path.empty() ? load_options.policies : path)};
  const Value body =
      api::problem(error).with("faults", agents::diagnostics_json(loaded->diagnostics)["faults"]);
  terminal.note(safe(agents::diagnostics_text(loaded->diagnostics), true));
  return std::unexpected(terminal.fail_with(error, body));
}

void warn_of_idle_policies(const std::string& path, const std::vector<agents::Policy>& policies,
                           const std::vector<const agents::AgentsFile*>& files,
                           Terminal& terminal) {
  for (const agents::Note& idle : agents::unused_policies(policies, files)) {
    terminal.warn(fmt::format("{}: {}: {}", path, idle.path, idle.message));
  }
}

std::string worker_name() {
  char host[256] = "";
  if (::gethostname(host, sizeof host - 1) != 0) host[0] = '\0';
  return fmt::format("{}:{}", cut(host[0] ? host : "localhost", 64), ::getpid());
}

Result<Value> labels_of(const std::vector<std::string>& texts) {
  std::vector<Member> members;
  for (const std::string& text : texts) {
    const std::size_t at = text.find('=');
    if (at == 0 || at == text.npos) {
      return fail(Code::usage, "--label must be NAME=VALUE, not \"{}\"", text);
    }
    const std::string name = text.substr(0, at);
    if (std::ranges::find(members, name, &Member::first) != members.end()) {
      return fail(Code::usage, "--label {} is given twice", name);
    }
    members.emplace_back(name, text.substr(at + 1));
  }
  return Value::object(std::move(members));
}

constexpr std::size_t kQueueLimitMax = 100'000;

Result<std::vector<store::QueueLimit>> queue_limits(const std::vector<std::string>& texts) {
  std::vector<store::QueueLimit> limits;
  for (const std::string& text : texts) {
    const std::size_t at = text.rfind('=');
    const std::string queue = text.substr(0, at);
    std::size_t limit = 0;
    const char* end = text.data() + text.size();
    const auto read = at == text.npos ? std::from_chars_result{end, std::errc::invalid_argument}
                                      : std::from_chars(text.data() + at + 1, end, limit);
    if (read.ec != std::errc() || read.ptr != end || limit == 0 || limit > kQueueLimitMax ||
        !agents::is_capability(queue)) {
      return fail(Code::usage, "--queue-limit must be NAME=N with N from 1 to {}, not \"{}\"",
                  kQueueLimitMax, text.substr(0, 80));
    }
    if (std::ranges::find(limits, queue, &store::QueueLimit::queue) != limits.end()) {
      return fail(Code::usage, "--queue-limit {} is given twice", queue);
    }
    limits.push_back({queue, limit});
  }
  return limits;
}

Error with_option_names(Error error) {
  constexpr std::pair<std::string_view, std::string_view> kNames[] = {
      {"after", "--after"},
      {field::at, "--at"},
      {"at_seq", "--at"},
      {"class", "--class"},
      {"cost_min", "--cost-min"},
      {"cursor", "--cursor"},
      {"diff_from", "--diff-from"},
      {"expires", "--expires"},
      {field::kind, "--kind"},
      {"limit", "--limit"},
      {"name", "--name"},
      {"older_than", "--older-than"},
      {"since", "--since"},
      {"sort", "--sort"},
      {"sort=ended", "--sort ended"},
      {"status", "--status"},
      {"type", "--type"},
      {field::until, "--until"},
      {"updated_since", "--updated-since"}};
  if (error.code == Code::effects_repeated) {
    constexpr std::string_view kField = "repeat_effects";
    if (const std::size_t at = error.message.rfind(kField); at != std::string::npos)
      error.message.replace(at, kField.size(), "--repeat-effects or --repeat STEP");
  }
  if (error.code != Code::input_invalid) return error;
  for (const auto& [field, option] : kNames) {
    const std::string shown = fmt::format("\"{}\"", field);
    if (error.message.starts_with(shown)) error.message.replace(0, shown.size(), option);
  }
  return error;
}

std::string serve_too_text(const std::string& file) {
  return fmt::format(" (`aetheris serve FILE… {}`)", quoted(file));
}

std::string quoted(const std::string& word) {
  const bool plain =
      !word.empty() &&
      word.find_first_not_of(
          "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:,@%+=") == word.npos;
  if (plain) return word;
  std::string out = "'";
  for (const char c : safe(word)) {
    if (c == '\'') {
      out += "'\\''";
    } else {
      out += c;
    }
  }
  return out + "'";
}

void print_created(const app::Instance& instance, Terminal& terminal) {
  if (instance.created())
    terminal.note(fmt::format("created store at {}", safe(instance.store_name())));
}

bool uses_server() {
  const char* const url = std::getenv("AETHERIS_URL");
  return url != nullptr && *url != '\0';
}

std::string store_flag(const app::StoreUrl& store) {
  if (uses_server()) return "";  // the next command uses it, too
  return store.found || store.text() == app::kDefaultStore
             ? ""
             : fmt::format(" --store {}", quoted(store.text()));
}

Result<Value> json_argument(const std::string& text, const std::string& name) {
  std::string json = text;
  if (text.starts_with('@')) {
    AE_ASSIGN(json, read_all(text.substr(1)));
  }
  auto value = parse_json(json, {.bytes_max = kArgumentMax});
  if (!value) {
    Error error = std::move(value).error().with_context(name);
    if (!text.starts_with('@') && error.code == Code::input_invalid) {
      error.message += " (strings need quotes: '\"text\"')";
    }
    return std::unexpected(std::move(error));
  }
  return value;
}

Result<Value> answer_of(const CommonOptions& options, app::OpenMode mode, api::ApiRequest request) {
  AE_ASSIGN(const app::StoreUrl store, store_of(options));
  request.by = cli_actor();
  AE_ASSIGN(const auto client, app::ApiClient::open(store, mode));
  AE_ASSIGN(api::ApiResponse response, client->send(request));
  if (response.status >= 400) {
    return std::unexpected(
        with_option_names(api::error_of_problem(response.body, response.status)));
  }
  return std::move(response.body);
}

std::string cli_actor() {
  const char* name = std::getenv("USER");
  std::string user = name ? name : "";
  if (user.empty()) {
    if (const passwd* entry = ::getpwuid(::getuid())) user = entry->pw_name;
  }
  user = cut(user, 64);
  return user.empty() ? "cli" : fmt::format("cli:{}", user);
}

std::string shown_value(const Value& value) {
  std::string text = value.is_string() ? safe(value.as_string(), true) : safe_json(pretty(value));
  if (!text.ends_with('\n')) text += '\n';
  return text;
}

}  // namespace ae::cli
