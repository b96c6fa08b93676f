#include "sim/random_loops.h"

#include <iterator>
#include <string>
#include <utility>

#include "json/json.h"
#include "log/field_names.h"
#include "sim/sim_random.h"

namespace ae::sim {
namespace {

constexpr std::uint64_t kSummariesOneIn = 9, kSummariesRest = 4;

// Several turns of calls whose results fill the context.
Value long_script(SimRandom& random) {
  constexpr std::string_view kNames[] = {"put", "book", "look", "once"};
  std::vector<Value> script;
  std::uint64_t nth = 0;
  for (std::uint64_t turns = 3 + random.below(4); turns > 0; --turns) {
    std::vector<Value> calls;
    for (std::uint64_t left = 1 + random.below(2); left > 0; --left) {
      const std::string_view name = kNames[random.below(std::size(kNames))];
      calls.push_back(
          Value::object({{field::arguments, Value::object({{"s", ++nth}})}, {"name", name}}));
    }
    script.push_back(Value::array(std::move(calls)));
  }
  return Value::array(std::move(script));
}

}  // namespace

void add_summaries(std::uint64_t number, std::vector<Value>& nodes) {
  if (number % kSummariesOneIn != kSummariesRest) return;
  SimRandom random(number * 15'485'863 + 5);
  const Value context = Value::object({{"limit", 600 + random.below(500)},
                                       {"policy", "summarize"},
                                       {"tool", "model:echo"},
                                       {"model", "plain"}});
  const Value loop = Value::object({{"tool", "model:echo"},
                                    {"model", "plain"},
                                    {"prompt", canonical(long_script(random))},
                                    {"tools", Value::array({"put", "book", "look", "once"})},
                                    {"max_turns", 4 + random.below(6)},
                                    {"parallel_tools", 1 + random.below(2)},
                                    {"context", context}});
  nodes.push_back(Value::object(
      {{"id", "s"}, {field::kind, "loop"}, {"loop", loop}, {"on_error", "continue"}}));
}

}  // namespace ae::sim
