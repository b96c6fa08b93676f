// Plan::compile: the last validation of a recorded task graph before it is used. Strict: an unknown
// or missing member is plan_invalid, because an ignored member could be a policy that is not
// enforced.
#include "plan/plan.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <utility>

#include "base/hash.h"
#include "json/json.h"
#include "log/field_names.h"
#include "plan/model_calls.h"
#include "plan/plan_read.h"

namespace ae::engine {
namespace {

constexpr std::uint32_t kMaxAttemptsMax = 1'000;
constexpr std::uint32_t kMaxParallelMax = 1'024;
constexpr double kMultiplierMax = 1'000;
constexpr std::size_t kChangesMax = 64;  // per tool
constexpr std::uint32_t kMaxTokensMax = 10'000'000;

// ---- tools

Result<RetryPolicy> read_retry(const Value& value) {
  AE_TRY(only_keys(
      value, {field::max_attempts, "initial_backoff", "max_backoff", "multiplier", "retry_on"}));
  RetryPolicy retry;
  AE_ASSIGN(retry.max_attempts, count_at(value, field::max_attempts, kMaxAttemptsMax));
  AE_ASSIGN(retry.initial_backoff, duration_at(value, "initial_backoff", Duration(0)));
  AE_ASSIGN(retry.max_backoff, duration_at(value, "max_backoff", Duration(0)));
  const Value& multiplier = value["multiplier"];
  if (!multiplier.is_number() || multiplier.as_number() < 1 ||
      multiplier.as_number() > kMultiplierMax) {
    return fail(Code::plan_invalid, "`multiplier` must be a number from 1 to 1000");
  }
  retry.multiplier = multiplier.as_number();
  if (!value["retry_on"].is_array()) return fail(Code::plan_invalid, "`retry_on` must be a list");
  retry.retry_on.clear();
  for (const Value& entry : value["retry_on"].items()) {
    if (!entry.is_string()) {
      return fail(Code::plan_invalid, "`retry_on` must be a list of strings");
    }
    retry.retry_on.push_back(entry.as_string());
  }
  return retry;
}

Status read_approval(const Value& value, ToolPolicy& tool) {
  if (const Value* approval = value.find("approval")) {
    tool.approval_required = *approval == Value("required");
    if (!tool.approval_required) {
      if (!is_one_expression(*approval)) {
        return fail(Code::plan_invalid,
                    "`approval` must be \"required\", or one ${ … } over .args");
      }
      AE_ASSIGN(tool.approval_when, template_of(*approval, "approval"));
      const ExprRoots& read = tool.approval_when->roots();
      const bool other =
          std::ranges::any_of(read.roots, [](const std::string& root) { return root != "args"; });
      if (other || read.all_steps || !read.steps.empty()) {
        return fail(Code::plan_invalid, "`approval` reads `.args` only");
      }
    }
  }
  if (value.find("approval_expires") == nullptr) return {};
  if (!tool.may_require_approval()) {
    return fail(Code::plan_invalid, "`approval_expires` without `approval`");
  }
  AE_ASSIGN(tool.approval_expires,
            duration_at(value, "approval_expires", std::chrono::milliseconds(1)));
  return {};
}

// A model only reads: its call may always be repeated and never needs approval or resolution.
Status read_model(const Value& value, ToolPolicy& tool) {
  const bool named = tool.name.starts_with(kModelToolPrefix);
  if (named != (value.find("provider") != nullptr)) {
    return fail(Code::plan_invalid,
                "a model, and no tool, is called model:NAME and has a provider");
  }
  if (!named && value.find("price") != nullptr) {
    return fail(Code::plan_invalid, "a model has a `price`, a tool has none");
  }
  if (!named) return {};
  AE_ASSIGN(tool.provider, text_at(value, "provider"));
  if (tool.provider.empty() || tool.effect != EffectClass::read ||
      tool.on_in_doubt != OnInDoubt::resend || tool.may_require_approval() || tool.args_schema ||
      tool.result_schema || value.find(field::compensate) != nullptr || !tool.rules.empty() ||
      !tool.capabilities.empty()) {
    return fail(Code::plan_invalid, "a model is `read` and `resend`, has a provider and no more");
  }
  if (const Value* price = value.find("price")) {
    AE_ASSIGN(tool.price, price_of(*price));
  }
  return {};
}

// A value recorded without a call is not retried, has no unknown outcome and changes nothing
// external.
Status read_records(const Value& value, ToolPolicy& tool) {
  if (value.find("records") == nullptr) return {};
  AE_ASSIGN(const std::size_t word, required_word_at(value, "records", {"time", "random", "uuid"}));
  tool.records = static_cast<RecordedKind>(word + 1);
  if (tool.is_model() || tool.effect != EffectClass::read ||
      tool.on_in_doubt != OnInDoubt::resend || tool.result_schema || tool.local) {
    return fail(Code::plan_invalid,
                "a tool with `records` makes no call: it is `read` and `resend`, no model, and has "
                "no `result_schema`");
  }
  return {};
}

Result<Template> read_change(const Value& value) {
  AE_TRY(only_keys(value, {"type", "id", "op", field::version, field::etag, "ref"}));
  for (const std::string_view key : {"type", "id", "op"}) {
    if (value.find(key) == nullptr) return fail(Code::plan_invalid, "without " + quoted(key));
  }
  AE_ASSIGN(Template change, template_of(value, "changes"));
  if (change.is_constant()) return change;
  for (const std::string& root : change.roots().roots) {
    if (root != "args" && root != "call" && root != field::result) {
      return fail(Code::plan_invalid,
                  "reads " + quoted("." + root) + ", which is not available here");
    }
  }
  return change;
}

// Reads what the tool changes, and which verifier checks it after a recovery.
Status read_changes(const Value& value, ToolPolicy& tool) {
  if (const Value* changes = value.find("changes")) {
    if (!changes->is_array() || changes->size() == 0 || changes->size() > kChangesMax) {
      return fail(Code::plan_invalid, "`changes` must be a list of 1 to 64 entries");
    }
    if (tool.effect == EffectClass::read) {
      return fail(Code::plan_invalid, "a tool that only reads changes nothing");
    }
    for (const Value& entry : changes->items()) {
      auto change = read_change(entry);
      if (!change) return std::unexpected(std::move(change).error().with_context("`changes`"));
      tool.changes.push_back(*std::move(change));
    }
  }
  const Value* verify = value.find("verify");
  if (verify == nullptr) return {};
  if (tool.changes.empty()) return fail(Code::plan_invalid, "`verify` without `changes`");
  AE_TRY(only_keys(*verify, {field::by, "mode"}));
  constexpr std::string_view kKinds[] = {
      "http_etag", "http_last_modified", "http_json", "file", "git_ref", "github", "sql"};
  AE_ASSIGN(tool.verified_by, text_at(*verify, field::by));
  if (std::ranges::find(kKinds, tool.verified_by) == std::end(kKinds)) {
    return fail(Code::plan_invalid, "`by` has no such value");
  }
  AE_ASSIGN(const std::size_t mode, word_at(*verify, "mode", {"strict", "warn", "human"}));
  tool.confirm = static_cast<ConfirmMode>(mode);
  return {};
}

Result<std::optional<Schema>> schema_at(const Value& value, std::string_view key) {
  const Value* schema = value.find(key);
  if (schema == nullptr) return std::nullopt;
  auto compiled = Schema::compile(*schema);
  if (!compiled) return std::unexpected(std::move(compiled).error().with_context(quoted(key)));
  return *std::move(compiled);
}

Result<ToolPolicy> read_tool(std::string_view name, const Value& value) {
  AE_TRY(only_keys(value, {"effect",        "on_in_doubt",     "timeout",      "grace",
                           "dedupe_window", "retry",           field::version, "description",
                           "args_schema",   "result_schema",   "approval",     "approval_expires",
                           "probe",         field::compensate, "changes",      "verify",
                           "provider",      "price",           "rules",        "capabilities",
                           "ask_expires",   "local",           "records"}));
  ToolPolicy tool;
  tool.name = name;
  if (value.find("description") != nullptr) AE_TRY(text_at(value, "description"));
  AE_ASSIGN(tool.version, text_at(value, field::version));
  if (tool.version.size() != 16 || !from_hex(tool.version)) {
    return fail(Code::plan_invalid, "`version` must be 16 hex digits");
  }
  AE_ASSIGN(const std::size_t effect,
            required_word_at(value, "effect", {"read", "idempotent", "at_most_once"}));
  tool.effect = static_cast<EffectClass>(effect);
  AE_ASSIGN(const std::size_t in_doubt,
            required_word_at(value, "on_in_doubt", {"resend", "park", "fail", "probe"}));
  tool.on_in_doubt = static_cast<OnInDoubt>(in_doubt);
  if (tool.effect == EffectClass::at_most_once && tool.on_in_doubt == OnInDoubt::resend) {
    return fail(Code::plan_invalid, "a tool that is at_most_once is never sent again");
  }
  AE_ASSIGN(tool.timeout, duration_at(value, "timeout", std::chrono::milliseconds(1)));
  AE_ASSIGN(tool.grace, duration_at(value, "grace", Duration(0)));
  if (value.text("dedupe_window") == "unlimited") {
    tool.dedupe_window = std::nullopt;
  } else {
    AE_ASSIGN(tool.dedupe_window,
              duration_at(value, "dedupe_window", std::chrono::milliseconds(1)));
  }
  auto retry = read_retry(value["retry"]);
  if (!retry) return std::unexpected(std::move(retry).error().with_context("`retry`"));
  tool.retry = *std::move(retry);
  AE_ASSIGN(tool.args_schema, schema_at(value, "args_schema"));
  tool.schema_digest = to_hex(sha256(canonical(value["args_schema"])));
  AE_ASSIGN(tool.result_schema, schema_at(value, "result_schema"));
  if (tool.result_schema) tool.result_digest = to_hex(sha256(canonical(value["result_schema"])));
  AE_TRY(read_approval(value, tool));
  if (value.find("ask_expires") != nullptr) {
    AE_ASSIGN(tool.ask_expires, duration_at(value, "ask_expires", std::chrono::milliseconds(1)));
  }
  if (const Value* local = value.find("local"); local != nullptr) {
    if (!local->is_bool()) return fail(Code::plan_invalid, "`local` is true or false");
    tool.local = local->as_bool();
  }
  AE_TRY(read_policies(value, tool));
  AE_TRY(read_model(value, tool));
  AE_TRY(read_records(value, tool));
  AE_TRY(read_changes(value, tool));
  return tool;
}

// Reads a probe or a compensation. Its tool is resolved once all tools are known.
Result<SideCall> read_side_call(const Value& value, Keys keys, Keys args_read) {
  AE_TRY(only_keys(value, keys));
  SideCall side;
  const auto reads_only = [](const Template& part, Keys roots) -> Status {
    if (part.is_constant()) return {};
    for (const std::string& root : part.roots().roots) {
      if (std::find(roots.begin(), roots.end(), root) == roots.end()) {
        return fail(Code::plan_invalid,
                    "reads " + quoted("." + root) + ", which is not available here");
      }
    }
    return {};
  };
  if (const Value* args = value.find("args")) {
    if (!args->is_object() && !is_one_expression(*args)) {
      return fail(Code::plan_invalid, "`args` must be an object, or one ${ … } that gives one");
    }
    AE_ASSIGN(side.args, template_of(*args, "args"));
    AE_TRY(reads_only(side.args, args_read));
    side.has_args = true;
  }
  if (std::find(keys.begin(), keys.end(), "happened") != keys.end()) {
    if (!is_one_expression(value["happened"])) {
      return fail(Code::plan_invalid, "`happened` must be one ${ … }");
    }
    AE_ASSIGN(side.happened, template_of(value["happened"], "happened"));
    AE_TRY(reads_only(side.happened, {"args", "call", field::result}));
  }
  return side;
}

// ---- nodes

class Compiler {
 public:
  Compiler(Plan& plan, const PlanLimits& limits) : plan_(plan), limits_(limits) {}

  Status run() {
    const Value& graph = plan_.task_graph;
    AE_TRY(
        only_keys(graph, {"schema", "nodes", "output", field::deadline, field::max_attempts,
                          "tools", "versions", "confirm", field::budget, "grants", "conditions"}));
    if (!(graph["schema"] == Value(1))) {
      return fail(Code::plan_invalid, "`schema` must be 1: this version reads no other");
    }
    AE_TRY(tools(graph["tools"]));
    AE_TRY(confirm(graph));
    AE_ASSIGN(plan_.grants, capabilities_at(graph, "grants"));
    if (graph.find("conditions") != nullptr) {
      AE_TRY(required_word_at(graph, "conditions", {"strict"}));
      plan_.strict_conditions = true;
    }
    AE_TRY(nodes(graph["nodes"]));
    AE_TRY(link_nodes(graph["nodes"]));
    AE_TRY(check_references());
    if (graph.find(field::deadline) != nullptr) {
      AE_ASSIGN(plan_.deadline, duration_at(graph, field::deadline, std::chrono::milliseconds(1)));
    }
    if (const Value* versions = graph.find("versions")) {
      AE_TRY(only_keys(*versions, {"policy"}));
      const std::string_view policy = versions->text("policy");
      if (policy != "strict" && policy != "route") {
        return fail(Code::plan_invalid,
                    "`versions.policy` is strict or route (or not there: warn)");
      }
      plan_.versions = policy == "strict" ? VersionPolicy::strict : VersionPolicy::route;
    }
    if (graph.find(field::max_attempts) != nullptr) {
      AE_ASSIGN(plan_.max_attempts, count_at(graph, field::max_attempts, kMaxAttemptsMax));
    }
    if (const Value* budget = graph.find(field::budget)) {
      AE_ASSIGN(plan_.budget, limits_of(*budget));
      if (!plan_.budget.any() || budget->find("wall_until") || budget->find("spent")) {
        return fail(Code::plan_invalid,
                    "`budget` has no limit, or has a member that only the budget of a job has");
      }
      if (plan_.budget.cost_micros && !plan_.all_models_priced()) {
        return fail(Code::plan_invalid,
                    "`budget` limits the cost, and not every model has a price");
      }
    }
    return output(graph);
  }

 private:
  Status tools(const Value& tools) {
    if (tools.is_null()) return {};
    if (!tools.is_object()) return fail(Code::plan_invalid, "`tools` must be an object");
    for (const auto& [name, value] : tools.members()) {
      auto tool = read_tool(name, value);
      if (!tool)
        return std::unexpected(std::move(tool).error().with_context("tool " + quoted(name)));
      tool_by_name_.emplace(name, static_cast<std::uint32_t>(plan_.tools.size()));
      plan_.tools.push_back(*std::move(tool));
    }
    for (ToolPolicy& tool : plan_.tools) {
      auto linked = side_calls(tool, *tools.find(tool.name));
      if (!linked)
        return std::unexpected(std::move(linked).error().with_context("tool " + quoted(tool.name)));
    }
    return {};
  }

  // Sets the mode of all tools whose `verify` has none.
  Status confirm(const Value& graph) {
    if (graph.find("confirm") == nullptr) return {};
    AE_ASSIGN(const std::size_t mode, word_at(graph, "confirm", {"strict", "warn", "human"}));
    for (ToolPolicy& tool : plan_.tools) {
      const Value* verify = graph["tools"][tool.name].find("verify");
      if (verify && !verify->find("mode")) tool.confirm = static_cast<ConfirmMode>(mode);
    }
    return {};
  }

  Status side_calls(ToolPolicy& tool, const Value& value) {
    const Value* probe = value.find("probe");
    const Value* compensate = value.find(field::compensate);
    if ((tool.on_in_doubt == OnInDoubt::probe) != (probe != nullptr)) {
      return fail(Code::plan_invalid, "`probe` and `on_in_doubt: probe` go together");
    }
    if ((probe || compensate) && tool.effect == EffectClass::read) {
      return fail(Code::plan_invalid, "a tool that only reads has no `probe` and no `compensate`");
    }
    if (probe) {
      auto side = read_side_call(*probe, {"tool", "args", "happened"}, {"args", "call"});
      if (!side) return std::unexpected(std::move(side).error().with_context("`probe`"));
      tool.probe = *std::move(side);
      AE_ASSIGN(tool.probe->tool, find_side_tool(*probe));
      if (plan_.tools[tool.probe->tool].effect != EffectClass::read) {
        return fail(Code::plan_invalid, "a probe must be a tool that only reads");
      }
      if (!plan_.tools[tool.probe->tool].makes_call()) {
        return fail(Code::plan_invalid, "a probe must be a tool that makes a call");
      }
    }
    if (compensate) {
      auto side = read_side_call(*compensate, {"tool", "args"}, {"args", "call", field::result});
      if (!side) return std::unexpected(std::move(side).error().with_context("`compensate`"));
      tool.compensate = *std::move(side);
      AE_ASSIGN(tool.compensate->tool, find_side_tool(*compensate));
      if (plan_.tools[tool.compensate->tool].effect == EffectClass::read) {
        return fail(Code::plan_invalid, "a tool that only reads undoes nothing");
      }
    }
    return {};
  }

  Result<std::uint32_t> find_tool(const Value& value) {
    AE_ASSIGN(const std::string tool, text_at(value, "tool"));
    const auto found = tool_by_name_.find(tool);
    if (found == tool_by_name_.end()) {
      return fail(Code::plan_invalid, "there is no tool " + quoted(tool));
    }
    return found->second;
  }

  Result<std::uint32_t> find_side_tool(const Value& value) {
    AE_ASSIGN(const std::uint32_t tool, find_tool(value));
    if (plan_.tools[tool].may_require_approval()) {
      return fail(Code::plan_invalid,
                  "the tool of a `probe` or `compensate` cannot require approval");
    }
    if (plan_.tools[tool].is_model()) {
      return fail(Code::plan_invalid, "the tool of a `probe` or `compensate` cannot be a model");
    }
    return tool;
  }

  Status nodes(const Value& nodes) {
    if (!nodes.is_array() || nodes.size() == 0) {
      return fail(Code::plan_invalid, "a plan must have at least one node");
    }
    if (nodes.size() > limits_.nodes_max) {
      return fail(Code::plan_invalid, "a plan has at most " + std::to_string(limits_.nodes_max) +
                                          " nodes, this one has " + std::to_string(nodes.size()));
    }
    plan_.nodes.reserve(nodes.size());
    for (const Value& value : nodes.items()) {
      Node node;
      node.index = static_cast<std::uint32_t>(plan_.nodes.size());
      node.id = value.text("id");
      if (!is_name(node.id)) {
        return fail(Code::plan_invalid, "nodes[" + std::to_string(node.index) +
                                            "]: `id` must match [A-Za-z_][A-Za-z0-9_-]{0,63}");
      }
      if (!plan_.by_id.emplace(node.id, node.index).second) {
        return fail(Code::plan_invalid, "two nodes are called " + quoted(node.id));
      }
      if (auto read = read_node(value, node); !read) {
        return std::unexpected(std::move(read).error().with_context("node " + quoted(node.id)));
      }
      plan_.nodes.push_back(std::move(node));
    }
    return {};
  }

  Status read_node(const Value& value, Node& node) {
    AE_ASSIGN(
        const std::size_t kind,
        required_word_at(value, field::kind, {"tool", "wait", "map", "llm", "loop", "planner"}));
    node.kind = static_cast<NodeKind>(kind);
    AE_ASSIGN(const std::size_t on_error, word_at(value, "on_error", {"fail", "continue"}));
    node.continue_on_error = on_error == 1;
    AE_ASSIGN(node.when, template_at(value, "when"));
    if (node.when && !value["when"].is_bool() && !is_one_expression(value["when"])) {
      return fail(Code::plan_invalid, "`when` must be one ${ … }, true or false");
    }
    switch (node.kind) {
      case NodeKind::tool:
        AE_TRY(only_keys(value, {"id", field::kind, "tool", "args", "needs", "when", "on_error"}));
        return read_call(value, node);
      case NodeKind::llm:
        AE_TRY(only_keys(
            value, {"id", field::kind, "tool", "args", "repair", "needs", "when", "on_error"}));
        AE_TRY(read_call(value, node));
        if (value.find("repair") != nullptr) {
          AE_ASSIGN(node.loop, read_repair_loop(value));
        }
        return {};
      case NodeKind::wait:
        AE_TRY(only_keys(value, {"id", field::kind, "wait", "needs", "when", "on_error"}));
        return read_wait(value["wait"], node);
      case NodeKind::map:
        AE_TRY(only_keys(value, {"id", field::kind, "over", "as", "max_parallel", "on_item_error",
                                 "do", "needs", "when", "on_error"}));
        return read_map(value, node);
      case NodeKind::loop:
        AE_TRY(only_keys(value, {"id", field::kind, "loop", "needs", "when", "on_error"}));
        return read_model_node(value["loop"], node, &read_loop);
      case NodeKind::planner:
        AE_TRY(only_keys(value, {"id", field::kind, "planner"}));
        if (node.index > 0) return fail(Code::plan_invalid, "a planner comes first");
        return read_model_node(value["planner"], node, &read_planner);
    }
    return {};
  }

  // A node that a model controls: a loop or a planner.
  Status read_model_node(const Value& value, Node& node, decltype(&read_loop) read) {
    AE_ASSIGN(node.tool, find_tool(value));
    if (!plan_.tools[node.tool].is_model()) {
      return fail(Code::plan_invalid, "it is led by a model");
    }
    AE_ASSIGN(node.loop, read(value, plan_, tool_by_name_));
    return {};
  }

  Status read_call(const Value& value, Node& node) {
    AE_ASSIGN(node.tool, find_tool(value));
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
    node.wait_type = kTypes[type];
    if (node.wait_type == WaitType::timer) {
      AE_TRY(only_keys(value, {"type", "for", field::until}));
      AE_ASSIGN(node.wait_for, template_at(value, "for"));
      AE_ASSIGN(node.wait_until, template_at(value, field::until));
      if (node.wait_for.has_value() == node.wait_until.has_value()) {
        return fail(Code::plan_invalid, "a timer has either `for` or `until`");
      }
      return check_timer(value, node);
    }
    if (node.wait_type == WaitType::message) {
      AE_TRY(only_keys(value, {"type", field::channel, "expires", "on_expire"}));
      AE_ASSIGN(node.wait_channel, template_at(value, field::channel));
      if (value.text(field::channel).empty()) {
        return fail(Code::plan_invalid, "`channel` must be a string that is not empty");
      }
      return read_expiry(value, node);
    }
    if (node.wait_type == WaitType::human) {
      AE_TRY(only_keys(value, {"type", "key", "expires", "on_expire", "on_reject", "answer"}));
      AE_ASSIGN(const std::size_t on_reject, word_at(value, "on_reject", {"fail", "continue"}));
      node.continue_on_reject = on_reject == 1;
      AE_ASSIGN(const std::size_t answer, word_at(value, "answer", {"decision", "data"}));
      node.accepts_data = answer == 1;
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
    if (value.find("expires") != nullptr) {
      AE_ASSIGN(node.wait_expires, duration_at(value, "expires", std::chrono::milliseconds(1)));
    }
    AE_ASSIGN(const std::size_t on_expire, word_at(value, "on_expire", {"fail", "continue"}));
    node.continue_on_expire = on_expire == 1;
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
      return fail(Code::plan_invalid,
                  "a map goes over at most " + std::to_string(limits_.map_items_max) + " items");
    }
    AE_ASSIGN(node.over, template_of(over, "over"));
    if (value.find("as") != nullptr) {
      AE_ASSIGN(node.as, text_at(value, "as"));
      if (!is_item_name(node.as)) {
        return fail(Code::plan_invalid, "`as` cannot be " + quoted(node.as));
      }
    }
    AE_ASSIGN(node.max_parallel, count_at(value, "max_parallel", kMaxParallelMax));
    AE_ASSIGN(const std::size_t on_item, word_at(value, "on_item_error", {"fail", "collect"}));
    node.collect_errors = on_item == 1;
    AE_TRY(only_keys(value["do"], {"tool", "args"}));
    return read_call(value["do"], node);
  }

  // ---- references between nodes

  Status link_nodes(const Value& nodes) {
    needs_.resize(plan_.nodes.size());
    for (Node& node : plan_.nodes) {
      const Value* needs = nodes.items()[node.index].find("needs");
      if (needs == nullptr) continue;
      if (!needs->is_array()) {
        return fail(Code::plan_invalid, "node " + quoted(node.id) + ": `needs` must be a list");
      }
      for (const Value& need : needs->items()) {
        const auto found = plan_.by_id.find(need.is_string() ? need.as_string() : "");
        if (found == plan_.by_id.end()) {
          return fail(Code::plan_invalid,
                      "node " + quoted(node.id) + " needs a node that does not exist");
        }
        node.needs.push_back(found->second);
      }
      std::vector<std::uint32_t>& sorted = needs_[node.index];
      sorted = node.needs;
      std::ranges::sort(sorted);
      if (std::ranges::adjacent_find(sorted) != sorted.end()) {
        return fail(Code::plan_invalid, "node " + quoted(node.id) + " needs a node twice");
      }
      for (const std::uint32_t need : sorted) {
        plan_.nodes[need].dependents.push_back(node.index);
      }
    }
    return {};
  }

  Status check_references() {
    const TopologicalOrder order = topological_order(needs_);
    if (!order.cycles.empty()) {
      return fail(Code::plan_invalid, "dependency cycle that begins at " +
                                          quoted(plan_.nodes[order.cycles.front().front()].id));
    }
    for (const Node& node : plan_.nodes) {
      AE_TRY(check_roots(node, node.when ? &*node.when : nullptr, false, order));
      AE_TRY(check_roots(node, node.wait_for ? &*node.wait_for : nullptr, false, order));
      AE_TRY(check_roots(node, node.wait_until ? &*node.wait_until : nullptr, false, order));
      AE_TRY(check_roots(node, node.wait_key ? &*node.wait_key : nullptr, false, order));
      AE_TRY(check_roots(node, node.wait_channel ? &*node.wait_channel : nullptr, false, order));
      AE_TRY(check_roots(node, node.kind == NodeKind::map ? &node.over : nullptr, false, order));
      AE_TRY(check_roots(node, node.has_args ? &node.args : nullptr, node.kind == NodeKind::map,
                         order));
      if (!node.loop) continue;
      AE_TRY(check_roots(node, &node.loop->prompt, false, order));
      AE_TRY(check_roots(node, node.loop->system ? &*node.loop->system : nullptr, false, order));
    }
    return {};
  }

  // SPEC §9: a node's expression reads only values that can no longer change when it is evaluated.
  Status check_roots(const Node& node, const Template* part, bool per_item,
                     const TopologicalOrder& order) {
    if (part == nullptr || part->is_constant()) return {};
    const ExprRoots& read = part->roots();
    for (const std::string& root : read.roots) {
      if (root == field::input || root == "job" || root == "steps") continue;
      if (per_item && (root == "item" || root == "index" || root == node.as)) continue;
      return node_error(node, " reads " + quoted("." + root) + ", which is not available here");
    }
    if (read.all_steps) {
      return node_error(node, " reads all of `.steps`; only `output` may");
    }
    for (const std::string& step : read.steps) {
      const auto found = plan_.by_id.find(step);
      if (found == plan_.by_id.end() || !reaches(node.index, found->second, order)) {
        return node_error(
            node, " reads " + quoted(".steps." + step) + " without needing " + quoted(step));
      }
    }
    return {};
  }

  static std::unexpected<Error> node_error(const Node& node, const std::string& why) {
    return fail(Code::plan_invalid, "node " + quoted(node.id) + why);
  }

  bool reaches(std::uint32_t node, std::uint32_t other, const TopologicalOrder& order) {
    if (std::ranges::binary_search(needs_[node], other)) return true;
    if (!reach_) reach_.emplace(needs_, order.order);
    return reach_->reaches(node, other);
  }

  Status output(const Value& graph) {
    AE_ASSIGN(plan_.output, template_at(graph, "output"));
    if (!plan_.output || plan_.output->is_constant()) return {};
    for (const std::string& root : plan_.output->roots().roots) {
      if (root != field::input && root != "job" && root != "steps") {
        return fail(Code::plan_invalid,
                    "`output` reads `." + root + "`, which is not available here");
      }
    }
    for (const std::string& step : plan_.output->roots().steps) {
      if (!plan_.by_id.contains(step)) {
        return fail(Code::plan_invalid, "`output` reads `.steps." + step + "`: no such node");
      }
    }
    return {};
  }

  Plan& plan_;
  const PlanLimits& limits_;
  std::unordered_map<std::string, std::uint32_t> tool_by_name_;
  Needs needs_;  // sorted
  std::optional<Reachability> reach_;
};

bool all_digits(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

std::string_view to_text(EffectClass effect) {
  constexpr std::string_view kText[] = {"read", "idempotent", "at_most_once"};
  return kText[static_cast<std::size_t>(effect)];
}

std::string_view to_text(ConfirmMode mode) {
  constexpr std::string_view kText[] = {"strict", "warn", "human"};
  return kText[static_cast<std::size_t>(mode)];
}

std::string_view to_text(NodeKind kind) {
  constexpr std::string_view kText[] = {"tool", "wait", "map", "llm", "loop", "planner"};
  return kText[static_cast<std::size_t>(kind)];
}

std::string_view to_text(WaitType type) {
  constexpr std::string_view kText[] = {"webhook", "human", "timer", "signal", "message"};
  return kText[static_cast<std::size_t>(type)];
}

bool RetryPolicy::covers(std::string_view error_code) const {
  const std::string_view status =
      error_code.starts_with("http_") ? error_code.substr(5) : std::string_view();
  return std::ranges::any_of(retry_on, [&](std::string_view entry) {
    if (entry == error_code) return true;
    if (status.size() != 3 || !all_digits(status) || entry.size() != 3) return false;
    return entry == status || (entry.ends_with("xx") && entry[0] == status[0]);
  });
}

Duration RetryPolicy::backoff(std::uint32_t next, std::uint64_t jitter_seed,
                              std::optional<Duration> retry_after) const {
  const auto max = static_cast<double>(max_backoff.count());
  auto wait = static_cast<double>(initial_backoff.count());
  // The product stops growing at `most`; with a multiplier near 1 the loop ends at kMaxAttemptsMax.
  const std::uint32_t times = std::min(next < 2 ? 0 : next - 2, kMaxAttemptsMax);
  for (std::uint32_t i = 0; i < times && wait < max; ++i) wait *= multiplier;
  wait = std::min(wait, max);
  const double part = static_cast<double>(jitter_seed >> 11) * 0x1p-53;  // [0, 1)
  const Duration jittered(std::llround(wait / 2 + wait / 2 * part));
  return std::min(std::max(jittered, retry_after.value_or(Duration(0))), max_backoff);
}

bool is_name(std::string_view text) {
  const auto letter = [](char c) {
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_';
  };
  return !text.empty() && text.size() <= 64 && letter(text[0]) &&
         std::ranges::all_of(
             text, [&](char c) { return letter(c) || (c >= '0' && c <= '9') || c == '-'; });
}

bool is_item_name(std::string_view text) {
  constexpr std::string_view kReservedNames[] = {field::input, "steps", "job",         "index",
                                                 "args",       "call",  field::result, "env"};
  return is_name(text) && text.find('-') == text.npos &&
         std::ranges::find(kReservedNames, text) == std::end(kReservedNames);
}

TopologicalOrder topological_order(const Needs& needs) {
  enum class Mark : std::uint8_t { fresh, open, done };
  std::vector<Mark> marks(needs.size(), Mark::fresh);
  std::vector<bool> reported(needs.size(), false);
  TopologicalOrder result;
  result.order.reserve(needs.size());
  struct Frame {
    std::uint32_t node;
    std::size_t next;
  };
  std::vector<Frame> stack;  // the path from the root of this search
  for (std::uint32_t root = 0; root < needs.size(); ++root) {
    if (marks[root] != Mark::fresh) continue;
    marks[root] = Mark::open;
    stack.push_back({root, 0});
    while (!stack.empty()) {
      Frame& top = stack.back();
      if (top.next == needs[top.node].size()) {
        marks[top.node] = Mark::done;
        result.order.push_back(top.node);
        stack.pop_back();
        continue;
      }
      const std::uint32_t need = needs[top.node][top.next++];
      if (marks[need] == Mark::fresh) {
        marks[need] = Mark::open;
        stack.push_back({need, 0});
      } else if (marks[need] == Mark::open && !reported[need] && !reported[top.node]) {
        auto begin = std::ranges::find(stack, need, &Frame::node);
        if (std::any_of(begin, stack.end(), [&](const Frame& f) { return reported[f.node]; })) {
          continue;
        }
        std::vector<std::uint32_t>& cycle = result.cycles.emplace_back();
        for (; begin != stack.end(); ++begin) {
          cycle.push_back(begin->node);
          reported[begin->node] = true;
        }
      }
    }
  }
  return result;
}

Reachability::Reachability(const Needs& needs, const std::vector<std::uint32_t>& order)
    : words_((needs.size() + 63) / 64), bits_(words_ * needs.size(), 0) {
  std::vector<std::uint32_t> rank(needs.size());
  for (std::uint32_t i = 0; i < order.size(); ++i) rank[order[i]] = i;
  std::vector<std::uint32_t> latest_first;
  for (const std::uint32_t node : order) {
    std::uint64_t* node_bits = &bits_[words_ * node];
    latest_first = needs[node];
    // Latest need first: nodes that it reaches need no second visit.
    std::ranges::sort(latest_first, std::greater(), [&](std::uint32_t n) { return rank[n]; });
    for (const std::uint32_t need : latest_first) {
      if ((node_bits[need / 64] >> (need % 64) & 1) != 0) continue;
      const std::uint64_t* need_bits = &bits_[words_ * need];
      for (std::size_t i = 0; i < words_; ++i) node_bits[i] |= need_bits[i];
      node_bits[need / 64] |= std::uint64_t{1} << (need % 64);
    }
  }
}

bool Reachability::reaches(std::uint32_t node, std::uint32_t other) const {
  return (bits_[words_ * node + other / 64] >> (other % 64) & 1) != 0;
}

Result<std::shared_ptr<const Plan>> Plan::compile(const Value& task_graph,
                                                  const PlanLimits& limits) {
  auto plan = std::make_shared<Plan>();
  plan->task_graph = task_graph;
  if (auto done = Compiler(*plan, limits).run(); !done) {
    Error error = std::move(done).error();
    error.code = Code::plan_invalid;
    return std::unexpected(std::move(error));
  }
  plan->task_graph_text = canonical(task_graph);
  plan->hash = sha256(plan->task_graph_text);
  plan->decision = decision_id(plan->hash);
  return plan;
}

bool Plan::needs_entropy() const {
  return std::ranges::any_of(tools, [](const ToolPolicy& tool) {
    return tool.records == RecordedKind::random || tool.records == RecordedKind::uuid;
  });
}

bool Plan::all_models_priced() const {
  return std::ranges::all_of(
      tools, [](const ToolPolicy& tool) { return !tool.is_model() || tool.price.has_value(); });
}

std::string Plan::path(std::uint32_t plan_number, std::uint32_t node) {
  return std::to_string(plan_number) + "/" + std::to_string(node);
}

std::string Plan::path(std::uint32_t plan_number, std::uint32_t node, std::uint32_t item) {
  return path(plan_number, node) + "/" + std::to_string(item);
}

Hash plan_hash(const Value& task_graph) { return sha256(canonical(task_graph)); }

PlanSource uncached_plan_source() {
  return [](const Value& task_graph, std::string_view) { return Plan::compile(task_graph); };
}

bool is_planner_only(const Plan& plan) {
  return plan.nodes.size() == 1 && plan.nodes.front().kind == NodeKind::planner;
}

std::string_view plan_author(const Plan& plan) {
  const Node& first = plan.nodes.front();
  const bool is_generated = first.kind == NodeKind::planner && plan.nodes.size() > 1;
  return is_generated ? std::string_view(plan.tools[first.tool].name) : "file";
}

}  // namespace ae::engine
