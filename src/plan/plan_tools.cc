// Reads the tools of a task graph: the policy of each, and the check of the combinations that it
// may have. Probes and compensations are in plan_side_calls.cc, rules in plan_policies.cc.
#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "base/hash.h"
#include "json/json.h"
#include "log/field_names.h"
#include "plan/model_calls.h"
#include "plan/plan_read.h"

namespace ae::engine {
namespace {

constexpr double kMultiplierMax = 1'000;
constexpr std::size_t kChangesMax = 64;  // per tool

Result<RetryPolicy> read_retry(const Value& value) {
  AE_TRY(
      only_keys(value, {kMaxAttempts, "initial_backoff", "max_backoff", "multiplier", "retry_on"}));
  RetryPolicy retry;
  AE_ASSIGN(retry.max_attempts, count_at(value, kMaxAttempts, kMaxAttemptsMax));
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
    if (value.find(key) == nullptr) return fail(Code::plan_invalid, "without `{}`", key);
  }
  AE_ASSIGN(Template change, template_of(value, "changes"));
  if (change.is_constant()) return change;
  for (const std::string& root : change.roots().roots) {
    if (root != "args" && root != "call" && root != field::result) {
      return fail(Code::plan_invalid, "reads `.{}`, which is not available here", root);
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
  if (!compiled)
    return std::unexpected(std::move(compiled).error().with_context(fmt::format("`{}`", key)));
  return *std::move(compiled);
}

// How long a call may take, and how long its result counts.
Status read_durations(const Value& value, ToolPolicy& tool) {
  AE_ASSIGN(tool.timeout, duration_at(value, "timeout", std::chrono::milliseconds(1)));
  AE_ASSIGN(tool.grace, duration_at(value, "grace", Duration(0)));
  if (value.text("dedupe_window") == "unlimited") {
    tool.dedupe_window = std::nullopt;
    return {};
  }
  AE_ASSIGN(tool.dedupe_window, duration_at(value, "dedupe_window", std::chrono::milliseconds(1)));
  return {};
}

// A call creates one child, whose id follows from its command: it may be repeated, and changes
// nothing else.
Status read_child(const Value& value, ToolPolicy& tool) {
  if (tool.effect != EffectClass::idempotent || tool.on_in_doubt != OnInDoubt::resend ||
      tool.function || tool.local || !tool.makes_call() || !tool.changes.empty()) {
    return fail(Code::plan_invalid,
                "a tool with `child` is `idempotent` and `resend`, and has no `changes`");
  }
  auto stored = record_from_json<ChildTool>(value);
  if (!stored) return fail(Code::plan_invalid, "`child`: {}", stored.error().message);
  if (!is_name(stored->name)) return fail(Code::plan_invalid, "`child` names an agent");
  ChildPolicy child{.agent = stored->name,
                    .detached = stored->detached.value_or(false),
                    .priority = stored->priority,
                    .queue = stored->queue};
  if (stored->labels.is_object()) {
    for (const auto& [name, label] : stored->labels.members()) {
      if (!label.is_string()) return fail(Code::plan_invalid, "a label is a text");
      child.labels.emplace_back(name, label.as_string());
    }
  }
  if (stored->deadline) {
    const auto deadline = duration_from_text(*stored->deadline);
    if (!deadline) return fail(Code::plan_invalid, "`child`: {}", deadline.error().message);
    child.deadline = *deadline;
  }
  if (!stored->budget.is_null()) {
    AE_ASSIGN(child.budget, limits_of(stored->budget));
  }
  tool.child = std::move(child);
  return {};
}

// A job recognises a repeated message or signal by its id.
Status read_sends(const Value& value, ToolPolicy& tool) {
  tool.sends = value == Value(true);
  if (tool.sends && tool.effect == EffectClass::idempotent && !tool.child && !tool.function &&
      !tool.local && tool.makes_call() && tool.changes.empty()) {
    return {};
  }
  return fail(Code::plan_invalid, "a tool with `sends` is `idempotent`, and has no `changes`");
}

Result<ToolPolicy> read_tool(std::string_view name, const Value& value) {
  AE_TRY(only_keys(value, {"effect",        "on_in_doubt",
                           "timeout",       "grace",
                           "dedupe_window", "retry",
                           field::version,  "description",
                           "args_schema",   "result_schema",
                           "approval",      "approval_expires",
                           "probe",         field::compensate,
                           "changes",       "verify",
                           "provider",      "price",
                           "rules",         "capabilities",
                           "ask_expires",   "local",
                           "records",       "function",
                           "child",         "sends"}));
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
  AE_TRY(read_durations(value, tool));
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
  if (const Value* function = value.find("function"); function != nullptr) {
    if (!(*function == Value(true)) || tool.local) {
      return fail(Code::plan_invalid, "`function` is true, and is not `local`");
    }
    tool.function = true;
  }
  AE_TRY(read_policies(value, tool));
  AE_TRY(read_model(value, tool));
  AE_TRY(read_records(value, tool));
  AE_TRY(read_changes(value, tool));
  if (const Value* child = value.find("child")) AE_TRY(read_child(*child, tool));
  if (const Value* sends = value.find("sends")) AE_TRY(read_sends(*sends, tool));
  return tool;
}

}  // namespace

Status read_plan_tools(const Value& tools, Plan& plan, ToolsByName& tool_by_name) {
  if (tools.is_null()) return {};
  if (!tools.is_object()) return fail(Code::plan_invalid, "`tools` must be an object");
  for (const auto& [name, value] : tools.members()) {
    auto tool = read_tool(name, value);
    if (!tool)
      return std::unexpected(std::move(tool).error().with_context(fmt::format("tool `{}`", name)));
    tool_by_name.emplace(name, static_cast<std::uint32_t>(plan.tools.size()));
    plan.tools.push_back(*std::move(tool));
  }
  for (ToolPolicy& tool : plan.tools) {
    auto linked = read_side_calls(*tools.find(tool.name), plan, tool_by_name, tool);
    if (!linked)
      return std::unexpected(
          std::move(linked).error().with_context(fmt::format("tool `{}`", tool.name)));
  }
  return {};
}

}  // namespace ae::engine
