// ToolKind: the tools of the simulated world, and their policies as in a task graph.
//
// Threads: constants.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/time.h"
#include "json/value.h"

namespace ae::sim {

// How the downstream treats a repeated key.
enum class EffectClass : std::uint8_t { read, idempotent, at_most_once };

// The tools of the simulated world, by their names in plans. To add one, add a line.
struct ToolKind {
  std::string_view name;
  EffectClass effect_class;
  std::string_view in_doubt;  // on_in_doubt
  std::string_view dedupe_window = "24h";
  std::string_view probe = {};     // the tool that queries the outcome of a call
  std::string_view undo = {};      // the tool that undoes a call
  std::string_view approval = {};  // "required", or a condition: see `needs_approval`
  std::string_view approval_expires = {};
  bool side = false;  // only for calls about another call: not a node of a random plan
  // A call changes the resource that its arguments name. "strict", "warn" or "human": the
  // consequence of a mismatch; "unconfirmed": the change is not verified.
  std::string_view changes = {};
  std::string_view provider = {};  // of a model
  bool questions = false;          // asks the user before it takes effect: see `question`
  // Its calls create child jobs, whose input selects their plan (PlanBook::of_child).
  bool child = false, detached = false;
  bool function = false;               // of code: its worker performs it
  std::string_view child_budget = {};  // JSON
  bool awaits_child() const { return child && !detached; }
  bool verified() const { return !changes.empty() && changes != "unconfirmed"; }
};
constexpr ToolKind kTools[] = {
    {"look", EffectClass::read, "resend"},
    {"put", EffectClass::idempotent, "resend"},
    {"stow", EffectClass::idempotent, "resend", "20s"},  // may be resent for a short time only
    {"mail", EffectClass::idempotent, "park"},
    {"once", EffectClass::at_most_once, "park"},
    {"pay", EffectClass::at_most_once, "fail"},
    {.name = "wire",
     .effect_class = EffectClass::at_most_once,
     .in_doubt = "probe",
     .probe = "seek"},
    {.name = "bill", .effect_class = EffectClass::idempotent, .in_doubt = "probe", .probe = "seek"},
    {.name = "book",
     .effect_class = EffectClass::idempotent,
     .in_doubt = "resend",
     .undo = "unbook"},
    {.name = "grab", .effect_class = EffectClass::at_most_once, .in_doubt = "park", .undo = "drop"},
    {.name = "hire",
     .effect_class = EffectClass::at_most_once,
     .in_doubt = "probe",
     .probe = "seek",
     .undo = "fire"},
    {.name = "gift",
     .effect_class = EffectClass::idempotent,
     .in_doubt = "resend",
     .undo = "unbook",
     .approval = "required"},
    {.name = "vote",
     .effect_class = EffectClass::at_most_once,
     .in_doubt = "park",
     .approval = "${ .args.i != 0 }",
     .approval_expires = "40s"},
    {.name = "alter",
     .effect_class = EffectClass::idempotent,
     .in_doubt = "resend",
     .changes = "strict"},
    {.name = "amend",
     .effect_class = EffectClass::at_most_once,
     .in_doubt = "park",
     .changes = "warn"},
    {.name = "edit",
     .effect_class = EffectClass::idempotent,
     .in_doubt = "resend",
     .changes = "human"},
    {.name = "touch",
     .effect_class = EffectClass::idempotent,
     .in_doubt = "resend",
     .changes = "unconfirmed"},
    {.name = "quiz",
     .effect_class = EffectClass::at_most_once,
     .in_doubt = "park",
     .questions = true},
    {.name = "poll",
     .effect_class = EffectClass::idempotent,
     .in_doubt = "resend",
     .questions = true},
    {.name = "model:echo",
     .effect_class = EffectClass::read,
     .in_doubt = "resend",
     .provider = "openai"},
    {.name = "seek", .effect_class = EffectClass::read, .in_doubt = "resend", .side = true},
    {.name = "unbook", .effect_class = EffectClass::idempotent, .in_doubt = "resend", .side = true},
    {.name = "drop", .effect_class = EffectClass::at_most_once, .in_doubt = "park", .side = true},
    {.name = "fire",
     .effect_class = EffectClass::at_most_once,
     .in_doubt = "probe",
     .probe = "seek",
     .side = true},
};
// Tools that create child jobs: of nodes that name an agent, and with a policy of their own.
constexpr ToolKind child_tool(std::string_view name) {
  return {.name = name,
          .effect_class = EffectClass::idempotent,
          .in_doubt = "resend",
          .dedupe_window = "unlimited",
          .child = true};
}
constexpr ToolKind undoable_child_tool(std::string_view name, std::string_view undo) {
  ToolKind kind = child_tool(name);
  kind.undo = undo;
  return kind;
}
constexpr ToolKind limited_child_tool(std::string_view name, std::string_view budget) {
  ToolKind kind = child_tool(name);
  kind.child_budget = budget;
  return kind;
}
constexpr ToolKind detached_child_tool(std::string_view name) {
  ToolKind kind = child_tool(name);
  kind.detached = true;
  return kind;
}
constexpr ToolKind kChildTools[] = {
    child_tool("agent:sim"),
    detached_child_tool("agent:sim:detached"),
    undoable_child_tool("delegate", "unbook"),
    limited_child_tool("ration", R"({"model_calls":2,"tool_calls":3})"),
    detached_child_tool("dispatch"),
};
// Functions of code.
constexpr ToolKind function_kind(std::string_view name, EffectClass effect_class,
                                 std::string_view in_doubt) {
  return {.name = name, .effect_class = effect_class, .in_doubt = in_doubt, .function = true};
}
constexpr ToolKind kFunctions[] = {
    function_kind("run:read", EffectClass::read, "resend"),
    function_kind("run:idempotent", EffectClass::idempotent, "resend"),
    function_kind("run:at_most_once", EffectClass::at_most_once, "park"),
};
const ToolKind* tool_kind(std::string_view name);
// Do its calls undo others?
constexpr bool is_undo(const ToolKind& kind) {
  return kind.side && kind.effect_class != EffectClass::read;
}
constexpr Duration kToolTimeout = std::chrono::seconds(4);
constexpr Duration kToolGrace = std::chrono::seconds(6);
constexpr Duration kSlowMax = std::chrono::milliseconds(1200);
constexpr std::string_view kToolVersion = "0123456789abcdef";
// True if a call with these arguments needs an approval. Independent of the engine, for the
// checkers.
bool needs_approval(const ToolKind& kind, const Value& args);
// The question of a tool, and its key: a number, which has a default.
constexpr std::string_view kQuestion = "how";
Value question();
// Its policy as in a task graph.
Value tool_policy(const ToolKind& kind);

}  // namespace ae::sim
