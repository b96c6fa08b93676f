// Golden traces: golden/*.json are traces of real jobs, golden/*.txt their expected text.
// AETHERIS_UPDATE_GOLDEN=1 rewrites the texts; review the difference before you commit it.
#include "cli/trace_text.h"

#include <fmt/core.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <tuple>

#include "json/json.h"
#include "testing/test.h"

namespace ae::cli {
namespace {

std::string golden_path(const std::string& name) {
  const char* root = std::getenv("AETHERIS_ROOT");
  return fmt::format("{}/src/cli/golden/{}", root ? root : ".", name);
}

std::string read_trace_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

Value trace(const std::string& name) {
  auto value = parse_json(read_trace_file(golden_path(name + ".json")));
  EXPECT_TRUE(value) << name;
  return value ? *value : Value();
}

void expect_golden_trace(const std::string& text, const std::string& name) {
  const std::string path = golden_path(name);
  if (const char* update = std::getenv("AETHERIS_UPDATE_GOLDEN"); update && *update == '1') {
    std::ofstream(path, std::ios::binary) << text;
  }
  EXPECT_EQ(text, read_trace_file(path)) << name;
}

Value object(const char* text) {
  auto value = parse_json(text);
  EXPECT_TRUE(value) << text;
  return value ? *value : Value();
}

AE_TEST("cli/traces match their golden files") {
  for (const char* name : {"trace_completed", "trace_failed", "trace_map", "trace_waiting",
                           "trace_running", "trace_in_doubt"}) {
    expect_golden_trace(trace_text(trace(name), {}), fmt::format("{}.txt", name));
  }
}

AE_TEST("cli/a trace fits a narrow terminal, without tools and bars") {
  expect_golden_trace(trace_text(trace("trace_completed"), {.paint = Paint(false), .width = 60}),
                      "trace_completed_60.txt");
  for (const std::size_t width : {20u, 40u, 71u, 95u, 130u}) {
    for (const char* name : {"trace_completed", "trace_failed", "trace_map"}) {
      const std::string text = trace_text(trace(name), {.paint = Paint(false), .width = width});
      for (std::size_t at = 0; at < text.size();) {
        const std::size_t end = text.find('\n', at);
        const std::string line = text.substr(at, end - at);
        const bool command = line.starts_with("retry with: ");  // never cut
        if (!command) {
          EXPECT_LE(width_of(line), std::max<std::size_t>(width, 40)) << name;
        }
        at = end + 1;
      }
    }
  }
}

AE_TEST("cli/a narrow trace has no hash of the plan and no worker, but the whole external id") {
  const Value trace = object(R"({
    "id": "t", "agent": "refund", "status": "completed", "created_at": "2026-11-25T16:01:30.000000Z",
    "duration_us": 5000000, "ended_at": "2026-11-25T16:01:35.000000Z", "seq": 95,
    "plan_hash": "5feff6bd82bf1111", "totals": {"tries": 12, "repeated": 3},
    "attempts": [{"started_at": "2026-11-25T16:01:30.000000Z", "worker": "vm:27533", "ended": "lost",
                  "lost": "process_died"}],
    "nodes": [{"node_id": "refund", "tool": "pay_back", "status": "done", "world": "changed",
               "started_at": "2026-11-25T16:01:31.000000Z", "finished_at": "2026-11-25T16:01:35.000000Z",
               "effect": {"effect_class": "idempotent", "external_id": "re_0000000000000014"}}]})");
  const auto shown = [&](std::size_t width) {
    return trace_text(trace, {.paint = Paint(false), .width = width});
  };
  const std::string wide = shown(100), usual = shown(80), narrow = shown(48);
  for (const char* part : {"plan 5feff6bd82bf", "TIMELINE", "vm:27533  lost: its process died",
                           "effect: idempotent · applied · external id: re_0000000000000014\n"}) {
    EXPECT_NE(wide.find(part), wide.npos) << wide;
  }
  EXPECT_EQ(usual.find("plan 5"), usual.npos) << usual;
  EXPECT_NE(usual.find("95 events\n"), usual.npos) << usual;
  EXPECT_NE(usual.find("━━━━"), usual.npos) << usual;
  EXPECT_EQ(narrow.find("vm:27533"), narrow.npos) << narrow;
  EXPECT_NE(narrow.find("  lost: its pr…"), narrow.npos) << narrow;
  EXPECT_NE(narrow.find("effect: idempotent · applied\n     external id: re_0000000000000014\n"),
            narrow.npos)
      << narrow;
}

AE_TEST("cli/a trace in colour has the same text") {
  const std::string painted =
      trace_text(trace("trace_in_doubt"), {.paint = Paint(true), .width = 100});
  expect_golden_trace(painted, "trace_in_doubt_colour.txt");
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

AE_TEST("cli/a trace shows where a tool has changed during the job") {
  const auto change = [](std::string_view tool, std::string_view what, Value from, Value to) {
    return Value::object(
        {{"from", from}, {"seq", 12}, {"since", 3}, {"to", to}, {"tool", tool}, {"what", what}});
  };
  const std::string digest(64, 'a');
  const Value drifted =
      trace("trace_completed")
          .with("drift", Value::array({change("pay", "tool_version", "v1", "v2"),
                                       change("pay", "result_schema", {}, digest)}));
  const std::string text = trace_text(drifted, {});
  EXPECT_NE(
      text.find("drift  tool \"pay\" changed during this job: tool version v1 → v2 (event 12)\n"),
      text.npos)
      << text;
  EXPECT_NE(text.find("changed during this job: result schema none → aaaa"), text.npos) << text;
  EXPECT_EQ(text.find(digest), text.npos) << "it is cut as other hashes are";
  EXPECT_EQ(trace_text(trace("trace_completed"), {}).find("drift"), std::string::npos);
}

AE_TEST("cli/a trace shows the refused calls of a model, in order") {
  const std::string turns = R"([
    {"node_id": "loop", "turn": 0, "status": "done", "items": [
       {"node_id": "loop", "turn": 0, "turn_call": 1, "tool": "look", "status": "done"}],
     "calls": [
       {"turn_call": 0, "call_id": "a", "tool": "wipe\u001b[2J", "status": "refused",
        "error": {"code": "tool_not_granted", "message": "there is no such tool"}},
       {"turn_call": 1, "call_id": "b", "tool": "look", "status": "done", "error": null},
       {"turn_call": 2, "call_id": "c", "tool": "put", "status": "not_run", "error": null}]}])";
  const Value shown = object(R"({"id": "t", "status": "completed", "totals": {"refused": 1}})");
  const auto node = [&](const Value& all) {
    return Value::array({Value::object(
        {{"node_id", "loop"}, {"status", "done"}, {"kind", "loop"}, {"items", all}})});
  };
  const Value trace = shown.with("nodes", node(object(turns.c_str())));
  for (const std::size_t width : {50u, 100u}) {
    const std::string text = trace_text(trace, {.paint = Paint(false), .width = width});
    EXPECT_NE(text.find("1 refused"), text.npos) << text;
    EXPECT_EQ(text.find('\x1b'), text.npos);
    const std::size_t refused = text.find("✗ [0]"), done = text.find("✓ [1]"),
                      rest = text.find("· [2]");
    EXPECT_TRUE(refused < done && done < rest && rest != text.npos) << text;
    EXPECT_NE(text.find("wipe"), text.npos) << text;
    EXPECT_NE(text.find("tool_not_granted"), text.npos) << text;
  }
  // Also in the 21st turn, after the limit for successful turns.
  std::vector<Value> many(25, object(R"({"node_id": "loop", "turn": 1, "status": "done"})"));
  many[20] = object(turns.c_str()).items()[0];
  const std::string text = trace_text(shown.with("nodes", node(Value::array(std::move(many)))), {});
  EXPECT_NE(text.find("tool_not_granted: there is no such tool"), text.npos) << text;
  EXPECT_NE(text.find("14 more turns done"), text.npos) << text;
}

AE_TEST("cli/a trace shows at most 128 refused calls of one answer") {
  std::vector<Value> calls;
  calls.reserve(1'000);
  for (int i = 0; i < 1'000; ++i) {
    calls.push_back(
        object(R"({"call_id": "a", "tool": "x", "status": "refused"})").with("turn_call", i));
  }
  const Value turn = object(R"({"node_id": "loop", "turn": 0, "status": "done"})")
                         .with("calls", Value::array(std::move(calls)));
  const Value loop =
      Value::object({{"node_id", "loop"}, {"status", "done"}, {"items", Value::array({turn})}});
  const std::string text = trace_text(Value::object({{"nodes", Value::array({loop})}}), {});
  EXPECT_NE(text.find("… 872 more calls not made\n"), text.npos) << text;
}

AE_TEST("cli/a trace shows the nodes that another plan dropped") {
  const Value trace = object(R"({"status": "completed",
    "nodes": [{"node_id": "a", "tool": "put", "status": "done"}],
    "dropped": [{"node_id": "a", "tool": "put", "status": "done", "dropped_by": 1},
                {"node_id": "b", "status": "failed", "dropped_by": 2}]})");
  const std::string text = trace_text(trace, {});
  EXPECT_NE(text.find("├─ ✓ a  "), text.npos) << text;
  EXPECT_NE(text.find("  dropped by plan 1\n"), text.npos) << text;
  EXPECT_NE(text.find("└─ ✗ b  "), text.npos) << text;
  EXPECT_NE(text.find("  failed, dropped by plan 2\n"), text.npos) << text;
}

AE_TEST("cli/an empty trace is printed") {
  EXPECT_FALSE(trace_text(Value::object({}), {}).empty());
  EXPECT_FALSE(trace_text(Value(), {}).empty());
}

AE_TEST("cli/a trace shows the choices of a model, refused calls and rejected answers") {
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
  EXPECT_NE(text.find("turn 1 calls look, pay (refused: not_offered)\n"), text.npos) << text;
  EXPECT_NE(text.find("turn 2: answer rejected: no JSON\n"), text.npos) << text;
  EXPECT_NE(text.find("turn 3 calls no tool\n"), text.npos) << text;
  EXPECT_EQ(text.find("turn 31"), text.npos) << text;
  EXPECT_EQ(text.find("tool_choice"), text.npos) << text;
}

AE_TEST("cli/a call that an operator resolved lasts until its resolution") {
  const auto shown = parse_json(
      R"({"id":"j","agent":"a","status":"completed","nodes":[{"node_id":"d","status":"done",
    "started_at":"2026-01-01T00:00:00Z","finished_at":"2026-01-03T00:00:00Z","duration_us":172800000000,
    "decisions":[{"kind":"in_doubt","state":"happened","by":"ada","at":"2026-01-01T00:00:05Z","seq":9}]}]})");
  ASSERT_TRUE(shown);
  const std::string text = trace_text(*shown, {});
  EXPECT_NE(text.find(" 5000 ms"), text.npos) << text;
  EXPECT_EQ(text.find("2 d"), text.npos) << text;
}

AE_TEST("cli/a trace shows attempts and replayed steps only if an attempt was lost") {
  const auto of = [](const char* ended) {
    return object(R"({"id":"j","agent":"a","status":"completed","nodes":[
      {"node_id":"n","tool":"t","status":"done","replayed":true,"executed_by":"one","tries":[
        {"try":1,"outcome":"failure","definite":true,"attempt":"one"}]}]})")
        .with("attempts",
              Value::array({Value::object({{"attempt_id", "one"}, {"ended", ended}}),
                            Value::object({{"attempt_id", "two"}, {"ended", "completed"}})}));
  };
  for (const char* ended : {"waiting", "released", "parked"}) {
    const std::string text = trace_text(of(ended), {});
    EXPECT_EQ(text.find("attempt"), text.npos) << text;
    EXPECT_EQ(text.find("replayed"), text.npos) << text;
  }
  for (const auto& [cause, shown] :
       {std::pair("process_died", "lost: its process died\n"),
        std::pair("code_worker_lost", "lost: the worker of its code was lost\n"),
        std::pair("lease_expired", "lost: its lease expired\n")}) {
    const Value lost = of("lost");
    const Value first = lost["attempts"].items()[0].with("lost", cause);
    const std::string why =
        trace_text(lost.with("attempts", Value::array({first, lost["attempts"].items()[1]})), {});
    EXPECT_NE(why.find(shown), why.npos) << why;
  }
  const std::string text = trace_text(of("lost"), {});
  EXPECT_NE(text.find("  attempt 1  "), text.npos) << text;
  EXPECT_NE(text.find(", attempt 1\n"), text.npos) << text;
  EXPECT_NE(text.find("replayed"), text.npos) << text;
}

AE_TEST("cli/a trace names a version of code that did not fit") {
  const Value trace = object(R"({"id":"j","agent":"a","status":"parked","nodes":[],"drift":[
      {"what":"trial","from":"v1","to":"v2","seq":12,"since":1,"tool":null}]})");
  const std::string text = trace_text(trace, {});
  EXPECT_NE(
      text.find("  trial  the version v2 of the code did not fit; the job keeps v1 (event 12)"),
      text.npos)
      << text;
  EXPECT_EQ(text.find("drift"), text.npos) << text;
}

AE_TEST("cli/a trace names the effect of each class in one form") {
  for (const auto& [effect_class, world, shown] :
       {std::tuple("read", "unchanged", "effect: read\n"),
        std::tuple("idempotent", "changed", "effect: idempotent · applied\n"),
        std::tuple("at_most_once", "unchanged", "effect: at_most_once · not applied\n"),
        std::tuple("at_most_once", "unknown", "effect: at_most_once · outcome unknown\n")}) {
    const Value node = Value::object({{"node_id", "n"},
                                      {"status", "done"},
                                      {"world", world},
                                      {"effect", Value::object({{"effect_class", effect_class}})}});
    const std::string text = trace_text(Value::object({{"nodes", Value::array({node})}}), {});
    EXPECT_NE(text.find(std::string("  ") + shown), text.npos) << text;
  }
}

AE_TEST("cli/a trace counts the applied, unknown and compensated items of a map") {
  std::vector<Value> items;
  for (const char* world : {"changed", "changed", "unknown", "rolled back"}) {
    items.push_back(Value::object({{"item", std::uint64_t{items.size()}},
                                   {"status", "done"},
                                   {"world", world},
                                   {"effect", Value::object({{"effect_class", "at_most_once"}})}}));
  }
  const Value node = Value::object(
      {{"node_id", "n"}, {"status", "done"}, {"items", Value::array(std::move(items))}});
  const std::string text = trace_text(Value::object({{"nodes", Value::array({node})}}), {});
  EXPECT_NE(text.find("effect: at_most_once · 2 items applied, 1 unknown, 1 compensated\n"),
            text.npos)
      << text;
}

AE_TEST("cli/a trace shows the lines of an error below each other, without control characters") {
  const Value shown = object(R"({"id":"j","status":"failed",
    "error":{"code":"exit_3","message":"first\n\u001b[2Jsecond\r\n\n\tthird\n"},
    "nodes":[{"node_id":"n","tool":"t","status":"failed","tries":[
      {"try":1,"outcome":"failure","definite":true,"duration_us":1000,
       "error":{"code":"exit_3","message":"first\n\u001b[2Jsecond\r\n\n\tthird\n"}}]}]})");
  const std::string text = trace_text(shown, {});
  EXPECT_NE(text.find("try 1  failure  error: exit_3: first  1.0 ms\n"
                      "            \\x1b[2Jsecond\n             third\n"),
            text.npos)
      << text;
  EXPECT_NE(text.find("\nexit_3: first\n  \\x1b[2Jsecond\n   third\n"), text.npos) << text;
  EXPECT_EQ(text.find("\\n"), text.npos) << text;
  EXPECT_EQ(text.find('\x1b'), text.npos) << text;
}

AE_TEST("cli/a trace shows at most eleven lines of the error of a try") {
  std::string message = "0";
  for (int i = 1; i < 40; ++i) message += fmt::format("\n{}", i);
  const Value one = object(R"({"try":1,"outcome":"failure","definite":true})")
                        .with("error", Value::object({{"code", "c"}, {"message", message}}));
  const Value node =
      Value::object({{"node_id", "n"}, {"status", "failed"}, {"tries", Value::array({one})}});
  const std::string text = trace_text(Value::object({{"nodes", Value::array({node})}}), {});
  EXPECT_NE(text.find(" 9\n            … 30 more lines\n"), text.npos) << text;
}

AE_TEST("cli/a trace hides call ids and keys unless it is verbose") {
  const Value shown = object(R"({"id":"j","status":"completed","nodes":[
    {"node_id":"n","tool":"t","status":"done","world":"changed","effect":{"effect_class":"idempotent",
     "invocation_id":"0123456789abcdef","idempotency_key":"fedcba9876543210","external_id":"re_1"}}]})");
  const std::string text = trace_text(shown, {});
  EXPECT_NE(text.find("effect: idempotent · applied · external id: re_1\n"), text.npos) << text;
  const std::string all = trace_text(shown, {.verbose = true});
  EXPECT_NE(all.find("     call fedcba987654 · invocation 0123456789abcdef\n"), all.npos) << all;
}

AE_TEST("cli/a trace shows decisions with their authors") {
  const Value shown =
      object(R"({"id":"j","status":"running","nodes":[{"node_id":"n","status":"running",
    "decisions":[{"kind":"approval","state":"requested","seq":1},
      {"kind":"approval","state":"approved","by":"cli:ada","reason":"as agreed","seq":2},
      {"kind":"in_doubt","state":"not_happened","by":"probe","seq":3}]}]})");
  const std::string text = trace_text(shown, {});
  EXPECT_NE(text.find("approval requested\n"), text.npos) << text;
  EXPECT_NE(text.find("approved by cli:ada: \"as agreed\"\n"), text.npos) << text;
  EXPECT_NE(text.find("resolved as not_happened by probe\n"), text.npos) << text;
}

AE_TEST("cli/a trace ends with the place of the failure, once") {
  const Value shown = object(R"({"id":"j","status":"failed",
    "error":{"code":"expression_failed","message":"at /id: null","node_id":"n",
             "summary":"node n (tool t): args.id: .input.id is null"},
    "nodes":[{"node_id":"n","tool":"t","status":"failed",
              "error":{"code":"expression_failed","message":"at /id: null","field":"args.id"}}]})");
  const std::string text = trace_text(shown, {});
  EXPECT_NE(text.find("\nexpression_failed: node n (tool t): args.id: .input.id is null\n"),
            text.npos)
      << text;
  EXPECT_EQ(text.find("at /id"), text.npos) << text;
}

}  // namespace
}  // namespace ae::cli
