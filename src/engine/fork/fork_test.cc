// Forks: a new job starts at an event of another one, imports its results, and repeats
// no effect without consent.
#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "engine/fixtures/job_fixture_test.h"
#include "engine/fork/fork_fixture_test.h"
#include "testing/test.h"

namespace ae::engine::testing {
namespace {

AE_TEST("fork/recorded results are kept, other calls are made under new keys") {
  JobFixture origin(kChain);
  origin.claim().ok("a", "{'id':7}").ok("b", "8").fails("c");
  ASSERT_EQ(origin.status(), "failed");
  const auto at = origin.seq_of(EventType::node_started, "c");
  const auto fork = origin.fork(at);
  ASSERT_TRUE(fork) << fork.error().message;
  EXPECT_EQ(repeated_effects(*fork), "");
  EXPECT_EQ(fork->forked_from.job_id, "job-1");
  EXPECT_EQ(fork->forked_from.seq, static_cast<std::int64_t>(at));
  JobFixture job(*fork, "job-2");
  EXPECT_EQ(job.count(EventType::tool_invocation_started), 0u);
  job.claim();
  ASSERT_EQ(job.sent.size(), 1u) << job.log_text();
  EXPECT_EQ(job.sent[0].arguments, json("{'n':8}"));
  EXPECT_EQ(job.step("a").id, origin.step("a").id);
  EXPECT_NE(job.step("c").id, origin.step("c").id);
  EXPECT_NE(job.sent[0].external_key, origin.sent[2].external_key);
  EXPECT_NE(job.sent[0].key, origin.sent[2].key);
  job.ok("c", "'paid'");
  EXPECT_EQ(job.status(), "completed");
  EXPECT_EQ(job.state.result, json("{'c':'paid'}"));
  expect_fork_verifies(job);
}

AE_TEST("fork/a fork starts with the plan of its origin, the imported results and no call") {
  JobFixture origin(kChain);
  origin.claim().ok("a", "{'id':7}");
  JobFixture job(*origin.fork(origin.log.size()), "job-2");
  EXPECT_EQ(job.types(),
            (std::vector<std::string>{"job_created", "plan_generated", "fork_imported"}));
  const Value entry = job.last<ForkImported>().commands.json().items()[0];
  EXPECT_EQ(entry["node_id"], Value("a"));
  EXPECT_EQ(entry["step_id"], Value(origin.step("a").id.text));
  EXPECT_EQ(entry["arguments_hash"], Value(to_hex(origin.step("a").call->arguments_hash)));
  EXPECT_EQ(job.last<PlanGenerated>().plan_hash, origin.plan->hash);
}

AE_TEST("fork/a fork during an open call starts before that call and lists it") {
  JobFixture origin(kChain);
  origin.claim().ok("a", "{'id':7}");
  const auto fork = origin.fork(origin.log.size());  // b is in flight
  EXPECT_EQ(repeated_effects(*fork), "b in_doubt ");
  EXPECT_EQ(fork->effects[0]["idempotency_key"], Value(origin.sent[1].key));
  JobFixture job(*fork, "job-2");
  job.claim();
  EXPECT_EQ(job.sent[0].arguments, json("{'n':7}"));
}

AE_TEST("fork/later effects of the origin are listed, reads are not") {
  JobFixture origin(
      "[{'id':'a','kind':'tool','tool':'look'},"
      "{'id':'b','kind':'tool','tool':'put','needs':['a']},"
      "{'id':'c','kind':'tool','tool':'look','needs':['b']},"
      "{'id':'d','kind':'tool','tool':'pay','needs':['c']}]");
  origin.claim().ok("a").ok("b").ok("c").ok("d");
  EXPECT_EQ(repeated_effects(*origin.fork(2)), "b committed d committed ");
  EXPECT_EQ(repeated_effects(*origin.fork(origin.seq_of(EventType::step_committed, "b"))),
            "d committed ");
  EXPECT_EQ(repeated_effects(*origin.fork(origin.log.size())), "");
  EXPECT_EQ(repeated_effects(*origin.fork(origin.seq_of(EventType::node_finished, "d"))), "");
}

AE_TEST("fork/an unknown call is listed, a call that definitely did nothing is not") {
  JobFixture origin(kChain);
  origin.claim().ok("a", "{'id':7}").ok("b", "8").times_out("c");
  ASSERT_EQ(origin.status(), "parked");
  EXPECT_EQ(repeated_effects(*origin.fork(origin.log.size())), "c in_doubt ");
  JobFixture definite(kChain);
  definite.claim().fails("a");
  EXPECT_EQ(repeated_effects(*definite.fork(definite.log.size())), "");
}

AE_TEST("fork/a fork of a completed job completes at once") {
  JobFixture origin(kChain);
  origin.claim().ok("a", "{'id':7}").ok("b", "8").ok("c", "9");
  JobFixture job(*origin.fork(origin.log.size()), "job-2");
  job.claim();
  EXPECT_EQ(job.status(), "completed");
  EXPECT_EQ(job.state.result, origin.state.result);
  EXPECT_TRUE(job.sent.empty());
  expect_fork_verifies(job);
  EXPECT_EQ(proof(job).execution_hash_hex, proof(origin).execution_hash_hex);
}

AE_TEST("fork/a recorded result counts as done before its node is finished") {
  JobFixture origin(kChain);
  origin.claim().ok("a", "{'id':7}");
  const auto finished_seq = origin.seq_of(EventType::tool_invocation_finished, "a");
  JobFixture job(*origin.fork(finished_seq), "job-2");
  EXPECT_EQ(repeated_effects(*origin.fork(finished_seq)), "b in_doubt ");
  job.claim();
  EXPECT_EQ(job.sent[0].arguments, json("{'n':7}"));
  EXPECT_EQ(to_text(job.step("a").result_type), "side_effect_committed");
}

AE_TEST("fork/open waits are opened again, and answered waits stay answered") {
  constexpr std::string_view kWaits =
      "[{'id':'w','kind':'wait','wait':{'type':'signal'}},"
      "{'id':'v','kind':'wait','wait':{'type':'signal','key':'v'}},"
      "{'id':'t','kind':'wait','wait':{'type':'timer','for':'60s'},'needs':['v']}]";
  JobFixture origin(kWaits);
  origin.claim().signal("v", "'yes'");
  ASSERT_EQ(origin.status(), "waiting");
  JobFixture job(*origin.fork(origin.log.size()), "job-2");
  job.now = job.now + 500s;
  job.claim();
  EXPECT_EQ(job.status(), "waiting");
  EXPECT_EQ(job.step("v").result, Value("yes"));
  EXPECT_TRUE(job.state.waits.contains(job.step("w").id.text));
  EXPECT_FALSE(job.state.waits.contains(origin.step("w").id.text));
  EXPECT_EQ(job.state.waits.at(job.step("t").id.text).due_at, std::optional(job.now + 60s));
  job.signal(job.step("w").id.text, "1").after(61s);
  EXPECT_EQ(job.status(), "completed") << job.log_text();
  expect_fork_verifies(job);
}

AE_TEST("fork/a wait key is the same in the fork, because keys belong to a job") {
  JobFixture origin("[{'id':'w','kind':'wait','wait':{'type':'signal','key':'k'}}]");
  origin.claim();
  JobFixture job(*origin.fork(origin.log.size()), "job-2");
  job.claim();
  EXPECT_TRUE(job.state.waits.contains("k"));
  job.signal("k", "2");
  EXPECT_EQ(job.status(), "completed");
  EXPECT_EQ(origin.status(), "waiting");
}

AE_TEST("fork/a map continues with the items that were not done") {
  constexpr std::string_view kMap =
      "[{'id':'m','kind':'map','over':'${ .input.list }','max_parallel':2,"
      "'do':{'tool':'put','args':{'v':'${ .item }'}}}]";
  JobFixture origin(kMap, {.input = "{'list':[10,11,12,13,14]}"});
  origin.claim().ok("m/1", "'B'").ok("m/0", "'A'").ok("m/3", "'D'").fails("m/2");
  origin.ok("m/4", "'E'");
  ASSERT_EQ(origin.status(), "failed") << origin.log_text();
  const auto fork = origin.fork(origin.log.size());
  EXPECT_EQ(repeated_effects(*fork), "");
  JobFixture job(*fork, "job-2");
  job.claim();
  ASSERT_EQ(job.sent.size(), 1u) << job.log_text();
  EXPECT_EQ(job.sent[0].arguments, json("{'v':12}"));
  EXPECT_EQ(job.step("m/2").item, 2u);
  job.ok("m/2", "'C'");
  EXPECT_EQ(job.status(), "completed");
  EXPECT_EQ(job.state.result, json("{'m':['A','B','C','D','E']}"));
  expect_fork_verifies(job);
  // In the middle of the map: items 0 and 1 were done.
  JobFixture middle(*origin.fork(origin.seq_of(EventType::step_committed, "m/0")), "job-3");
  middle.claim();
  EXPECT_EQ(middle.sent.size(), 2u);
  EXPECT_EQ(middle.sent[0].arguments, json("{'v':12}"));
}

AE_TEST("fork/a map with collected errors keeps the failed items") {
  constexpr std::string_view kMap =
      "[{'id':'m','kind':'map','over':'${ .input.list "
      "}','max_parallel':2,'on_item_error':'collect',"
      "'do':{'tool':'put','args':{'v':'${ .item }'}}},"
      "{'id':'z','kind':'tool','tool':'put','needs':['m']}]";
  JobFixture origin(kMap, {.input = "{'list':[10,11,12]}"});
  origin.claim().fails("m/0").ok("m/1", "'B'");
  JobFixture job(*origin.fork(origin.log.size()), "job-2");
  job.claim().ok("m/2", "'C'").ok("z");
  EXPECT_EQ(job.status(), "completed");
  EXPECT_EQ(job.step("m").result.items()[0]["error"]["code"], Value("http_400"));
  expect_fork_verifies(job);
  origin.ok("m/2", "'C'").fails("z");
  JobFixture whole(*origin.fork(origin.log.size()), "job-3");
  whole.claim();
  EXPECT_EQ(whole.sent.size(), 1u);
  EXPECT_EQ(whole.step("m").result, origin.step("m").result);
  expect_fork_verifies(whole);
}

AE_TEST("fork/skipped nodes stay skipped, and tolerated failures stay failures") {
  constexpr std::string_view kPlan =
      "[{'id':'s','kind':'tool','tool':'put','when':'${ .input.x > 5 }'},"
      "{'id':'f','kind':'tool','tool':'put','on_error':'continue'},"
      "{'id':'z','kind':'tool','tool':'put','args':{'f':'${ .steps.f.error.code "
      "}'},'needs':['s','f']}]";
  JobFixture origin(kPlan, {.input = "{'x':1}"});
  origin.claim().fails("f").fails("z");
  JobFixture job(*origin.fork(origin.seq_of(EventType::node_started, "z")), "job-2");
  job.claim();
  EXPECT_TRUE(job.step("s").skipped);
  EXPECT_EQ(job.sent[0].arguments, json("{'f':'http_400'}"));
  job.ok("z");
  EXPECT_EQ(job.status(), "completed");
  expect_fork_verifies(job);
}

constexpr std::string_view kUndo = R"({'tools': {
    'unbook': {'effect': 'idempotent'},
    'book': {'effect': 'idempotent', 'compensate': {'tool': 'unbook', 'args': {'id': '${ .result }'}}}}})";
constexpr std::string_view kForkedBooking =
    "[{'id':'a','kind':'tool','tool':'book'},"
    "{'id':'b','kind':'tool','tool':'put','needs':['a']},"
    "{'id':'c','kind':'tool','tool':'put','needs':['b']}]";

AE_TEST("fork/compensated steps and later ones are repeated and listed") {
  JobFixture origin(kForkedBooking, {.more = kUndo});
  origin.claim().ok("a", "'A'").ok("b", "'B'").fails("c");
  const auto fork_during = origin.fork(origin.log.size());
  EXPECT_EQ(repeated_effects(*fork_during), "a in_doubt b committed ")
      << "the compensation is in flight";
  origin.ok("a/compensate");
  ASSERT_EQ(origin.status(), "failed");
  const auto fork = origin.fork(*retry_point(origin.state, origin.log));
  EXPECT_EQ(repeated_effects(*fork), "a undone b committed ");
  JobFixture job(*fork, "job-2");
  job.claim();
  EXPECT_EQ(job.sent[0].tool, "book");
  job.ok("a", "'A2'").ok("b").ok("c");
  EXPECT_EQ(job.status(), "completed");
  expect_fork_verifies(job);
}

AE_TEST("fork/a failing fork compensates its own steps and lists those of its origin") {
  JobFixture origin(kForkedBooking, {.more = kUndo});
  origin.claim().ok("a", "'A'");
  JobFixture job(*origin.fork(origin.log.size()), "job-2");
  job.claim().fails("b");
  EXPECT_EQ(job.status(), "failed");
  EXPECT_EQ(job.count(EventType::step_compensated), 0u);
  const auto end = job.last<JobFailed>();
  ASSERT_EQ(end.uncompensated.json().size(), 1u) << job.log_text();
  EXPECT_EQ(end.uncompensated.json().items()[0]["node_id"], Value("a"));
  EXPECT_TRUE(end.compensated.is_null());
  expect_fork_verifies(job);
}

AE_TEST("fork/a fork of a fork keeps the step ids and effects of the first job") {
  JobFixture origin(kChain);
  origin.claim().ok("a", "{'id':7}").ok("b", "8").fails("c");
  JobFixture second(*origin.fork(*retry_point(origin.state, origin.log)), "job-2");
  second.claim().fails("c");
  const auto fork = second.fork(*retry_point(second.state, second.log));
  EXPECT_EQ(repeated_effects(*fork), "");
  JobFixture third(*fork, "job-3");
  EXPECT_EQ(third.step("b").id, origin.step("b").id);
  third.claim().ok("c", "1");
  EXPECT_EQ(third.status(), "completed");
  expect_fork_verifies(third);
  EXPECT_EQ(repeated_effects(*second.fork(2)), "a committed b committed ")
      << "before they were imported";
}

AE_TEST("fork/a fork recovers from crashes like any other job") {
  JobFixture origin(kChain);
  origin.claim().ok("a", "{'id':7}").ok("b", "8").fails("c");
  JobFixture job(*origin.fork(*retry_point(origin.state, origin.log)), "job-2");
  job.reload().claim().crash();
  EXPECT_EQ(job.status(), "parked");
  job.reload();
  job.resolve("c", "happened", "1");
  EXPECT_EQ(job.status(), "completed");
  expect_fork_verifies(job);
}

AE_TEST("fork/a fork at an event outside the log or before the plan is rejected") {
  JobFixture origin(kChain);
  origin.claim();
  EXPECT_EQ(origin.fork(0).error().code, Code::input_invalid);
  EXPECT_EQ(origin.fork(1).error().code, Code::input_invalid);
  EXPECT_EQ(origin.fork(origin.log.size() + 1).error().code, Code::input_invalid);
  EXPECT_TRUE(origin.fork(2));
}

AE_TEST("fork/a fork from an erased result is rejected") {
  JobFixture origin(kChain);
  origin.claim().ok("a", "{'id':7}").ok("b", "8").fails("c");
  each<ToolInvocationFinished>(origin.log, [](ToolInvocationFinished& event) {
    if (!event.result.is_null()) event.result = erased_value();
  });
  origin.state = origin.folded(origin.log.size());
  EXPECT_EQ(origin.fork(origin.log.size()).error().code, Code::input_invalid);
}

AE_TEST("fork/an import that contradicts the plan is rejected") {
  JobFixture origin(kChain);
  origin.claim().ok("a", "{'id':7}").ok("b", "8");
  const Fork fork = *origin.fork(origin.log.size());
  const EventBody good = fork.imported[0];
  const auto refused = [&](const EventBody& draft, bool is_fork = true) {
    State state;
    state.job = JobId("job-9");
    const auto first_events =
        job_events({.agent = "tester",
                    .input = {},
                    .labels = {},
                    .idempotency_key = {},
                    .execution_version = "v1",
                    .deadline = {},
                    .plan = fork.plan.get(),
                    .forked_from = is_fork ? std::optional(fork.forked_from) : std::nullopt,
                    .imported = {}});
    for (const EventBody& one : first_events) {
      AE_CHECK(apply(state, one, Instant{}, uncached_plan_source()).has_value());
    }
    return !apply(state, draft, Instant{}, uncached_plan_source()).has_value();
  };
  const auto with = [&](std::vector<Value> commands) {
    ForkImported other = std::get<ForkImported>(good);
    other.commands.json() = Value::array(std::move(commands));
    return other;
  };
  const auto entries = std::get<ForkImported>(good).commands.json().items();
  EXPECT_FALSE(refused(good));
  EXPECT_TRUE(refused(good, false)) << "not a fork";
  EXPECT_TRUE(refused(with({entries[1]}))) << "its dependency is missing";
  EXPECT_TRUE(refused(with({entries[0], entries[0]}))) << "twice";
  EXPECT_TRUE(refused(with({entries[0].with("node_id", "x")})));
  EXPECT_TRUE(refused(with({entries[0].with("item", 0)})));
  EXPECT_TRUE(refused(with({entries[0].with("result_type", "none")})));
  EXPECT_TRUE(refused(with({entries[0].with("result_type", "permanent_failure")})));
  EXPECT_TRUE(refused(with({entries[0].with("skipped", true)})));
  EXPECT_TRUE(refused(with({entries[0].with("over", true)})));
}

}  // namespace
}  // namespace ae::engine::testing
