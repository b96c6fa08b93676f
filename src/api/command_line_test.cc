// Actions as commands, as a table; and the commands of forms, whose schemas come from MCP servers.
#include "api/command_line.h"

#include <fmt/core.h>

#include <optional>
#include <string>
#include <string_view>

#include "engine/state/action.h"
#include "json/json.h"
#include "testing/test.h"

namespace ae::api {
namespace {

using engine::action;

AE_TEST("command_line/each action is printed as a complete command") {
  const struct {
    Value action;
    std::vector<std::string> lines;
  } cases[] = {
      {Value(), {}},
      {action("approve", {{"id", "j.0a"}}), {"aetheris approve j.0a"}},
      {action("reject", {{"id", "j.0a"}}), {"aetheris reject j.0a"}},
      {action("message", {{"channel", "c"}, {"job_id", "j"}}), {"aetheris message j c '{}'"}},
      {action("signal", {{"correlation_key", "k"}, {"job_id", "j"}}), {"aetheris signal j k '{}'"}},
      {action("resolve", {{"call", "5d0c"}, {"job_id", "j"}}, {"happened", "not_happened", "fail"}),
       {"aetheris resolve j 5d0c happened RESULT", "aetheris resolve j 5d0c not_happened",
        "aetheris resolve j 5d0c fail"}},
      {action("resolve", {{"call", "a/0"}, {"job_id", "j"}}, {"accept", "fail"}),
       {"aetheris resolve j a/0 accept", "aetheris resolve j a/0 fail"}},
      {action("resume", {{"job_id", "j"}}), {"aetheris resume j"}},
      {action("run", {{"job_id", "j"}}), {"aetheris run FILE --job-id j"}},
  };
  for (const auto& one : cases) {
    EXPECT_EQ(command_lines(one.action), one.lines) << canonical(one.action);
  }
}

AE_TEST("command_line/the action of an error is a command and a request") {
  const struct {
    Action action;
    std::string_view command, request;
  } cases[] = {
      {{.act = act::kAcceptRollback}, "aetheris doctor --accept-rollback", ""},
      {{.act = act::kAcceptTools, .arguments = {{"file", "a b.yaml"}}},
       "aetheris check 'a b.yaml' --accept",
       ""},
      {{.act = act::kAcceptTools}, "aetheris check FILE --accept", ""},
      {{.act = act::kApprovals}, "aetheris approvals", "GET /api/approvals"},
      {{.act = act::kApprove, .arguments = {{"id", "j.0a"}}},
       "aetheris approve j.0a",
       "POST /api/approvals/j.0a"},
      {{.act = act::kApprove}, "aetheris approve ID", "POST /api/approvals/{id}"},
      {{.act = act::kBackup}, "aetheris backup FILE", ""},
      {{.act = act::kCreateKey}, "aetheris keys create --role admin", "POST /api/keys"},
      {{.act = act::kEvents, .job = "j"}, "aetheris events j", "GET /api/jobs/j/events"},
      {{.act = act::kFork, .job = "j"}, "aetheris fork j --at SEQ", "POST /api/jobs/j/fork"},
      {{.act = act::kJob, .job = "j"}, "aetheris job j", "GET /api/jobs/j"},
      {{.act = act::kJobs}, "aetheris jobs", "GET /api/jobs"},
      {{.act = act::kKeys}, "aetheris keys list", "GET /api/keys"},
      {{.act = act::kMigrate}, "aetheris migrate", ""},
      {{.act = act::kPause, .job = "j"}, "aetheris pause j", "POST /api/jobs/j/pause"},
      {{.act = act::kPinTools, .arguments = {{"file", "a.yaml"}}}, "aetheris check a.yaml", ""},
      {{.act = act::kSandbox}, "aetheris doctor --sandbox", ""},
      {{.act = act::kSignal, .job = "j", .arguments = {{"correlation_key", "k"}}},
       "aetheris signal j k '{}'",
       "POST /api/jobs/j/signal"},
      {{.act = act::kTrace, .job = "j"}, "aetheris trace j", "GET /api/jobs/j/trace"},
      {{.act = act::kVerify, .job = "j"}, "aetheris verify j", "GET /api/jobs/j/verify"},
      {{.act = act::kWorkers}, "aetheris workers", "GET /api/workers"},
      {{.act = "from_a_newer_server", .job = "j"}, "", ""},
  };
  for (const auto& one : cases) {
    const Value action = engine::action_json(one.action);
    EXPECT_EQ(command_line(action), one.command);
    EXPECT_EQ(request_line(action), one.request) << one.command;
    EXPECT_EQ(engine::action_from_json(action), one.action);
  }
  EXPECT_EQ(engine::action_from_json(Value()), std::nullopt);
}

AE_TEST("command_line/the message of an error is followed by its command") {
  EXPECT_EQ(message_with_command({Code::not_found, "no job x", Action{.act = act::kJobs}}),
            "no job x; `aetheris jobs` lists the jobs");
  EXPECT_EQ(message_with_command({Code::not_found, "no job x"}), "no job x");
  EXPECT_EQ(message_with_command({Code::not_found, "no job x", Action{.act = "unknown"}}),
            "no job x");
  const Value problem = Value::object(
      {{"action", action(act::kJobs, {})}, {"act", "GET /api/jobs"}, {"detail", "no job x"}});
  EXPECT_EQ(canonical(problem_with_command(problem)),
            R"({"act":"GET /api/jobs","command":"aetheris jobs","detail":"no job x"})");
  EXPECT_EQ(problem_with_command(Value()), Value());
}

AE_TEST("command_line/a budget command has the limits in their order") {
  const auto limit = [](const char* name, const char* total) {
    return Value::object({{"limit", name}, {"total", total}});
  };
  const Value limits = Value::array({limit("tool_calls", "4"), limit("cost", "0.5")});
  EXPECT_EQ(command_line(action("budget", {{"job_id", "j"}, {"limits", limits}})),
            "aetheris budget j --tool-calls 4 --cost 0.5");
}

AE_TEST("command_line/a key is quoted as one word of the shell") {
  EXPECT_EQ(command_line(action("signal", {{"correlation_key", "a b; $HOME `"}, {"job_id", "j"}})),
            "aetheris signal j 'a b; $HOME `' '{}'");
  EXPECT_EQ(command_line(action("message", {{"channel", "it's"}, {"job_id", "j"}})),
            "aetheris message j 'it'\\''s' '{}'");
}

std::string form_of(const Value& schema) {
  const std::string command = command_line(action("approve", {{"id", "j.0a"}, {"schema", schema}}));
  constexpr std::string_view kHead = "aetheris approve j.0a --arguments ";
  EXPECT_TRUE(command.starts_with(kHead)) << command;
  return command.substr(kHead.size());
}

AE_TEST("command_line/a form has its required fields and chooses no value for them") {
  const struct {
    std::string_view schema, form;
  } cases[] = {
      {R"({"type":"object","required":["n","s","e","b","d","f","l","n","what"],"properties":{
           "n":{"type":"integer"},"s":{"type":"string"},"e":{"type":"string","enum":["x","y"]},
           "b":{"type":"boolean"},"d":{"type":"string","default":"usual"},"f":{"type":"number"},
           "l":{"type":"array"}}})",
       R"('{"n":<integer>,"s":<text>,"e":<text>,"b":<true or false>,"d":<text>,"f":<number>,)"
       R"("l":<list>,"what":<text>}')"},
      {R"({"type":"object","required":["a b"],"properties":{"a b":{"type":"integer"}}})",
       R"('{"a b":<integer>}')"},
      {R"({"type":"object","properties":{"n":{"type":"integer"}}})", "'{…}'"},
      {R"({"type":"object","required":[],"properties":{}})", "'{…}'"},
      {"null", "'{…}'"},
  };
  for (const auto& one : cases) {
    const auto schema = parse_json(std::string(one.schema));
    ASSERT_TRUE(schema) << one.schema;
    const std::string form = form_of(*schema);
    EXPECT_EQ(form, one.form);
    EXPECT_FALSE(parse_json(form.substr(1, form.size() - 2))) << "the unedited command is rejected";
  }
}

AE_TEST("command_line/a form with thousands of fields has only the first ones") {
  std::vector<Value> names;
  for (int i = 0; i < 4'000; ++i) names.emplace_back(fmt::format("field-{}", i));
  const std::string form = form_of(Value::object({{"required", Value::array(std::move(names))}}));
  EXPECT_TRUE(form.ends_with(R"("field-63":<text>,…}')")) << form;
  const Value long_name(std::string(3'000, 'x'));
  EXPECT_EQ(form_of(Value::object({{"required", Value::array({Value("a"), long_name})}})),
            R"('{"a":<text>,…}')");
}

AE_TEST("command_line/the actions of a view are replaced by commands") {
  const Value wait = Value::object(
      {{"actions",
        Value::array({action("approve", {{"id", "j.0a"}}), action("reject", {{"id", "j.0a"}})})}});
  const Value timer = Value::object({{"actions", Value::array({})}});
  const Value view =
      Value::object({{"confirmations", Value::array({})},
                     {"in_doubt", Value::array({})},
                     {"parked", Value::object({{"action", action("resume", {{"job_id", "j"}})}})},
                     {"waiting", wait},
                     {"waits", Value::array({wait, timer})}});
  const std::string shown =
      R"({"command":"aetheris approve j.0a","commands":["aetheris approve j.0a",)"
      R"("aetheris reject j.0a"]})";
  EXPECT_EQ(canonical(with_all_commands(view)),
            R"({"confirmations":[],"in_doubt":[],"parked":{"command":"aetheris resume j"},)"
            R"("waiting":)" +
                shown + R"(,"waits":[)" + shown + R"(,{"command":null,"commands":[]}]})");
}

}  // namespace
}  // namespace ae::api
