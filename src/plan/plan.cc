// Plan::compile: the last validation of a recorded task graph before it is used. Strict: an unknown
// or missing member is plan_invalid, because an ignored member could be a policy that is not
// enforced. Its parts: plan_tools.cc, plan_side_calls.cc, plan_policies.cc, plan_nodes.cc,
// plan_loop.cc, plan_code.cc and plan_references.cc.
#include "plan/plan.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "base/hash.h"
#include "json/json.h"
#include "log/field_names.h"
#include "plan/plan_read.h"

namespace ae::engine {
namespace {

// Sets the mode of all tools whose `verify` has none.
Status read_confirm(const Value& graph, Plan& plan) {
  if (graph.find("confirm") == nullptr) return {};
  AE_ASSIGN(const std::size_t mode, word_at(graph, "confirm", {"strict", "warn", "human"}));
  for (ToolPolicy& tool : plan.tools) {
    const Value* verify = graph["tools"][tool.name].find("verify");
    if (verify && !verify->find("mode")) tool.confirm = static_cast<ConfirmMode>(mode);
  }
  return {};
}

Status read_prices(const Value& graph, Plan& plan) {
  const Value* const prices = graph.find("prices");
  if (prices == nullptr) return {};
  if (!prices->is_object()) return fail(Code::plan_invalid, "`prices` is not an object");
  for (const auto& [model, stored] : prices->members()) {
    AE_ASSIGN(const Price price, price_of(stored));
    plan.prices.emplace(model, price);
  }
  return {};
}

// The members that concern the job as a whole.
Status read_job_settings(const Value& graph, Plan& plan) {
  AE_ASSIGN(plan.deadline,
            optional_duration_at(graph, field::deadline, std::chrono::milliseconds(1)));
  if (const Value* versions = graph.find("versions")) {
    AE_TRY(only_keys(*versions, {"policy", "wait"}));
    const std::string_view policy = versions->text("policy");
    if (policy != "strict" && policy != "route") {
      return fail(Code::plan_invalid, "`versions.policy` is strict or route (or not there: warn)");
    }
    plan.versions = policy == "strict" ? VersionPolicy::strict : VersionPolicy::route;
    AE_ASSIGN(const auto wait, optional_duration_at(*versions, "wait", Duration(0)));
    if (wait && plan.versions != VersionPolicy::route) {
      return fail(Code::plan_invalid, "`versions.wait` needs the policy route");
    }
    plan.version_wait = wait.value_or(kVersionWait);
  }
  if (graph.find(kMaxAttempts) != nullptr) {
    AE_ASSIGN(plan.max_attempts, count_at(graph, kMaxAttempts, kMaxAttemptsMax));
  }
  if (const Value* budget = graph.find(field::budget)) {
    AE_ASSIGN(plan.budget, limits_of(*budget));
    if (!plan.budget.any() || budget->find("wall_until") || budget->find("spent")) {
      return fail(Code::plan_invalid,
                  "`budget` has no limit, or has a member that only the budget of a job has");
    }
    if (plan.budget.cost_micros && !plan.all_models_priced()) {
      return fail(Code::plan_invalid, "`budget` limits the cost, and not every model has a price");
    }
  }
  return {};
}

Status read_output(const Value& graph, Plan& plan) {
  AE_ASSIGN(plan.output, template_at(graph, "output"));
  if (!plan.output || plan.output->is_constant()) return {};
  for (const std::string& root : plan.output->roots().roots) {
    if (root != field::input && root != "job" && root != "steps") {
      return fail(Code::plan_invalid, "`output` reads `.{}`, which is not available here", root);
    }
  }
  for (const std::string& step : plan.output->roots().steps) {
    if (!plan.by_id.contains(step)) {
      return fail(Code::plan_invalid, "`output` reads `.steps.{}`: no such node", step);
    }
  }
  return {};
}

Status read_plan(Plan& plan, const PlanLimits& limits) {
  const Value& graph = plan.task_graph;
  AE_TRY(
      only_keys(graph, {"schema", "nodes", "output", field::deadline, kMaxAttempts, "tools",
                        "versions", "confirm", field::budget, "grants", "conditions", "prices"}));
  if (!(graph["schema"] == Value(1))) {
    return fail(Code::plan_invalid, "`schema` must be 1: this version reads no other");
  }
  ToolsByName tool_by_name;
  AE_TRY(read_plan_tools(graph["tools"], plan, tool_by_name));
  AE_TRY(read_confirm(graph, plan));
  AE_TRY(read_prices(graph, plan));
  AE_ASSIGN(plan.grants, capabilities_at(graph, "grants"));
  if (graph.find("conditions") != nullptr) {
    AE_TRY(required_word_at(graph, "conditions", {"strict"}));
    plan.strict_conditions = true;
  }
  AE_TRY(read_nodes(graph["nodes"], tool_by_name, limits, plan));
  AE_TRY(link_nodes(graph["nodes"], plan));
  AE_TRY(read_job_settings(graph, plan));
  return read_output(graph, plan);
}

}  // namespace

Result<std::shared_ptr<const Plan>> Plan::compile(const Value& task_graph,
                                                  const PlanLimits& limits) {
  auto plan = std::make_shared<Plan>();
  plan->task_graph = task_graph;
  if (auto done = read_plan(*plan, limits); !done) {
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
  std::array<char, 24> text;
  char* const slash = std::to_chars(text.data(), text.end(), plan_number).ptr;
  *slash = '/';
  return {text.data(), std::to_chars(slash + 1, text.end(), node).ptr};
}

std::string Plan::path(std::uint32_t plan_number, std::uint32_t node, std::uint32_t item) {
  return fmt::format("{}/{}/{}", plan_number, node, item);
}

Hash plan_hash(const Value& task_graph) { return sha256(canonical(task_graph)); }

PlanSource uncached_plan_source() {
  return [](const Value& task_graph, std::string_view) { return Plan::compile(task_graph); };
}

bool is_planner_only(const Plan& plan) {
  return plan.nodes.size() == 1 && plan.nodes.front().kind == NodeKind::planner;
}

bool has_code(const Plan& plan) {
  return std::ranges::any_of(plan.nodes, [](const Node& node) { return node.code != nullptr; });
}

std::string_view plan_author(const Plan& plan) {
  const Node& first = plan.nodes.front();
  const bool is_generated = first.kind == NodeKind::planner && plan.nodes.size() > 1;
  return is_generated ? std::string_view(plan.tools[first.tool].name) : "file";
}

}  // namespace ae::engine
