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
    if (const auto labels = source_node_.find(field::labels)) this->labels(*labels);
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
    if (!check_.mapping(source_node, Mapping::budget)) {
      return;
    }
    const auto counted = [&](std::string_view key, std::optional<std::uint64_t>& most) {
      const auto at = source_node.find(key);
      if (!at) return;
      const Value& scalar = (*at)->scalar;
      if (scalar.is_integer() && scalar.as_int() >= 0 &&
          static_cast<std::uint64_t>(scalar.as_int()) <= engine::kBudgetMax) {
        most = static_cast<std::uint64_t>(scalar.as_int());
      } else {
        check_.report(*at, fmt::format("must be a whole number, at most {}", engine::kBudgetMax));
      }
    };
    counted("tokens", budget_.tokens);
    counted("model_calls", budget_.model_calls);
    counted("tool_calls", budget_.tool_calls);
    if (const auto cost = source_node.find("cost")) {
      const Value& scalar = (*cost)->scalar;
      const std::string text = scalar.is_string()   ? scalar.as_string()
                               : scalar.is_number() ? canonical(scalar)
                                                    : std::string();
      if (auto micros = engine::cost_from_text(text)) {
        budget_.cost_micros = *micros;
      } else {
        check_.report(*cost, micros.error().message);
      }
      cost_ = *cost;
    }
    if (const auto wall = source_node.find("wall"))
      budget_.wall = check_.duration(*wall, kDurationMin);
    if (const auto soft = source_node.find("soft")) {
      if (const auto percent = check_.count(*soft, 100)) budget_.soft = *percent;
    }
    if (source_node->keys.empty() ||
        (source_node->keys.size() == 1 && source_node->find("soft") != nullptr)) {
      check_.report(source_node,
                    "needs at least one of tokens, cost, model_calls, tool_calls or wall");
    }
    if (budget_.any()) graph_.emplace_back(field::budget, engine::to_json(budget_));
  }

  void versions(const SourceNode& source_node) {
    if (!check_.mapping(source_node, Mapping::versions)) return;
    if (const auto policy = source_node.find("policy")) {
      const auto chosen_policy = check_.word(*policy, Words::version_policy);
      if (chosen_policy && *chosen_policy != "warn") {
        graph_.emplace_back("versions", Value::object({{"policy", *chosen_policy}}));
      }
    }
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

  void labels(const SourceNode& source_node) {
    if (!check_.any_mapping(source_node)) return;
    if (source_node->items.size() > kLabelsMax) check_.report(source_node, "at most 64 labels");
    for (std::size_t i = 0; i < source_node->items.size(); ++i) {
      const std::string& key = source_node->keys[i].text;
      const SourceNode value{&source_node->items[i], source_node.path_of(key)};
      if (key.empty() || key.size() > kLabelMax) {
        check_.report_at(source_node->keys[i].at, value.path,
                         "a label name must have 1 to 256 bytes");
      }
      auto text = check_.text(value);
      if (!text) continue;
      if (text->size() > kLabelMax)
        check_.report(value, "a label value can have at most 256 bytes");
      if (has_expression(*text)) check_.report(value, "a label cannot contain an expression");
      agent_.labels.emplace_back(key, *std::move(text));
    }
  }

  CheckContext& check_;
  const SourceNode& source_node_;
  Agent& agent_;
  std::vector<Member>& graph_;
  engine::Limits budget_;
  std::optional<SourceNode> cost_;  // of the budget
};

}  // namespace

std::optional<SourceNode> check_settings(CheckContext& check, const SourceNode& source_node,
                                         Agent& agent, std::vector<Member>& graph) {
  return SettingsCheck(check, source_node, agent, graph).run();
}

}  // namespace ae::agents
