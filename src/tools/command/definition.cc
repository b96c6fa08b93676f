// Reading and rendering a command tool's definition.
#include "tools/command/definition.h"

#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <set>
#include <span>
#include <string_view>

#include "json/json.h"
#include "tools/call_scope.h"
#include "tools/command/leftovers.h"
#include "tools/output.h"

namespace ae::tools {
namespace {

constexpr std::size_t kOutputLimit = 64u << 20;  // upper limit of output_max
constexpr std::size_t kArgumentsMax = 1024;

// Set by the runtime; a definition must not override them.
const char* const kReservedVariables[] = {"AETHERIS_IDEMPOTENCY_KEY",
                                          "AETHERIS_EXECUTION_KEY",
                                          "AETHERIS_INVOCATION_ID",
                                          "AETHERIS_TRY",
                                          "AETHERIS_JOB_ID",
                                          "AETHERIS_PROGRESS_FD",
                                          "TRACEPARENT",
                                          "TRACESTATE",
                                          kMarkVariable};
const char* const kInheritedVariables[] = {"PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR"};

bool is_variable_name(std::string_view name) {
  const auto is_word = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  };
  return !name.empty() && std::ranges::all_of(name, is_word) && (name[0] < '0' || name[0] > '9');
}

bool is_reserved_variable(std::string_view name) {
  return std::ranges::any_of(kReservedVariables, [&](const char* ours) { return name == ours; });
}

bool is_program(const std::string& path) {
  struct stat status{};
  return ::stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode) &&
         ::access(path.c_str(), X_OK) == 0;
}

std::string absolute(const std::string& path, const std::string& folder) {
  std::error_code error;
  const auto whole = std::filesystem::absolute(std::filesystem::path(folder) / path, error);
  return error ? std::string(path) : whole.lexically_normal().string();
}

// A name is searched in the absolute folders of PATH only: "." could change its meaning.
Result<std::string> find_program(const std::string& name, const std::string& folder) {
  if (name.find('/') != std::string::npos) {
    std::string path = absolute(name, folder);
    if (is_program(path)) return path;
    return fail(Code::plan_invalid, "command[0]: {} does not exist or cannot be executed", path);
  }
  const char* variable = std::getenv("PATH");
  std::string_view rest = variable != nullptr ? variable : "/usr/local/bin:/usr/bin:/bin";
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find(':'), rest.size());
    std::string path(rest.substr(0, end));
    path += '/';
    path += name;
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (path.starts_with('/') && is_program(path)) return path;
  }
  return fail(Code::plan_invalid,
              "command[0]: there is no program {} in PATH; install it, or give its path", name);
}

std::string assignment(std::string_view name, std::string_view value) {
  std::string text(name);
  text += '=';
  return text += value;
}

bool contains_secret_name(const CommandDefinition::Parts& parts) {
  // Provides every secret, to detect whether one is used.
  class LookupRecorder final : public SecretSource {
   public:
    Result<Secret> get(std::string_view) override { return Secret("x"); }
  } source;
  std::vector<UsedSecret> used;
  for (const Template::Part& part : parts) {
    if (const auto* text = std::get_if<std::string>(&part)) {
      if (!replace_secrets(*text, source, used)) return true;
    }
  }
  return !used.empty();
}

Result<CommandDefinition::Parts> parts_of(const Value& text, const std::string& where) {
  if (!text.is_string()) return fail(Code::plan_invalid, "{}: must be a text; quote it", where);
  auto parts = Template::parts(text.as_string());
  if (!parts) return std::unexpected(std::move(parts).error().with_context(where));
  for (const Template::Part& part : *parts) {
    const auto* expression = std::get_if<Expr>(&part);
    if (expression == nullptr) continue;
    for (const std::string& root : expression->roots().roots) {
      if (root == "args" || root == "call") continue;
      return fail(Code::plan_invalid, "{}: .{} is not available here; use .args or .call", where,
                  root);
    }
    if (expression->roots().all_steps || !expression->roots().steps.empty()) {
      return fail(Code::plan_invalid, "{}: .steps is not available here; pass it in the args",
                  where);
    }
  }
  return parts;
}

Status read_command(const Value& command, const std::string& folder, CommandDefinition& out) {
  if (!command.is_array() || command.size() == 0 || command.size() > kArgumentsMax) {
    return fail(Code::plan_invalid, "command: must be a list: the program, then its arguments");
  }
  for (std::size_t i = 0; i < command.size(); ++i) {
    const std::string where = fmt::format("command[{}]", i);
    AE_ASSIGN(auto parts, parts_of(command.items()[i], where));
    if (contains_secret_name(parts)) {
      return fail(Code::plan_invalid,
                  "{}: every user can see arguments in ps; pass a secret to the program in `env`",
                  where);
    }
    if (i > 0) {
      out.arguments.push_back(std::move(parts));
      continue;
    }
    const auto* literal = parts.size() == 1 ? std::get_if<std::string>(&parts[0]) : nullptr;
    if (literal == nullptr || literal->empty() || literal->find('\0') != std::string::npos) {
      return fail(Code::plan_invalid, "{}: the program must be a literal name or path", where);
    }
    out.name = *literal;
  }
  AE_ASSIGN(out.program, find_program(out.name, folder));
  return {};
}

Status read_environment(const Value& definition, CommandDefinition& out) {
  std::set<std::string> allowed(std::begin(kInheritedVariables), std::end(kInheritedVariables));
  const Value& more = definition["env_allow"];
  if (!more.is_null() && !more.is_array()) {
    return fail(Code::plan_invalid, "env_allow: must be a list of names");
  }
  for (const Value& name : more.is_array() ? more.items() : std::span<const Value>()) {
    if (!name.is_string() || !is_variable_name(name.as_string())) {
      return fail(Code::plan_invalid, "env_allow: every entry must be a variable's name");
    }
    allowed.insert(name.as_string());
  }
  for (const std::string& name : allowed) {
    const char* value = std::getenv(name.c_str());
    if (value != nullptr && !is_reserved_variable(name)) out.inherited[name] = value;
  }
  const Value& own = definition["env"];
  if (own.is_null()) return {};
  if (!own.is_object()) return fail(Code::plan_invalid, "env: must be {NAME: text}");
  for (const auto& [name, text] : own.members()) {
    if (!is_variable_name(name)) {
      return fail(Code::plan_invalid, "env: {} is not the name of an environment variable",
                  printable(name, LineBreaks::escape));
    }
    if (is_reserved_variable(name))
      return fail(Code::plan_invalid, "env: {} is set by the runtime", name);
    AE_ASSIGN(auto parts, parts_of(text, "env." + name));
    out.variables.emplace_back(name, std::move(parts));
    out.inherited.erase(name);
  }
  return {};
}

Result<std::string> text_of(const Expr& expression, const ExprScope& scope) {
  auto value = expression.eval(scope);
  if (!value) return std::unexpected(std::move(value).error().with_context(expression.text()));
  if (value->is_null()) return fail(Code::expression_failed, "{} is null", expression.text());
  std::string text = value->is_string() ? value->as_string() : canonical(*value);
  if (text.find('\0') != std::string::npos) {
    return fail(Code::input_invalid, "{} holds a NUL character", expression.text());
  }
  return text;
}

Result<std::string> argument_of(const CommandDefinition::Parts& parts, const ExprScope& scope) {
  std::string text;
  for (const Template::Part& part : parts) {
    if (const auto* literal = std::get_if<std::string>(&part)) {
      text += *literal;
    } else {
      AE_ASSIGN(const std::string value, text_of(std::get<Expr>(part), scope));
      text += value;
    }
  }
  return text;
}

// Secrets are replaced in literal text only: an expression's value that contains `secret:NAME` is
// not changed.
Result<std::string> variable_of(const CommandDefinition::Parts& parts, const ExprScope& scope,
                                SecretSource& secrets, std::vector<UsedSecret>& used) {
  std::string text;
  for (const Template::Part& part : parts) {
    if (const auto* literal = std::get_if<std::string>(&part)) {
      AE_ASSIGN(const Secret replaced, replace_secrets(*literal, secrets, used));
      text += replaced.reveal();
    } else {
      AE_ASSIGN(const std::string value, text_of(std::get<Expr>(part), scope));
      text += value;
    }
  }
  return text;
}

}  // namespace

Result<CommandDefinition> CommandDefinition::read(const Value& definition,
                                                  const std::string& folder) {
  CommandDefinition out;
  AE_TRY(read_command(definition["command"], folder, out));
  AE_TRY(read_environment(definition, out));

  const std::string_view output = definition.text("output", "text");
  const bool has_output = definition.find("output") != nullptr;
  if (has_output && (!definition["output"].is_string() || (output != "text" && output != "json"))) {
    return fail(Code::plan_invalid, "output: must be text or json");
  }
  out.json = output == "json";
  if (const Value* numbers = definition.find("numbers")) {
    if (*numbers != Value("string") || !out.json) {
      return fail(Code::plan_invalid, "numbers: must be \"string\", and only with output: json");
    }
    out.big_integers_as_strings = true;
  }
  out.output_max = kOutputMax;
  if (const Value* most = definition.find("output_max")) {
    if (!most->is_integer() || most->as_int() < 1 ||
        most->as_int() > static_cast<std::int64_t>(kOutputLimit)) {
      return fail(Code::plan_invalid, "output_max: must be 1 to 67108864 bytes");
    }
    out.output_max = static_cast<std::size_t>(most->as_int());
  }
  if (const Value* heartbeat = definition.find("heartbeat_timeout")) {
    auto most = duration_from_text(heartbeat->is_string() ? heartbeat->as_string() : "");
    if (!most || most->count() <= 0) {
      return fail(Code::plan_invalid, "heartbeat_timeout: must be a duration, like 30s");
    }
    out.heartbeat = *most;
  }
  AE_ASSIGN(out.sandbox, read_sandbox(definition["sandbox"], folder));
  if (!folder.empty()) out.folder = absolute(".", folder);
  if (const Value* cwd = definition.find("cwd")) {
    std::error_code error;
    if (!cwd->is_string()) return fail(Code::plan_invalid, "cwd: must be a path");
    out.folder = absolute(cwd->as_string(), folder);
    if (!std::filesystem::is_directory(out.folder, error)) {
      return fail(Code::plan_invalid, "cwd: {} is not a folder", out.folder);
    }
  }
  return out;
}

Result<Order> CommandDefinition::fill(const Call& call, SecretSource& secrets,
                                      std::vector<UsedSecret>& used) const {
  const CallScope scope(call);
  Order order;
  order.program = program;
  order.folder = folder;
  order.sandbox = sandbox;
  order.argv.push_back(name);
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    auto text = argument_of(arguments[i], scope);
    if (!text) {
      return std::unexpected(
          std::move(text).error().with_context(fmt::format("command[{}]", i + 1)));
    }
    order.argv.push_back(*std::move(text));
  }
  for (const auto& [variable, value] : inherited) {
    order.environment.push_back(assignment(variable, value));
  }
  for (const auto& [variable, parts] : variables) {
    auto text = variable_of(parts, scope, secrets, used);
    if (!text)
      return std::unexpected(std::move(text).error().with_context(variable).with_context("env"));
    order.environment.push_back(assignment(variable, *text));
    ::explicit_bzero(text->data(), text->size());
  }
  const TraceHeaders trace = call.trace_headers();
  const std::string texts[] = {call.external_key.text, call.key.text,
                               call.invocation.text,   std::to_string(call.try_no),
                               call.job.text,          std::to_string(kProgramReportsFd),
                               trace.traceparent,      trace.tracestate};
  for (std::size_t i = 0; i < std::size(texts); ++i) {
    if (texts[i].empty()) continue;
    order.environment.push_back(assignment(kReservedVariables[i], texts[i]));
  }
  return order;
}

}  // namespace ae::tools
