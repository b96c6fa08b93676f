// SettingsCheck: limits, labels, versions, required capabilities and grants of an agent.
#include "agents/settings_check.h"

#include <fmt/core.h>

#include <utility>

#include "agents/checks.h"
#include "json/json.h"
#include "log/field_names.h"

namespace ae::agents {
namespace {

constexpr std::uint32_t kMaxAttemptsMax = 1'000;
constexpr std::size_t kLabelsMax = 64;
constexpr std::size_t kLabelMax = 256;  // bytes of a name or a value

class SettingsCheck {
 public:
  SettingsCheck(CheckContext& check, const SourceNode& source_node, Agent& agent,
                std::vector<Member>& graph)
      : check_(check), source_node_(source_node), agent_(agent), graph_(graph) {}

  std::optional<SourceNode> run() {
    if (const auto text = source_node_.find("description")) check_.text(*text);
    if (const auto schema = source_node_.find("input_schema")) {
      if (check_.schema(*schema)) agent_.input_schema = (*schema)->value();
    }
    if (const auto deadline = source_node_.find(field::deadline)) {
      if (const auto duration = check_.duration(*deadline, kDurationMin)) {
        graph_.emplace_back(field::deadline, to_text(*duration));
      }
    }
    if (const auto attempts = source_node_.find(field::max_attempts)) {
      if (const auto count = check_.count(*attempts, kMaxAttemptsMax)) {
        graph_.emplace_back(field::max_attempts, static_cast<double>(*count));
      }
    }
    if (const auto budget = source_node_.find(field::budget)) this->budget(*budget);
    if (const auto labels = source_node_.find(field::labels)) {
      agent_.labels = check_labels(check_, *labels);
    }
    if (const auto versions = source_node_.find("versions")) this->versions(*versions);
    if (const auto needed = source_node_.find(field::required_capabilities)) {
      agent_.required_capabilities = check_capabilities(check_, *needed);
    }
    if (const auto granted = source_node_.find("grants")) {
      const auto names = check_capabilities(check_, *granted);
      if (!names.empty()) {
        graph_.emplace_back("grants", Value::array(std::vector<Value>(names.begin(), names.end())));
      }
    }
    if (const auto queue = source_node_.find(field::queue)) {
      const auto text = check_.text(*queue);
      if (text && !is_capability(*text)) {
        check_.report(*queue, "a queue name must have 1 to 64 of the characters A-Z a-z 0-9 . _ -");
      } else if (text) {
        agent_.queue = *text;
      }
    }
    if (const auto confirm = source_node_.find("confirm")) {  // the default is strict
      const auto mode = check_.word(*confirm, Words::confirm_mode);
      if (mode && *mode != "strict") graph_.emplace_back("confirm", *mode);
    }
    return cost_;
  }

 private:
  // The limits of each job. Model prices are checked after the nodes.
  void budget(const SourceNode& source_node) {
    const engine::Limits limits = check_budget(check_, source_node);
    if (source_node->is_mapping()) cost_ = source_node.find("cost");
    if (limits.any()) graph_.emplace_back(field::budget, engine::to_json(limits));
  }

  void versions(const SourceNode& source_node) {
    if (!check_.mapping(source_node, Mapping::versions)) return;
    const auto policy = source_node.find("policy");
    const auto chosen_policy = policy ? check_.word(*policy, Words::version_policy) : std::nullopt;
    std::vector<Member> versions;
    if (chosen_policy && *chosen_policy != "warn") versions.emplace_back("policy", *chosen_policy);
    if (const auto wait = source_node.find("wait"); wait && check_.duration(*wait, kDurationMin)) {
      const auto code = source_node_.find(field::code);
      const bool has_version = code && code->find(field::version);
      if (!has_version || (chosen_policy && *chosen_policy != "route")) {
        check_.report(*wait, "only code with a version and the policy `route` waits for a version");
      } else if (!versions.empty()) {
        versions.emplace_back("wait", (*wait)->scalar);
      }
    }
    if (!versions.empty()) graph_.emplace_back("versions", Value::object(std::move(versions)));
    if (const auto execution = source_node.find("execution")) {
      const auto text = check_.text(*execution);
      if (!text) return;
      if (!is_capability(*text)) {
        return check_.report(*execution,
                             "a version must have 1 to 64 of the characters A-Z a-z 0-9 . _ -");
      }
      agent_.execution_version = *text;
    }
  }

  CheckContext& check_;
  const SourceNode& source_node_;
  Agent& agent_;
  std::vector<Member>& graph_;
  std::optional<SourceNode> cost_;  // of the budget
};

}  // namespace

engine::Limits check_budget(CheckContext& check, const SourceNode& source_node) {
  engine::Limits budget;
  if (!check.mapping(source_node, Mapping::budget)) return budget;
  const auto counted = [&](std::string_view key, std::optional<std::uint64_t>& most) {
    const auto at = source_node.find(key);
    if (!at) return;
    const Value& scalar = (*at)->scalar;
    if (scalar.is_integer() && scalar.as_int() >= 0 &&
        static_cast<std::uint64_t>(scalar.as_int()) <= engine::kBudgetMax) {
      most = static_cast<std::uint64_t>(scalar.as_int());
    } else {
      check.report(*at, fmt::format("must be a whole number, at most {}", engine::kBudgetMax));
    }
  };
  counted("tokens", budget.tokens);
  counted("model_calls", budget.model_calls);
  counted("tool_calls", budget.tool_calls);
  if (const auto cost = source_node.find("cost")) {
    const Value& scalar = (*cost)->scalar;
    const std::string text = scalar.is_string()   ? scalar.as_string()
                             : scalar.is_number() ? canonical(scalar)
                                                  : std::string();
    if (auto micros = engine::cost_from_text(text)) {
      budget.cost_micros = *micros;
    } else {
      check.report(*cost, micros.error().message);
    }
  }
  if (const auto wall = source_node.find("wall")) budget.wall = check.duration(*wall, kDurationMin);
  if (const auto soft = source_node.find("soft")) {
    if (const auto percent = check.count(*soft, 100)) budget.soft = *percent;
  }
  if (source_node->keys.empty() ||
      (source_node->keys.size() == 1 && source_node->find("soft") != nullptr)) {
    check.report(source_node,
                 "needs at least one of tokens, cost, model_calls, tool_calls or wall");
  }
  return budget;
}

std::vector<std::pair<std::string, std::string>> check_labels(CheckContext& check,
                                                              const SourceNode& source_node) {
  std::vector<std::pair<std::string, std::string>> labels;
  if (!check.any_mapping(source_node)) return labels;
  if (source_node->items.size() > kLabelsMax) check.report(source_node, "at most 64 labels");
  for (std::size_t i = 0; i < source_node->items.size(); ++i) {
    const std::string& key = source_node->keys[i].text;
    const SourceNode value{&source_node->items[i], source_node.path_of(key)};
    if (key.empty() || key.size() > kLabelMax) {
      check.report_at(source_node->keys[i].at, value.path, "a label name must have 1 to 256 bytes");
    }
    auto text = check.text(value);
    if (!text) continue;
    if (text->size() > kLabelMax) check.report(value, "a label value can have at most 256 bytes");
    if (has_expression(*text)) check.report(value, "a label cannot contain an expression");
    labels.emplace_back(key, *std::move(text));
  }
  return labels;
}

std::optional<SourceNode> check_settings(CheckContext& check, const SourceNode& source_node,
                                         Agent& agent, std::vector<Member>& graph) {
  return SettingsCheck(check, source_node, agent, graph).run();
}

}  // namespace ae::agents
