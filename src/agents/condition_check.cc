#include "agents/condition_check.h"

#include <algorithm>

#include "agents/faults.h"

namespace ae::agents {
namespace {

using Names = std::vector<std::string>;

// Does an object of this schema have no other properties than those it lists?
bool is_closed_object(const Value& schema, bool of_server) {
  if (!schema.is_object() || schema.find("patternProperties") != nullptr) return false;
  const Value* others = schema.find("additionalProperties");
  if (others != nullptr) return *others == Value(false);
  const Value& listed = schema["properties"];
  return of_server && listed.is_object() && listed.size() > 0 && schema.find("$ref") == nullptr &&
         schema.find("allOf") == nullptr && schema.find("anyOf") == nullptr &&
         schema.find("oneOf") == nullptr;
}

// What follows the first name that cannot be there; nullptr: all of it may be there.
struct Missing {
  const Value* object = nullptr;  // the schema that lists what there is
  std::size_t at = 0;             // which name
};

Missing missing_in(const Judged& tool, const Names& names) {
  const Value* schema = tool.args_schema;
  for (std::size_t i = 0; schema != nullptr && i < names.size(); ++i) {
    const Value& listed = (*schema)["properties"];
    const Value* below = listed.is_object() ? listed.find(names[i]) : nullptr;
    if (below == nullptr) {
      // Only what a tool takes at the top is closed by its being pinned.
      if (!is_closed_object(*schema, tool.of_server && i == 0)) return {};
      return {.object = schema, .at = i};
    }
    schema = below;
  }
  return {};
}

std::string dotted(const Names& names, std::size_t count) {
  std::string text = ".args";
  for (std::size_t i = 0; i < count; ++i) {
    text += engine::is_name(names[i]) && names[i].find('-') == std::string::npos
                ? "." + names[i]
                : "[\"" + names[i] + "\"]";
  }
  return text;
}

std::string some_of(const Names& names) {
  constexpr std::size_t kShown = 5;
  std::string text;
  for (std::size_t i = 0; i < names.size() && i < kShown; ++i) {
    text += (i == 0 ? "" : ", ") + shown(names[i]);
  }
  return text + (names.size() > kShown ? ", …" : "");
}

}  // namespace

ConditionWords judge_condition(const ExprRoots& read, const std::vector<Judged>& tools) {
  ConditionWords words;
  if (tools.empty()) return words;
  for (const auto& [names, needed] : read.args) {
    Names without;
    std::size_t at = 0;
    Nearest nearest(names.front());
    for (const Judged& tool : tools) {
      const Missing missing = missing_in(tool, names);
      if (missing.object == nullptr) continue;
      if (without.empty() || missing.at > at) {
        at = missing.at;
        nearest = Nearest(names[at]);
      }
      without.emplace_back(tool.name);
      const Value& listed = (*missing.object)["properties"];
      if (missing.at != at || !listed.is_object()) continue;
      for (const auto& [name, schema] : listed.members()) nearest.look_at(name);
    }
    if (without.empty()) continue;
    const std::string what = dotted(names, at + 1);
    if (without.size() == tools.size()) {
      words.fault = what + " does not exist: " +
                    (tools.size() == 1 ? "the tool " + some_of(without) + " has no such argument"
                                       : "none of " + some_of(without) + " has such an argument");
      words.suggestion = nearest.take();
      words.mention = "." + names[at];
      return words;
    }
    if (!needed || !words.note.empty()) continue;
    words.note = "every call of " + some_of(without) + " will fail: ";
    words.note += without.size() == 1 ? "it has no argument " : "they have no argument ";
    words.note.append(what).append(". List the `tools` of the rule, or give a default: `");
    words.note.append(what).append(" // other`");
  }
  return words;
}

std::optional<ExprRoots> roots_of(const Value& text) {
  Template compiled;
  if (!text.is_string() || !has_expression(text.as_string())) return std::nullopt;
  if (!Template::compile(text, compiled).empty()) return std::nullopt;
  return compiled.roots();
}

void check_condition(Check& check, const Spot& condition, const std::vector<Judged>& tools,
                     std::vector<Note>* notes) {
  const auto read = roots_of(condition->scalar);
  if (!read) return;
  ConditionWords words = judge_condition(*read, tools);
  if (!words.fault.empty()) {
    check.root_fault(condition, words.mention, std::move(words.fault), std::move(words.suggestion));
  } else if (!words.note.empty() && notes != nullptr) {
    notes->push_back({condition.path, std::move(words.note)});
  }
}

}  // namespace ae::agents
