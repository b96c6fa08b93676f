// What an agent says beside its plan: limits, labels, versions, who may run it and what it may use.
#include "agents/settings_check.h"

#include <utility>

#include "json/json.h"

namespace ae::agents {
namespace {

constexpr std::uint32_t kMaxAttemptsMax = 1'000;
constexpr std::size_t kLabelsMax = 64;
constexpr std::size_t kLabelMax = 256;  // bytes of a name or a value

class SettingsCheck {
 public:
  SettingsCheck(Check& check, const Spot& spot, Agent& agent, std::vector<Member>& graph)
      : check_(check), spot_(spot), agent_(agent), graph_(graph) {}

  std::optional<Spot> run() {
    if (const auto text = spot_.find("description")) check_.text(*text);
    if (const auto schema = spot_.find("input_schema")) {
      if (check_.schema(*schema)) agent_.input_schema = (*schema)->value();
    }
    if (const auto deadline = spot_.find("deadline")) {
      if (const auto duration = check_.duration(*deadline, kDurationLeast)) {
        graph_.emplace_back("deadline", to_text(*duration));
      }
    }
    if (const auto attempts = spot_.find("max_attempts")) {
      if (const auto count = check_.count(*attempts, kMaxAttemptsMax)) {
        graph_.emplace_back("max_attempts", static_cast<double>(*count));
      }
    }
    if (const auto budget = spot_.find("budget")) this->budget(*budget);
    if (const auto labels = spot_.find("labels")) this->labels(*labels);
    if (const auto versions = spot_.find("versions")) this->versions(*versions);
    if (const auto needed = spot_.find("required_capabilities")) {
      agent_.required_capabilities = check_capabilities(check_, *needed);
    }
    if (const auto granted = spot_.find("grants")) {
      const auto names = check_capabilities(check_, *granted);
      if (!names.empty()) {
        graph_.emplace_back("grants", Value::array(std::vector<Value>(names.begin(), names.end())));
      }
    }
    if (const auto queue = spot_.find("queue")) {
      const auto text = check_.text(*queue);
      if (text && !is_capability(*text)) {
        check_.fault(*queue, "a queue name must have 1 to 64 of the characters A-Z a-z 0-9 . _ -");
      } else if (text) {
        agent_.queue = *text;
      }
    }
    if (const auto confirm = spot_.find("confirm")) {  // strict is what holds without it
      const auto mode = check_.word(*confirm, {"strict", "warn", "human"});
      if (mode && *mode > 0) graph_.emplace_back("confirm", *mode == 1 ? "warn" : "human");
    }
    return cost_;
  }

 private:
  // How much each job may use. Whether its models have prices is known when its nodes are.
  void budget(const Spot& spot) {
    if (!check_.mapping(spot, {"tokens", "cost", "model_calls", "tool_calls", "wall", "soft"})) {
      return;
    }
    const auto counted = [&](std::string_view key, std::optional<std::uint64_t>& most) {
      const auto at = spot.find(key);
      if (!at) return;
      const Value& said = (*at)->scalar;
      if (said.is_integer() && said.as_int() >= 0 &&
          static_cast<std::uint64_t>(said.as_int()) <= engine::kBudgetMax) {
        most = static_cast<std::uint64_t>(said.as_int());
      } else {
        check_.fault(*at, "must be a whole number, at most " + std::to_string(engine::kBudgetMax));
      }
    };
    counted("tokens", budget_.tokens);
    counted("model_calls", budget_.model_calls);
    counted("tool_calls", budget_.tool_calls);
    if (const auto cost = spot.find("cost")) {
      const Value& said = (*cost)->scalar;
      const std::string text = said.is_string()   ? said.as_string()
                               : said.is_number() ? canonical(said)
                                                  : std::string();
      if (auto micros = engine::cost_from_text(text)) {
        budget_.cost_micros = *micros;
      } else {
        check_.fault(*cost, micros.error().message);
      }
      cost_ = *cost;
    }
    if (const auto wall = spot.find("wall")) budget_.wall = check_.duration(*wall, kDurationLeast);
    if (const auto soft = spot.find("soft")) {
      if (const auto percent = check_.count(*soft, 100)) budget_.soft = *percent;
    }
    if (spot->keys.empty() || (spot->keys.size() == 1 && spot->find("soft") != nullptr)) {
      check_.fault(spot, "needs at least one of tokens, cost, model_calls, tool_calls or wall");
    }
    if (budget_.any()) graph_.emplace_back("budget", engine::stored(budget_));
  }

  void versions(const Spot& spot) {
    if (!check_.mapping(spot, {"policy", "execution"})) return;
    if (const auto policy = spot.find("policy")) {
      const auto said = check_.word(*policy, {"warn", "strict", "route"});
      if (said && *said > 0) {
        graph_.emplace_back("versions",
                            Value::object({{"policy", *said == 1 ? "strict" : "route"}}));
      }
    }
    if (const auto execution = spot.find("execution")) {
      const auto text = check_.text(*execution);
      if (!text) return;
      if (!is_capability(*text)) {
        return check_.fault(*execution,
                            "a version must have 1 to 64 of the characters A-Z a-z 0-9 . _ -");
      }
      agent_.execution_version = *text;
    }
  }

  void labels(const Spot& spot) {
    if (!check_.any_mapping(spot)) return;
    if (spot->items.size() > kLabelsMax) check_.fault(spot, "at most 64 labels");
    for (std::size_t i = 0; i < spot->items.size(); ++i) {
      const std::string& key = spot->keys[i].text;
      const Spot value{&spot->items[i], spot.path_of(key)};
      if (key.empty() || key.size() > kLabelMax) {
        check_.fault_at(spot->keys[i].at, value.path, "a label name must have 1 to 256 bytes");
      }
      auto text = check_.text(value);
      if (!text) continue;
      if (text->size() > kLabelMax) check_.fault(value, "a label value can have at most 256 bytes");
      if (has_expression(*text)) check_.fault(value, "a label cannot contain an expression");
      agent_.labels.emplace_back(key, *std::move(text));
    }
  }

  Check& check_;
  const Spot& spot_;
  Agent& agent_;
  std::vector<Member>& graph_;
  engine::Limits budget_;
  std::optional<Spot> cost_;  // of the budget
};

}  // namespace

std::optional<Spot> check_settings(Check& check, const Spot& spot, Agent& agent,
                                   std::vector<Member>& graph) {
  return SettingsCheck(check, spot, agent, graph).run();
}

}  // namespace ae::agents
