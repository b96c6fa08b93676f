// Node checks: waits, messages to models, and arguments that are known before the job runs.
#include "agents/node_check.h"

#include <fmt/core.h>

#include <utility>

#include "engine/values/recorded_value.h"
#include "log/field_names.h"

namespace ae::agents {
namespace {

constexpr std::size_t kMessagesMax = 10'000;

class WaitCheck {
 public:
  WaitCheck(CheckContext& check, const ExpressionCheck& check_expressions)
      : check_(check), check_expressions_(check_expressions) {}

  std::optional<Value> run(const SourceNode& source_node) {
    if (!check_.mapping(source_node, Mapping::wait)) {
      return std::nullopt;
    }
    const auto type =
        check_.required(source_node, "type", "timer, signal, webhook, human or message");
    if (!type) return std::nullopt;
    const Shape& shape = shape_of(Mapping::wait);
    const auto word = check_.word(*type, shape.kinds);
    if (!word) return std::nullopt;
    std::vector<Member> wait = {{"type", (*type)->scalar}};
    check_.misplaced(source_node, shape, *word, [&](std::string_view key, const auto& owners) {
      const std::string owner = owners.size() == 1 ? fmt::format("{} waits", owners[0])
                                : *word == "timer" ? "waits that are answered"
                                                   : "signal, webhook and human waits";
      return fmt::format("`{}` belongs to {}", key, owner);
    });
    if (*word == "timer") {
      timer(source_node, wait);
    } else if (*word == "message") {
      if (const auto channel =
              check_.required(source_node, field::channel, "the channel of the message")) {
        named(*channel, field::channel, wait);
      }
      expiry(source_node, wait);
    } else {
      if (const auto key = source_node.find("key")) named(*key, "key", wait);
      expiry(source_node, wait);
      if (*word == "human") human(source_node, wait);
    }
    return Value::object(std::move(wait));
  }

 private:
  void timer(const SourceNode& source_node, std::vector<Member>& wait) {
    const auto span = source_node.find("for");
    const auto until = source_node.find(field::until);
    if (span.has_value() == until.has_value()) {
      check_.report(source_node, span
                                     ? "a timer has either `for` or `until`, not both"
                                     : "a timer needs `for: 30s` or `until: 2030-01-31T08:00:00Z`");
      return;
    }
    if (span) {
      if ((*span)->is_string() && has_expression((*span)->scalar.as_string())) {
        if (check_expressions_(*span)) wait.emplace_back("for", (*span)->scalar);
      } else if (const auto duration = check_.duration(*span, Duration(0))) {
        wait.emplace_back("for", to_text(*duration));
      }
      return;
    }
    const auto text = check_.text(*until);
    if (!text || !check_expressions_(*until)) return;
    if (has_expression(*text)) {
      wait.emplace_back(field::until, *text);
    } else if (const auto instant = instant_from_text(*text)) {
      wait.emplace_back(field::until, to_text(*instant));
    } else {
      check_.report(*until, "must be a time in UTC, such as 2030-01-31T08:00:00Z");
    }
  }

  void named(const SourceNode& source_node, std::string_view key, std::vector<Member>& wait) {
    const auto text = check_.text(source_node);
    if (text && text->empty()) check_.report(source_node, "must not be empty");
    if (text && check_expressions_(source_node)) wait.emplace_back(key, *text);
  }

  void human(const SourceNode& source_node, std::vector<Member>& wait) {
    if (const auto on_reject = source_node.find("on_reject")) {
      if (check_.word(*on_reject, Words::fail_or_continue) == "continue") {
        wait.emplace_back("on_reject", "continue");
      }
    }
    if (const auto answer = source_node.find("answer")) {
      if (check_.word(*answer, Words::answer) == "data") wait.emplace_back("answer", "data");
    }
  }

  void expiry(const SourceNode& source_node, std::vector<Member>& wait) {
    const auto expires = source_node.find("expires");
    if (expires) {
      if (const auto duration = check_.duration(*expires, kDurationMin)) {
        wait.emplace_back("expires", to_text(*duration));
      }
    }
    if (const auto on_expire = source_node.find("on_expire")) {
      if (check_.word(*on_expire, Words::fail_or_continue) == "continue") {
        wait.emplace_back("on_expire", "continue");
      }
      if (!expires) check_.report(*on_expire, "`on_expire` needs `expires`");
    }
  }

  CheckContext& check_;
  const ExpressionCheck& check_expressions_;
};

}  // namespace

std::optional<Value> check_wait(CheckContext& check, const SourceNode& source_node,
                                const ExpressionCheck& check_expressions) {
  return WaitCheck(check, check_expressions).run(source_node);
}

std::optional<Value> check_messages(CheckContext& check, const SourceNode& source_node,
                                    const ExpressionCheck& check_expressions) {
  const auto prompt = source_node.find("prompt");
  const auto list = source_node.find("messages");
  const auto system = source_node.find("system");
  if (prompt.has_value() == list.has_value()) {
    check.report(source_node, prompt ? "use either `prompt` or `messages`, not both"
                                     : "needs `prompt` or `messages`");
    return std::nullopt;
  }
  if (list && !(*list)->is_list()) {
    const bool good = check_expressions(*list);
    if (good && !is_one_expression(*list->value)) {
      check.report(*list, "`messages` must be a list of { role, content }, or a single ${ … }");
    }
    if (system)
      check.report(*system, "put the system message into `messages` when that is a single ${ … }");
    return good ? std::optional((*list)->scalar) : std::nullopt;
  }
  std::vector<Value> messages;
  const auto add_message = [&](const Value& role, const SourceNode& content) {
    if (content->is_list() && role != Value("assistant")) {
      check_parts(check, content);
      if (check_expressions(content)) {
        messages.push_back(Value::object({{"role", role}, {"content", content->value()}}));
      }
      return;
    }
    const auto text = check.text(content);
    if (text && text->empty()) check.report(content, "must not be empty");
    if (text && check_expressions(content)) {
      messages.push_back(Value::object({{"role", role}, {"content", *text}}));
    }
  };
  if (system) add_message("system", *system);
  if (prompt) add_message("user", *prompt);
  const std::size_t count = list ? (*list)->items.size() : 0;
  if (list && count == 0) check.report(*list, "needs at least one message");
  if (count > kMessagesMax) {
    check.report(*list, "at most 10,000 messages");
    return std::nullopt;
  }
  messages.reserve(messages.size() + count);
  for (std::size_t i = 0; i < count; ++i) {
    const SourceNode item = list->item(i);
    if (!check.mapping(item, Mapping::model_message)) continue;
    const auto role = check.required(item, "role", "system, user or assistant");
    const auto content = check.required(item, "content", "the text of the message");
    if (role && content && check.word(*role, Words::role)) {
      add_message((*role)->scalar, *content);
    }
  }
  return Value::array(std::move(messages));
}

void check_arguments(CheckContext& check, const SourceNode& source_node, bool given,
                     const CheckedTool& tool) {
  const auto& schema = tool.tool.policy.args_schema;
  if (!schema || (given && !source_node->is_mapping())) return;
  const Value args = given ? source_node->value() : Value::object({});
  auto compiled = Template::compile(args);
  if (!compiled) return;
  if (compiled->is_constant()) {
    const auto constant = compiled->eval(NoScope());
    if (!constant) return;
    const auto diagnostics = schema->validate(*constant);
    if (const auto taken = engine::check_recorded_args(tool.tool.policy.records, *constant);
        diagnostics.empty() && !taken) {
      check.report(source_node, taken.error().message);
    }
    for (const SchemaViolation& violation : diagnostics) {
      SourceNode where = source_node;
      std::string_view pointer = violation.instance_path;
      if (given) where = follow(source_node, pointer);
      const std::string place = pointer.empty() ? "" : fmt::format(" at {}", quote(pointer));
      check.report(where, fmt::format("the arguments of {} do not match its args_schema{}: {}",
                                      quote(tool.tool.name), place, violation.message));
    }
    return;
  }
  // Absent if the schema requires nothing, and for a tool with errors.
  const Value& required = tool.policy["args_schema"]["required"];
  if (!required.is_array()) return;
  for (const Value& key : required.items()) {
    if (key.is_string() && args.find(key.as_string()) == nullptr) {
      check.report(source_node, fmt::format("the argument {} of {} is missing",
                                            quote(key.as_string()), quote(tool.tool.name)));
    }
  }
}

}  // namespace ae::agents
