// What commands share.
#include <fcntl.h>
#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>

#include "agents/agents_file.h"
#include "api/problem.h"
#include "cli/commands.h"
#include "core/json.h"

namespace ae::cli {
namespace {

constexpr std::size_t kArgumentMax = 16u << 20;

Result<std::string> read_all(const std::string& path) {
  const bool stdin_wanted = path == "-";
  const int file = stdin_wanted ? STDIN_FILENO : ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return fail(Code::usage, "cannot read " + path + ": " + std::strerror(errno));
  std::string text;
  char buffer[65536];
  while (text.size() <= kArgumentMax) {
    const ssize_t size = ::read(file, buffer, sizeof buffer);
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) {
      const int error = errno;
      if (!stdin_wanted) ::close(file);
      return fail(Code::usage, "cannot read " + path + ": " + std::strerror(error));
    }
    if (size == 0) break;
    text.append(buffer, static_cast<std::size_t>(size));
  }
  if (!stdin_wanted) ::close(file);
  return text;
}

}  // namespace

Result<app::StoreUrl> store_of(const Options& options) {
  return app::store_url(options.store.empty() ? app::kDefaultStore
                                              : std::string_view(options.store));
}

Value number_or_text(const std::string& text) {
  auto value = parse_json(text);
  return value && value->is_number() ? *std::move(value) : Value(text);
}

std::expected<app::LoadedAgents, int> load_sound(const std::string& path, const Options& options,
                                                 Terminal& terminal) {
  auto loaded = app::load_agents(path, {.policies = options.policies});
  if (!loaded) return std::unexpected(terminal.fail_with(loaded.error()));
  for (const std::string& line : loaded->said) terminal.note(safe(line));
  if (loaded->faults.empty()) return std::move(*loaded);
  const Error error{Code::plan_invalid, path + " has faults; nothing was started"};
  const Value body =
      api::problem(error).with("faults", agents::faults_json(loaded->faults)["faults"]);
  terminal.note(safe(agents::faults_text(loaded->faults), true));
  return std::unexpected(terminal.fail_with(error, body));
}

void warn_of_idle_policies(const std::vector<agents::Policy>& policies,
                           const std::vector<const agents::AgentsFile*>& files,
                           const Options& options, Terminal& terminal) {
  for (const agents::Note& idle : agents::idle_policies(policies, files)) {
    terminal.warn(options.policies + ": " + idle.path + ": " + idle.message);
  }
}

std::string worker_name() {
  char host[256] = "";
  if (::gethostname(host, sizeof host - 1) != 0) host[0] = '\0';
  return cut(std::string(host[0] ? host : "localhost"), 64) + ":" + std::to_string(::getpid());
}

constexpr std::size_t kQueueLimitMax = 100'000;

Result<std::vector<store::QueueLimit>> queue_limits(const Options& options) {
  std::vector<store::QueueLimit> limits;
  for (const std::string& text : options.queue_limits) {
    const std::size_t at = text.rfind('=');
    const std::string queue = text.substr(0, at);
    std::size_t limit = 0;
    const char* end = text.data() + text.size();
    const auto read = at == text.npos ? std::from_chars_result{end, std::errc::invalid_argument}
                                      : std::from_chars(text.data() + at + 1, end, limit);
    if (read.ec != std::errc() || read.ptr != end || limit == 0 || limit > kQueueLimitMax ||
        !agents::is_capability(queue)) {
      return fail(Code::usage, "--queue-limit is NAME=N, a queue and a number from 1 to " +
                                   std::to_string(kQueueLimitMax) + ", not \"" +
                                   text.substr(0, 80) + "\"");
    }
    if (std::ranges::find(limits, queue, &store::QueueLimit::queue) != limits.end()) {
      return fail(Code::usage, "--queue-limit " + queue + " is given twice: a queue has one limit");
    }
    limits.push_back({queue, limit});
  }
  return limits;
}

Error of_option(Error error) {
  constexpr std::pair<std::string_view, std::string_view> kNames[] = {
      {"after", "--after"},   {"at", "--at"},         {"at_seq", "--at"},
      {"class", "--class"},   {"cursor", "--cursor"}, {"expires", "--expires"},
      {"limit", "--limit"},   {"name", "--name"},     {"older_than", "--older-than"},
      {"status", "--status"}, {"type", "--type"}};
  if (error.code != Code::input_invalid) return error;
  for (const auto& [field, option] : kNames) {
    const std::string shown = "\"" + std::string(field) + "\"";
    if (error.message.starts_with(shown)) error.message.replace(0, shown.size(), option);
  }
  return error;
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

std::string store_flag(const app::StoreUrl& store) {
  // Where a server is asked, it is asked by the next command too.
  const char* const url = std::getenv("AETHERIS_URL");
  if (url != nullptr && *url != '\0') return "";
  return store.text() == app::kDefaultStore ? "" : " --store " + quoted(store.text());
}

Result<Value> json_argument(const std::string& text, const std::string& name) {
  std::string json = text;
  if (text.starts_with('@')) {
    AE_ASSIGN(json, read_all(text.substr(1)));
  }
  auto value = parse_json(json, {.bytes_max = kArgumentMax});
  if (!value) {
    Error error = std::move(value).error().in(name);
    if (!text.starts_with('@') && error.code == Code::input_invalid) {
      error.message += " (a text is JSON with its quotes: '\"like this\"')";
    }
    return std::unexpected(std::move(error));
  }
  return value;
}

std::string who() {
  const char* name = std::getenv("USER");
  std::string user = name ? name : "";
  if (user.empty()) {
    if (const passwd* entry = ::getpwuid(::getuid())) user = entry->pw_name;
  }
  user = cut(user, 64);
  return user.empty() ? "cli" : "cli:" + user;
}

namespace {

std::vector<std::string> commands_of(const Value& commands, const std::string& flag) {
  std::vector<std::string> out;
  if (!commands.is_array()) return out;
  for (const Value& command : commands.items()) {
    if (command.is_string()) out.push_back(safe(command.as_string()) + flag);
  }
  return out;
}

Value flagged(const Value& object, const std::string& flag) {
  if (!object.is_object()) return object;
  Value out = object;
  if (const std::string_view command = object.text("command"); !command.empty()) {
    out = out.with("command", std::string(command) + flag);
  }
  if (object["commands"].is_array()) {
    std::vector<Value> commands;
    for (const Value& command : object["commands"].items()) {
      commands.push_back(command.is_string() ? Value(command.as_string() + flag) : command);
    }
    out = out.with("commands", Value::array(std::move(commands)));
  }
  return out;
}

}  // namespace

std::string doubt_text(const Value& doubt) {
  const std::string tool = safe(doubt.text("tool"));
  std::string reason = safe(doubt.text("reason"));
  if (reason == "nobody knows whether it happened")
    reason.clear();  // no more than what is said here
  // What should undo a step may have failed for certain: the step stands all the same.
  if (doubt["compensates"].is_string()) {
    return "not known to be undone by " + tool + (reason.empty() ? "" : ": " + reason);
  }
  return "nobody knows whether the call of " + tool + " happened" +
         (reason.empty() ? "" : " (" + reason + ")");
}

std::string confirmed_text(const Value& resources) {
  std::string text;
  if (!resources.is_array()) return text;
  for (const Value& resource : resources.items()) {
    text += (text.empty() ? " " : ", ") + safe(resource.text("resource_type")) + " " +
            safe(resource.text("resource_id"));
    const bool gone = resource.text("observed") == "absent";
    text += resource.text("verdict") == "unreachable" ? ", which cannot be looked at"
            : gone                                    ? ", which is gone"
                                                      : ", which is not as it was";
  }
  return text;
}

std::vector<std::vector<std::string>> answers(const Value& job, const app::StoreUrl& store) {
  std::vector<std::vector<std::string>> all;
  const std::string flag = store_flag(store);
  if (job["in_doubt"].is_array()) {
    for (const Value& doubt : job["in_doubt"].items()) {
      if (auto commands = commands_of(doubt["commands"], flag); !commands.empty()) {
        all.push_back(std::move(commands));
      }
    }
  }
  if (job["confirmations"].is_array()) {
    for (const Value& asked : job["confirmations"].items()) {
      if (auto commands = commands_of(asked["commands"], flag); !commands.empty()) {
        all.push_back(std::move(commands));
      }
    }
  }
  if (job["waits"].is_array()) {
    for (const Value& wait : job["waits"].items()) {
      if (auto commands = commands_of(wait["commands"], flag); !commands.empty()) {
        all.push_back(std::move(commands));
      }
    }
  }
  return all;
}

Value with_store(const Value& job, const app::StoreUrl& store) {
  const std::string flag = store_flag(store);
  if (flag.empty() || !job.is_object()) return job;
  Value out = job;
  for (const char* name : {"parked", "waiting"}) {
    if (job[name].is_object()) out = out.with(name, flagged(job[name], flag));
  }
  for (const char* name : {"in_doubt", "waits", "confirmations"}) {
    if (!job[name].is_array()) continue;
    std::vector<Value> items;
    for (const Value& item : job[name].items()) items.push_back(flagged(item, flag));
    out = out.with(name, Value::array(std::move(items)));
  }
  return out;
}

std::vector<std::string> doubts_of_end(const Value& job) {
  std::vector<std::string> all;
  const std::string_view status = job.text("status");
  const bool ended = status == "completed" || status == "failed" || status == "cancelled";
  if (!ended || !job["in_doubt"].is_array()) return all;
  for (const Value& doubt : job["in_doubt"].items()) {
    all.push_back("node " + safe(doubt.text("node_id")) + ": " + doubt_text(doubt));
  }
  return all;
}

void say_blocked(const Value& job, const app::StoreUrl& store, Terminal& terminal) {
  const std::string id(job.text("id"));
  const std::string status(job.text("status"));
  if (status != "waiting" && status != "parked") return;
  std::string why;
  if (job["in_doubt"].size() > 0) {
    for (const Value& doubt : job["in_doubt"].items()) {
      why += "\n  node " + safe(doubt.text("node_id")) + ": " + doubt_text(doubt);
    }
  }
  if (job["confirmations"].is_array()) {
    for (const Value& asked : job["confirmations"].items()) {
      why += "\n  node " + safe(asked.text("node_id")) + " has changed" +
             confirmed_text(asked["resources"]);
    }
  }
  if (job["waits"].is_array()) {
    for (const Value& wait : job["waits"].items()) {
      if (wait.text("correlation_key").starts_with("resolve/")) continue;
      why +=
          "\n  node " + safe(wait.text("node_id")) + " waits for a " + safe(wait.text("wait_type"));
      if (wait.text("wait_type") == "message") {
        why += " on the channel " + safe(wait.text("channel"));
      } else if (wait.text("correlation_key").starts_with("approval/")) {
        why += " who approves its call";
      } else if (wait.text("wait_type") != "timer") {
        why += " with the key " + safe(wait.text("correlation_key"));
      }
      if (wait["due_at"].is_string()) why += ", due " + safe(wait.text("due_at"));
      if (wait["expires_at"].is_string()) {
        why += ", until " + safe(wait.text("expires_at"));
      }
    }
  }
  terminal.note("job " + safe(id) + " is " + terminal.err()(status_tint(status), status) + why);
  if (job["parked"].is_object()) {
    terminal.note("parked: " + safe(job["parked"].text("reason")) + ", until " +
                  safe(job["parked"].text("until")));
  }
  auto all = answers(job, store);
  const std::string_view until = job["parked"].text("until");
  if ((until == "resume" || until == "budget") && job["parked"]["command"].is_string()) {
    all = {{safe(job["parked"].text("command")) + store_flag(store)}};
  }
  for (const std::vector<std::string>& commands : all) {
    for (std::size_t i = 0; i < commands.size(); ++i) {
      terminal.note((i == 0 ? "answer: " : "    or: ") + terminal.err()(Tint::bold, commands[i]));
    }
  }
  if (job["in_doubt"].size() > 0 && !all.empty()) terminal.note(std::string(kResultBelongs));
}

std::string shown_value(const Value& value) {
  std::string text = value.is_string() ? safe(value.as_string(), true) : safe_json(pretty(value));
  if (!text.ends_with('\n')) text += '\n';
  return text;
}

}  // namespace ae::cli
