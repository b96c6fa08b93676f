// What a trace looks like, held still: golden/*.json are traces of real jobs, golden/*.txt what is printed of them.
// AETHERIS_UPDATE_GOLDEN=1 writes the texts anew; look at the difference before you commit it.
#include "cli/trace_text.h"

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

#include "core/json.h"
#include "testing/test.h"

namespace ae::cli {
namespace {

std::string golden_path(const std::string& name) {
  const char* root = std::getenv("AETHERIS_ROOT");
  return std::string(root ? root : ".") + "/src/cli/golden/" + name;
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

Value trace(const std::string& name) {
  auto value = parse_json(read_file(golden_path(name + ".json")));
  EXPECT_TRUE(value) << name;
  return value ? *value : Value();
}

void expect_golden(const std::string& text, const std::string& name) {
  const std::string path = golden_path(name);
  if (const char* update = std::getenv("AETHERIS_UPDATE_GOLDEN"); update && *update == '1') {
    std::ofstream(path, std::ios::binary) << text;
  }
  EXPECT_EQ(text, read_file(path)) << name;
}

AE_TEST("cli/traces look as they did") {
  for (const char* name : {"trace_completed", "trace_failed", "trace_map", "trace_waiting",
                           "trace_running", "trace_in_doubt"}) {
    expect_golden(trace_text(trace(name), {}), std::string(name) + ".txt");
  }
}

AE_TEST("cli/a trace fits a narrow terminal, without tools and bars") {
  expect_golden(trace_text(trace("trace_completed"), {.paint = Paint(false), .width = 60}),
                "trace_completed_60.txt");
  for (const std::size_t width : {20u, 40u, 71u, 95u, 130u}) {
    for (const char* name : {"trace_completed", "trace_failed", "trace_map"}) {
      const std::string text = trace_text(trace(name), {.paint = Paint(false), .width = width});
      for (std::size_t at = 0; at < text.size();) {
        const std::size_t end = text.find('\n', at);
        EXPECT_LE(width_of(text.substr(at, end - at)), std::max<std::size_t>(width, 40)) << name;
        at = end + 1;
      }
    }
  }
}

AE_TEST("cli/a trace is painted, and says the same") {
  const std::string painted =
      trace_text(trace("trace_in_doubt"), {.paint = Paint(true), .width = 100});
  expect_golden(painted, "trace_in_doubt_colour.txt");
  std::string plain;
  for (std::size_t i = 0; i < painted.size(); ++i) {
    if (painted[i] == '\x1b') {
      i = painted.find('m', i);
    } else {
      plain += painted[i];
    }
  }
  EXPECT_EQ(plain, trace_text(trace("trace_in_doubt"), {}));
}

AE_TEST("cli/commands in a trace name the store") {
  const std::string text =
      trace_text(trace("trace_waiting"), {.store_flag = " --store sqlite:x.db"});
  EXPECT_NE(text.find("'{}' --store sqlite:x.db\n"), std::string::npos);
}

AE_TEST("cli/a trace says where a tool or a model has drifted") {
  const auto one = [](std::string_view tool, std::string_view what, Value from, Value to) {
    return Value::object(
        {{"from", from}, {"seq", 12}, {"since", 3}, {"to", to}, {"tool", tool}, {"what", what}});
  };
  const std::string digest(64, 'a');
  const Value drifted = trace("trace_completed")
                            .with("drift", Value::array({one("pay", "tool_version", "v1", "v2"),
                                                         one("pay", "result_schema", {}, digest)}));
  const std::string text = trace_text(drifted, {});
  EXPECT_NE(text.find("drift  pay: tool version v1 is v2 from event 12 on\n"), text.npos) << text;
  EXPECT_NE(text.find("drift  pay: result schema none is aaaa"), text.npos) << text;
  EXPECT_EQ(text.find(digest), text.npos) << "as short as other hashes";
  EXPECT_EQ(trace_text(trace("trace_completed"), {}).find("drift"), std::string::npos);
}

AE_TEST("cli/a trace of nothing is no crash") {
  EXPECT_FALSE(trace_text(Value::object({}), {}).empty());
  EXPECT_FALSE(trace_text(Value(), {}).empty());
}

AE_TEST("cli/a trace says what a model chose, what was refused, and which answer was sent back") {
  const auto shown =
      parse_json(R"({"id":"j","agent":"a","status":"running","nodes":[{"node_id":"loop",
    "status":"running","decisions":[
    {"kind":"tool_choice","seq":5,"payload":{"turn":0,"of":"x","calls":[{"id":"1","name":"look"},{"id":"2","name":"pay",
      "refused":{"code":"not_offered","message":"no"}}]}},
    {"kind":"tool_choice","seq":6,"payload":{"turn":1,"of":"x","calls":[],"repair":"no JSON"}},
    {"kind":"tool_choice","seq":7,"payload":{"turn":2,"of":"x","calls":[]}},
    {"kind":"tool_choice","seq":8,"payload":{"turn":30,"of":"x","calls":[{"id":"3","name":"look"}]}}]}]})");
  ASSERT_TRUE(shown);
  const std::string text = trace_text(*shown, {});
  EXPECT_NE(text.find("turn 0 calls look, pay (refused: not_offered)\n"), text.npos) << text;
  EXPECT_NE(text.find("turn 1: its answer is sent back: no JSON\n"), text.npos) << text;
  EXPECT_NE(text.find("turn 2 calls no tool\n"), text.npos) << text;
  EXPECT_EQ(text.find("turn 30"), text.npos) << text;
  EXPECT_EQ(text.find("tool_choice"), text.npos) << text;
}

AE_TEST("cli/a call that a person resolved took until then, whenever the job went on") {
  const auto shown = parse_json(
      R"({"id":"j","agent":"a","status":"completed","nodes":[{"node_id":"d","status":"done",
    "started_at":"2026-01-01T00:00:00Z","finished_at":"2026-01-03T00:00:00Z","duration_us":172800000000,
    "decisions":[{"kind":"in_doubt","state":"happened","by":"ada","at":"2026-01-01T00:00:05Z","seq":9}]}]})");
  ASSERT_TRUE(shown);
  const std::string text = trace_text(*shown, {});
  EXPECT_NE(text.find(" 5000 ms"), text.npos) << text;
  EXPECT_EQ(text.find("2 d"), text.npos) << text;
}

}  // namespace
}  // namespace ae::cli
