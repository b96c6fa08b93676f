#include "agents/condition_check.h"

#include <fmt/core.h>

#include <algorithm>

#include "agents/diagnostics.h"

namespace ae::agents {
namespace {

// True if objects of this schema have only the listed properties.
bool is_closed_object(const Value& schema, bool of_server) {
  if (!schema.is_object() || schema.find("patternProperties") != nullptr) return false;
  const Value* others = schema.find("additionalProperties");
  if (others != nullptr) return *others == Value(false);
  const Value& listed = schema["properties"];
  return of_server && listed.is_object() && listed.size() > 0 && schema.find("$ref") == nullptr &&
         schema.find("allOf") == nullptr && schema.find("anyOf") == nullptr &&
         schema.find("oneOf") == nullptr;
}

// The first name that does not exist; `object` is nullptr if all may exist.
struct Missing {
  const Value* object = nullptr;  // the schema that lists the existing properties
  std::size_t at = 0;             // index of the missing name
};

Missing find_missing(const ConditionTool& tool, const std::vector<std::string>& names) {
  const Value* schema = tool.args_schema;
  for (std::size_t i = 0; schema != nullptr && i < names.size(); ++i) {
    const Value& listed = (*schema)["properties"];
    const Value* below = listed.is_object() ? listed.find(names[i]) : nullptr;
    if (below == nullptr) {
      // Pinning closes only the top level of the arguments.
      if (!is_closed_object(*schema, tool.of_server && i == 0)) return {};
      return {.object = schema, .at = i};
    }
    schema = below;
  }
  return {};
}

std::string dotted(const std::vector<std::string>& names, std::size_t count) {
  std::string text = ".args";
  for (std::size_t i = 0; i < count; ++i) {
    text += engine::is_name(names[i]) && names[i].find('-') == std::string::npos
                ? "." + names[i]
                : fmt::format("[\"{}\"]", names[i]);
  }
  return text;
}

}  // namespace

ConditionFinding analyze_condition(const ExprRoots& read, const std::vector<ConditionTool>& tools) {
  ConditionFinding finding;
  if (tools.empty()) return finding;
  for (const auto& [names, needed] : read.args) {
    std::vector<std::string> without;
    std::size_t at = 0;
    ClosestName nearest(names.front());
    for (const ConditionTool& tool : tools) {
      const Missing missing = find_missing(tool, names);
      if (missing.object == nullptr) continue;
      if (without.empty() || missing.at > at) {
        at = missing.at;
        nearest = ClosestName(names[at]);
      }
      without.emplace_back(tool.name);
      const Value& listed = (*missing.object)["properties"];
      if (missing.at != at || !listed.is_object()) continue;
      for (const auto& [name, schema] : listed.members()) nearest.consider(name);
    }
    if (without.empty()) continue;
    const std::string what = dotted(names, at + 1);
    if (without.size() == tools.size()) {
      finding.error = tools.size() == 1
                          ? fmt::format("{} does not exist: the tool {} has no such argument", what,
                                        quote_first_names(without))
                          : fmt::format("{} does not exist: none of {} has such an argument", what,
                                        quote_first_names(without));
      finding.suggestion = nearest.best();
      finding.mention = "." + names[at];
      return finding;
    }
    if (!needed || !finding.note.empty()) continue;
    finding.note = fmt::format(
        "every call of {0} will fail: {1} no argument {2}. List the `tools` of the rule, or give a "
        "default: `{2} // other`",
        quote_first_names(without), without.size() == 1 ? "it has" : "they have", what);
  }
  return finding;
}

std::optional<ExprRoots> roots_of(const Value& text) {
  Template compiled;
  if (!text.is_string() || !has_expression(text.as_string())) return std::nullopt;
  if (!Template::compile(text, compiled).empty()) return std::nullopt;
  return compiled.roots();
}

void check_condition(CheckContext& check, const SourceNode& condition,
                     const std::vector<ConditionTool>& tools, std::vector<Note>* notes) {
  const auto read = roots_of(condition->scalar);
  if (!read) return;
  ConditionFinding finding = analyze_condition(*read, tools);
  if (!finding.error.empty()) {
    check.report_root(condition, finding.mention, std::move(finding.error),
                      std::move(finding.suggestion));
  } else if (!finding.note.empty() && notes != nullptr) {
    notes->push_back({condition.path, std::move(finding.note)});
  }
}

}  // namespace ae::agents
