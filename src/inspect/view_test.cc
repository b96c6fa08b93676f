// Tests of job_view, state_view and trace_view.
#include "inspect/view.h"

#include "engine/fixtures/job_fixture_test.h"
#include "inspect/trace.h"
#include "testing/test.h"

namespace ae::engine::testing {
namespace {

std::vector<std::string> view_members(const Value& object) {
  std::vector<std::string> names;
  for (const auto& [name, value] : object.members()) names.push_back(name);
  return names;
}

// The first node with this id in a trace.
Value node(const Value& trace, std::string_view id) {
  for (const Value& node : trace["nodes"].items()) {
    if (node["node_id"] == Value(id)) return node;
  }
  return {};
}

// ---------------------------------------------------------------- job_view

AE_TEST("job_view/every member is present in every status") {
  JobFixture job("[{'id':'a', 'kind':'tool', 'tool':'pay'}]");
  const auto queued = view_members(job_view(job.state));
  EXPECT_EQ(view_members(job_view(job.claim().state)), queued);
  EXPECT_EQ(view_members(job_view(job.crash().state)), queued);
  EXPECT_EQ(view_members(job_view(job.resolve("a", "happened").state)), queued);
}

AE_TEST("job_view/a queued job has its input and no result, wait or attempt") {
  JobFixture job("[{'id':'a', 'kind':'tool', 'tool':'pay'}]", {.input = "{'x':1}"});
  const Value view = job_view(job.state);
  EXPECT_EQ(view["id"], "job-1");
  EXPECT_EQ(view["agent"], "tester");
  EXPECT_EQ(view["status"], "queued");
  EXPECT_EQ(view["input"], json("{'x':1}"));
  EXPECT_EQ(view["attempt"], Value(0));
  EXPECT_EQ(view["created_at"], "2026-01-01T00:00:00.000000Z");
  EXPECT_EQ(view["waits"], json("[]"));
  for (const char* name : {"result", "error", "waiting", "parked", "ending", "attempt_id"}) {
    EXPECT_TRUE(view[name].is_null()) << name;
  }
}

AE_TEST("job_view/a waiting job has its wait and the action that answers it") {
  JobFixture job("[{'id':'w', 'kind':'wait', 'wait':{'type':'signal','key':'k','expires':'1h'}}]");
  const Value view = job_view(job.claim().state);
  EXPECT_EQ(view["waiting"]["wait_type"], "signal");
  EXPECT_EQ(view["waiting"]["correlation_key"], "k");
  EXPECT_EQ(view["waiting"]["node_id"], "w");
  EXPECT_EQ(view["waiting"]["expires_at"], "2026-01-01T01:00:00.000000Z");
  EXPECT_EQ(view["waiting"]["actions"],
            json("[{'act':'signal','arguments':{'correlation_key':'k','job_id':'job-1'},"
                 "'choices':[]}]"));
  EXPECT_EQ(view["waits"].size(), 1u);
  EXPECT_EQ(view["in_doubt"].size(), 0u);
}

AE_TEST("job_view/a parked job has the call, the time of the earliest answer, and its action") {
  JobFixture job("[{'id':'a', 'kind':'tool', 'tool':'pay', 'args':{'n':1}}]");
  const Value view = job_view(job.claim().crash().state);
  ASSERT_EQ(view["in_doubt"].size(), 1u);
  const Value& doubt = view["in_doubt"].items()[0];
  EXPECT_EQ(doubt["idempotency_key"], job.sent[0].key);
  EXPECT_EQ(doubt["external_key"], job.sent[0].external_key);
  EXPECT_EQ(doubt["tool"], "pay");
  EXPECT_EQ(doubt["node_id"], "a");
  EXPECT_EQ(doubt["arguments"], json("{'n':1}"));
  EXPECT_EQ(doubt["since"], "2026-01-01T00:00:00.000000Z");
  EXPECT_EQ(doubt["resolvable_at"], "2026-01-01T00:01:00.000000Z");
  EXPECT_EQ(view["parked"]["reason"], "invocation_in_doubt");
  EXPECT_EQ(view["parked"]["until"], "resolve");
  ASSERT_EQ(doubt["actions"].size(), 1u);
  const Value& resolve = doubt["actions"].items()[0];
  EXPECT_EQ(view["parked"]["action"], resolve);
  EXPECT_EQ(resolve["act"], "resolve");
  EXPECT_EQ(resolve["arguments"]["call"], Value(job.sent[0].key.substr(0, 12)));
  EXPECT_EQ(resolve["choices"], json("['happened','not_happened','fail']"));
}

AE_TEST("job_view/a park that this version cannot end has no action") {
  JobFixture job("[{'id':'a', 'kind':'tool', 'tool':'pay'}]");
  job.claim();
  job.state.status = JobStatus::parked;
  job.state.parked_reason = "execution_version_mismatch";
  job.state.parked_until = "other";
  EXPECT_TRUE(job_view(job.state)["parked"]["action"].is_null());
  job.state.parked_until = "version";
  EXPECT_EQ(job_view(job.state)["parked"]["action"]["act"], "run");
}

AE_TEST("job_view/a queued job has the call that a process left open, and when it continues") {
  JobFixture job("[{'id':'a','kind':'tool','tool':'pay'}]");
  job.owned = false;
  job.claim().crash();
  const Value view = job_view(job.state);
  ASSERT_EQ(view["status"], "queued") << job.log_text();
  ASSERT_EQ(view["settling"].size(), 1u) << canonical(view);
  const Value& call = view["settling"].items()[0];
  EXPECT_EQ(call["node_id"], "a");
  EXPECT_EQ(call["tool"], "pay");
  EXPECT_EQ(call["probes"], Value(false));
  EXPECT_EQ(call["until"], view["not_before"]);
}

AE_TEST("job_view/a paused job has the action resume, and its waits are answered by id") {
  JobFixture job(
      "[{'id':'w','kind':'wait','wait':{'type':'human','key':'k'}},"
      " {'id':'m','kind':'wait','wait':{'type':'message','channel':'c'}}]");
  job.claim().pause();
  const Value view = job_view(job.state);
  EXPECT_EQ(view["parked"]["action"]["act"], "resume");
  const std::string id = "job-1." + job.step("w").id.text;
  const Value& approve = view["waits"].items()[0]["actions"].items()[0];
  EXPECT_EQ(approve["act"], "approve");
  EXPECT_EQ(approve["arguments"], Value::object({{"id", id}}));
  EXPECT_EQ(view["waits"].items()[1]["actions"],
            json("[{'act':'message','arguments':{'channel':'c','job_id':'job-1'},'choices':[]}]"));
  ASSERT_EQ(approvals_view(job.state).size(), 1u);
  EXPECT_EQ(approvals_view(job.state)[0]["id"], id);
  EXPECT_EQ(approvals_view(job.state)[0]["kind"], "wait");
}

AE_TEST("job_view/a failed job has its error and its unknown outcomes") {
  JobFixture job("[{'id':'a', 'kind':'tool', 'tool':'risk'}]");
  const Value view = job_view(job.claim().unknown("a").state);
  EXPECT_EQ(view["error"]["code"], "invocation_in_doubt");
  ASSERT_EQ(view["in_doubt"].size(), 1u);
  EXPECT_EQ(view["in_doubt"].items()[0]["actions"].items()[0]["choices"],
            json("['happened','not_happened']"));
  EXPECT_EQ(view["in_doubt"].items()[0]["resolvable_at"],
            Value(to_text(job.step("a").call->deadline + 30s)));
  EXPECT_EQ(view["in_doubt"].items()[0]["noted"], Value());
}

AE_TEST("job_view/a job that is being cancelled has the ending cancelled") {
  JobFixture job("[{'id':'a', 'kind':'tool', 'tool':'pay'}]");
  const Value view = job_view(job.claim().cancel("enough").state);
  EXPECT_EQ(view["status"], "running");
  EXPECT_EQ(view["ending"]["kind"], "cancelled");
  const Value end = job_view(job.ok("a").state);
  EXPECT_TRUE(end["ending"].is_null());
  EXPECT_EQ(
      end["error"],
      json("{'code':'cancelled','committed':['a'],'expression':null,'field':null,'idempotency_key':"
           "null,'item':null,"
           "'message':'enough',"
           "'model':null,'node_id':null,'position':null,'reads_input':null,'reads_kept':[],'"
           "summary':'enough',"
           "'tool':null,'tries':null,'turn':null}"));
}

AE_TEST("job_view/a job without a plan has views") {
  State state;
  state.job = JobId("j");
  EXPECT_EQ(job_view(state)["status"], "none");
  EXPECT_EQ(state_view(state)["plan_hash"], Value());
  EXPECT_EQ(trace_view(state, {})["nodes"], json("[]"));
}

// ---------------------------------------------------------------- state_view

AE_TEST("state_view/a state has its results, steps, waits and running calls") {
  JobFixture job(R"([{'id':'a', 'kind':'tool', 'tool':'put'},
                   {'id':'m', 'kind':'map', 'over':[1,2], 'max_parallel':2, 'do':{'tool':'put'}},
                   {'id':'w', 'kind':'wait', 'wait':{'type':'signal', 'key':'k'}}])");
  job.claim().ok("a", "7");
  const Value view = state_view(job.state);
  EXPECT_EQ(view["results"], json("{'a':7}"));
  EXPECT_EQ(view["calling"], json("['0/1/0','0/1/1']"));
  EXPECT_EQ(view["steps"].size(), 5u);
  EXPECT_EQ(view["steps"].items()[2]["path"], "0/1/0");
  EXPECT_EQ(view["waits"].items()[0]["correlation_key"], "k");
}

AE_TEST("state_view/the same log gives the same state") {
  JobFixture job(
      "[{'id':'a', 'kind':'tool', 'tool':'pay'}, {'id':'b', 'kind':'tool', 'tool':'put'}]");
  job.claim().times_out("a").fails("b", "connect");
  EXPECT_EQ(state_view(job.folded(job.log.size())), state_view(job.state));
}

// ---------------------------------------------------------------- trace_view

AE_TEST("trace/a tool node has its effect, its tries and its change of the world") {
  JobFixture job("[{'id':'a', 'kind':'tool', 'tool':'put', 'args':{'n':1}}]");
  job.claim().now = job.now + 1s;
  job.times_out("a").after(10s);
  job.now = job.now + 2s;
  job.ok("a", "'x'");
  const Value trace = trace_view(job.state, job.log);
  const Value a = node(trace, "a");
  EXPECT_EQ(a["status"], "done");
  EXPECT_EQ(a["result_type"], "side_effect_committed");
  EXPECT_EQ(a["result"], "x");
  EXPECT_EQ(a["world"], "changed");
  EXPECT_EQ(a["duration_us"], Value(13'000'000));
  EXPECT_EQ(a["effect"]["external_key"], job.sent[0].external_key);
  EXPECT_EQ(a["effect"]["arguments"], json("{'n':1}"));
  ASSERT_EQ(a["tries"].size(), 2u);
  EXPECT_EQ(a["tries"].items()[0]["outcome"], "timeout");
  EXPECT_EQ(a["tries"].items()[0]["duration_us"], Value(1'000'000));
  EXPECT_EQ(a["tries"].items()[1]["attempt"], "attempt-1");
  EXPECT_EQ(a["decisions"].items()[0]["kind"], "retry");
  EXPECT_EQ(trace["totals"], json("{'done':1,'failed':0,'in_doubt':0,'nodes':1,'refused':0,"
                                  "'repeated':1,'skipped':0,'tries':2}"));
}

AE_TEST("trace/the world of a node is unchanged, changed or unknown") {
  JobFixture job(R"([{'id':'r', 'kind':'tool', 'tool':'look'},
                   {'id':'d', 'kind':'tool', 'tool':'pay', 'on_error':'continue'},
                   {'id':'u', 'kind':'tool', 'tool':'pay'}, {'id':'n', 'kind':'tool', 'tool':'pay',
                    'needs':['u']}])");
  job.claim().ok("r").fails("d").times_out("u");
  const Value trace = trace_view(job.state, job.log);
  EXPECT_EQ(node(trace, "r")["world"], "unchanged");
  EXPECT_EQ(node(trace, "d")["world"], "unchanged");
  EXPECT_EQ(node(trace, "d")["status"], "failed");
  EXPECT_EQ(node(trace, "u")["world"], "unknown");
  EXPECT_EQ(node(trace, "u")["status"], "in_doubt");
  EXPECT_EQ(node(trace, "n")["status"], "pending");
  job.resolve("u", "happened");
  const Value later = trace_view(job.state, job.log);
  EXPECT_EQ(node(later, "u")["world"], "changed");
  EXPECT_EQ(node(later, "u")["decisions"].items()[0]["by"], "someone");
}

AE_TEST("trace/items are listed below their map") {
  JobFixture job("[{'id':'m', 'kind':'map', 'over':[1,2], 'max_parallel':1, 'do':{'tool':'put'}}]");
  job.claim().ok("m/0", "'x'");
  const Value m = node(trace_view(job.state, job.log), "m");
  EXPECT_EQ(m["status"], "running");
  EXPECT_EQ(m["decisions"].items()[0]["payload"], json("{'items':2}"));
  ASSERT_EQ(m["items"].size(), 2u);
  EXPECT_EQ(m["items"].items()[0]["result"], "x");
  EXPECT_EQ(m["items"].items()[1]["status"], "running");
  EXPECT_EQ(m["world"], "unknown");
}

AE_TEST("trace/waits and branches are shown") {
  JobFixture job(R"([{'id':'s', 'kind':'tool', 'tool':'pay', 'when':false},
                   {'id':'w', 'kind':'wait', 'wait':{'type':'signal', 'key':'k'}}])");
  job.claim().signal("k", "5");
  const Value trace = trace_view(job.state, job.log);
  EXPECT_EQ(node(trace, "s")["status"], "skipped");
  EXPECT_EQ(node(trace, "s")["decisions"].items()[0]["payload"], Value(false));
  const Value wait = node(trace, "w")["waits"].items()[0];
  EXPECT_EQ(wait["outcome"], "signalled");
  EXPECT_EQ(wait["payload"], Value(5));
}

AE_TEST("trace/attempts have their end; steps have the attempt that executed them") {
  JobFixture job(R"([{'id':'a', 'kind':'tool', 'tool':'put'},
                   {'id':'b', 'kind':'tool', 'tool':'put', 'needs':['a']},
                   {'id':'w', 'kind':'wait', 'needs':['b'], 'wait':{'type':'signal', 'key':'k'}}])");
  job.claim().ok("a").crash().ok("b").signal("k");
  const Value trace = trace_view(job.state, job.log);
  ASSERT_EQ(trace["attempts"].size(), 3u);
  EXPECT_EQ(trace["attempts"].items()[0]["ended"], "lost");
  EXPECT_EQ(trace["attempts"].items()[0]["lost"], "process_died");
  EXPECT_EQ(trace["attempts"].items()[1]["lost"], Value());
  EXPECT_EQ(trace["attempts"].items()[1]["ended"], "waiting");
  EXPECT_EQ(trace["attempts"].items()[2]["ended"], "completed");
  EXPECT_EQ(node(trace, "a")["executed_by"], "attempt-1");
  EXPECT_EQ(node(trace, "a")["replayed"], Value(true));
  EXPECT_EQ(node(trace, "b")["executed_by"], "attempt-2");
  EXPECT_EQ(node(trace, "b")["tries"].items()[0]["attempt"], "attempt-1");
  EXPECT_EQ(node(trace, "w")["replayed"], Value(false));
}

AE_TEST("trace/an attempt on a shared store is lost when its lease has expired") {
  JobFixture job(R"([{'id':'a', 'kind':'tool', 'tool':'put'},
                   {'id':'b', 'kind':'tool', 'tool':'put', 'needs':['a']}])");
  job.owned = false;
  job.claim().ok("a").crash().ok("b");
  const Value trace = trace_view(job.state, job.log);
  EXPECT_EQ(trace["attempts"].items()[0]["ended"], "lost");
  EXPECT_EQ(trace["attempts"].items()[0]["lost"], "lease_expired");
}

AE_TEST("trace/nodes of a job that ended early did not run") {
  JobFixture job(R"([{'id':'a', 'kind':'tool', 'tool':'pay'},
                   {'id':'b', 'kind':'tool', 'tool':'pay', 'needs':['a']}])");
  job.claim().fails("a");
  const Value trace = trace_view(job.state, job.log);
  EXPECT_EQ(node(trace, "b")["status"], "not_run");
  EXPECT_EQ(trace["error"]["code"], "http_400");
  EXPECT_EQ(trace["totals"]["failed"], Value(1));
}

}  // namespace
}  // namespace ae::engine::testing
