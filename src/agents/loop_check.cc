#include "agents/loop_check.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "engine/planner/planner.h"
#include "plan/plan.h"

namespace ae::agents {
namespace {

constexpr std::uint32_t kTurnsMax = 1'000;
constexpr std::uint32_t kParallelToolsMax = 64;
constexpr std::size_t kToolsMax = 256;
constexpr std::uint32_t kTurnsUsual = 20;
constexpr std::uint32_t kParallelUsual = 4;
constexpr std::size_t kKeptShown = 12;
constexpr std::uint32_t kPlannedMax = 1'000;
constexpr std::uint32_t kPlannedUsual = 50;

class LoopCheck {
 public:
  LoopCheck(Check& check, const LoopPlace& place, bool plans)
      : check_(check), place_(place), plans_(plans) {}

  Value run(const Spot& spot) {
    if (!check_.mapping(spot,
                        {"model", "system", "prompt", "tools", "max_turns", "parallel_tools",
                         "temperature", "max_tokens", "schema", "repair", "on_reject"},
                        {{"budget", "set budget on the agent, next to `loop` or `plan`"},
                         {"memory", "memory across jobs is not available yet"}})) {
      return {};
    }
    model(spot);
    said(spot, "system");
    if (!said(spot, "prompt")) loop_.emplace_back("prompt", kUsualPrompt);
    tools(spot);
    count(spot, "max_turns", kTurnsMax, kTurnsUsual);
    count(spot, "parallel_tools", kParallelToolsMax, kParallelUsual);
    if (const auto on_reject = spot.find("on_reject")) {
      if (check_.word(*on_reject, {"continue", "fail"}) == 1) {
        loop_.emplace_back("on_reject", "fail");
      }
    }
    return Value::object(std::move(loop_));
  }

  Value run_planner(const Spot& spot) {
    if (!check_.mapping(spot,
                        {"model", "system", "prompt", "tools", "max_nodes", "temperature",
                         "max_tokens", "repair"},
                        {{"schema", "a planner always returns a plan"}})) {
      return {};
    }
    model(spot);
    said(spot, "system");
    if (!said(spot, "prompt")) loop_.emplace_back("prompt", kUsualPrompt);
    tools(spot);
    count(spot, "max_nodes", kPlannedMax, kPlannedUsual);
    const auto most = static_cast<std::uint32_t>(loop_.back().second.as_number());
    const auto repair = spot.find("repair");
    if (!repair || check_.boolean(*repair) != false) loop_.emplace_back("repair", 1);
    loop_.emplace_back("schema", engine::planner_schema());
    std::vector<Value> told;
    for (const std::string& name : granted_) {
      const CheckedTool& checked = place_.callable.tools.find(name)->second;
      std::vector<Member> tool{{"tool", name}};
      if (!checked.description.empty()) tool.emplace_back("description", checked.description);
      for (const char* key : {"args_schema", "result_schema"}) {
        if (const Value* known = checked.policy.find(key)) tool.emplace_back(key, *known);
      }
      told.push_back(Value::object(std::move(tool)));
    }
    loop_.emplace_back("told", engine::planner_words(told, most));
    return Value::object(std::move(loop_));
  }

 private:
  void model(const Spot& spot) {
    const CheckedModel* model = nullptr;
    if (const auto named = check_.required(spot, "model", "the name of a model of this file")) {
      model = place_.find_model(*named);
    }
    auto temperature = model != nullptr ? model->temperature : std::nullopt;
    auto max_tokens = model != nullptr ? model->max_tokens : std::nullopt;
    const std::string_view provider = model != nullptr ? model->tool.kind : std::string_view();
    if (const auto own = spot.find("temperature")) {
      temperature = check_temperature(check_, *own, temperature_max(provider));
    }
    if (const auto own = spot.find("schema"); own && !plans_) {
      if (auto schema = check_answer_schema(check_, *own, provider)) {
        loop_.emplace_back("schema", *std::move(schema));
      }
    }
    if (!plans_ && mends_answers(check_, spot)) loop_.emplace_back("repair", 1);
    if (const auto own = spot.find("max_tokens")) max_tokens = check_max_tokens(check_, *own);
    if (temperature) loop_.emplace_back("temperature", *temperature);
    if (max_tokens) loop_.emplace_back("max_tokens", *max_tokens);
    if (model == nullptr) return;
    place_.use(*model, false);
    loop_.emplace_back("tool", model->tool.name);
    loop_.emplace_back("model", model->model);
  }

  // False: nothing is said of it.
  bool said(const Spot& spot, std::string_view key) {
    const auto found = spot.find(key);
    if (!found) return false;
    const auto text = check_.text(*found);
    if (text && text->empty()) check_.fault(*found, "must not be empty");
    if (text && place_.templated(*found)) loop_.emplace_back(key, *text);
    return true;
  }

  void count(const Spot& spot, std::string_view key, std::uint32_t most, std::uint32_t usual) {
    std::optional<std::uint32_t> n = usual;
    if (const auto own = spot.find(key)) n = check_.count(*own, most);
    loop_.emplace_back(key, static_cast<double>(n.value_or(usual)));
  }

  // Names, and patterns NAME.* or *, in the order of the list; what a pattern gives, by name.
  void tools(const Spot& spot) {
    if (const auto list = spot.find("tools"); list && check_.list(*list)) {
      for (std::size_t i = 0; i < (*list)->items.size(); ++i) grant(list->item(i));
      if (granted_.size() > kToolsMax) check_.fault(*list, "a loop can have at most 256 tools");
      say_kept(*list);
    }
    loop_.emplace_back("tools", Value::array(std::vector<Value>(granted_.begin(), granted_.end())));
  }

  void grant(const Spot& item) {
    const auto name = check_.text(item);
    if (!name) return;
    const CheckedTools& all = place_.callable.tools;
    if (!name->ends_with('*')) {
      const auto found = all.find(*name);
      if (found != all.end()) return grant(*found);
      if (check_.clouded(*name)) return;
      return check_.fault(item, check_.no_tool(*name),
                          check_.nearest(*name, all, [](const auto& tool) {
                            return std::string_view(tool.first);
                          }));
    }
    const std::string_view prefix = std::string_view(*name).substr(0, name->size() - 1);
    if (prefix.find('*') != prefix.npos || (!prefix.empty() && !prefix.ends_with('.'))) {
      return check_.fault(item, "a pattern must be NAME.* (all tools of a server) or *");
    }
    bool any = false;
    for (const auto& tool : all) {
      if (!tool.first.starts_with(prefix)) continue;
      grant(tool);
      any = true;
    }
    if (!any && !check_.clouded(*name)) check_.fault(item, "no tool of this file matches");
  }

  // What a tool can do and the agent does not grant to plans of models; "" = all of it is granted.
  std::string ungranted(const CheckedTool& tool) const {
    const Value& can = tool.policy["capabilities"];
    if (!can.is_array()) return {};
    for (const Value& one : can.items()) {
      if (!place_.grants.contains(one.as_string())) return one.as_string();
    }
    return {};
  }

  // Tools that no plan of the model could call are not offered to it: a plan that names one is no plan.
  void say_kept(const Spot& list) {
    std::string text;
    std::size_t count = 0;
    for (const auto& [tool, capability] : kept_) {
      if (++count > kKeptShown) continue;
      text += (count == 1 ? "" : ", ") + shown(tool) + " (" + shown(capability) + ")";
    }
    if (count == 0 || place_.callable.notes == nullptr) return;
    if (count > kKeptShown) text += ", …";
    place_.callable.notes->push_back(
        {list.path,
         "these tools need capabilities that the agent does not grant; they are not offered "
         "to the model: " +
             text + ". Add the capabilities to `grants`"});
  }

  void grant(const CheckedTools::value_type& tool) {
    const std::string missing = plans_ ? ungranted(tool.second) : std::string();
    if (!missing.empty()) {
      kept_.emplace(tool.first, missing);
      return;
    }
    place_.use(tool.second, true);
    if (names_.insert(tool.first).second) granted_.emplace_back(tool.first);
  }

  Check& check_;
  const LoopPlace& place_;
  const bool plans_;
  std::vector<Member> loop_;
  std::vector<std::string> granted_;
  std::set<std::string, std::less<>> names_;
  std::map<std::string, std::string>
      kept_;  // from a planner's model: the tool, and what is not granted
};

}  // namespace

Value check_loop(Check& check, const Spot& spot, const LoopPlace& place) {
  return LoopCheck(check, place, false).run(spot);
}

Value check_planner(Check& check, const Spot& spot, const LoopPlace& place) {
  return LoopCheck(check, place, true).run_planner(spot);
}

}  // namespace ae::agents
