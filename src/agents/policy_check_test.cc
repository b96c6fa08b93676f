// Policies of an agents file, and of a file of their own: which rules a plan gets for which of its tools.
#include "agents/test_load.h"
#include "core/json.h"
#include "testing/test.h"

namespace ae::agents {
namespace {

using testing::faults_as_text;
using testing::load_text;

constexpr std::string_view kRest =
    "tools:\n"
    "  pay: { native: echo, effect: idempotent, capabilities: [payments, net] }\n"
    "  look: { native: echo, effect: read }\n"
    "  s: { mcp: { command: [npx] }, capabilities: [files] }\n"
    "agents:\n"
    "  one: { plan: [ { id: a, tool: pay }, { id: b, tool: look }, { id: c, tool: s.put } ] }\n"
    "  two: { grants: [net, payments, net], plan: [ { id: a, tool: pay } ] }\n";

testing::Loaded with(const std::string& policies) {
  return load_text("aetheris: 1\n" + policies + std::string(kRest));
}

std::string rules(const testing::Loaded& loaded, const char* agent, const char* tool) {
  return canonical(loaded.file.agents.at(agent).task_graph["tools"][tool]["rules"]);
}

AE_TEST("policies/a plan holds the rules for each of its tools, in the order of the file") {
  const auto loaded = with(
      "policies:\n"
      "  - { tools: [pay], when: \"${ .args.n > 1 }\", action: deny, reason: no }\n"
      "  - { tools: [\"s.*\"], label: \"tier:free\", action: require_approval, expires: 2h }\n"
      "  - { agents: [two], action: allow }\n"
      "  - { capability: net, action: require_approval }\n");
  ASSERT_EQ(faults_as_text(loaded.faults), "");
  EXPECT_EQ(rules(loaded, "one", "pay"),
            R"([{"action":"deny","reason":"no","when":"${ .args.n > 1 }"},)"
            R"({"action":"require_approval"}])");
  EXPECT_EQ(rules(loaded, "two", "pay"),
            R"([{"action":"deny","reason":"no","when":"${ .args.n > 1 }"},{"action":"allow"},)"
            R"({"action":"require_approval"}])");
  EXPECT_EQ(rules(loaded, "one", "look"), "null") << "nothing is said of it";
  EXPECT_EQ(rules(loaded, "one", "s.put"),
            R"([{"action":"require_approval","expires":"2h","label":"tier:free"}])");
}

AE_TEST("policies/what a tool can do, and what a plan of a model may use, stand in the plan") {
  const auto loaded = with("");
  ASSERT_EQ(faults_as_text(loaded.faults), "");
  const Value& one = loaded.file.agents.at("one").task_graph;
  EXPECT_EQ(canonical(one["tools"]["pay"]["capabilities"]), R"(["net","payments"])");
  EXPECT_EQ(canonical(one["tools"]["s.put"]["capabilities"]), R"(["files"])");
  EXPECT_EQ(one.find("grants"), nullptr);
  EXPECT_EQ(canonical(loaded.file.agents.at("two").task_graph["grants"]), R"(["net","payments"])");
}

AE_TEST("policies/a rule says nothing of a tool's definition, so that no approval is lost by one") {
  const auto before = with("");
  const auto after = with("policies: [ { action: require_approval } ]\n");
  EXPECT_EQ(before.file.tools.at("pay").policy.version, after.file.tools.at("pay").policy.version);
  EXPECT_NE(canonical(before.file.agents.at("one").task_graph),
            canonical(after.file.agents.at("one").task_graph));
}

AE_TEST(
    "policies/those of a file of their own come first, and may name what a file does not have") {
  std::vector<Policy> policies;
  const auto faults = load_policies(
      {.name = "policies.yaml",
       .text = "aetheris: 1\npolicies:\n"
               "  - { tools: [pay, wire, \"bank.*\"], agents: [other, one], action: deny }\n"
               "  - { capability: root, action: deny }\n",
       .env = {},
       .native = {},
       .usable = {}},
      policies);
  ASSERT_EQ(faults_as_text(faults), "");
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
  ASSERT_EQ(faults_as_text(load(source, file)), "");
  EXPECT_EQ(canonical(file.agents.at("one").task_graph["tools"]["pay"]["rules"]),
            R"([{"action":"deny"},{"action":"allow"}])");
  EXPECT_EQ(canonical(file.agents.at("two").task_graph["tools"]["pay"]["rules"]),
            R"([{"action":"allow"}])");
  // An agent that is registered later is under them, too.
  Agent late;
  ASSERT_EQ(
      faults_as_text(load_agent(source, "one", R"({"plan":[{"id":"a","tool":"pay"}]})", late)), "");
  EXPECT_EQ(canonical(late.task_graph["tools"]["pay"]["rules"]),
            R"([{"action":"deny"},{"action":"allow"}])");
}

AE_TEST("policies/rules that nothing of the files is under are told, by what they name") {
  std::vector<Policy> policies;
  ASSERT_EQ(faults_as_text(load_policies(
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
  const auto idle = [&](const std::vector<const AgentsFile*>& files) {
    std::string text;
    for (const Note& note : idle_policies(policies, files))
      text += note.path + " " + note.message + "\n";
    return text;
  };
  const auto one = with("");
  ASSERT_EQ(faults_as_text(one.faults), "");
  const std::string kNothing = "nothing here is under this rule: no file has a";
  const std::string kOther = "policies[7] " + kNothing + " tool named `other`\n";
  const std::string found = "policies[0] " + kNothing + " tool named `paay`\n" + "policies[3] " +
                            kNothing + " tool named `t.*`, `look` and has the capability `net`\n" +
                            "policies[5] " + kNothing + " tool that has the capability `nets`\n" +
                            "policies[6] " + kNothing + "n agent named `oen`\n";
  EXPECT_EQ(idle({&one.file}), found + kOther);
  const auto other = load_text(
      "aetheris: 1\ntools: { other: { native: echo } }\n"
      "agents: { other: { plan: [ { id: a, tool: other } ] } }\n");
  ASSERT_EQ(faults_as_text(other.faults), "");
  EXPECT_EQ(idle({&one.file, &other.file}), found) << "one list is for many files";
}

AE_TEST("policies/faults of a file of its own are told with their places") {
  std::vector<Policy> policies;
  const auto faults = [&](std::string_view text) {
    return faults_as_text(load_policies(
        {.name = "p.yaml", .text = text, .env = {}, .native = {}, .usable = {}}, policies));
  };
  EXPECT_EQ(faults("aetheris: 1\npolicies:\n  - { action: dney }\nagents: {}\n"),
            "3:15 plan_invalid policies[0].action: must be one of allow, require_approval, deny "
            "(did you mean deny?)\n"
            "4:1 plan_invalid agents: unknown key `agents`; known here: aetheris, policies\n");
  EXPECT_NE(faults("aetheris: 1\n"), "");
  EXPECT_NE(faults("policies: []\n"), "");
  EXPECT_NE(faults("aetheris: 2\npolicies: []\n"), "");
  EXPECT_NE(faults("\xff"), "");
  EXPECT_TRUE(policies.empty());
}

}  // namespace
}  // namespace ae::agents
