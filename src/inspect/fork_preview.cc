#include "inspect/fork_preview.h"

#include <set>
#include <string>
#include <utility>

#include "engine/state/view_values.h"

namespace ae::engine {

Value fork_preview(const Fork& fork, std::uint64_t at) {
  std::set<std::string> complete;  // nodes whose result is imported
  std::uint64_t parts = 0;
  for (const EventBody& body : fork.imported) {
    const auto* imported = std::get_if<ForkImported>(&body);
    if (imported == nullptr) continue;
    for (const ForkEntry& entry : imported->commands.read_leniently()) {
      if (entry.item || entry.turn) {
        ++parts;
        continue;
      }
      const bool continues = entry.over == true || entry.under_way == true;
      if (!continues) complete.insert(entry.node_id);
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
