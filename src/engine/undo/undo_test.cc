// Compensation: committed steps are undone before a job ends (SPEC §7). The plan's nodes a, b and c
// call `book`, whose tool names `unbook`; `pay` is at_most_once and has no compensation.
#include "engine/fixtures/job_fixture_test.h"
#include "inspect/trace.h"
#include "inspect/verify.h"
#include "inspect/view.h"
#include "testing/test.h"

namespace ae::engine::testing {
namespace {

constexpr std::string_view kUndoTools = R"({'tools': {
    'unbook': {'effect': 'idempotent', 'retry': {'max_attempts': 2, 'retry_on': ['connect', 'timeout']}},
    'unpay': {'effect': 'at_most_once', 'on_in_doubt': 'park'},
    'strict': {'effect': 'idempotent', 'args_schema': {'type': 'object', 'required': ['id']}},
    'book': {'effect': 'idempotent',
             'compensate': {'tool': 'unbook', 'args': {'id': '${ .result.id }', 'was': '${ .args.n }'}}},
    'buy': {'effect': 'at_most_once', 'on_in_doubt': 'park',
            'compensate': {'tool': 'unpay', 'args': {'id': '${ .result }'}}},
    'odd': {'effect': 'idempotent', 'compensate': {'tool': 'strict', 'args': {'key': '${ .call.key }'}}}}})";

constexpr std::string_view kUndoChain =
    "[{'id':'a','kind':'tool','tool':'book','args':{'n':1}},"
    "{'id':'b','kind':'tool','tool':'book','args':{'n':2},'needs':['a']},"
    "{'id':'c','kind':'tool','tool':'put','needs':['b']}]";

JobFixture booking(std::string_view nodes = kUndoChain, std::optional<Duration> deadline = {}) {
  return JobFixture(nodes, {.more = kUndoTools, .deadline = deadline});
}

JobFixture booked(std::optional<Duration> deadline = {}) {
  JobFixture job = booking(kUndoChain, deadline);
  job.claim().ok("a", "{'id':'A'}").ok("b", "{'id':'B'}");
  return job;
}

std::string undone_nodes(const JsonOf<std::vector<StepReference>>& compensated) {
  std::string names;
  for (const StepReference& one : compensated.read_leniently()) {
    names += one.node_id;
    if (one.item) names += std::to_string(*one.item);
    names += " ";
  }
  return names;
}

void expect_undo_proved(const JobFixture& job) {
  VerifyInput input;
  input.job = job.state.job;
  input.events = job.log;
  input.effects = job.effects;
  const Verification all = verify(input, uncached_plan_source());
  EXPECT_TRUE(all.ok) << canonical(all.to_json()) << "\n" << job.log_text();
  EXPECT_EQ(state_view(job.folded(job.log.size())), state_view(job.state));
}

AE_TEST("undo/a failing job compensates its committed steps in reverse order, then ends") {
  JobFixture job = booked();
  job.fails("c");
  ASSERT_EQ(job.sent.size(), 4u) << job.log_text();
  EXPECT_EQ(job.sent[3].tool, "unbook");
  EXPECT_EQ(job.sent[3].arguments, json("{'id':'B','was':2}"));
  job.ok("b/compensate");
  ASSERT_EQ(job.sent.size(), 5u);
  EXPECT_EQ(job.sent[4].arguments, json("{'id':'A','was':1}"));
  job.ok("a/compensate");
  EXPECT_EQ(job.status(), "failed");
  EXPECT_EQ(undone_nodes(job.last<JobFailed>().compensated), "b a ");
  EXPECT_EQ(job.last<JobFailed>().code, "http_400");
  EXPECT_EQ(job.last<JobFailed>().node_id, "c");
  EXPECT_EQ(job.state.path_of(job.step("b/compensate")), "0/1/compensate");
  expect_undo_proved(job);
}

AE_TEST("undo/the node whose failure starts the compensation ends compensatable_failure") {
  JobFixture job = booked();
  job.fails("c");
  EXPECT_EQ(to_text(job.step("c").result_type), "compensatable_failure");
}

AE_TEST("undo/a failure with nothing to compensate is permanent") {
  JobFixture job = booking();
  job.claim().fails("a");
  EXPECT_EQ(to_text(job.step("a").result_type), "permanent_failure");
  EXPECT_EQ(job.status(), "failed");
}

AE_TEST("undo/a tolerated failure compensates nothing") {
  JobFixture job = booking(
      "[{'id':'a','kind':'tool','tool':'book'},"
      "{'id':'b','kind':'tool','tool':'put','needs':['a'],'on_error':'continue'}]");
  job.claim().ok("a", "{'id':'A'}").fails("b");
  EXPECT_EQ(job.status(), "completed");
  EXPECT_EQ(to_text(job.step("b").result_type), "permanent_failure");
  EXPECT_EQ(job.count(EventType::step_compensated), 0u);
  expect_undo_proved(job);
}

AE_TEST("undo/a step committed together with the failure is compensated too") {
  JobFixture job =
      booking("[{'id':'a','kind':'tool','tool':'book'},{'id':'b','kind':'tool','tool':'put'}]");
  job.claim();
  job.add(record_outcome(job.state, 0, {.kind = OutcomeKind::success, .result = json("{'id':'A'}")},
                         job.now));
  job.fails("b");
  EXPECT_EQ(to_text(job.step("b").result_type), "compensatable_failure") << job.log_text();
  job.ok("a/compensate");
  EXPECT_EQ(undone_nodes(job.last<JobFailed>().compensated), "a ");
  expect_undo_proved(job);
}

AE_TEST("undo/the views show the step as compensated and rolled back") {
  JobFixture job = booked();
  job.fails("c").ok("b/compensate").ok("a/compensate");
  EXPECT_EQ(to_text(job.step("a").result_type), "compensated");
  const Value trace = trace_view(job.state, job.log);
  const Value& a = trace["nodes"].items()[0];
  EXPECT_EQ(a["world"], Value("rolled back"));
  EXPECT_EQ(a["result_type"], Value("compensated"));
  EXPECT_EQ(a["compensation"]["tool"], Value("unbook"));
  EXPECT_EQ(a["compensation"]["world"], Value("changed"));
  EXPECT_EQ(a["compensation"]["path"], Value("0/0/compensate"));
  EXPECT_EQ(trace["nodes"].items()[2]["compensation"], Value());
  EXPECT_EQ(job.last<StepCompensated>().compensation_invocation_id,
            job.step("a/compensate").call->id);
}

AE_TEST("undo/calls in flight are awaited first and compensated if they succeeded") {
  JobFixture job =
      booking("[{'id':'a','kind':'tool','tool':'book'},{'id':'b','kind':'tool','tool':'put'}]");
  job.claim().fails("b");
  EXPECT_EQ(job.sent.size(), 2u);
  EXPECT_EQ(job.status(), "running");
  job.ok("a", "{'id':'A'}").ok("a/compensate");
  EXPECT_EQ(undone_nodes(job.last<JobFailed>().compensated), "a ");
  expect_undo_proved(job);
}

AE_TEST("undo/a cancel compensates") {
  JobFixture job = booked();
  job.cancel("changed my mind");
  EXPECT_EQ(job.sent.size(), 3u) << "c is in flight";
  job.ok("c").ok("b/compensate").ok("a/compensate");
  EXPECT_EQ(job.status(), "cancelled");
  EXPECT_EQ(undone_nodes(job.last<JobCancelled>().compensated), "b a ");
  expect_undo_proved(job);
}

AE_TEST("undo/a cancel with compensate: false keeps and lists the committed steps") {
  JobFixture job = booked();
  job.cancel("", false).ok("c");
  EXPECT_EQ(job.status(), "cancelled");
  const auto end = job.last<JobCancelled>();
  EXPECT_EQ(end.compensated.json(), Value());
  ASSERT_EQ(end.uncompensated.json().size(), 2u);
  EXPECT_EQ(end.uncompensated.json().items()[0]["node_id"], Value("b"));
  EXPECT_EQ(job.last<JobCancelRequested>().compensate, false);
  EXPECT_EQ(job.count(EventType::step_compensated), 0u);
  expect_undo_proved(job);
}

AE_TEST("undo/a second cancel can stop the compensation half way") {
  JobFixture job = booked();
  job.cancel().ok("c");
  EXPECT_EQ(job.sent.back().tool, "unbook");
  job.cancel("enough", false);
  EXPECT_EQ(job.status(), "running") << "one is in flight";
  job.ok("b/compensate");
  EXPECT_EQ(job.status(), "cancelled") << job.log_text();
  const auto end = job.last<JobCancelled>();
  EXPECT_EQ(undone_nodes(end.compensated), "b ");
  ASSERT_EQ(end.uncompensated.json().size(), 1u);
  EXPECT_EQ(end.uncompensated.json().items()[0]["node_id"], Value("a"));
  job.cancel();
  EXPECT_EQ(job.refused, Code::job_terminal);
  expect_undo_proved(job);
}

AE_TEST("undo/a waiting job is claimed for compensation when its deadline passes") {
  JobFixture job = booking(
      "[{'id':'a','kind':'tool','tool':'book'},"
      "{'id':'w','kind':'wait','wait':{'type':'signal','key':'k'},'needs':['a']}]",
      1h);
  job.claim().ok("a", "{'id':'A'}");
  EXPECT_EQ(job.status(), "waiting");
  job.after(2h);
  EXPECT_EQ(job.status(), "running") << job.log_text();
  job.ok("a/compensate");
  EXPECT_EQ(job.status(), "failed");
  EXPECT_EQ(job.last<JobFailed>().code, "deadline_exceeded");
  EXPECT_EQ(undone_nodes(job.last<JobFailed>().compensated), "a ");
  expect_undo_proved(job);
}

AE_TEST("undo/a waiting job is claimed for compensation when it is cancelled") {
  JobFixture job = booking(
      "[{'id':'a','kind':'tool','tool':'book'},"
      "{'id':'w','kind':'wait','wait':{'type':'signal','key':'k'},'needs':['a']}]");
  job.claim().ok("a", "{'id':'A'}").cancel().ok("a/compensate");
  EXPECT_EQ(job.status(), "cancelled") << job.log_text();
  expect_undo_proved(job);
}

AE_TEST("undo/a failing output compensates") {
  JobFixture job("[{'id':'a','kind':'tool','tool':'book'}]",
                 {.more = std::string(kUndoTools.substr(0, kUndoTools.size() - 1)) +
                          ",'output':'${ .steps.a.id + 1 }'}"});
  job.claim().ok("a", "{'id':'A'}");
  EXPECT_EQ(job.status(), "running") << job.log_text();
  job.ok("a/compensate");
  EXPECT_EQ(job.last<JobFailed>().code, "expression_failed");
  EXPECT_EQ(undone_nodes(job.last<JobFailed>().compensated), "a ");
  expect_undo_proved(job);
}

AE_TEST("undo/lost attempts start the compensation, a lost compensation parks the job") {
  JobFixture job = booked();
  job.limits.lost_claims_max = 3;
  job.waits_for_settling = true;
  for (int i = 0; i < 3; ++i) job.crash();
  ASSERT_EQ(job.status(), "parked") << "c is unknown\n" << job.log_text();
  job.resolve("c", "not_happened");
  EXPECT_EQ(job.sent.back().tool, "unbook") << job.log_text();
  for (int i = 0; i < 3; ++i) job.crash();
  EXPECT_EQ(job.status(), "parked") << job.log_text();
  job.resolve("b/compensate", "happened").ok("a/compensate");
  EXPECT_EQ(job.last<JobFailed>().code, "max_attempts") << job.log_text();
  EXPECT_EQ(undone_nodes(job.last<JobFailed>().compensated), "b a ");
  expect_undo_proved(job);
}

AE_TEST("undo/an unknown call is resolved before the compensation") {
  JobFixture job = booking(
      "[{'id':'a','kind':'tool','tool':'book'},{'id':'p','kind':'tool','tool':'pay'},"
      "{'id':'b','kind':'tool','tool':'put'}]");
  job.claim().ok("a", "{'id':'A'}").times_out("p").fails("b");
  EXPECT_EQ(job.status(), "parked") << job.log_text();
  EXPECT_EQ(job.count(EventType::step_compensated), 0u);
  job.resolve("p", "happened", "1");
  EXPECT_EQ(job.sent.back().tool, "unbook");
  job.ok("a/compensate");
  EXPECT_EQ(job.status(), "failed");
  expect_undo_proved(job);
}

AE_TEST("undo/a call resolved as happened is compensated too") {
  JobFixture job = booking(
      "[{'id':'a','kind':'tool','tool':'book'},{'id':'p','kind':'tool','tool':'buy'},"
      "{'id':'b','kind':'tool','tool':'put'}]");
  job.claim().ok("a", "{'id':'A'}").times_out("p").fails("b");
  job.resolve("p", "happened", "'P'");
  EXPECT_EQ(job.sent.back().arguments, json("{'id':'P'}"));
  job.ok("p/compensate").ok("a/compensate");
  EXPECT_EQ(undone_nodes(job.last<JobFailed>().compensated), "p a ");
  expect_undo_proved(job);
}

AE_TEST("undo/a not_happened or fail resolution starts the compensation without a new try") {
  for (const char* resolution : {"not_happened", "fail"}) {
    JobFixture job = booking(
        "[{'id':'a','kind':'tool','tool':'book'},{'id':'p','kind':'tool','tool':'buy'},"
        "{'id':'b','kind':'tool','tool':'put'}]");
    job.waits_for_settling = true;
    job.claim().ok("a", "{'id':'A'}").times_out("p").fails("b").resolve("p", resolution);
    EXPECT_EQ(job.tries("p"), 1u);
    job.ok("a/compensate");
    ASSERT_EQ(job.status(), "failed") << job.log_text();
    EXPECT_EQ(job.state.final_in_doubt.size(), resolution == std::string("fail") ? 1u : 0u);
    expect_undo_proved(job);
  }
}

AE_TEST("undo/an open try resolved as not_happened is closed before the compensation") {
  JobFixture job = booking(
      "[{'id':'a','kind':'tool','tool':'book'},{'id':'p','kind':'tool','tool':'pay'},"
      "{'id':'b','kind':'tool','tool':'put'}]");
  job.waits_for_settling = true;
  job.claim().ok("a", "{'id':'A'}").crash().fails("b");
  ASSERT_EQ(job.status(), "parked") << job.log_text();
  ASSERT_EQ(job.state.open_tries, 1u) << "p's\n" << job.log_text();
  job.resolve("p", "not_happened");
  EXPECT_EQ(job.sent.back().tool, "unbook") << job.log_text();
  EXPECT_EQ(job.state.open_tries, 1u) << "the compensation's\n" << job.log_text();
  job.ok("a/compensate");
  EXPECT_EQ(job.status(), "failed");
  EXPECT_EQ(job.state.final_in_doubt.size(), 0u);
  expect_undo_proved(job);
}

AE_TEST("undo/a retry that was decided but not sent is unknown") {
  JobFixture job = booking(
      "[{'id':'a','kind':'tool','tool':'book'},{'id':'p','kind':'tool','tool':'put'},"
      "{'id':'b','kind':'tool','tool':'put'}]");
  job.claim().ok("a", "{'id':'A'}").times_out("p").fails("b");
  EXPECT_EQ(job.status(), "parked") << job.log_text();
  job.resolve("p", "happened").ok("a/compensate");
  EXPECT_EQ(job.status(), "failed");
  expect_undo_proved(job);
}

AE_TEST("undo/a compensation is retried by its tool's policy under the same keys") {
  JobFixture job = booked();
  job.fails("c").times_out("b/compensate").after(1s);
  EXPECT_EQ(job.tries("b/compensate"), 2u) << job.log_text();
  EXPECT_EQ(job.sent[4].external_key, job.sent[3].external_key);
  job.ok("b/compensate").ok("a/compensate");
  EXPECT_EQ(job.status(), "failed");
  expect_undo_proved(job);
}

AE_TEST("undo/a failed compensation parks the job and continues by the resolution") {
  for (const char* resolution : {"happened", "not_happened", "fail"}) {
    JobFixture job = booked();
    job.waits_for_settling = true;
    job.fails("c").fails("b/compensate", "http_422");
    ASSERT_EQ(job.status(), "parked") << job.log_text();
    const Value view = job_view(job.state);
    ASSERT_EQ(view["in_doubt"].size(), 1u);
    EXPECT_EQ(view["in_doubt"].items()[0]["reason"], Value("it failed (http_422)"));
    EXPECT_EQ(view["in_doubt"].items()[0]["tool"], Value("unbook"));
    job.resolve("b/compensate", resolution);
    if (resolution == std::string("not_happened")) {
      EXPECT_EQ(job.tries("b/compensate"), 2u);
      job.ok("b/compensate");
    }
    job.ok("a/compensate");
    ASSERT_EQ(job.status(), "failed") << job.log_text();
    const auto end = job.last<JobFailed>();
    EXPECT_EQ(undone_nodes(end.compensated), resolution == std::string("fail") ? "a " : "b a ");
    EXPECT_EQ(end.uncompensated.json().size(), resolution == std::string("fail") ? 1u : 0u);
    EXPECT_EQ(job_view(job.state)["compensated"], end.compensated.json());
    expect_undo_proved(job);
  }
}

AE_TEST("undo/an unknown compensation parks and is listed in_doubt when resolved as fail") {
  JobFixture job = booking(
      "[{'id':'a','kind':'tool','tool':'buy'},{'id':'b','kind':'tool','tool':'put','needs':['a']}"
      "]");
  job.claim().ok("a", "'P'").fails("b").unknown("a/compensate");
  EXPECT_EQ(job.status(), "parked");
  job.resolve("a/compensate", "fail");
  EXPECT_EQ(job.status(), "failed") << job.log_text();
  EXPECT_EQ(job.state.final_in_doubt,
            Value::array({Value(job.step("a/compensate").call->key.text)}));
  EXPECT_EQ(job.last<JobFailed>().uncompensated.json().size(), 1u);
  expect_undo_proved(job);
}

AE_TEST("undo/a compensation with invalid arguments parks each time it fails") {
  JobFixture job = booking(
      "[{'id':'a','kind':'tool','tool':'odd'},{'id':'b','kind':'tool','tool':'put','needs':['a']}"
      "]");
  job.claim().ok("a", "{'id':'A'}").fails("b");
  EXPECT_EQ(job.status(), "parked") << job.log_text();
  EXPECT_EQ(job.last<WaitOpened>().reason, "it could not be called (input_invalid)");
  (void)job_view(job.state);
  (void)trace_view(job.state, job.log);
  job.resolve("a/compensate", "not_happened").resolve("a/compensate", "not_happened");
  EXPECT_EQ(job.status(), "parked");
  job.resolve("a/compensate", "not_happened").resolve("a/compensate", "happened");
  EXPECT_EQ(job.status(), "failed") << job.log_text();
  EXPECT_EQ(undone_nodes(job.last<JobFailed>().compensated), "a ");
  expect_undo_proved(job);
}

AE_TEST("undo/an invalid output is a completed effect and is compensated") {
  JobFixture job = booking("[{'id':'a','kind':'tool','tool':'buy'}]");
  job.claim().answer("a", {.kind = OutcomeKind::success,
                           .invalid = json("{'invalid':true,'sha256':'00','size':1,'head':''}")});
  EXPECT_EQ(to_text(job.step("a").result_type), "compensatable_failure") << job.log_text();
  EXPECT_EQ(job.sent.back().tool, "unpay");
  job.ok("a/compensate");
  EXPECT_EQ(job.last<JobFailed>().code, "tool_output_invalid");
  EXPECT_EQ(undone_nodes(job.last<JobFailed>().compensated), "a ");
  EXPECT_EQ(job.resolve("a", "happened").refused, Code::job_terminal) << "no result can be set";
  expect_undo_proved(job);
}

AE_TEST("undo/a late result decides a compensation that waits for an operator") {
  for (const bool good : {true, false}) {
    JobFixture job = booking(
        "[{'id':'a','kind':'tool','tool':'buy'},{'id':'b','kind':'tool','tool':'put','needs':['a']}"
        "]");
    job.claim().ok("a", "'P'").fails("b").crash();
    EXPECT_EQ(job.status(), "parked") << job.log_text();
    job.claims_when_free = false;
    job.cancel();
    EXPECT_EQ(job.status(), "queued") << "a cancel does not resolve the call";
    job.claims_when_free = true;
    job.add({running_event(AttemptId("attempt-9"), job.state.epoch + 1, "worker")});
    job.store_effect(
        "a/compensate",
        good ? Outcome{.kind = OutcomeKind::success}
             : Outcome{.kind = OutcomeKind::failure, .definite = true, .error_code = "no"},
        Arrival::in_time);
    if (good) {
      EXPECT_EQ(job.status(), "cancelled") << job.log_text();
    } else {
      EXPECT_EQ(job.status(), "parked") << job.log_text();
      EXPECT_EQ(job.last<WaitOpened>().reason, "it failed (no)");
      job.resolve("a/compensate", "happened");
      EXPECT_EQ(job.status(), "cancelled") << job.log_text();
    }
    expect_undo_proved(job);
  }
}

AE_TEST("undo/a cancel without compensation ends a job parked for a compensation") {
  JobFixture job = booking(
      "[{'id':'a','kind':'tool','tool':'buy'},{'id':'b','kind':'tool','tool':'put','needs':['a']}"
      "]");
  job.claim().ok("a", "'P'").fails("b").unknown("a/compensate");
  EXPECT_EQ(job.status(), "parked");
  job.cancel("", false);
  EXPECT_EQ(job.status(), "cancelled") << job.log_text();
  EXPECT_EQ(job.state.final_in_doubt.size(), 1u);
  EXPECT_EQ(job.last<JobCancelled>().uncompensated.json().size(), 1u);
  expect_undo_proved(job);
}

AE_TEST("undo/items of a map are compensated one by one in reverse order") {
  JobFixture job = booking(
      "[{'id':'m','kind':'map','over':[1,2,3],'max_parallel':3,'do':{'tool':'book','args':{'n':'${ "
      ".item }'}}}]");
  job.claim().ok("m/2", "{'id':'C'}").ok("m/0", "{'id':'A'}").fails("m/1");
  EXPECT_EQ(job.sent.back().arguments, json("{'id':'A','was':1}")) << job.log_text();
  EXPECT_EQ(to_text(job.step("m").result_type), "compensatable_failure");
  job.ok("m/0/compensate");
  EXPECT_EQ(job.sent.back().arguments, json("{'id':'C','was':3}"));
  job.ok("m/2/compensate");
  EXPECT_EQ(undone_nodes(job.last<JobFailed>().compensated), "m0 m2 ");
  EXPECT_EQ(trace_view(job.state, job.log)["nodes"].items()[0]["world"], Value("rolled back"));
  expect_undo_proved(job);
}

AE_TEST("undo/a long back-off of a compensation releases the job until it ends") {
  JobFixture job(
      "[{'id':'a','kind':'tool','tool':'slow'},"
      "{'id':'b','kind':'tool','tool':'put','needs':['a']}]",
      {.more = R"({'tools': {'back': {'effect': 'idempotent', 'retry': {'max_attempts': 2,
      'initial_backoff': '1m', 'max_backoff': '1m', 'retry_on': ['timeout']}},
      'slow': {'compensate': {'tool': 'back'}}}})"});
  job.claim().ok("a").fails("b").times_out("a/compensate");
  EXPECT_EQ(job.status(), "queued") << job.log_text();
  const std::size_t events = job.log.size();
  job.after(10s);
  EXPECT_EQ(job.log.size(), events) << "it is not claimed before";
  job.after(60s).ok("a/compensate");
  EXPECT_EQ(job.status(), "failed") << job.log_text();
  expect_undo_proved(job);
}

AE_TEST("undo/a deadline during the compensation changes nothing") {
  JobFixture job = booked(1h);
  job.fails("c").after(2h).ok("b/compensate").ok("a/compensate");
  EXPECT_EQ(job.last<JobFailed>().code, "http_400") << job.log_text();
  EXPECT_EQ(undone_nodes(job.last<JobFailed>().compensated), "b a ");
  expect_undo_proved(job);
}

AE_TEST("undo/nothing starts and no signal is delivered during the compensation") {
  JobFixture job = booking(
      "[{'id':'a','kind':'tool','tool':'book'},{'id':'b','kind':'tool','tool':'put'},"
      "{'id':'w','kind':'wait','wait':{'type':'signal','key':'k'}},"
      "{'id':'z','kind':'tool','tool':'put','needs':['w']}]");
  job.claim().ok("a", "{'id':'A'}").fails("b");
  job.signal("k");
  EXPECT_TRUE(job.refused.has_value() || job.reply["delivered"] != Value(true));
  job.ok("a/compensate");
  EXPECT_EQ(job.status(), "failed");
  EXPECT_FALSE(job.step("z").started);
  expect_undo_proved(job);
}

// Effects in the external system, by idempotency key: a crash may lose the
// answer, never the effect.
void crash_everywhere(bool takes_place) {
  for (std::size_t commit = 2;; ++commit) {
    JobFixture job = booking();
    std::map<std::string, int> booked_by;
    job.claim();
    bool crashed = false;
    for (int i = 0; i < 40 && !is_terminal(job.state.status); ++i) {
      if (!crashed && job.commits.size() >= commit && job.state.status == JobStatus::running) {
        if (takes_place) {
          for (const auto& [step, n] : job.in_flight)
            booked_by[job.state.steps[step].call->key.text]++;
        }
        job.crash();
        crashed = true;
        continue;
      }
      ASSERT_FALSE(job.in_flight.empty()) << job.log_text();
      const std::uint32_t step = job.in_flight.begin()->first;
      booked_by[job.state.steps[step].call->key.text]++;
      if (step == job.index_of("c")) {
        job.fails("c");
      } else {
        job.answer(step, {.kind = OutcomeKind::success, .result = json("{'id':'X'}")});
      }
    }
    ASSERT_EQ(job.status(), "failed") << commit << "\n" << job.log_text();
    EXPECT_EQ(undone_nodes(job.last<JobFailed>().compensated), "b a ") << commit;
    EXPECT_EQ(job.count(EventType::step_compensated), 2u);
    EXPECT_EQ(booked_by.size(), 5u) << "one key for each effect and each that undoes it";
    expect_undo_proved(job);
    if (!crashed) return;
  }
}
AE_TEST("undo/a crash after any commit loses no compensation and repeats none") {
  crash_everywhere(true);
  crash_everywhere(false);
}

// With split durability a crash can truncate the log at every event.
AE_TEST("undo/a crash between any two events loses no compensation and repeats none") {
  JobFixture whole = booked();
  whole.fails("c").ok("b/compensate").ok("a/compensate");
  for (std::size_t cut = 3; cut < whole.log.size(); ++cut) {
    JobFixture job = booking();
    job.log.assign(whole.log.begin(), whole.log.begin() + static_cast<std::ptrdiff_t>(cut));
    job.commits = {cut};
    job.now = whole.now;
    job.attempt_count = 1;
    job.crash();
    for (int i = 0; i < 40 && !is_terminal(job.state.status); ++i) {
      ASSERT_FALSE(job.in_flight.empty()) << cut << "\n" << job.log_text();
      const std::uint32_t step = job.in_flight.begin()->first;
      if (step == job.index_of("c")) {
        job.fails("c");
      } else {
        job.answer(step, {.kind = OutcomeKind::success, .result = json("{'id':'X'}")});
      }
    }
    ASSERT_EQ(job.status(), "failed") << cut << "\n" << job.log_text();
    EXPECT_EQ(undone_nodes(job.last<JobFailed>().compensated), "b a ") << cut;
    EXPECT_EQ(job.count(EventType::step_compensated), 2u);
    expect_undo_proved(job);
  }
}

AE_TEST("undo/a log that compensates in another order or ends too early is rejected") {
  JobFixture job = booked();
  job.fails("c").ok("b/compensate").ok("a/compensate");
  VerifyInput input;
  input.job = job.state.job;
  const auto without = [&](auto&& drop) {
    input.events.clear();
    for (const Event& event : job.log) {
      if (drop(event)) continue;
      input.events.push_back(event);
      input.events.back().seq = input.events.size();
    }
    return verify(input, uncached_plan_source());
  };
  const std::string a = job.step("a").id.text, b = job.step("b").id.text;
  EXPECT_TRUE(without([](const Event&) { return false; }).state_machine.ok);
  const auto of_b = [&](const Event& event) {
    return event.type == EventType::step_compensated && step_of(event) == b;
  };
  EXPECT_FALSE(without(of_b).state_machine.ok) << "a is undone before b";
  const auto all = [&](const Event& event) {
    const std::string_view step = step_of(event);
    return event.type == EventType::step_compensated || step == job.step("a/compensate").id.text ||
           step == job.step("b/compensate").id.text;
  };
  const Verification ended = without(all);
  EXPECT_FALSE(ended.state_machine.ok) << "it ends without compensating b";
}

AE_TEST("undo/the cost of compensating a step does not grow with the number of steps") {
  const auto cost = [](int items) {
    std::string list = "[0";
    for (int i = 1; i < items; ++i) list += ",0";
    JobFixture job(
        "[{'id':'m','kind':'map','over':'${ .input }','max_parallel':8,'do':{'tool':'book'}},"
        "{'id':'z','kind':'tool','tool':'put','needs':['m']}]",
        {.more = kUndoTools, .input = list + "]"});
    job.decides = false;
    job.begin_attempt();
    const PlanSource same = [&](const Value&, std::string_view) { return job.plan; };
    const auto apply_all = [&](const std::vector<EventBody>& drafts) {
      for (const EventBody& draft : drafts) AE_CHECK(apply(job.state, draft, job.now, same));
    };
    std::size_t checked = 0, decisions = 0;
    while (!is_terminal(job.state.status)) {
      for (;;) {
        if (job.state.ending) {
          checked += job.state.todo.size() + job.state.calling.size() + job.state.waits.size();
          decisions++;
        }
        const Decision decision = decide(job.state, job.context(), job.limits);
        apply_all(decision.events);
        if (decision.events.empty() || decision.release) break;
      }
      if (is_terminal(job.state.status)) break;
      const std::uint32_t step = *job.state.calling.begin();
      const bool last = step == job.index_of("z");
      apply_all(record_outcome(
          job.state, step,
          last ? Outcome{.kind = OutcomeKind::failure, .definite = true, .error_code = "no"}
               : Outcome{.kind = OutcomeKind::success, .result = json("{'id':1}")},
          job.now));
    }
    EXPECT_EQ(job.state.undone.size(), static_cast<std::size_t>(items));
    EXPECT_LE(decisions, static_cast<std::size_t>(items) * 4 + 20);
    return checked;
  };
  EXPECT_LE(cost(400), 10 * cost(50));
}

}  // namespace
}  // namespace ae::engine::testing
