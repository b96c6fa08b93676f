#include "agents/loop_check.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "agents/tool_names.h"
#include "engine/planner/planner.h"
#include "log/field_names.h"
#include "plan/plan.h"

namespace ae::agents {
namespace {

constexpr std::uint32_t kTurnsMax = 1'000;
constexpr std::uint32_t kParallelToolsMax = 64;
constexpr std::size_t kToolsMax = 256;
constexpr std::uint32_t kTurnsDefault = 20;
constexpr std::uint32_t kParallelDefault = 4;
constexpr std::size_t kWithheldShown = 12;
constexpr std::uint32_t kContextMin = 1'000, kContextMax = 100'000'000;
constexpr std::string_view kContextLimit = "the tokens that the context of the model holds";
constexpr std::uint32_t kPlannedMax = 1'000;
constexpr std::uint32_t kPlannedDefault = 50;

class LoopCheck {
 public:
  LoopCheck(CheckContext& check, const LoopContext& context, bool is_planner)
      : check_(check), context_(context), is_planner_(is_planner) {}

  Value run(const SourceNode& source_node) {
    if (!check_.mapping(source_node, Mapping::loop,
                        {{field::budget, "set budget on the agent, next to `loop` or `plan`"},
                         {"memory", "memory across jobs is not available yet"}})) {
      return {};
    }
    model(source_node);
    add_text(source_node, "system");
    if (!add_text(source_node, "prompt")) loop_.emplace_back("prompt", kDefaultPrompt);
    tools(source_node);
    count(source_node, "max_turns", kTurnsMax, kTurnsDefault);
    count(source_node, "parallel_tools", kParallelToolsMax, kParallelDefault);
    if (const auto on_reject = source_node.find("on_reject")) {
      if (check_.word(*on_reject, Words::rejected_call) == "fail") {
        loop_.emplace_back("on_reject", "fail");
      }
    }
    thread(source_node);
    context(source_node);
    return Value::object(std::move(loop_));
  }

  Value run_planner(const SourceNode& source_node) {
    if (!check_.mapping(source_node, Mapping::planner,
                        {{"schema", "a planner always returns a plan"}})) {
      return {};
    }
    model(source_node);
    add_text(source_node, "system");
    if (!add_text(source_node, "prompt")) loop_.emplace_back("prompt", kDefaultPrompt);
    tools(source_node);
    count(source_node, "max_nodes", kPlannedMax, kPlannedDefault);
    const auto most = static_cast<std::uint32_t>(loop_.back().second.as_number());
    const auto repair = source_node.find("repair");
    if (!repair || check_.boolean(*repair) != false) loop_.emplace_back("repair", 1);
    loop_.emplace_back("schema", engine::planner_schema());
    std::vector<Value> tool_infos;
    for (const std::string& name : granted_) {
      const CheckedTool& checked = context_.callable.tools.find(name)->second;
      std::vector<Member> tool{{"tool", name}};
      if (!checked.description.empty()) tool.emplace_back("description", checked.description);
      for (const char* key : {"args_schema", "result_schema"}) {
        if (const Value* known = checked.policy.find(key)) tool.emplace_back(key, *known);
      }
      tool_infos.push_back(Value::object(std::move(tool)));
    }
    loop_.emplace_back("told", engine::planner_instructions(tool_infos, most));
    return Value::object(std::move(loop_));
  }

 private:
  void thread(const SourceNode& source_node) {
    const auto thread = source_node.find("thread");
    if (!thread || check_.boolean(*thread) != true) return;
    if (!context_.of_agent) {
      check_.report(*thread, "`thread` is for the loop of an agent, not for one in a plan", {},
                    Code::unsupported);
      return;
    }
    loop_.emplace_back("thread", true);
  }

  void context(const SourceNode& source_node) {
    const auto context = source_node.find("context");
    if (!context || !check_.mapping(*context, Mapping::context)) return;
    std::vector<Member> members;
    if (const auto limit = check_.required(*context, "limit", kContextLimit)) {
      if (const auto tokens = check_.count(*limit, kContextMax)) {
        if (*tokens < kContextMin) {
          check_.report(*limit, fmt::format("must be at least {} tokens", kContextMin));
        }
        members.emplace_back("limit", static_cast<double>(*tokens));
      }
    }
    std::string_view policy;
    if (const auto named = check_.required(*context, "policy", "truncate or summarize")) {
      policy = check_.word(*named, Words::context_policy).value_or("");
      members.emplace_back("policy", policy);
    }
    auto own = context->find("summary_model");
    if (own && policy == "truncate") {
      check_.report(*own, "is for `policy: summarize`; this policy makes no summary");
    }
    if (!own) own = source_node.find("model");
    const CheckedModel* const model =
        policy == "summarize" && own ? context_.find_model(*own) : nullptr;
    if (model != nullptr) {
      context_.add_tool(*model, false);
      members.emplace_back("tool", model->tool.name);
      members.emplace_back("model", model->model);
      if (model->temperature) members.emplace_back("temperature", *model->temperature);
      if (model->max_tokens) members.emplace_back("max_tokens", *model->max_tokens);
    }
    loop_.emplace_back("context", Value::object(std::move(members)));
  }

  void model(const SourceNode& source_node) {
    const CheckedModel* model = nullptr;
    if (const auto named =
            check_.required(source_node, "model", "the name of a model of this file")) {
      model = context_.find_model(*named);
    }
    auto temperature = model != nullptr ? model->temperature : std::nullopt;
    auto max_tokens = model != nullptr ? model->max_tokens : std::nullopt;
    const std::string_view provider = model != nullptr ? model->tool.kind : std::string_view();
    if (const auto own = source_node.find("temperature")) {
      temperature = check_temperature(check_, *own, temperature_max(provider));
    }
    if (const auto own = source_node.find("schema"); own && !is_planner_) {
      if (auto schema = check_answer_schema(check_, *own, provider)) {
        loop_.emplace_back("schema", *std::move(schema));
      }
    }
    if (!is_planner_ && repairs_answers(check_, source_node)) loop_.emplace_back("repair", 1);
    if (const auto own = source_node.find("max_tokens"))
      max_tokens = check_max_tokens(check_, *own);
    if (temperature) loop_.emplace_back("temperature", *temperature);
    if (max_tokens) loop_.emplace_back("max_tokens", *max_tokens);
    if (model == nullptr) return;
    context_.add_tool(*model, false);
    loop_.emplace_back("tool", model->tool.name);
    loop_.emplace_back("model", model->model);
  }

  // False: the key is missing.
  bool add_text(const SourceNode& source_node, std::string_view key) {
    const auto found = source_node.find(key);
    if (!found) return false;
    const auto text = check_.text(*found);
    if (text && text->empty()) check_.report(*found, "must not be empty");
    if (text && context_.check_expressions(*found)) loop_.emplace_back(key, *text);
    return true;
  }

  void count(const SourceNode& source_node, std::string_view key, std::uint32_t most,
             std::uint32_t fallback) {
    std::optional<std::uint32_t> n = fallback;
    if (const auto own = source_node.find(key)) n = check_.count(*own, most);
    loop_.emplace_back(key, static_cast<double>(n.value_or(fallback)));
  }

  // Tool names and patterns NAME.* or *, in list order; the matches of a pattern, by name.
  void tools(const SourceNode& source_node) {
    if (const auto list = source_node.find("tools"); list && check_.list(*list)) {
      for (std::size_t i = 0; i < (*list)->items.size(); ++i) {
        for_each_named_tool(check_, list->item(i), context_.callable.tools,
                            [this](const auto& tool) { grant(tool); });
      }
      if (granted_.size() > kToolsMax) check_.report(*list, "a loop can have at most 256 tools");
      note_withheld(*list);
    }
    loop_.emplace_back("tools", Value::array(std::vector<Value>(granted_.begin(), granted_.end())));
  }

  // A capability of the tool that the agent does not grant to models' plans; "" = all are granted.
  std::string ungranted(const CheckedTool& tool) const {
    const Value& can = tool.policy["capabilities"];
    if (!can.is_array()) return {};
    for (const Value& one : can.items()) {
      if (!context_.grants.contains(one.as_string())) return one.as_string();
    }
    return {};
  }

  // Tools that the model's plan could not call are not offered to it: a plan
  // that names one is invalid.
  void note_withheld(const SourceNode& list) {
    std::string text;
    std::size_t count = 0;
    for (const auto& [tool, capability] : withheld_) {
      if (++count > kWithheldShown) continue;
      text += fmt::format("{}{} ({})", count == 1 ? "" : ", ", quote(tool), quote(capability));
    }
    if (count == 0 || context_.callable.notes == nullptr) return;
    if (count > kWithheldShown) text += ", …";
    context_.callable.notes->push_back(
        {list.path,
         fmt::format(
             "these tools need capabilities that the agent does not grant; they are not offered "
             "to the model: {}. Add the capabilities to `grants`",
             text)});
  }

  void grant(const CheckedTools::value_type& tool) {
    const std::string missing = is_planner_ ? ungranted(tool.second) : std::string();
    if (!missing.empty()) {
      withheld_.emplace(tool.first, missing);
      return;
    }
    context_.add_tool(tool.second, true);
    if (names_.insert(tool.first).second) granted_.emplace_back(tool.first);
  }

  CheckContext& check_;
  const LoopContext& context_;
  const bool is_planner_;
  std::vector<Member> loop_;
  std::vector<std::string> granted_;
  std::set<std::string, std::less<>> names_;
  std::map<std::string, std::string>
      withheld_;  // not offered to a planner: tool and missing capability
};

}  // namespace

Value check_loop(CheckContext& check, const SourceNode& source_node, const LoopContext& context) {
  return LoopCheck(check, context, false).run(source_node);
}

Value check_planner(CheckContext& check, const SourceNode& source_node,
                    const LoopContext& context) {
  return LoopCheck(check, context, true).run_planner(source_node);
}

}  // namespace ae::agents
