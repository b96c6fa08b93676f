// Reads the policy rules and capabilities of a tool.
#include <algorithm>

#include "log/field_names.h"
#include "plan/plan_read.h"

namespace ae::engine {
namespace {

constexpr std::size_t kRulesMax = 256;  // per tool

Status read_label(const std::string& label, PolicyRule& rule) {
  const std::size_t colon = label.find(':');
  const std::size_t behind = colon == label.npos ? 0 : label.size() - colon - 1;
  // The agents file requires a value; older plans may have an empty one.
  if (colon == 0 || colon == label.npos || colon > kPolicyLabelMax || behind > kPolicyLabelMax) {
    return fail(Code::plan_invalid, "`label` must be NAME:VALUE, each of at most 256 bytes");
  }
  rule.label_name = label.substr(0, colon);
  rule.label_value = label.substr(colon + 1);
  return {};
}

Result<PolicyRule> read_rule(const Value& value) {
  AE_TRY(only_keys(value, {"action", "when", "label", field::reason, "expires"}));
  PolicyRule rule;
  AE_ASSIGN(const std::size_t action,
            required_word_at(value, "action", {"allow", "require_approval", "deny"}));
  rule.action = static_cast<PolicyAction>(action);
  if (value.find("when") != nullptr) {
    if (!is_one_expression(value["when"])) {
      return fail(Code::plan_invalid, "`when` must be one ${ … } over .args and .job");
    }
    AE_ASSIGN(rule.when, template_of(value["when"], "when"));
    const ExprRoots& read = rule.when->roots();
    const bool other = std::ranges::any_of(
        read.roots, [](const std::string& root) { return root != "args" && root != "job"; });
    if (other || read.all_steps || !read.steps.empty()) {
      return fail(Code::plan_invalid, "`when` reads `.args` and `.job` only");
    }
  }
  if (value.find("label") != nullptr) {
    AE_ASSIGN(const std::string label, text_at(value, "label"));
    AE_TRY(read_label(label, rule));
  }
  AE_ASSIGN(rule.reason, optional_text_at(value, field::reason));
  if (rule.reason.size() > kPolicyReasonMax) {
    return fail(Code::plan_invalid, "`reason` has at most 1024 bytes");
  }
  if (value.find("expires") != nullptr) {
    if (rule.action != PolicyAction::require_approval) {
      return fail(Code::plan_invalid, "`expires` is for `require_approval`");
    }
    AE_ASSIGN(rule.expires, duration_at(value, "expires", std::chrono::milliseconds(1)));
  }
  return rule;
}

}  // namespace

std::string_view to_text(PolicyAction action) {
  constexpr std::string_view kText[] = {"allow", "require_approval", "deny"};
  return kText[static_cast<std::size_t>(action)];
}

Result<std::vector<std::string>> capabilities_at(const Value& object, std::string_view key) {
  std::vector<std::string> found;
  const Value* list = object.find(key);
  if (list == nullptr) return found;
  if (!list->is_array() || list->size() > kCapabilitiesMax) {
    return fail(Code::plan_invalid, "`{}` must be a list of at most 64 names", key);
  }
  for (const Value& one : list->items()) {
    if (!one.is_string() || one.as_string().empty() || one.as_string().size() > kCapabilityMax) {
      return fail(Code::plan_invalid, "`{}` holds names of 1 to 64 bytes", key);
    }
    found.push_back(one.as_string());
  }
  std::ranges::sort(found);
  return found;
}

Status read_policies(const Value& value, ToolPolicy& tool) {
  AE_ASSIGN(tool.capabilities, capabilities_at(value, "capabilities"));
  const Value* rules = value.find("rules");
  if (rules == nullptr) return {};
  if (!rules->is_array() || rules->size() == 0 || rules->size() > kRulesMax) {
    return fail(Code::plan_invalid, "`rules` must be a list of 1 to 256 rules");
  }
  for (const Value& one : rules->items()) {
    auto rule = read_rule(one);
    if (!rule) return std::unexpected(std::move(rule).error().with_context("`rules`"));
    tool.rules.push_back(*std::move(rule));
  }
  return {};
}

}  // namespace ae::engine
