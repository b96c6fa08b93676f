// Parts of a plan's nodes that stand for themselves: waits, what a model is told, and arguments that are known before.
#include "agents/node_check.h"

#include <utility>

#include "engine/heart/recorded_value.h"

namespace ae::agents {
namespace {

constexpr std::size_t kMessagesMax = 10'000;

class WaitCheck {
 public:
  WaitCheck(Check& check, const Templated& templated) : check_(check), templated_(templated) {}

  std::optional<Value> run(const Spot& spot) {
    if (!check_.mapping(spot, {"type", "for", "until", "key", "expires", "on_expire", "on_reject",
                               "answer", "channel"})) {
      return std::nullopt;
    }
    const auto type = check_.required(spot, "type", "timer, signal, webhook, human or message");
    if (!type) return std::nullopt;
    const auto word = check_.word(*type, {"timer", "signal", "webhook", "human", "message"});
    if (!word) return std::nullopt;
    std::vector<Member> wait = {{"type", (*type)->scalar}};
    enum { timer_wait = 0, human_wait = 3, message_wait = 4 };
    if (*word != timer_wait) check_.misplaced(spot, "timer waits", {"for", "until"});
    if (*word != human_wait) check_.misplaced(spot, "human waits", {"on_reject", "answer"});
    if (*word != message_wait) check_.misplaced(spot, "message waits", {"channel"});
    if (*word == timer_wait) {
      check_.misplaced(spot, "waits that are answered", {"key", "expires", "on_expire"});
      timer(spot, wait);
    } else if (*word == message_wait) {
      check_.misplaced(spot, "signal, webhook and human waits", {"key"});
      if (const auto channel = check_.required(spot, "channel", "the channel of the message")) {
        named(*channel, "channel", wait);
      }
      expiry(spot, wait);
    } else {
      if (const auto key = spot.find("key")) named(*key, "key", wait);
      expiry(spot, wait);
      if (*word == human_wait) human(spot, wait);
    }
    return Value::object(std::move(wait));
  }

 private:
  void timer(const Spot& spot, std::vector<Member>& wait) {
    const auto span = spot.find("for");
    const auto until = spot.find("until");
    if (span.has_value() == until.has_value()) {
      check_.fault(spot, span ? "a timer has either `for` or `until`, not both"
                              : "a timer needs `for: 30s` or `until: 2030-01-31T08:00:00Z`");
      return;
    }
    if (span) {
      if ((*span)->is_string() && has_expression((*span)->scalar.as_string())) {
        if (templated_(*span)) wait.emplace_back("for", (*span)->scalar);
      } else if (const auto duration = check_.duration(*span, Duration(0))) {
        wait.emplace_back("for", to_text(*duration));
      }
      return;
    }
    const auto text = check_.text(*until);
    if (!text || !templated_(*until)) return;
    if (has_expression(*text)) {
      wait.emplace_back("until", *text);
    } else if (const auto instant = instant_from_text(*text)) {
      wait.emplace_back("until", to_text(*instant));
    } else {
      check_.fault(*until, "must be a time in UTC, such as 2030-01-31T08:00:00Z");
    }
  }

  void named(const Spot& spot, std::string_view key, std::vector<Member>& wait) {
    const auto text = check_.text(spot);
    if (text && text->empty()) check_.fault(spot, "must not be empty");
    if (text && templated_(spot)) wait.emplace_back(key, *text);
  }

  void human(const Spot& spot, std::vector<Member>& wait) {
    if (const auto on_reject = spot.find("on_reject")) {
      if (check_.word(*on_reject, {"fail", "continue"}) == 1) {
        wait.emplace_back("on_reject", "continue");
      }
    }
    if (const auto answer = spot.find("answer")) {
      if (check_.word(*answer, {"decision", "data"}) == 1) wait.emplace_back("answer", "data");
    }
  }

  void expiry(const Spot& spot, std::vector<Member>& wait) {
    const auto expires = spot.find("expires");
    if (expires) {
      if (const auto duration = check_.duration(*expires, kDurationLeast)) {
        wait.emplace_back("expires", to_text(*duration));
      }
    }
    if (const auto on_expire = spot.find("on_expire")) {
      if (check_.word(*on_expire, {"fail", "continue"}) == 1) {
        wait.emplace_back("on_expire", "continue");
      }
      if (!expires) check_.fault(*on_expire, "`on_expire` needs `expires`");
    }
  }

  Check& check_;
  const Templated& templated_;
};

}  // namespace

std::optional<Value> check_wait(Check& check, const Spot& spot, const Templated& templated) {
  return WaitCheck(check, templated).run(spot);
}

std::optional<Value> check_messages(Check& check, const Spot& spot, const Templated& templated) {
  const auto prompt = spot.find("prompt");
  const auto list = spot.find("messages");
  const auto system = spot.find("system");
  if (prompt.has_value() == list.has_value()) {
    check.fault(spot, prompt ? "use either `prompt` or `messages`, not both"
                             : "needs `prompt` or `messages`");
    return std::nullopt;
  }
  if (list && !(*list)->is_list()) {
    const bool good = templated(*list);
    if (good && !is_one_expression(*list->value)) {
      check.fault(*list, "`messages` must be a list of { role, content }, or a single ${ … }");
    }
    if (system)
      check.fault(*system, "put the system message into `messages` when that is a single ${ … }");
    return good ? std::optional((*list)->scalar) : std::nullopt;
  }
  std::vector<Value> said;
  const auto say = [&](const Value& role, const Spot& content) {
    if (content->is_list() && role != Value("assistant")) {
      check_parts(check, content);
      if (templated(content)) {
        said.push_back(Value::object({{"role", role}, {"content", content->value()}}));
      }
      return;
    }
    const auto text = check.text(content);
    if (text && text->empty()) check.fault(content, "must not be empty");
    if (text && templated(content)) {
      said.push_back(Value::object({{"role", role}, {"content", *text}}));
    }
  };
  if (system) say("system", *system);
  if (prompt) say("user", *prompt);
  const std::size_t count = list ? (*list)->items.size() : 0;
  if (list && count == 0) check.fault(*list, "needs at least one message");
  if (count > kMessagesMax) {
    check.fault(*list, "at most 10,000 messages");
    return std::nullopt;
  }
  said.reserve(said.size() + count);
  for (std::size_t i = 0; i < count; ++i) {
    const Spot item = list->item(i);
    if (!check.mapping(item, {"role", "content"})) continue;
    const auto role = check.required(item, "role", "system, user or assistant");
    const auto content = check.required(item, "content", "the text of the message");
    if (role && content && check.word(*role, {"system", "user", "assistant", "developer"})) {
      say((*role)->scalar, *content);
    }
  }
  return Value::array(std::move(said));
}

void check_arguments(Check& check, const Spot& spot, bool given, const CheckedTool& tool) {
  const auto& schema = tool.tool.policy.args_schema;
  if (!schema || (given && !spot->is_mapping())) return;
  const Value args = given ? spot->value() : Value::object({});
  auto compiled = Template::compile(args);
  if (!compiled) return;
  if (compiled->is_constant()) {
    const auto constant = compiled->eval(NoScope());
    if (!constant) return;
    const auto faults = schema->validate(*constant);
    if (const auto taken = engine::takes(tool.tool.policy.records, *constant);
        faults.empty() && !taken) {
      check.fault(spot, taken.error().message);
    }
    for (const SchemaFault& fault : faults) {
      Spot where = spot;
      std::string_view pointer = fault.instance_path;
      if (given) where = follow(spot, pointer);
      check.fault(where,
                  "the arguments of " + shown(tool.tool.name) + " do not match its args_schema" +
                      (pointer.empty() ? "" : " at " + shown(pointer)) + ": " + fault.message);
    }
    return;
  }
  // Absent in a schema that requires nothing, and for a tool with faults of its own.
  const Value& required = tool.policy["args_schema"]["required"];
  if (!required.is_array()) return;
  for (const Value& key : required.items()) {
    if (key.is_string() && args.find(key.as_string()) == nullptr) {
      check.fault(spot, "the argument " + shown(key.as_string()) + " of " + shown(tool.tool.name) +
                            " is missing");
    }
  }
}

}  // namespace ae::agents
