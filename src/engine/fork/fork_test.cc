// Forks: a new job starts at an event of another one, imports its results, and repeats
// no effect without consent.
#include <set>

#include "engine/heart/job_fixture_test.h"
#include "engine/heart/random_plan_test.h"
#include "engine/state/checkpoint.h"
#include "inspect/trace.h"
#include "inspect/verify.h"
#include "inspect/view.h"
#include "testing/test.h"

namespace ae::engine::testing {
namespace {

constexpr std::string_view kChain =
    "[{'id':'a','kind':'tool','tool':'put','args':{'n':1}},"
    "{'id':'b','kind':'tool','tool':'put','args':{'n':'${ .steps.a.id }'},'needs':['a']},"
    "{'id':'c','kind':'tool','tool':'pay','args':{'n':'${ .steps.b }'},'needs':['b']}]";

Verification proof(const JobFixture& job) {
  VerifyInput input;
  input.job = job.state.job;
  input.events = job.log;
  return verify(input, uncached_plan_source());
}

void expect_proved(const JobFixture& job) {
  const Verification all = proof(job);
  EXPECT_TRUE(all.ok) << canonical(all.to_json()) << "\n" << job.log_text();
  EXPECT_EQ(state_view(job.folded(job.log.size())), state_view(job.state));
  auto restored =
      restore(job.state.job, job.state.seq, checkpoint(job.state, Hash{}), uncached_plan_source());
  ASSERT_TRUE(restored) << restored.error().message;
  EXPECT_EQ(state_view(restored->state), state_view(job.state));
  (void)trace_view(job.state, job.log);
}

// The effects to be repeated: "node state " for each.
std::string repeated_effects(const Fork& fork) {
  std::string text;
  for (const Value& effect : fork.effects) {
    text += std::string(effect.text("node_id"));
    if (effect["item"].is_integer()) text += std::to_string(effect["item"].as_int());
    text += " " + std::string(effect.text("state")) + " ";
  }
  return text;
}

AE_TEST("fork/recorded results are kept, other calls are made under new keys") {
  JobFixture origin(kChain);
  origin.claim().ok("a", "{'id':7}").ok("b", "8").fails("c");
  ASSERT_EQ(origin.status(), "failed");
  const auto at = origin.seq_of(EventType::node_started, "c");
  const auto fork = origin.fork(at);
  ASSERT_TRUE(fork) << fork.error().message;
  EXPECT_EQ(repeated_effects(*fork), "");
  EXPECT_EQ(fork->forked_from["job_id"], Value("job-1"));
  EXPECT_EQ(fork->forked_from["seq"], Value(at));
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
  expect_proved(job);
}

AE_TEST("fork/a fork starts with the plan of its origin, the imported results and no call") {
  JobFixture origin(kChain);
  origin.claim().ok("a", "{'id':7}");
  JobFixture job(*origin.fork(origin.log.size()), "job-2");
  EXPECT_EQ(job.types(),
            (std::vector<std::string>{"job_created", "plan_generated", "fork_imported"}));
  const Value entry = job.last<ForkImported>().commands.items()[0];
  EXPECT_EQ(entry["node_id"], Value("a"));
  EXPECT_EQ(entry["step_id"], Value(origin.step("a").id.text));
  EXPECT_EQ(entry["arguments_hash"], Value(origin.step("a").call->arguments_hash));
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
  expect_proved(job);
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
  expect_proved(job);
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
  expect_proved(job);
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
  expect_proved(job);
  origin.ok("m/2", "'C'").fails("z");
  JobFixture whole(*origin.fork(origin.log.size()), "job-3");
  whole.claim();
  EXPECT_EQ(whole.sent.size(), 1u);
  EXPECT_EQ(whole.step("m").result, origin.step("m").result);
  expect_proved(whole);
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
  expect_proved(job);
}

constexpr std::string_view kUndo = R"({'tools': {
    'unbook': {'effect': 'idempotent'},
    'book': {'effect': 'idempotent', 'compensate': {'tool': 'unbook', 'args': {'id': '${ .result }'}}}}})";
constexpr std::string_view kBooking =
    "[{'id':'a','kind':'tool','tool':'book'},"
    "{'id':'b','kind':'tool','tool':'put','needs':['a']},"
    "{'id':'c','kind':'tool','tool':'put','needs':['b']}]";

AE_TEST("fork/compensated steps and later ones are repeated and listed") {
  JobFixture origin(kBooking, {.more = kUndo});
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
  expect_proved(job);
}

AE_TEST("fork/a failing fork compensates its own steps and lists those of its origin") {
  JobFixture origin(kBooking, {.more = kUndo});
  origin.claim().ok("a", "'A'");
  JobFixture job(*origin.fork(origin.log.size()), "job-2");
  job.claim().fails("b");
  EXPECT_EQ(job.status(), "failed");
  EXPECT_EQ(job.count(EventType::step_compensated), 0u);
  const auto end = job.last<JobFailed>();
  ASSERT_EQ(end.uncompensated.size(), 1u) << job.log_text();
  EXPECT_EQ(end.uncompensated.items()[0]["node_id"], Value("a"));
  EXPECT_TRUE(end.compensated.is_null());
  expect_proved(job);
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
  expect_proved(third);
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
  expect_proved(job);
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
    const auto first_events = job_events({.agent = "tester",
                                          .input = {},
                                          .labels = {},
                                          .idempotency_key = {},
                                          .execution_version = "v1",
                                          .deadline = {},
                                          .plan = fork.plan.get(),
                                          .forked_from = is_fork ? fork.forked_from : Value(),
                                          .imported = {}});
    for (const EventBody& one : first_events) {
      AE_CHECK(apply(state, one, Instant{}, uncached_plan_source()).has_value());
    }
    return !apply(state, draft, Instant{}, uncached_plan_source()).has_value();
  };
  const auto with = [&](std::vector<Value> commands) {
    ForkImported other = std::get<ForkImported>(good);
    other.commands = Value::array(std::move(commands));
    return other;
  };
  const auto entries = std::get<ForkImported>(good).commands.items();
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

// The job that `aetheris retry` creates from a failed one.
Fork retried(const JobFixture& job) {
  const auto point = retry_point(job.state, job.log);
  AE_CHECK(point.has_value(), job.log_text());
  auto fork = job.fork(*point);
  AE_CHECK(fork.has_value(), fork ? "" : fork.error().message);
  return *std::move(fork);
}

AE_TEST("fork/a retry starts at the last event of a failed job and of no other job") {
  JobFixture origin(kChain);
  origin.claim().ok("a", "{'id':7}").fails("b");
  EXPECT_EQ(*retry_point(origin.state, origin.log), origin.log.size());
  JobFixture running(kChain);
  running.claim();
  EXPECT_EQ(retry_point(running.state, running.log).error().code, Code::input_invalid);
  JobFixture late(kChain, {.deadline = 10s});
  late.claim().ok("a", "{'id':7}").after(60s).ok("b", "1");
  ASSERT_EQ(late.status(), "failed");
  EXPECT_EQ(*retry_point(late.state, late.log), late.log.size());
}

// a, then two branches: b alone, and c before d.
constexpr std::string_view kBranches =
    "[{'id':'a','kind':'tool','tool':'put'},"
    "{'id':'b','kind':'tool','tool':'pay','needs':['a']},"
    "{'id':'c','kind':'tool','tool':'pay','args':{'n':1},'needs':['a']},"
    "{'id':'d','kind':'tool','tool':'pay','args':{'c':'${ .steps.c }'},'needs':['c']}]";

AE_TEST("fork/a retry keeps what a parallel branch committed before or after the failure") {
  for (const bool first : {true, false}) {
    JobFixture origin(kBranches);
    origin.claim().ok("a");
    if (first) origin.ok("c", "'C'");
    origin.fails("b");
    if (first) origin.ok("d", "'D'");
    if (!first) origin.ok("c", "'C'");
    ASSERT_EQ(origin.status(), "failed") << origin.log_text();
    const Fork fork = retried(origin);
    EXPECT_EQ(repeated_effects(fork), "");
    JobFixture job(fork, "job-2");
    EXPECT_EQ(job.step("c").id, origin.step("c").id);
    job.claim();
    ASSERT_EQ(job.sent.size(), first ? 1u : 2u) << job.log_text();
    EXPECT_EQ(job.sent[0].step, job.step("b").id);
    EXPECT_NE(job.sent[0].key, origin.sent[1].key);
    if (!first) {
      EXPECT_EQ(job.sent[1].arguments, json("{'c':'C'}"));
      job.ok("d", "'D'");
    }
    job.ok("b", "'B'");
    EXPECT_EQ(job.status(), "completed");
    EXPECT_EQ(job.state.result, json("{'b':'B','d':'D'}"));
    expect_proved(job);
  }
}

AE_TEST("fork/of a parallel branch a retry lists only an unknown call") {
  JobFixture origin(kBranches);
  origin.claim().ok("a").fails("b").times_out("c");
  ASSERT_EQ(origin.status(), "failed") << origin.log_text();
  EXPECT_EQ(repeated_effects(retried(origin)), "c in_doubt ");
}

AE_TEST("fork/a retry keeps the committed items of a failed map and of a parallel one") {
  constexpr std::string_view kMaps =
      "[{'id':'m','kind':'map','over':'${ .input.list }','max_parallel':2,"
      "'do':{'tool':'pay','args':{'v':'${ .item }'}}},"
      "{'id':'n','kind':'map','over':'${ .input.list }','max_parallel':2,"
      "'do':{'tool':'pay','args':{'w':'${ .item }'}}}]";
  JobFixture origin(kMaps, {.input = "{'list':[10,11,12]}"});
  origin.claim().fails("m/0").ok("m/1", "'B'").ok("n/0", "'X'").ok("n/1", "'Y'");
  ASSERT_EQ(origin.status(), "failed") << origin.log_text();
  const Fork fork = retried(origin);
  EXPECT_EQ(repeated_effects(fork), "");
  JobFixture job(fork, "job-2");
  job.claim();
  job.ok("m/0", "'A'").ok("m/2", "'C'").ok("n/2", "'Z'");
  EXPECT_EQ(job.sent.size(), 3u) << job.log_text();
  EXPECT_EQ(job.status(), "completed") << job.log_text();
  EXPECT_EQ(job.state.result, json("{'m':['A','B','C'],'n':['X','Y','Z']}"));
  expect_proved(job);
}

AE_TEST("fork/a retry opens a wait again that the failure of its origin closed") {
  JobFixture origin(
      "[{'id':'b','kind':'tool','tool':'pay'},"
      "{'id':'w','kind':'wait','wait':{'type':'signal','key':'k'}}]");
  origin.claim().fails("b");
  ASSERT_EQ(origin.status(), "failed") << origin.log_text();
  JobFixture job(retried(origin), "job-2");
  job.claim().ok("b");
  EXPECT_EQ(job.status(), "waiting");
  job.signal("k", "1");
  EXPECT_EQ(job.status(), "completed");
  expect_proved(job);
}

AE_TEST("fork/a retry requests an approval again that the failure of its origin closed") {
  JobFixture origin(
      "[{'id':'b','kind':'tool','tool':'pay'},{'id':'r','kind':'tool','tool':'refund'}]",
      {.more = "{'tools': {'refund': {'effect': 'idempotent', 'approval': 'required'}}}"});
  origin.claim().fails("b");
  ASSERT_EQ(origin.status(), "failed") << origin.log_text();
  JobFixture job(retried(origin), "job-2");
  job.claim().ok("b");
  EXPECT_EQ(job.status(), "waiting");
  ASSERT_EQ(job.sent.size(), 1u);
  expect_proved(job);
}

AE_TEST("fork/a retry counts all spending of its origin, also on the failed node") {
  JobFixture origin(kChain, {.more = "{'budget': {'tool_calls': 9}}"});
  origin.claim().ok("a", "{'id':7}").fails("b");
  EXPECT_EQ(retried(origin).spent.tool_calls, 2u);
}

AE_TEST("property/a fork at any moment ends as the job does and repeats only listed calls") {
  const std::uint64_t first = first_seed();
  std::size_t forks = 0, listed = 0;
  for (std::uint64_t seed = first; seed < first + seeds(40); ++seed) {
    SCOPED_TRACE(repeat(seed, "property.a fork*"));
    Dice dice(seed);
    const FailureMode failing = dice.one_in(2) ? FailureMode::tolerated : FailureMode::ends;
    const Value graph = random_plan(dice, failing);
    JobFixture origin(compiled(graph), {.input = random_input(dice)});
    origin.waits_for_settling = true;
    RandomWorld world(failing);
    origin.claim();
    const std::uint64_t moments = dice.below(60);
    for (std::uint64_t i = 0; i < moments && advance_randomly(origin, world, dice); ++i) {
    }
    const std::uint64_t at = 2 + dice.below(origin.log.size() - 1);
    const auto fork = origin.fork(at);
    ASSERT_TRUE(fork) << fork.error().message << "\n" << origin.log_text();
    std::set<std::string> repeats;  // step ids
    for (const Value& effect : fork->effects) repeats.emplace(effect.text("step_id"));
    listed += repeats.size();
    JobFixture job(*fork, "job-2");
    job.waits_for_settling = true;
    ASSERT_TRUE(proof(job).ok) << canonical(proof(job).to_json()) << job.log_text();
    // Effects of the origin that the fork does not list are done in the fork.
    for (const Event& event : origin.log) {
      const auto* committed = as<CommandCommitted>(event);
      if (committed == nullptr) continue;
      const StepId& id = committed->step_id;
      const Step& step = origin.state.steps[origin.state.by_id.at(id)];
      if (step.role != Role::node || origin.state.tool_of(step).effect == EffectClass::read) {
        continue;
      }
      ASSERT_EQ(job.state.by_id.contains(id), !repeats.contains(id.text))
          << event.seq << "\n"
          << origin.log_text() << "\n"
          << job.log_text();
    }
    job.claim();
    int steps = 0;
    while (advance_randomly(job, world, dice)) {
      ASSERT_LT(++steps, 5000) << job.log_text();
      if (dice.one_in(10) && job.state.status == JobStatus::running) job.crash();
    }
    ASSERT_TRUE(proof(job).ok) << canonical(proof(job).to_json()) << job.log_text();
    if (failing == FailureMode::tolerated) {
      ASSERT_EQ(job.status(), "completed") << job.log_text();
    }
    forks++;
  }
  EXPECT_TRUE((forks > 10 && listed > 0) || std::getenv("AETHERIS_SEED"));
}

AE_TEST("property/a retry of any failed job lists only unknown and undone calls and later ones") {
  const std::uint64_t first = first_seed();
  std::size_t failed = 0;
  for (std::uint64_t seed = first; seed < first + seeds(60); ++seed) {
    SCOPED_TRACE(repeat(seed, "property.a retry*"));
    Dice dice(seed);
    JobFixture origin(compiled(random_plan(dice, FailureMode::ends)),
                      {.input = random_input(dice)});
    origin.waits_for_settling = true;
    RandomWorld world(FailureMode::ends);
    origin.claim();
    for (int steps = 0; advance_randomly(origin, world, dice); ++steps) {
      ASSERT_LT(steps, 5000) << origin.log_text();
    }
    if (origin.status() != "failed") continue;
    failed++;
    const Fork fork = retried(origin);
    const bool in_effect = origin.count(EventType::step_compensated) == 0 &&
                           std::ranges::none_of(fork.effects, [](const Value& effect) {
                             return effect.text("state") != "committed";
                           });
    EXPECT_TRUE(!in_effect || fork.effects.empty()) << repeated_effects(fork) << "\n"
                                                    << origin.log_text();
    JobFixture job(fork, "job-2");
    ASSERT_TRUE(proof(job).ok) << canonical(proof(job).to_json()) << job.log_text();
  }
  EXPECT_TRUE(failed > 5 || std::getenv("AETHERIS_SEED")) << failed;
}

// ---------------------------------------------------------------- calls whose outcome is unknown

constexpr std::string_view kRiskThenWait =
    "[{'id':'a','kind':'tool','tool':'risk','on_error':'continue'},"
    "{'id':'b','kind':'wait','wait':{'type':'signal','key':'k'},'needs':['a']}]";

std::string unknown_keys(const Value& list) {
  std::string text;
  for (const Value& one : list.items()) text += one.text("idempotency_key");
  return text;
}

AE_TEST("fork/a call abandoned before the fork stays unknown in the fork") {
  JobFixture origin(kRiskThenWait);
  origin.claim().unknown("a");
  const std::string key = origin.sent[0].key;
  const auto fork = origin.fork(origin.log.size());
  ASSERT_TRUE(fork);
  EXPECT_EQ(repeated_effects(*fork), "") << "it is not repeated";
  JobFixture job(*fork, "job-2");
  EXPECT_EQ(schema_of(job.last<ForkImported>()), 3);
  job.claim();
  const Value unknown_calls = job_view(job.state)["in_doubt"];
  EXPECT_EQ(unknown_keys(unknown_calls), key);
  EXPECT_EQ(unknown_calls.items()[0]["given_up"], Value(true));
  EXPECT_EQ(unknown_calls.items()[0]["tool"], Value("risk"));
  EXPECT_EQ(unknown_calls.items()[0]["external_key"], Value(origin.sent[0].external_key));
  const auto next = job.fork(job.log.size());
  ASSERT_TRUE(next);
  JobFixture third(*next, "job-3");
  EXPECT_EQ(unknown_keys(job_view(third.state)["in_doubt"]), key) << "a fork of the fork";
  job.signal("k");
  EXPECT_EQ(job.last<JobCompleted>().in_doubt, Value::array({Value(key)}));
  job.send_request({.body = ResolveRequest{.idempotency_key = key, .resolution = "happened"}});
  EXPECT_EQ(job.refused, std::nullopt);
  expect_proved(job);
}

AE_TEST("fork/an abandoned map item stays unknown in the fork") {
  JobFixture origin(
      "[{'id':'m','kind':'map','over':[1,2],'max_parallel':2,'on_item_error':'collect',"
      "'do':{'tool':'risk'}},"
      "{'id':'b','kind':'wait','wait':{'type':'signal','key':'k'},'needs':['m']}]");
  origin.claim().unknown("m/1").ok("m/0");
  JobFixture job(*origin.fork(origin.log.size()), "job-2");
  const Value unknown_calls = job_view(job.state)["in_doubt"];
  ASSERT_EQ(unknown_calls.size(), 1u);
  EXPECT_EQ(unknown_calls.items()[0]["item"], Value(1));
  expect_proved(job);
}

AE_TEST_SLOW("fork/unknown calls above the event size limit are split over several events") {
  constexpr int kItems = 10'000;  // each takes about 500 bytes
  std::string over;
  for (int i = 0; i < kItems; ++i) over += i == 0 ? "0" : ",0";
  JobFixture origin("[{'id':'m','kind':'map','over':[" + over +
                    "],'max_parallel':16,'on_item_error':'collect','do':{'tool':'risk'}},"
                    "{'id':'b','kind':'wait','wait':{'type':'signal','key':'k'},'needs':['m']}]");
  origin.claim();
  for (int i = 0; i < kItems; ++i) origin.unknown("m/" + std::to_string(i));
  const auto fork = origin.fork(origin.log.size());
  ASSERT_TRUE(fork);
  ASSERT_GE(fork->imported.size(), 2u);
  for (const EventBody& event : fork->imported) {
    EXPECT_LT(canonical(std::get<ForkImported>(event).unknown).size(), 5u << 20);
  }
  EXPECT_EQ(JobFixture(*fork, "job-2").state.earlier_unknown.size(), std::size_t{kItems});
}

AE_TEST("fork/a repeated call is listed and is not an unknown call of the fork") {
  JobFixture origin(kRiskThenWait);
  origin.claim().unknown("a");
  const auto fork = origin.fork(2);
  EXPECT_EQ(repeated_effects(*fork), "a in_doubt ");
  EXPECT_EQ(job_view(JobFixture(*fork, "job-2").state)["in_doubt"].size(), 0u);
}

AE_TEST("fork/an unknown call that the origin dropped is listed or stays unknown") {
  JobFixture origin(kRiskThenWait);
  origin.claim().unknown("a");
  const std::uint64_t before = origin.log.size();
  origin.replan(compiled(graph("[{'id':'z','kind':'wait','wait':{'type':'signal','key':'z'}}]")),
                {"a"});
  ASSERT_EQ(origin.refused, std::nullopt);
  EXPECT_EQ(repeated_effects(*origin.fork(2)), "a in_doubt ") << "it is repeated";
  for (const std::uint64_t at : {before, std::uint64_t{origin.log.size()}}) {
    const auto fork = origin.fork(at);
    EXPECT_EQ(repeated_effects(*fork), "");
    JobFixture job(*fork, "job-2");
    EXPECT_EQ(unknown_keys(job_view(job.state)["in_doubt"]), origin.sent[0].key) << at;
    expect_proved(job);
  }
}

AE_TEST("fork/an outcome noted by the origin is known in the fork") {
  JobFixture origin("[{'id':'a','kind':'tool','tool':'risk','on_error':'continue'}]");
  origin.claim().unknown("a").resolve("a", "happened");
  ASSERT_EQ(origin.count(EventType::outcome_noted), 1u);
  JobFixture job(*origin.fork(origin.log.size()), "job-2");
  EXPECT_EQ(job_view(job.state)["in_doubt"].size(), 0u);
}

}  // namespace
constexpr std::string_view kRiskThenPut =
    "[{'id':'a','kind':'tool','tool':'risk'},"
    "{'id':'b','kind':'tool','tool':'put','args':{'n':'${ .steps.a.id }'},'needs':['a']}]";

ControlRequest happened(const JobFixture& origin, std::string_view result) {
  return {
      .by = "ann",
      .body = ResolveRequest{
          .idempotency_key = origin.sent[0].key, .resolution = "happened", .result = json(result)}};
}

AE_TEST("fork/a retry repeats a call that was resolved as not_happened after the end") {
  JobFixture origin(kRiskThenPut);
  origin.claim().unknown("a");
  ASSERT_EQ(repeated_effects(retried(origin)), "a in_doubt ");
  origin.after(2min).resolve("a", "not_happened");
  ASSERT_EQ(origin.refused, std::nullopt);
  const Fork fork = retried(origin);
  EXPECT_EQ(repeated_effects(fork), "");
  JobFixture job(fork, "job-2");
  job.claim().ok("a", "{'id':7}").ok("b");
  EXPECT_EQ(job.status(), "completed") << job.log_text();
  expect_proved(job);
}

AE_TEST("fork/a retry keeps the result that an operator gave after the end") {
  JobFixture origin(kRiskThenPut);
  origin.claim().unknown("a").send_request(happened(origin, "{'id':7}"));
  ASSERT_EQ(origin.refused, std::nullopt);
  const Fork fork = retried(origin);
  EXPECT_EQ(repeated_effects(fork), "");
  JobFixture job(fork, "job-2");
  job.claim();
  ASSERT_EQ(job.sent.size(), 1u) << job.log_text();
  EXPECT_EQ(job.sent[0].arguments, json("{'n':7}"));
  job.ok("b");
  EXPECT_EQ(job.status(), "completed");
  EXPECT_EQ(job_view(job.state)["in_doubt"].size(), 0u);
  expect_proved(job);
  EXPECT_EQ(repeated_effects(*origin.fork(2)), "a committed ") << "it is repeated";
}

AE_TEST("fork/a retry does not treat a late result that was not stored as null") {
  JobFixture origin(kRiskThenPut);
  origin.claim().unknown("a");
  origin.state.blind_erased = true;  // an erased job stores no new values
  origin.store_effect("a", {.kind = OutcomeKind::success, .result = json("{'id':7}")});
  ASSERT_EQ(origin.count(EventType::outcome_noted), 1u);
  EXPECT_EQ(repeated_effects(retried(origin)), "a committed ");
}

AE_TEST("fork/a retry keeps an operator's result of a call that violated its schema") {
  JobFixture origin(kRiskThenPut,
                    {.more = "{'tools':{'risk':{'effect':'at_most_once','on_in_doubt':"
                             "'fail','result_schema':{'required':['charge']}}}}"});
  origin.claim().ok("a", "{'id':7}");
  ASSERT_EQ(origin.status(), "failed");
  ASSERT_EQ(repeated_effects(retried(origin)), "a committed ");
  EXPECT_EQ(origin.resolve("a", "not_happened").refused, Code::input_invalid);
  origin.send_request(happened(origin, "{'id':7}"));
  ASSERT_EQ(origin.refused, std::nullopt);
  EXPECT_EQ(origin.status(), "failed");
  expect_proved(origin);
  const Fork fork = retried(origin);
  EXPECT_EQ(repeated_effects(fork), "");
  JobFixture job(fork, "job-2");
  job.claim();
  ASSERT_EQ(job.sent.size(), 1u) << job.log_text();
  EXPECT_EQ(job.sent[0].arguments, json("{'n':7}"));
  job.ok("b");
  EXPECT_EQ(job.status(), "completed");
  expect_proved(job);
}

}  // namespace ae::engine::testing
