// The texts of a node, and the names that nodes and items may have.
#include "plan/plan_node.h"

#include <algorithm>
#include <iterator>

#include "log/field_names.h"

namespace ae::engine {

std::string_view to_text(NodeKind kind) {
  constexpr std::string_view kText[] = {"tool",    "wait",      "map",        "llm", "loop",
                                        "planner", field::code, field::scope, "turn"};
  return kText[static_cast<std::size_t>(kind)];
}

std::string_view to_text(WaitType type) {
  constexpr std::string_view kText[] = {"webhook", "human", "timer", "signal", "message", "job"};
  return kText[static_cast<std::size_t>(type)];
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

}  // namespace ae::engine
