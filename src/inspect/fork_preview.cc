#include "inspect/fork_preview.h"

#include <set>
#include <string>
#include <utility>

#include "engine/state/view_values.h"
#include "log/field_names.h"

namespace ae::engine {

Value fork_preview(const Fork& fork, std::uint64_t at) {
  std::set<std::string> complete;  // nodes whose result is imported
  std::uint64_t parts = 0;
  for (const EventBody& body : fork.imported) {
    const auto* imported = std::get_if<ForkImported>(&body);
    if (imported == nullptr || !imported->commands.is_array()) continue;
    for (const Value& entry : imported->commands.items()) {
      if (!entry["item"].is_null() || !entry["turn"].is_null()) {
        ++parts;
        continue;
      }
      const Value yes = true;
      const bool continues = entry["over"] == yes || entry["under_way"] == yes;
      if (!continues) complete.insert(std::string(entry.text(field::node_id)));
    }
  }
  std::vector<Value> runs;
  for (const Node& node : fork.plan->nodes) {
    if (!complete.contains(node.id)) runs.emplace_back(node.id);
  }
  return Value::object(
      {{"at_seq", number(at)},
       {"imports", Value::object({{"items", number(parts)}, {"nodes", number(complete.size())}})},
       {"repeats", Value::array(fork.effects)},
       {"runs", Value::array(std::move(runs))}});
}

std::string_view effect_outcome_text(std::string_view state) {
  if (state == to_text(EffectState::committed)) return "applied";
  if (state == to_text(EffectState::in_doubt)) return "outcome unknown";
  return state == to_text(EffectState::undone) ? "compensated" : state;
}

}  // namespace ae::engine
