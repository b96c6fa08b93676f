// Reads the nodes of a task graph: calls, waits, maps. Loops and planners are in plan_loop.cc, the
// references between nodes in plan_references.cc.
#include <fmt/core.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "log/field_names.h"
#include "plan/model_calls.h"
#include "plan/plan_read.h"

namespace ae::engine {
namespace {

constexpr std::uint32_t kMaxParallelMax = 1'024;
constexpr std::uint32_t kMaxTokensMax = 10'000'000;

class NodeReader {
 public:
  NodeReader(Plan& plan, const ToolsByName& tool_by_name, const PlanLimits& limits)
      : plan_(plan), tool_by_name_(tool_by_name), limits_(limits) {}

  Status read(const Value& nodes) {
    if (!nodes.is_array() || nodes.size() == 0) {
      return fail(Code::plan_invalid, "a plan must have at least one node");
    }
    if (nodes.size() > limits_.nodes_max) {
      return fail(Code::plan_invalid, "a plan has at most {} nodes, this one has {}",
                  limits_.nodes_max, nodes.size());
    }
    plan_.nodes.reserve(nodes.size());
    for (const Value& value : nodes.items()) {
      Node node;
      node.index = static_cast<std::uint32_t>(plan_.nodes.size());
      node.id = value.text("id");
      if (!is_name(node.id)) {
        return fail(Code::plan_invalid, "nodes[{}]: `id` must match [A-Za-z_][A-Za-z0-9_-]{{0,63}}",
                    node.index);
      }
      if (!plan_.by_id.emplace(node.id, node.index).second) {
        return fail(Code::plan_invalid, "two nodes are called `{}`", node.id);
      }
      if (auto read = read_node(value, node); !read) {
        return std::unexpected(
            std::move(read).error().with_context(fmt::format("node `{}`", node.id)));
      }
      plan_.nodes.push_back(std::move(node));
    }
    return {};
  }

 private:
  Status read_node(const Value& value, Node& node) {
    AE_ASSIGN(const std::size_t kind, required_word_at(value, field::kind,
                                                       {"tool", "wait", "map", "llm", "loop",
                                                        "planner", to_text(NodeKind::code)}));
    node.kind = static_cast<NodeKind>(kind);
    AE_ASSIGN(const std::size_t on_error, word_at(value, "on_error", {"fail", "continue"}));
    node.continue_on_error = on_error == 1;
    AE_ASSIGN(node.when, template_at(value, "when"));
    if (node.when && !value["when"].is_bool() && !is_one_expression(value["when"])) {
      return fail(Code::plan_invalid, "`when` must be one ${ … }, true or false");
    }
    switch (node.kind) {
      case NodeKind::tool:
        AE_TRY(only_node_keys(value, {"tool", "args"}));
        return read_call(value, node);
      case NodeKind::llm:
        AE_TRY(only_node_keys(value, {"tool", "args", "repair"}));
        AE_TRY(read_call(value, node));
        if (value.find("repair") != nullptr) {
          AE_ASSIGN(node.loop, read_repair_loop(value));
        }
        return {};
      case NodeKind::wait:
        AE_TRY(only_node_keys(value, {"wait"}));
        return read_wait(value["wait"], node);
      case NodeKind::map:
        AE_TRY(only_node_keys(value, {"over", "as", "max_parallel", "on_item_error", "do"}));
        return read_map(value, node);
      case NodeKind::loop:
        AE_TRY(only_node_keys(value, {"loop"}));
        return read_model_node(value["loop"], node, &read_loop);
      case NodeKind::planner:
        AE_TRY(only_keys(value, {"id", field::kind, "planner"}));
        if (node.index > 0) return fail(Code::plan_invalid, "a planner comes first");
        return read_model_node(value["planner"], node, &read_planner);
      case NodeKind::code: {
        AE_TRY(only_node_keys(value, {to_text(node.kind)}));
        AE_ASSIGN(node.code, read_code(value[to_text(node.kind)], plan_, tool_by_name_));
        return {};
      }
      case NodeKind::scope:
      case NodeKind::turn:
        break;  // no words of a plan
    }
    return {};
  }

  // The members that nodes of all kinds have, and these.
  static Status only_node_keys(const Value& value, Keys own) {
    constexpr std::string_view kCommon[] = {"id", field::kind, "needs", "when", "on_error"};
    for (const auto& [key, member] : value.members()) {
      const bool is_known = std::ranges::find(kCommon, key) != std::end(kCommon) ||
                            std::find(own.begin(), own.end(), key) != own.end();
      if (!is_known) return fail(Code::plan_invalid, "unknown member `{}`", key);
    }
    return {};
  }

  // A node that a model controls: a loop or a planner.
  Status read_model_node(const Value& value, Node& node, decltype(&read_loop) read_spec) {
    AE_ASSIGN(node.tool, find_tool(value, tool_by_name_));
    if (!plan_.tools[node.tool].is_model()) {
      return fail(Code::plan_invalid, "it is led by a model");
    }
    AE_ASSIGN(node.loop, read_spec(value, plan_, tool_by_name_));
    return {};
  }

  Status read_call(const Value& value, Node& node) {
    AE_ASSIGN(node.tool, find_tool(value, tool_by_name_));
    const bool model = plan_.tools[node.tool].is_model();
    if (node.kind != NodeKind::map && model != (node.kind == NodeKind::llm)) {
      return fail(Code::plan_invalid,
                  "a node of kind llm calls a model, one of kind tool does not");
    }
    if (model) AE_TRY(check_request(value["args"]));
    if (const Value* args = value.find("args")) {
      if (!args->is_object() && !is_one_expression(*args)) {
        return fail(Code::plan_invalid, "`args` must be an object, or one ${ … } that gives one");
      }
      AE_ASSIGN(node.args, template_of(*args, "args"));
      node.has_args = true;
    }
    return {};
  }

  static Status check_request(const Value& args) {
    AE_TRY(only_keys(args, {"model", "messages", "temperature", "max_tokens", "schema"}));
    AE_TRY(text_at(args, "model"));
    const Value& messages = args["messages"];
    if (!is_one_expression(messages) && (!messages.is_array() || messages.size() == 0)) {
      return fail(Code::plan_invalid,
                  "`messages` must be a list that is not empty, or one ${ … } that gives one");
    }
    AE_TRY(check_model_args(args));
    const Value& temperature = args["temperature"];
    if (!temperature.is_null() && !temperature.is_number()) {
      return fail(Code::plan_invalid, "`temperature` must be a number");
    }
    if (args.find("max_tokens") == nullptr) return {};
    AE_TRY(count_at(args, "max_tokens", kMaxTokensMax));
    return {};
  }

  Status read_wait(const Value& value, Node& node) {
    constexpr WaitType kTypes[] = {WaitType::timer, WaitType::signal, WaitType::webhook,
                                   WaitType::human, WaitType::message};
    AE_ASSIGN(const std::size_t type,
              required_word_at(value, "type", {"timer", "signal", "webhook", "human", "message"}));
    node.wait.type = kTypes[type];
    if (node.wait.type == WaitType::timer) {
      AE_TRY(only_keys(value, {"type", "for", field::until}));
      AE_ASSIGN(node.wait_for, template_at(value, "for"));
      AE_ASSIGN(node.wait_until, template_at(value, field::until));
      if (node.wait_for.has_value() == node.wait_until.has_value()) {
        return fail(Code::plan_invalid, "a timer has either `for` or `until`");
      }
      return check_timer(value, node);
    }
    if (node.wait.type == WaitType::message) {
      AE_TRY(only_keys(value, {"type", field::channel, "expires", "on_expire"}));
      AE_ASSIGN(node.wait_channel, template_at(value, field::channel));
      if (value.text(field::channel).empty()) {
        return fail(Code::plan_invalid, "`channel` must be a string that is not empty");
      }
      return read_expiry(value, node);
    }
    if (node.wait.type == WaitType::human) {
      AE_TRY(only_keys(value, {"type", "key", "expires", "on_expire", "on_reject", "answer"}));
      AE_ASSIGN(const std::size_t on_reject, word_at(value, "on_reject", {"fail", "continue"}));
      node.wait.continue_on_reject = on_reject == 1;
      AE_ASSIGN(const std::size_t answer, word_at(value, "answer", {"decision", "data"}));
      node.wait.accepts_data = answer == 1;
    } else {
      AE_TRY(only_keys(value, {"type", "key", "expires", "on_expire"}));
    }
    AE_ASSIGN(node.wait_key, template_at(value, "key"));
    if (node.wait_key && value.text("key").empty()) {
      return fail(Code::plan_invalid, "`key` must be a string that is not empty");
    }
    return read_expiry(value, node);
  }

  static Status read_expiry(const Value& value, Node& node) {
    AE_ASSIGN(node.wait_expires,
              optional_duration_at(value, "expires", std::chrono::milliseconds(1)));
    AE_ASSIGN(const std::size_t on_expire, word_at(value, "on_expire", {"fail", "continue"}));
    node.wait.continue_on_expire = on_expire == 1;
    return {};
  }

  static Status check_timer(const Value& value, const Node& node) {
    if (node.wait_for && node.wait_for->is_constant()) {
      AE_TRY(duration_at(value, "for", Duration(0)));
    }
    if (node.wait_until && node.wait_until->is_constant() &&
        !instant_from_text(value.text(field::until))) {
      return fail(Code::plan_invalid, "`until` must be a time such as 2030-01-31T08:00:00Z");
    }
    return {};
  }

  Status read_map(const Value& value, Node& node) {
    const Value& over = value["over"];
    if (!over.is_array() && !is_one_expression(over)) {
      return fail(Code::plan_invalid, "`over` must be a list, or one ${ … } that gives one");
    }
    if (over.size() > limits_.map_items_max) {
      return fail(Code::plan_invalid, "a map goes over at most {} items", limits_.map_items_max);
    }
    AE_ASSIGN(node.over, template_of(over, "over"));
    if (value.find("as") != nullptr) {
      AE_ASSIGN(node.as, text_at(value, "as"));
      if (!is_item_name(node.as)) {
        return fail(Code::plan_invalid, "`as` cannot be `{}`", node.as);
      }
    }
    AE_ASSIGN(node.max_parallel, count_at(value, "max_parallel", kMaxParallelMax));
    AE_ASSIGN(const std::size_t on_item, word_at(value, "on_item_error", {"fail", "collect"}));
    node.collect_errors = on_item == 1;
    AE_TRY(only_keys(value["do"], {"tool", "args"}));
    return read_call(value["do"], node);
  }

  Plan& plan_;
  const ToolsByName& tool_by_name_;
  const PlanLimits& limits_;
};

}  // namespace

Status read_nodes(const Value& nodes, const ToolsByName& tool_by_name, const PlanLimits& limits,
                  Plan& plan) {
  return NodeReader(plan, tool_by_name, limits).read(nodes);
}

}  // namespace ae::engine
