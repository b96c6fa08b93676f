// Policies of an agents file and of a policies file: the rules that a plan gets for each tool.
#include <fmt/core.h>

#include "agents/test_load.h"
#include "engine/planner/planner.h"
#include "json/json.h"
#include "testing/test.h"

namespace ae::agents {
namespace {

using testing::diagnostics_as_text;
using testing::load_text;

constexpr std::string_view kRest =
    "tools:\n"
    "  pay: { native: echo, effect: idempotent, capabilities: [payments, net] }\n"
    "  look: { native: echo, effect: read }\n"
    "  s: { mcp: { command: [npx] }, capabilities: [files] }\n"
    "agents:\n"
    "  one: { plan: [ { id: a, tool: pay }, { id: b, tool: look }, { id: c, tool: s.put } ] }\n"
    "  two: { grants: [net, payments, net], plan: [ { id: a, tool: pay } ] }\n";

testing::LoadedFile with(const std::string& policies) {
  return load_text(fmt::format("aetheris: 1\n{}{}", policies, kRest));
}

std::string rules(const testing::LoadedFile& loaded, const char* agent, const char* tool) {
  return canonical(loaded.file.agents.at(agent).task_graph["tools"][tool]["rules"]);
}

AE_TEST("policies/a plan has the rules of each of its tools in file order") {
  const auto loaded = with(
      "policies:\n"
      "  - { tools: [pay], when: \"${ .args.n > 1 }\", action: deny, reason: no }\n"
      "  - { tools: [\"s.*\"], label: \"tier:free\", action: require_approval, expires: 2h }\n"
      "  - { agents: [two], action: allow }\n"
      "  - { capability: net, action: require_approval }\n");
  ASSERT_EQ(diagnostics_as_text(loaded.diagnostics), "");
  EXPECT_EQ(rules(loaded, "one", "pay"),
            R"([{"action":"deny","reason":"no","when":"${ .args.n > 1 }"},)"
            R"({"action":"require_approval"}])");
  EXPECT_EQ(rules(loaded, "two", "pay"),
            R"([{"action":"deny","reason":"no","when":"${ .args.n > 1 }"},{"action":"allow"},)"
            R"({"action":"require_approval"}])");
  EXPECT_EQ(rules(loaded, "one", "look"), "null") << "no rule matches the tool";
  EXPECT_EQ(rules(loaded, "one", "s.put"),
            R"([{"action":"require_approval","expires":"2h","label":"tier:free"}])");
}

AE_TEST("policies/tools of other jobs can be named") {
  const auto loaded = load_text(
      "aetheris: 1\n"
      "policies:\n"
      "  - { tools: [\"agent:clerk\"], action: deny, reason: clerk }\n"
      "  - { tools: [\"agent:clerk:detached\"], action: require_approval }\n"
      "  - { tools: [\"agent:*\"], action: allow, reason: any }\n"
      "  - { tools: [\"job:send\"], when: \"${ .args.job == .job.id }\", action: deny }\n"
      "agents:\n"
      "  clerk: { code: { language: cpp } }\n"
      "  two: { code: { language: cpp, uses: ['job:send'] } }\n"
      "  one: { plan: [ { id: a, agent: clerk }, { id: b, agent: clerk, detached: true },\n"
      "                 { id: c, agent: one } ] }\n");
  ASSERT_EQ(diagnostics_as_text(loaded.diagnostics), "");
  EXPECT_EQ(rules(loaded, "one", "agent:clerk"),
            R"([{"action":"deny","reason":"clerk"},{"action":"allow","reason":"any"}])");
  EXPECT_EQ(rules(loaded, "one", "agent:clerk:detached"),
            R"([{"action":"deny","reason":"clerk"},{"action":"require_approval"},)"
            R"({"action":"allow","reason":"any"}])");
  EXPECT_EQ(rules(loaded, "one", "agent:one"), R"([{"action":"allow","reason":"any"}])");
  EXPECT_EQ(rules(loaded, "two", "job:send"),
            R"([{"action":"deny","when":"${ .args.job == .job.id }"}])");
}

AE_TEST("policies/a misspelt name of a tool of other jobs is reported") {
  const auto loaded = with(
      "policies:\n"
      "  - { tools: [\"job:sent\", \"agent:\", \"agent:*:detached\", \"agent:o*\"], action: deny "
      "}\n"
      "  - { tools: [\"job:send\"], when: \"${ .args.joob == 1 }\", action: deny }\n");
  const std::string found = diagnostics_as_text(loaded.diagnostics);
  for (const char* at : {"policies[0].tools[0]", "policies[0].tools[1]", "policies[0].tools[2]",
                         "policies[0].tools[3]", "policies[1].when"}) {
    EXPECT_NE(found.find(at), std::string::npos) << at << "\n" << found;
  }
  EXPECT_NE(found.find("job:send"), std::string::npos) << found;
}

AE_TEST("policies/the plan records tool capabilities and the agent's grants") {
  const auto loaded = with("");
  ASSERT_EQ(diagnostics_as_text(loaded.diagnostics), "");
  const Value& one = loaded.file.agents.at("one").task_graph;
  EXPECT_EQ(canonical(one["tools"]["pay"]["capabilities"]), R"(["net","payments"])");
  EXPECT_EQ(canonical(one["tools"]["s.put"]["capabilities"]), R"(["files"])");
  EXPECT_EQ(one.find("grants"), nullptr);
  EXPECT_EQ(canonical(loaded.file.agents.at("two").task_graph["grants"]), R"(["net","payments"])");
}

AE_TEST("policies/adding a rule does not change a tool's version") {
  const auto before = with("");
  const auto after = with("policies: [ { action: require_approval } ]\n");
  EXPECT_EQ(before.file.tools.at("pay").policy.version, after.file.tools.at("pay").policy.version);
  EXPECT_NE(canonical(before.file.agents.at("one").task_graph),
            canonical(after.file.agents.at("one").task_graph));
}

AE_TEST("policies/rules of a policies file come first and may name unknown tools") {
  std::vector<Policy> policies;
  const auto diagnostics = load_policies(
      {.name = "policies.yaml",
       .text = "aetheris: 1\npolicies:\n"
               "  - { tools: [pay, wire, \"bank.*\"], agents: [other, one], action: deny }\n"
               "  - { capability: root, action: deny }\n",
       .env = {},
       .native = {},
       .usable = {}},
      policies);
  ASSERT_EQ(diagnostics_as_text(diagnostics), "");
  AgentsFile file;
  const std::string text = "aetheris: 1\npolicies: [ { action: allow } ]\n" + std::string(kRest);
  Source source{.name = "agents.yaml",
                .text = text,
                .env = {},
                .native = {},
                .usable = {},
                .server_tools = [](std::string_view, const Value&) -> Result<Value> {
                  return parse_json(R"([{"name":"put","digest":"d","inputSchema":{}}])");
                }};
  source.policies = &policies;
  ASSERT_EQ(diagnostics_as_text(load(source, file)), "");
  EXPECT_EQ(canonical(file.agents.at("one").task_graph["tools"]["pay"]["rules"]),
            R"([{"action":"deny"},{"action":"allow"}])");
  EXPECT_EQ(canonical(file.agents.at("two").task_graph["tools"]["pay"]["rules"]),
            R"([{"action":"allow"}])");
  // Rules also apply to an agent that is registered later.
  Agent late;
  ASSERT_EQ(
      diagnostics_as_text(load_agent(source, "one", R"({"plan":[{"id":"a","tool":"pay"}]})", late)),
      "");
  EXPECT_EQ(canonical(late.task_graph["tools"]["pay"]["rules"]),
            R"([{"action":"deny"},{"action":"allow"}])");
}

AE_TEST("policies/policies that match nothing are reported with the names that they use") {
  std::vector<Policy> policies;
  ASSERT_EQ(diagnostics_as_text(load_policies(
                {.name = "policies.yaml",
                 .text = "aetheris: 1\npolicies:\n"
                         "  - { tools: [paay], action: deny }\n"
                         "  - { tools: [paay, pay], agents: [two, nobody], action: deny }\n"
                         "  - { tools: [\"t.*\", \"s.*\"], action: deny }\n"
                         "  - { tools: [\"t.*\", look], capability: net, action: deny }\n"
                         "  - { capability: net, action: deny }\n"
                         "  - { capability: nets, action: deny }\n"
                         "  - { tools: [pay], agents: [oen], action: deny }\n"
                         "  - { tools: [other], agents: [other], action: allow }\n"
                         "  - { action: allow }\n",
                 .env = {},
                 .native = {},
                 .usable = {}},
                policies)),
            "");
  const auto unused = [&](const std::vector<const AgentsFile*>& files) {
    std::string text;
    for (const Note& note : unused_policies(policies, files))
      text += fmt::format("{} {}\n", note.path, note.message);
    return text;
  };
  const auto one = with("");
  ASSERT_EQ(diagnostics_as_text(one.diagnostics), "");
  const std::string kOther =
      "policies[7] this policy applies to nothing: no file has a tool named `other`\n";
  const std::string found =
      "policies[0] this policy applies to nothing: no file has a tool named `paay`\n"
      "policies[1].tools[0] no file has a tool named `paay`\n"
      "policies[1].agents[1] no file has an agent named `nobody`\n"
      "policies[2].tools[0] no file has a tool named `t.*`\n"
      "policies[3] this policy applies to nothing: no file has a tool named `t.*`, `look` and has "
      "the capability `net`\n"
      "policies[5] this policy applies to nothing: no file has a tool that has the capability "
      "`nets`\n"
      "policies[6] this policy applies to nothing: no file has an agent named `oen`\n";
  EXPECT_EQ(unused({&one.file}), found + kOther);
  const auto other = load_text(
      "aetheris: 1\ntools: { other: { native: echo } }\n"
      "agents: { other: { plan: [ { id: a, tool: other } ] } }\n");
  ASSERT_EQ(diagnostics_as_text(other.diagnostics), "");
  EXPECT_EQ(unused({&one.file, &other.file}), found) << "policies apply to all files";
}

constexpr std::string_view kClosed =
    "tools:\n"
    "  pay: { native: echo, capabilities: [payments], args_schema: { type: object, "
    "additionalProperties: false,"
    " properties: { amount: { type: number }, to: { type: object, additionalProperties: false,"
    " properties: { iban: { type: string } } } } } }\n"
    "  back: { native: echo, capabilities: [payments], args_schema: { type: object, "
    "additionalProperties: false,"
    " properties: { order: { type: string } } } }\n"
    "  open: { native: echo, args_schema: { type: object, properties: { amount: { type: number } } "
    "} }\n"
    "  s: { mcp: { command: [npx] } }\n"
    "agents: { one: { plan: [ { id: a, tool: pay } ] } }\n";

AE_TEST("policies/an unknown member of .job or .call is an error with a suggestion") {
  const auto diagnostics = [](const std::string& text) {
    return diagnostics_as_text(load_text("aetheris: 1\n" + text).diagnostics);
  };
  const std::string kAvailable = "; available: .agent, .created_at, .id, .labels";
  const std::string rest = "tools: { pay: { native: echo } }\nagents: { one: { plan: [ ";
  const std::string plain = "{ id: a, tool: pay } ] } }\n";
  EXPECT_EQ(diagnostics("policies: [ { when: \"${ .job.label.tier == 1 }\", action: deny } ]\n" +
                        rest + plain),
            "2:25 plan_invalid policies[0].when: .job has no member `label`" + kAvailable +
                " (did you mean .job.labels?)\n");
  EXPECT_EQ(
      diagnostics("policies: [ { when: \"${ .job.labels.label == .job.id }\", action: deny } ]\n" +
                  rest + plain),
      "");
  EXPECT_EQ(
      diagnostics(rest + "{ id: a, tool: pay, when: \"${ .job[\\\"lables\\\"].x }\" } ] } }\n"),
      "3:56 plan_invalid agents.one.plan[0].when: .job has no member `lables`" + kAvailable +
          " (did you mean .job.labels?)\n");
  EXPECT_EQ(
      diagnostics(rest + "{ id: a, tool: pay, args: { x: [\"of ${ .job.name }\"] } } ] } }\n"),
      "3:65 plan_invalid agents.one.plan[0].args.x[0]: .job has no member `name`" + kAvailable +
          "\n");
  EXPECT_EQ(diagnostics("tools: { pay: { command: [echo, \"${ .call.invocation }\"] } }\n"
                        "agents: { one: { plan: [ " +
                        plain),
            "2:37 plan_invalid tools.pay.command[1]: .call has no member `invocation`; available: "
            ".external_key, .invocation_id, .key, .try (did you mean .call.invocation_id?)\n");
  EXPECT_EQ(
      diagnostics(rest + "{ id: a, tool: pay, when: \"${ .job.id == .job.name }\" } ] } }\n"),
      "3:67 plan_invalid agents.one.plan[0].when: .job has no member `name`" + kAvailable + "\n");
  std::vector<Policy> policies;
  EXPECT_EQ(
      diagnostics_as_text(load_policies(
          {.name = "p.yaml",
           .text = "aetheris: 1\npolicies:\n  - { action: deny, when: \"${ .job.agnet == 1 }\" }\n",
           .env = {},
           .native = {},
           .usable = {}},
          policies)),
      "3:31 plan_invalid policies[0].when: .job has no member `agnet`" + kAvailable +
          " (did you mean .job.agent?)\n");
}

AE_TEST("policies/a condition over an argument that no tool has is an error with a suggestion") {
  const auto diagnostics = [](const std::string& rule) {
    const auto loaded = load_text(fmt::format("aetheris: 1\npolicies:\n  - {}\n{}", rule, kClosed));
    std::string text = diagnostics_as_text(loaded.diagnostics);
    for (const Note& note : loaded.file.notes) {
      if (note.path.starts_with("policies"))
        text += fmt::format("{}: {}\n", note.path, note.message);
    }
    return text;
  };
  EXPECT_EQ(diagnostics("{ tools: [pay], action: deny, when: \"${ .args.amuont > 500 }\" }"),
            "3:50 plan_invalid policies[0].when: .args.amuont does not exist: the tool `pay` has "
            "no such argument (did you mean amount?)\n");
  EXPECT_EQ(diagnostics("{ tools: [pay], action: deny, when: \"${ (.args.amuont // 0) > 500 }\" }"),
            "3:51 plan_invalid policies[0].when: .args.amuont does not exist: the tool `pay` has "
            "no such argument (did you mean amount?)\n");
  EXPECT_EQ(diagnostics("{ tools: [pay], action: deny, when: \"${ .args.to.iabn == 1 }\" }"),
            "3:53 plan_invalid policies[0].when: .args.to.iabn does not exist: the tool `pay` has "
            "no such argument (did you mean iban?)\n");
  EXPECT_EQ(diagnostics("{ capability: payments, action: deny, when: \"${ .args.sum > 500 }\" }"),
            "3:58 plan_invalid policies[0].when: .args.sum does not exist: none of `back`, `pay` "
            "has such an argument\n");
  // MCP tools are pinned, so their arguments are known.
  EXPECT_EQ(diagnostics("{ tools: [s.find], action: deny, when: \"${ .args.qq == 1 }\" }"),
            "3:53 plan_invalid policies[0].when: .args.qq does not exist: the tool `s.find` has no "
            "such argument\n");
  // Some tools have the argument: calls of the others would fail if it is required.
  EXPECT_EQ(
      diagnostics("{ capability: payments, action: deny, when: \"${ .args.amount > 500 }\" }"),
      "policies[0].when: every call of `back` will fail: it has no argument .args.amount. "
      "List the `tools` of the rule, or give a default: `.args.amount // other`\n");
  for (const char* good :
       {"{ capability: payments, action: deny, when: \"${ (.args.amount // 0) > 500 }\" }",
        "{ tools: [pay], action: deny, when: \"${ .args.amount > 500 }\" }",
        "{ tools: [pay], action: deny, when: \"${ .args.to.iban[2:4] == \\\"x\\\" }\" }",
        "{ tools: [open], action: deny, when: \"${ .args.amuont > 500 }\" }",
        "{ tools: [s.find], action: deny, when: \"${ .args.q == 1 }\" }",
        "{ tools: [s.put], action: deny, when: \"${ .args.any == 1 }\" }"}) {
    EXPECT_EQ(diagnostics(good), "") << good;
  }
}

AE_TEST("policies/an approval condition over an argument that its tool lacks is an error") {
  const auto diagnostics = [](const std::string& tool) {
    return diagnostics_as_text(
        load_text("aetheris: 1\ntools:\n  pay: " + tool +
                  "\nagents: { one: { plan: [ { id: a, wait: { type: timer, for: 1s } } ] } }\n")
            .diagnostics);
  };
  const std::string schema =
      "args_schema: { type: object, additionalProperties: false, properties: { n: {} } }";
  EXPECT_EQ(diagnostics("{ native: echo, approval: \"${ .args.m > 5 }\", " + schema + " }"),
            "3:43 plan_invalid tools.pay.approval: .args.m does not exist: the tool `pay` has no "
            "such argument\n");
  EXPECT_EQ(diagnostics("{ native: echo, approval: \"${ .args.n > 5 }\", " + schema + " }"), "");
  EXPECT_EQ(diagnostics("{ native: echo, approval: \"${ .args.m > 5 }\" }"), "");
  // For an MCP server: the entry applies to all tools, `tools` to one.
  EXPECT_EQ(diagnostics("{ mcp: { command: [npx] }, approval: \"${ .args.qq == 1 }\" }"), "")
      << "`odd` and `put` may take anything";
  EXPECT_EQ(
      diagnostics(
          "{ mcp: { command: [npx] }, tools: { find: { approval: \"${ .args.qq == 1 }\" } } }"),
      "3:71 plan_invalid tools.pay.tools.find.approval: .args.qq does not exist: the tool "
      "`pay.find` has no such argument\n");
}

constexpr std::string_view kPlanner =
    "tools:\n"
    "  pay: { native: echo, capabilities: [payments, net] }\n"
    "  look: { native: echo, effect: read, capabilities: [net] }\n"
    "  free: { native: echo, effect: read }\n"
    "models: { m: { provider: openai, base_url: \"http://m/v1\", model: x } }\n"
    "agents:\n"
    "  a: { grants: [GRANTS], planner: { model: m, tools: [TOOLS] } }\n";

testing::LoadedFile plans(std::string_view grants, std::string_view tools) {
  std::string text = "aetheris: 1\n" + std::string(kPlanner);
  text.replace(text.find("GRANTS"), 6, grants);
  text.replace(text.find("TOOLS"), 5, tools);
  return load_text(text);
}

AE_TEST("grants/an unknown capability is an error with a suggestion") {
  EXPECT_EQ(
      diagnostics_as_text(plans("paymnts, net", "free").diagnostics),
      "8:17 plan_invalid agents.a.grants[0]: no tool of this file has this capability (did you "
      "mean payments?)\n");
  EXPECT_EQ(diagnostics_as_text(plans("", "free").diagnostics), "");
  EXPECT_EQ(
      diagnostics_as_text(
          load_text("aetheris: 1\npolicies: [ { capability: nett, action: deny } ]\n" +
                    std::string(kRest))
              .diagnostics),
      "2:27 plan_invalid policies[0].capability: no tool of this file has this capability (did "
      "you mean net?)\n");
}

AE_TEST("grants/a planner's model is offered only granted tools, and a note lists the others") {
  const auto loaded = plans("net", "look, pay, free");
  ASSERT_EQ(diagnostics_as_text(loaded.diagnostics), "");
  ASSERT_EQ(loaded.file.notes.size(), 1u);
  EXPECT_EQ(
      fmt::format("{}: {}", loaded.file.notes[0].path, loaded.file.notes[0].message),
      "agents.a.planner.tools: these tools need capabilities that the agent does not grant; they "
      "are not offered to the model: `pay` (`payments`). Add the capabilities to `grants`");
  const Value& graph = loaded.file.agents.at("a").task_graph;
  const Value& planner = graph["nodes"].items()[0]["planner"];
  EXPECT_EQ(canonical(planner["tools"]), R"(["look","free"])");
  EXPECT_EQ(planner.text("told").find("\"pay\""), std::string_view::npos);
  EXPECT_EQ(graph["tools"].find("pay"), nullptr);
  const auto all = plans("net, payments", "\"*\"");
  ASSERT_EQ(diagnostics_as_text(all.diagnostics), "");
  EXPECT_TRUE(all.file.notes.empty());
  EXPECT_EQ(canonical(all.file.agents.at("a").task_graph["nodes"].items()[0]["planner"]["tools"]),
            R"(["free","look","pay"])");
}

AE_TEST("grants/a generated plan that calls a tool without a grant is rejected") {
  const auto loaded = plans("net", "pay, look");
  ASSERT_EQ(diagnostics_as_text(loaded.diagnostics), "");
  const auto plan = engine::Plan::compile(loaded.file.agents.at("a").task_graph);
  ASSERT_TRUE(plan) << plan.error().message;
  const auto made = [&](const char* tool) {
    const std::string text = std::string(R"({"nodes":[{"id":"n","tool":")") + tool + R"("}]})";
    const auto next = engine::plan_from_answer(**plan, Value::object({{"text", text}}));
    return next ? std::string("a plan") : next.error().message;
  };
  EXPECT_EQ(made("look"), "a plan");
  EXPECT_EQ(made("pay"), "node `n` calls `pay`, which may not be called; there are: look");
}

AE_TEST("policies/a plan with conditional rules is marked strict, others are not") {
  const auto conditions = [](const std::string& policies) {
    const auto loaded = load_text(fmt::format("aetheris: 1\n{}{}", policies, kClosed));
    EXPECT_EQ(diagnostics_as_text(loaded.diagnostics), "");
    return canonical(loaded.file.agents.at("one").task_graph["conditions"]);
  };
  EXPECT_EQ(conditions("policies: [ { action: deny, when: \"${ .job.id == 1 }\" } ]\n"),
            R"("strict")");
  EXPECT_EQ(conditions("policies: [ { action: require_approval } ]\n"), "null");
  EXPECT_EQ(conditions(""), "null");
}

AE_TEST("policies/a condition of a policies file over an argument that no tool has is reported") {
  std::vector<Policy> policies;
  ASSERT_EQ(diagnostics_as_text(load_policies(
                {.name = "p.yaml",
                 .text = "aetheris: 1\npolicies:\n"
                         "  - { tools: [pay], action: deny, when: \"${ .args.amuont > 500 }\" }\n"
                         "  - { tools: [pay], action: deny, when: \"${ .args.amount > 500 }\" }\n",
                 .env = {},
                 .native = {},
                 .usable = {}},
                policies)),
            "");
  const auto loaded = load_text("aetheris: 1\n" + std::string(kClosed));
  const auto unused = unused_policies(policies, {&loaded.file});
  ASSERT_EQ(unused.size(), 1u);
  EXPECT_EQ(
      fmt::format("{}: {}", unused[0].path, unused[0].message),
      "policies[0].when: .args.amuont does not exist: the tool `pay` has no such argument (did "
      "you mean amount?)");
}

AE_TEST("policies/programs that can write the store are listed unless a sandbox prevents it") {
  const auto named = [](const std::string& approval, const std::string& policies) {
    const auto loaded = load_text("aetheris: 1\n" + policies +
                                  "tools:\n"
                                  "  pay:   { command: [\"true\"], effect: at_most_once" +
                                  approval +
                                  " }\n"
                                  "  open:  { command: [\"true\"], sandbox: { network: none } }\n"
                                  "  none:  { command: [\"true\"], sandbox: none }\n"
                                  "  shut:  { command: [\"true\"], sandbox: { read: [in] } }\n"
                                  "  writes: { command: [\"true\"], sandbox: { write: [in] } }\n"
                                  "  web:   { http: { method: GET, url: \"http://h/\" } }\n"
                                  "  s:     { mcp: { command: [npx] } }\n"
                                  "  t:     { mcp: { command: [npx], sandbox: { read: [in] } } }\n"
                                  "  u:     { mcp: { url: \"http://h/\" } }\n"
                                  "agents: { a: { plan: [ { id: p, tool: pay } ] } }\n");
    EXPECT_EQ(diagnostics_as_text(loaded.diagnostics), "");
    if (!has_approvals({&loaded.file})) return std::string("no approvals");
    const auto note = unsandboxed_programs(loaded.file);
    return note ? fmt::format("{}: {}", note->path,
                              note->message.substr(0, note->message.find(" can write")))
                : std::string();
  };
  const std::string each = "tools: the programs of `none`, `open`, `pay`, `s`";
  EXPECT_EQ(named("", ""), "no approvals");
  EXPECT_EQ(named(", approval: required", ""), "tools: the programs of `none`, `open`, `s`")
      << "each call of pay is approved";
  EXPECT_EQ(named(", approval: \"${ .args.n > 1 }\"", ""), each);
  EXPECT_EQ(named("", "policies: [ { tools: [pay], action: deny } ]\n"), each);
}

AE_TEST("policies/errors of a policies file are reported with their positions") {
  std::vector<Policy> policies;
  const auto diagnostics = [&](std::string_view text) {
    return diagnostics_as_text(load_policies(
        {.name = "p.yaml", .text = text, .env = {}, .native = {}, .usable = {}}, policies));
  };
  EXPECT_EQ(diagnostics("aetheris: 1\npolicies:\n  - { action: dney }\nagents: {}\n"),
            "3:15 plan_invalid policies[0].action: must be one of allow, require_approval, deny "
            "(did you mean deny?)\n"
            "4:1 plan_invalid agents: unknown key `agents`; allowed keys: aetheris, policies\n");
  EXPECT_NE(diagnostics("aetheris: 1\n"), "");
  EXPECT_NE(diagnostics("policies: []\n"), "");
  EXPECT_NE(diagnostics("aetheris: 2\npolicies: []\n"), "");
  EXPECT_NE(diagnostics("\xff"), "");
  EXPECT_TRUE(policies.empty());
}

}  // namespace
}  // namespace ae::agents
