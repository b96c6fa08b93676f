// AgentCheck: checks an agent's plan, node by node, and builds its task graph (plan/plan.h). The
// nodes as a graph: plan_nodes.h. The tools that the plan records: used_tools.h.
#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <set>

#include "agents/checks.h"
#include "agents/code_check.h"
#include "agents/loop_check.h"
#include "agents/node_check.h"
#include "agents/plan_nodes.h"
#include "agents/settings_check.h"
#include "agents/used_tools.h"
#include "json/json.h"
#include "log/field_names.h"
#include "plan/job_tools.h"

namespace ae::agents {
namespace {

constexpr std::uint32_t kMaxParallelMax = 1'024;

// True if a rule or an approval depends on the arguments of a call.
bool has_condition(const Value& policy) {
  const auto has_when = [](const Value& rule) { return rule.find("when") != nullptr; };
  const Value& rules = policy["rules"];
  return has_expression(policy.text("approval")) ||
         (rules.is_array() && std::ranges::any_of(rules.items(), has_when));
}

class AgentCheck {
 public:
  AgentCheck(CheckContext& check, std::string_view name, const SourceNode& source_node,
             const CallableTools& callable)
      : check_(check),
        source_node_(source_node),
        tools_(callable.tools),
        models_(callable.models),
        callable_(callable),
        nodes_(check),
        used_(check, callable) {
    agent_.name = name;
  }

  Agent run() {
    const std::size_t before = check_.count();
    if (!check_.mapping(source_node_, Mapping::agent,
                        {{"cron", "schedules are not available yet"},
                         {"schedule", "schedules are not available yet"}})) {
      return std::move(agent_);
    }
    cost_ = check_settings(check_, source_node_, agent_, graph_);
    grants();
    if (const auto code = source_node_.find(field::code)) {
      build_code_agent(*code);
    } else if (const auto loop = source_node_.find("loop")) {
      if (source_node_->find("plan") != nullptr) {
        check_.report(*loop, "an agent has either a `plan` or a `loop`; a plan can contain loops");
      }
      if (source_node_->find("planner") != nullptr) {
        check_.report(*loop, "an agent has either a `loop` or a `planner`");
      }
      build_loop_agent(*loop);
    } else if (const auto planner = source_node_.find("planner")) {
      if (source_node_->find("plan") != nullptr) {
        check_.report(*planner, "an agent has either a `plan` or a `planner`");
      }
      build_planner_agent(*planner);
    } else if (const auto plan = find_plan()) {
      nodes(*plan);
    }
    const auto output = source_node_.find("output");
    const auto output_schema = source_node_.find("output_schema");
    if (output_schema && source_node_->find(field::code) == nullptr) {
      check_.report(*output_schema, "`output_schema` is for agents with `code`");
    }
    if (output && source_node_->find(field::code) != nullptr) {
      check_.report(*output, "the result of the code is the result of the job; remove `output`");
    } else if (output && source_node_->find("planner") != nullptr) {
      check_.report(*output, "the plan that the planner writes defines the output", {},
                    Code::unsupported);
    } else if (output) {
      this->output(*output);
    }
    if (check_.count() == before && cost_) used_.check_prices(*cost_);
    if (check_.count() == before && !has_unknown_tool_) finish();
    return std::move(agent_);
  }

 private:
  // Collects the capabilities that plans made by a model may use.
  void grants() {
    const auto list = source_node_.find("grants");
    if (!list || !(*list)->is_list()) return;
    for (std::size_t i = 0; i < (*list)->items.size(); ++i) {
      const SourceNode item = list->item(i);
      if (!item->is_string() || !is_capability(item->scalar.as_string())) continue;  // reported
      granted_.insert(item->scalar.as_string());
      check_capability_known(check_, item, item->scalar.as_string(), tools_);
    }
  }

  std::optional<SourceNode> find_plan() {
    auto plan = source_node_.find("plan");
    if (!plan) {
      check_.required(
          source_node_, "plan",
          "the list of nodes that this agent runs (or use `loop`, `planner` or `code`)");
      return std::nullopt;
    }
    if (!check_.list(*plan)) return std::nullopt;
    if ((*plan)->items.empty()) {
      check_.report(*plan, "a plan needs at least one node");
      return std::nullopt;
    }
    const std::size_t most = engine::PlanLimits{}.nodes_max;
    if ((*plan)->items.size() > most) {
      check_.report(*plan, fmt::format("a plan has at most {} nodes, this one has {}", most,
                                       (*plan)->items.size()));
      return std::nullopt;
    }
    return plan;
  }

  // An agent that is one loop: a plan of one node, whose result is the agent's.
  void build_loop_agent(const SourceNode& loop) {
    nodes_.add_only(source_node_, "loop");
    std::vector<Member> node = {{"id", "loop"}};
    this->loop(loop, node, true);
    graph_.emplace_back("nodes", Value::array({Value::object(std::move(node))}));
    if (source_node_->find("output") == nullptr) graph_.emplace_back("output", "${ .steps.loop }");
  }

  // An agent whose work is a function of a worker: a plan of one node, whose result is the agent's.
  void build_code_agent(const SourceNode& code) {
    for (const std::string_view other : {"plan", "loop", "planner"}) {
      if (source_node_->find(other) == nullptr) continue;
      check_.report(code, fmt::format("an agent has either `code` or a `{}`", other));
    }
    const std::string_view kind = engine::to_text(engine::NodeKind::code);  // and the node's id
    nodes_.add_only(source_node_, kind);
    used_.add_code_functions();
    const CheckedCode checked = check_code(
        check_, source_node_, {.agent = agent_.name, .callable = callable_, .used = used_});
    const Value node =
        Value::object({{"id", kind}, {field::kind, kind}, {field::code, checked.code}});
    graph_.emplace_back("nodes", Value::array({node}));
    graph_.emplace_back("output", fmt::format("${{ .steps.{} }}", kind));
    add_prices();
    if (checked.version.empty()) return;
    agent_.execution_version = checked.version;
    const auto versions = source_node_.find("versions");
    if (!versions || !versions->find("policy")) {
      std::vector<Member> route{{"policy", "route"}};
      if (const auto wait = versions ? versions->find("wait") : std::nullopt) {
        if ((*wait)->is_string()) route.emplace_back("wait", (*wait)->scalar);
      }
      graph_.emplace_back("versions", Value::object(std::move(route)));
    }
  }

  // Code may call each of these models itself.
  void add_prices() {
    std::map<std::string, Value> prices;
    for (const auto& [name, model] : models_) {
      const Value* const price = model.policy.find("price");
      if (price != nullptr && !model.model.empty()) prices.emplace(model.model, *price);
    }
    if (prices.empty()) return;
    graph_.emplace_back("prices", Value::object({prices.begin(), prices.end()}));
  }

  // An agent whose model makes the plan: until then, its plan is one planner node.
  void build_planner_agent(const SourceNode& planner) {
    nodes_.add_only(source_node_, "planner");
    const Value made = check_planner(check_, planner, loop_context());
    const Value node =
        Value::object({{"id", "planner"}, {field::kind, "planner"}, {"planner", made}});
    graph_.emplace_back("nodes", Value::array({node}));
  }

  void loop(const SourceNode& source_node, std::vector<Member>& members, bool of_agent = false) {
    members.emplace_back(field::kind, "loop");
    LoopContext context = loop_context();
    context.of_agent = of_agent;
    members.emplace_back("loop", check_loop(check_, source_node, context));
  }

  LoopContext loop_context() {
    return {.callable = callable_,
            .grants = granted_,
            .check_expressions = check_expressions_,
            .find_model = [this](const SourceNode& name) { return find_model(name); },
            .add_tool =
                [this](const CheckedTool& tool, bool granted) {
                  used_.add(tool.tool.name, tool);
                  if (granted) used_.offer_to_model(tool.tool.name);
                }};
  }

  // ---- nodes

  void nodes(const SourceNode& plan) {
    for (std::size_t i = 0; i < plan->items.size(); ++i) nodes_.add(plan.item(i));
    std::vector<Value> nodes;
    nodes.reserve(nodes_.size());
    for (std::uint32_t i = 0; i < nodes_.size() && !check_.full(); ++i) {
      nodes.push_back(node(i));
    }
    nodes_.check();
    graph_.emplace_back("nodes", Value::array(std::move(nodes)));
  }

  Value node(std::uint32_t index) {
    const SourceNode& source_node = nodes_.source_node(index);
    if (!check_.mapping(source_node, Mapping::node,
                        {{"approval", "set approval on the tool, not on the node"},
                         {field::code, "code in a plan is not available yet; an agent can be code"},
                         {"retry", "set retry on the tool, not on the node"},
                         {"timeout", "set timeout on the tool, not on the node"}})) {
      return {};
    }
    node_ = index;
    item_name_.clear();
    in_item_ = false;
    std::vector<Member> members = {{"id", nodes_.id(index)}};
    nodes_.read_needs(index, members);
    if (const auto when = source_node.find("when")) this->when(*when, members);
    if (const auto on_error = source_node.find("on_error")) {
      if (check_.word(*on_error, Words::fail_or_continue) == "continue") {
        members.emplace_back("on_error", "continue");
      }
    }
    kind(source_node, members);
    return Value::object(std::move(members));
  }

  void kind(const SourceNode& source_node, std::vector<Member>& members) {
    std::vector<std::string_view> kinds;
    const Shape& shape = shape_of(Mapping::node);
    for (const std::string_view kind : shape.kinds) {
      if (source_node->find(kind) != nullptr) kinds.push_back(kind);
    }
    if (source_node->find(field::code) != nullptr) kinds.push_back(field::code);  // reported
    if (kinds.empty()) {
      check_.report(source_node, "a node needs one of tool, agent, llm, wait, map or loop");
      return;
    }
    if (kinds.size() > 1) {
      check_.report(
          source_node,
          fmt::format(
              "a node can have only one of tool, agent, llm, wait, map and loop; this one has {} "
              "and {}",
              kinds[0], kinds[1]));
      return;
    }
    const std::string_view kind = kinds[0];
    if (kind == field::code) return;
    check_.misplaced(source_node, shape, kind, [&](std::string_view key, const auto& owners) {
      const bool of_map = owners.front() == "map";
      return fmt::format("`{}` belongs to {}", key,
                         of_map                           ? "a map"
                         : owners.front() == field::agent ? "an agent"
                         : kind == "map"                  ? "the `do` of a map"
                                                          : "a tool");
    });
    if (kind == "loop") return loop(*source_node.find(kind), members);
    members.emplace_back(field::kind, kind == field::agent ? "tool" : kind);
    if (kind == "tool") {
      call(source_node, members);
    } else if (kind == field::agent) {
      child(source_node, members);
    } else if (kind == "llm") {
      llm(*source_node.find(kind), members);
    } else if (kind == "map") {
      map(source_node, members);
    } else if (auto wait = check_wait(check_, *source_node.find(kind), check_expressions_)) {
      members.emplace_back("wait", *std::move(wait));
    }
  }

  void when(const SourceNode& source_node, std::vector<Member>& members) {
    if (source_node->scalar.is_bool()) {
      if (!source_node->scalar.as_bool()) members.emplace_back("when", false);
      return;
    }
    if (!expression(source_node, "`when` must be true, false or a single ${ … }")) return;
    members.emplace_back("when", source_node->scalar);
  }

  // Checks for a single ${ … }.
  bool expression(const SourceNode& source_node, const std::string& wanted) {
    if (!check_expressions(source_node)) return false;
    if (is_one_expression(*source_node.value)) return true;
    check_.report(source_node, wanted);
    return false;
  }

  void call(const SourceNode& source_node, std::vector<Member>& members) {
    const auto named = check_.required(source_node, "tool", "the name of a tool of this file");
    const CheckedTool* tool = nullptr;
    if (named) {
      if (const auto name = check_.text(*named)) {
        const auto found = tools_.find(*name);
        if (*name == engine::kSendTool) {
          tool = &used_.add_send_tool();
        } else if (found == tools_.end() && !check_.may_be_unknown(*name)) {
          check_.report(*named, check_.describe_missing_tool(*name),
                        check_.nearest(*name, tools_, [](const auto& tool_of_file) {
                          return std::string_view(tool_of_file.first);
                        }));
        } else if (found == tools_.end()) {
          has_unknown_tool_ = true;
        } else {
          tool = &found->second;
          used_.add(found->first, *tool);
        }
        members.emplace_back("tool", *name);
      }
    }
    arguments(source_node, "args", tool, members);
  }

  // A child job: the call of a tool that no one else names.
  void child(const SourceNode& source_node, std::vector<Member>& members) {
    const SourceNode named = *source_node.find(field::agent);
    const auto name = check_.text(named);
    if (!name || !check_.name("an agent", *name, named.at(), named.path)) return;
    bool detached = false;
    if (const auto flag = source_node.find("detached")) {
      detached = check_.boolean(*flag).value_or(false);
    }
    const CheckedTool& tool = used_.add_child_tool(*name, detached, named.path);
    members.emplace_back("tool", tool.tool.name);
    arguments(source_node, field::input, &tool, members);
  }

  // `args` of a tool, `input` of a child job.
  void arguments(const SourceNode& source_node, std::string_view key, const CheckedTool* tool,
                 std::vector<Member>& members) {
    const auto args = source_node.find(key);
    bool good = true;
    if (args && !(*args)->is_mapping()) {
      good = expression(
          *args, fmt::format("`{}` must be a mapping, or a single ${{ … }} that evaluates to an "
                             "object",
                             key));
    } else if (args) {
      good = check_expressions(*args);
    }
    if (args && !((*args)->is_mapping() && (*args)->items.empty())) {
      members.emplace_back("args", (*args)->value());
    }
    if (good && tool != nullptr) {
      check_arguments(check_, args ? *args : source_node, args.has_value(), *tool);
    }
  }

  // Checks a model request and builds the arguments of its call.
  void llm(const SourceNode& source_node, std::vector<Member>& members) {
    if (!check_.mapping(source_node, Mapping::llm, {{"tools", "tools need a `loop`"}})) {
      return;
    }
    std::vector<Member> request;
    const CheckedModel* model = nullptr;
    if (const auto named =
            check_.required(source_node, "model", "the name of a model of this file")) {
      model = find_model(*named);
    }
    if (model != nullptr) {
      used_.add(model->tool.name, *model);
      members.emplace_back("tool", model->tool.name);
      request.emplace_back("model", model->model);
    }
    if (auto messages = check_messages(check_, source_node, check_expressions_)) {
      request.emplace_back("messages", *std::move(messages));
    }
    auto temperature = model != nullptr ? model->temperature : std::nullopt;
    auto max_tokens = model != nullptr ? model->max_tokens : std::nullopt;
    const std::string_view provider = model != nullptr ? model->tool.kind : std::string_view();
    if (const auto own = source_node.find("temperature")) {
      temperature = check_temperature(check_, *own, temperature_max(provider));
    }
    if (const auto own = source_node.find("max_tokens"))
      max_tokens = check_max_tokens(check_, *own);
    if (temperature) request.emplace_back("temperature", *temperature);
    if (max_tokens) request.emplace_back("max_tokens", *max_tokens);
    if (const auto own = source_node.find("schema")) {
      if (auto schema = check_answer_schema(check_, *own, provider)) {
        request.emplace_back("schema", *std::move(schema));
      }
    }
    if (in_item_) {
      if (const auto repair = source_node.find("repair")) {
        check_.report(*repair, "`repair` is not supported in a map; remove it", {},
                      Code::unsupported);
      }
    } else if (repairs_answers(check_, source_node)) {
      members.emplace_back("repair", 1);
    }
    members.emplace_back("args", Value::object(std::move(request)));
  }

  const CheckedModel* find_model(const SourceNode& named) {
    const auto name = check_.text(named);
    if (!name) return nullptr;
    const auto found = models_.find(*name);
    if (found != models_.end()) return &found->second;
    check_.report(named, fmt::format("unknown model {}", quote(*name)),
                  check_.nearest(*name, models_,
                                 [](const auto& model) { return std::string_view(model.first); }));
    return nullptr;
  }

  // ---- maps

  void map(const SourceNode& source_node, std::vector<Member>& members) {
    const SourceNode over = *source_node.find("map");
    if (over->is_list()) {
      if (over->items.size() > engine::PlanLimits{}.map_items_max) {
        check_.report(over, "a map can have at most 100,000 items");
      } else if (check_expressions(over)) {
        members.emplace_back("over", over->value());
      }
    } else if (expression(over,
                          "`map` must be a list, or a single ${ … } that evaluates to a list")) {
      members.emplace_back("over", over->scalar);
    }
    if (const auto as = source_node.find("as")) {
      const auto name = check_.text(*as);
      if (name && !engine::is_item_name(*name)) {
        check_.report(
            *as, fmt::format("{} is not a valid item name: use letters, digits and _, and none of "
                             "input, steps, job, index, args, call, result, env",
                             quote(*name)));
      } else if (name) {
        item_name_ = *name;
        if (*name != "item") members.emplace_back("as", *name);
      }
    }
    std::optional<std::uint32_t> parallel = 8;
    if (const auto most = source_node.find("max_parallel")) {
      parallel = check_.count(*most, kMaxParallelMax);
    }
    members.emplace_back("max_parallel", static_cast<double>(parallel.value_or(8)));
    if (const auto on_item = source_node.find("on_item_error")) {
      if (check_.word(*on_item, Words::on_item_error) == "collect") {
        members.emplace_back("on_item_error", "collect");
      }
    }
    const auto each = check_.required(source_node, "do",
                                      "the tool call, child job or llm step to run for each item");
    if (!each || !check_.mapping(*each, Mapping::map_item,
                                 {{field::code, "code in maps is not available yet"},
                                  {"map", "nested maps are not available yet"},
                                  {"wait", "waits in maps are not available yet"},
                                  {"when", "set `when` on the node, or filter the list"}})) {
      return;
    }
    const auto llm_node = each->find("llm");
    if (llm_node) {
      if ((*each)->find("tool") != nullptr) {
        check_.report(*each, "`do` needs either `tool` or `llm`");
      }
      check_.misplaced(*each, shape_of(Mapping::map_item), "llm",
                       [](std::string_view key, const auto&) {
                         return fmt::format("`{}` belongs to a tool", key);
                       });
    } else if ((*each)->find("tool") == nullptr &&
               ((*each)->find("map") != nullptr || (*each)->find("wait") != nullptr ||
                (*each)->find(field::code) != nullptr)) {
      return;  // already reported
    }
    if ((*each)->find(field::agent) != nullptr && (llm_node || (*each)->find("tool") != nullptr)) {
      check_.report(*each, "`do` needs one of `tool`, `agent` and `llm`");
    }
    in_item_ = true;
    std::vector<Member> inner;
    if (llm_node) {
      llm(*llm_node, inner);
    } else if ((*each)->find(field::agent) != nullptr) {
      child(*each, inner);
    } else {
      call(*each, inner);
    }
    in_item_ = false;
    members.emplace_back("do", Value::object(std::move(inner)));
  }

  // ---- expressions

  // Compiles the expressions in `source_node` and checks what they read.
  bool check_expressions(const SourceNode& source_node) {
    const std::size_t before = check_.count();
    reject_env_and_secrets(check_, source_node);
    if (check_.count() != before) return false;
    check_.templates(source_node, [this](const SourceNode& string, const Template& compiled) {
      roots(string, compiled.roots());
    });
    return check_.count() == before;
  }

  void roots(const SourceNode& string, const ExprRoots& read) {
    for (const std::string& root : read.roots) {
      if (root == field::input || root == "job" || root == "steps") continue;
      if (in_item_ && (root == "item" || root == "index" || root == item_name_)) continue;
      unknown_root(string, root);
    }
    if (read.all_steps && !in_output_) {
      check_.report_root(
          string, ".steps",
          "a node can read .steps.ID of nodes in its `needs`; only `output` can read "
          "all of .steps");
    }
    for (const std::string& step : read.steps) {
      const auto found = nodes_.find(step);
      if (!found) {
        check_.report_root(string, ".steps", fmt::format("unknown node {}", quote(step)),
                           nodes_.steps_hint(step));
      } else if (!in_output_) {
        nodes_.add_read({.node = node_, .step = *found, .where = string});
      }
    }
  }

  void unknown_root(const SourceNode& string, const std::string& root) {
    if (root == "args" || root == "call" || root == field::result) {
      check_.report_root(string, "." + root,
                         fmt::format(".{} is available in tools only, not in plans", root));
      return;
    }
    if (root == "item" || root == "index") {
      check_.report_root(string, "." + root,
                         fmt::format(".{} is available in the `do` of a map only", root));
      return;
    }
    ClosestName nearest(root);
    for (const std::string_view known : {field::input, "steps", "job"}) nearest.consider(known);
    if (in_item_) {
      for (const std::string_view known : {"item", "index"}) nearest.consider(known);
      if (!item_name_.empty()) nearest.consider(item_name_);
    }
    std::string suggestion = nearest.best();
    if (suggestion.empty() && nodes_.find(root)) suggestion = "steps." + root;
    check_.report_root(string, "." + root, fmt::format(".{} is not available here", root),
                       suggestion.empty() ? suggestion : "." + suggestion);
  }

  void output(const SourceNode& source_node) {
    in_output_ = true;
    check_expressions(source_node);
    in_output_ = false;
    graph_.emplace_back("output", source_node->value());
  }

  void finish() {
    graph_.emplace_back("schema", 1);
    auto used = used_.policies(agent_.name, source_node_);
    if (!used) return;  // errors elsewhere in the file
    if (std::ranges::any_of(*used, [](const Member& tool) { return has_condition(tool.second); })) {
      graph_.emplace_back("conditions", "strict");
    }
    graph_.emplace_back("tools", Value::object(*std::move(used)));
    agent_.task_graph = Value::object(std::move(graph_));
    // The plan compiler must agree; otherwise this check or the compiler has a bug.
    if (const auto plan = engine::Plan::compile(agent_.task_graph); !plan) {
      check_.report(source_node_, plan.error().message);
    }
  }

  CheckContext& check_;
  const SourceNode& source_node_;
  const ExpressionCheck check_expressions_ = [this](const SourceNode& text) {
    return check_expressions(text);
  };
  const CheckedTools& tools_;
  const CheckedModels& models_;
  const CallableTools& callable_;
  Agent agent_;
  std::vector<Member> graph_;
  PlanNodes nodes_;
  UsedTools used_;
  std::optional<SourceNode> cost_;              // of the budget
  std::set<std::string, std::less<>> granted_;  // capabilities
  // The current position:
  std::uint32_t node_ = 0;
  std::string item_name_;
  bool in_item_ = false;
  bool in_output_ = false;
  bool has_unknown_tool_ = false;  // it names a tool that is unknown because of another error
};

}  // namespace

Agent check_agent(CheckContext& check, std::string_view name, const SourceNode& source_node,
                  const CallableTools& callable) {
  return AgentCheck(check, name, source_node, callable).run();
}

}  // namespace ae::agents
