// Agents file fuzzer, YAML and JSON: any text is accepted, or rejected with positions,
// deterministically; plans of an accepted file compile, also after a round trip through
// text, with the same hash.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "agents/agents_file.h"
#include "json/json.h"
#include "plan/plan.h"

namespace {

struct Read {
  ae::agents::AgentsFile file;
  std::vector<ae::agents::Diagnostic> diagnostics;
};

Read read(std::string_view name, std::string_view text) {
  const auto env = [](std::string_view variable) -> std::optional<std::string> {
    if (variable.starts_with("SHOP")) return "http://shop:9000";
    return std::nullopt;
  };
  const auto native = [](std::string_view function) { return function != "nothing"; };
  Read read;
  read.diagnostics = ae::agents::load(
      {.name = name, .text = text, .env = env, .native = native, .usable = {}, .server_tools = {}},
      read.file);
  return read;
}

void check_plan(const ae::Value& task_graph) {
  const auto plan = ae::engine::Plan::compile(task_graph);
  AE_CHECK(plan.has_value(), plan ? "" : plan.error().message);
  const std::string text = ae::canonical(task_graph);
  const auto graph = ae::parse_json(text);
  AE_CHECK(graph.has_value() && *graph == task_graph, text);
  const auto again = ae::engine::Plan::compile(*graph);
  AE_CHECK(again.has_value() && (*again)->hash == (*plan)->hash, text);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  for (const std::string_view name : {"agents.yaml", "agents.json"}) {
    const Read once = read(name, text);
    const Read again = read(name, text);
    const ae::Value diagnostics = ae::agents::diagnostics_json(once.diagnostics);
    AE_CHECK(diagnostics == ae::agents::diagnostics_json(again.diagnostics));
    AE_CHECK(ae::parse_json(ae::canonical(diagnostics)) == diagnostics);
    AE_CHECK(once.diagnostics.empty() == !once.file.agents.empty());
    for (const ae::agents::Diagnostic& diagnostic : once.diagnostics) {
      AE_CHECK(diagnostic.line > 0 && diagnostic.column > 0 && !diagnostic.message.empty(),
               diagnostic.message);
    }
    for (const auto& [name_of, agent] : once.file.agents) {
      AE_CHECK(agent.task_graph == again.file.agents.at(name_of).task_graph);
      check_plan(agent.task_graph);
    }
  }
  return 0;
}
