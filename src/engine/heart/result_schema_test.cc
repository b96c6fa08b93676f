// Results are validated by result_schema: those of calls, effect records, late
// results, probes, and operators.
#include "engine/fixtures/job_fixture_test.h"
#include "inspect/verify.h"
#include "inspect/view.h"
#include "testing/test.h"

namespace ae::engine::testing {
namespace {

constexpr std::string_view kSchema =
    "{'type':'object','required':['id'],'properties':{'id':{'type':'integer'}}}";

// Nodes may use `make`, `buy` (probed by `find`) and `undone` (has a compensation).
std::string tools() {
  const std::string schema = "'result_schema':" + std::string(kSchema);
  return "{'tools':{"
         "'make':{'retry':{'max_attempts':3,'retry_on':['timeout','tool_output_invalid']}," +
         schema +
         "},"
         "'find':{'effect':'read','result_schema':{'type':'object'}},"
         "'buy':{'effect':'at_most_once','on_in_doubt':'probe'," +
         schema +
         ",'probe':{'tool':'find','happened':'${ .result.charge }'}},"
         "'pay':{'effect':'at_most_once','on_in_doubt':'park'," +
         schema +
         "},"
         "'undone':{'compensate':{'tool':'put','args':{'n':'${ .args.n }'}}," +
         schema + "}}}";
}

JobFixture calling_checked(std::string_view tool) {
  return JobFixture("[{'id':'a','kind':'tool','tool':'" + std::string(tool) + "','args':{'n':1}}]",
                    {.more = tools()});
}

std::string digest() { return to_hex(sha256(canonical(json(kSchema)))); }

Verification proved(const JobFixture& job, std::vector<VerifyInput::Effect> effects = {}) {
  VerifyInput input;
  input.job = job.state.job;
  input.events = job.log;
  input.effects = effects.empty() ? job.effects : std::move(effects);
  return verify(input, uncached_plan_source());
}

void expect_proof(const JobFixture& job) {
  EXPECT_TRUE(proved(job).ok) << canonical(proved(job).to_json()) << "\n" << job.log_text();
  EXPECT_EQ(state_view(job.folded(job.log.size())), state_view(job.state));
}

AE_TEST("result/a valid result is recorded with the hash of its schema") {
  JobFixture job = calling_checked("make");
  job.claim().ok("a", "{'id':7}");
  EXPECT_EQ(job.status(), "completed");
  EXPECT_EQ(to_hex(*job.last<ToolInvocationFinished>().response_schema_hash), digest());
  EXPECT_EQ(job.last<ToolInvocationFinished>().result.value, json("{'id':7}"));
  expect_proof(job);
}

AE_TEST("result/a result that violates its schema fails the node and is never retried") {
  JobFixture job = calling_checked("make");
  job.claim().ok("a", "{'id':'seven'}");
  EXPECT_EQ(job.status(), "failed");
  EXPECT_EQ(job.state.error->code, "tool_output_invalid");
  EXPECT_NE(job.state.error->message.find("/id"), std::string::npos) << job.state.error->message;
  EXPECT_EQ(job.after(1h).tries("a"), 1u);
  const auto finished = job.last<ToolInvocationFinished>();
  EXPECT_EQ(finished.outcome, "success");
  EXPECT_EQ(to_hex(*finished.response_schema_hash), digest());
  const Value& summary = finished.result.value;
  EXPECT_EQ(summary["invalid"], Value(true));
  EXPECT_EQ(summary["head"], R"({"id":"seven"})");
  EXPECT_EQ(summary["size"], Value(14));
  EXPECT_EQ(summary["sha256"], to_hex(sha256(R"({"id":"seven"})")));
  EXPECT_EQ(job.last<NodeFinished>().result_type, "permanent_failure");
  EXPECT_EQ(job.count(EventType::step_committed), 1u);
  EXPECT_TRUE(job.last<JobFailed>().in_doubt.is_null());
  expect_proof(job);
}

AE_TEST("result/the summary of a long result is short and cut at a character boundary") {
  JobFixture job = calling_checked("make");
  std::string name;
  for (int i = 0; i < 400; ++i) name += "\u00e4";
  Value result = Value::object({{"\u00e4" + name, name}});
  job.claim().answer("a", {.kind = OutcomeKind::success, .result = result});
  const Value summary = job.last<ToolInvocationFinished>().result.value;
  EXPECT_LE(summary.text("head").size(), 256u);
  EXPECT_GE(summary.text("head").size(), 250u);
  EXPECT_TRUE(canonical(result).starts_with(summary.text("head")));
  EXPECT_LE(summary.text("reason").size(), 512u);
  EXPECT_EQ(summary["size"], Value(std::uint64_t{canonical(result).size()}));
}

AE_TEST("result/a call whose result violates its schema is compensated") {
  JobFixture job = calling_checked("undone");
  job.claim().ok("a", "null");
  EXPECT_EQ(job.last<NodeFinished>().result_type, "compensatable_failure");
  ASSERT_EQ(job.sent.size(), 2u) << job.log_text();
  EXPECT_EQ(job.sent[1].tool, "put");
  job.ok("a/compensate");
  EXPECT_EQ(job.status(), "failed");
  EXPECT_EQ(job.state.error->code, "tool_output_invalid");
  EXPECT_EQ(job.last<JobFailed>().compensated.json().size(), 1u);
  expect_proof(job);
}

AE_TEST("result/an item of a map is validated like a node") {
  JobFixture job(
      "[{'id':'m','kind':'map','over':'${ .input }','max_parallel':8,'on_item_error':'collect',"
      "'do':{'tool':'make','args':{'n':'${ .item }'}}}]",
      {.more = tools(), .input = "[1,2]"});
  job.claim().ok("m/0", "{'id':1}").ok("m/1", "{}");
  EXPECT_EQ(job.status(), "completed");
  const Value& items = job.state.result["m"];
  EXPECT_EQ(items.items()[0], json("{'id':1}"));
  EXPECT_EQ(items.items()[1]["error"]["code"], "tool_output_invalid");
  expect_proof(job);
}

AE_TEST("result/a result imported from the effect store is recorded as if received") {
  for (const char* result : {"{'id':1}", "{'id':'x'}"}) {
    const Outcome outcome{.kind = OutcomeKind::success, .result = json(result)};
    JobFixture seen = calling_checked("make");
    seen.claim().answer("a", outcome);
    JobFixture kept = calling_checked("make");
    kept.claim();
    const SentTry sent = sent_try_of(kept.state, kept.step("a"));
    const std::string record = canonical(effect_record(kept.state.job, sent, outcome, kept.now));
    kept.store_effect("a", outcome, Arrival::in_time);
    EXPECT_EQ(kept.status(), seen.status());
    auto expected = seen.last<ToolInvocationFinished>();
    expected.caught_up = true;
    expected.source = "effect_store";
    EXPECT_EQ(kept.last<ToolInvocationFinished>(), expected);
    expect_proof(kept);
    EXPECT_TRUE(proved(kept, {{sent.invocation, 1, record}}).ledger.ok);
    EXPECT_TRUE(proved(seen, {{sent.invocation, 1, record}}).ledger.ok);
  }
}

AE_TEST("result/a late result is marked as late and validated") {
  JobFixture job = calling_checked("pay");
  job.claim().unknown("a");
  const SentTry sent = sent_try_of(job.state, job.step("a"));
  job.resolve("a", "fail");
  EXPECT_EQ(job.status(), "failed");
  JobFixture open = calling_checked("pay");
  open.claim().times_out("a");
  open.store_effect("a", {.kind = OutcomeKind::success, .result = json("{'id':'x'}")});
  const auto late = open.last<ToolInvocationFinished>();
  EXPECT_EQ(late.late, true) << open.log_text();
  EXPECT_EQ(late.source, "effect_store");
  EXPECT_EQ(late.result.value["invalid"], Value(true));
  EXPECT_EQ(to_hex(*late.response_schema_hash), digest());
  expect_proof(open);
}

AE_TEST("result/the result of an operator must match the schema, else nothing is written") {
  JobFixture job = calling_checked("pay");
  job.claim().unknown("a");
  const std::size_t before = job.log.size();
  for (const char* wrong : {"{'id':'x'}", "{}", "null", "7"}) {
    EXPECT_EQ(job.resolve("a", "happened", wrong).refused, Code::input_invalid) << wrong;
  }
  EXPECT_EQ(job.resolve("a", "happened").refused, Code::input_invalid);
  const ControlRequest request{
      .body = ResolveRequest{.idempotency_key = job.state.key_of(job.step("a")).text,
                             .resolution = "happened",
                             .result = json("{'id':'x'}")}};
  const auto refused = apply_request(job.state, request, job.context());
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("/id"), std::string::npos) << refused.error().message;
  EXPECT_EQ(job.log.size(), before);
  EXPECT_EQ(job.status(), "parked");
  EXPECT_EQ(job.resolve("a", "happened", "{'id':8}").status(), "completed");
  EXPECT_EQ(job.state.result, json("{'a':{'id':8}}"));
  expect_proof(job);
}

AE_TEST("result/resolving an open call closes it with source person") {
  JobFixture job = calling_checked("pay");
  job.claim().crash();
  ASSERT_EQ(job.status(), "parked");
  job.resolve("a", "happened", "{'id':8}");
  EXPECT_EQ(job.last<ToolInvocationFinished>().source, "person");
  expect_proof(job);
}

AE_TEST("result/a probe with an invalid result leaves the call unknown") {
  // First the result that it names breaks the call's schema, then its own answer breaks its own.
  for (const char* answer : {"{'charge':{'id':'x'}}", "[1]"}) {
    JobFixture job = calling_checked("buy");
    job.claim().times_out("a").after(71s);
    ASSERT_EQ(job.sent.size(), 2u) << job.log_text();
    job.ok("a/probe", answer);
    EXPECT_EQ(job.status(), "parked") << answer << "\n" << job.log_text();
    EXPECT_EQ(job.count(EventType::command_committed), 1u) << "the probe's own";
    EXPECT_NE(or_empty(job.last<WaitOpened>().reason).find("tool_output_invalid"),
              std::string_view::npos);
    EXPECT_EQ(job.resolve("a", "happened", "{'id':1}").status(), "completed");
    expect_proof(job);
  }
  JobFixture good = calling_checked("buy");
  good.claim().crash();
  good.after(71s).ok("a/probe", "{'charge':{'id':5}}");
  EXPECT_EQ(good.status(), "completed");
  EXPECT_EQ(good.state.result, json("{'a':{'id':5}}"));
  EXPECT_EQ(good.all<ToolInvocationFinished>()[1].source, "probe") << good.log_text();
  expect_proof(good);
}

AE_TEST("result/verify detects a result that violates its schema and a changed schema hash") {
  const auto ok_with = []<class E>(const JobFixture& job, void (*change)(E&)) {
    VerifyInput input;
    input.job = job.state.job;
    input.events = job.log;
    each<E>(input.events, change);
    return verify(input, uncached_plan_source()).replay.ok;
  };
  JobFixture job = calling_checked("make");
  job.claim().ok("a", "{'id':7}");
  using Finished = ToolInvocationFinished;
  EXPECT_TRUE(ok_with(job, +[](Finished& event) { event.result = json("{'id':7}"); }));
  EXPECT_FALSE(ok_with(job, +[](Finished& event) { event.result = json("{'id':'x'}"); }));
  EXPECT_FALSE(ok_with(job, +[](Finished& event) { event.response_schema_hash = sha256("x"); }));
  EXPECT_TRUE(ok_with(job, +[](Finished& event) { event.result = erased_value(); }));
  JobFixture resolved = calling_checked("pay");
  resolved.claim().unknown("a").resolve("a", "happened", "{'id':7}");
  EXPECT_FALSE(
      ok_with(resolved, +[](CommandCommitted& event) { event.result = json("{'id':'x'}"); }));
}

AE_TEST("plan/a result schema is compiled with the plan, and a model may not have one") {
  const auto compiles = [](std::string_view more) {
    return Plan::compile(graph("[{'id':'a','kind':'tool','tool':'t'}]",
                               "{'tools':{'t':{" + std::string(more) + "}}}"))
        .has_value();
  };
  EXPECT_TRUE(compiles("'result_schema':{'type':'string'}"));
  EXPECT_TRUE(compiles("'result_schema':true"));
  EXPECT_FALSE(compiles("'result_schema':{'type':'text'}"));
  EXPECT_FALSE(compiles("'result_schema':1"));
  EXPECT_FALSE(Plan::compile(
                   graph("[{'id':'a','kind':'llm','tool':'model:m','args':{'model':'m','messages':["
                         "{'role':'user','content':'x'}]}}]",
                         "{'tools':{'model:m':{'effect':'read','provider':'openai',"
                         "'result_schema':{'type':'object'}}}}"))
                   .has_value());
}

}  // namespace
}  // namespace ae::engine::testing
