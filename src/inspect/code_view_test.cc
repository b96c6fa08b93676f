// Tests of the views of a job with code: its requests are parts of its node, with their positions.
#include <fmt/core.h>

#include <algorithm>
#include <string>
#include <vector>

#include "engine/fixtures/code_log_test.h"
#include "engine/loop/loop_fixture_test.h"
#include "inspect/conversation.h"
#include "inspect/event_page.h"
#include "inspect/failure_location.h"
#include "inspect/indexed_state.h"
#include "inspect/requests_view.h"
#include "inspect/step_list.h"
#include "inspect/summary.h"
#include "inspect/timeline.h"
#include "inspect/trace.h"
#include "inspect/transcript.h"
#include "inspect/view.h"
#include "testing/test.h"

namespace ae::engine::testing {
namespace {

Value trace_of(const CodeLog& job) { return trace_view(job.state, job.log); }
Value code_node(const CodeLog& job) { return trace_of(job)["nodes"].items()[0]; }

StepIndex index_of(const std::vector<Event>& log) {
  StepIndex index;
  for (const Event& event : log) index.add(event);
  return index;
}

// The texts of a member of each.
std::vector<std::string> texts(const Value& list, std::string_view member) {
  std::vector<std::string> texts;
  for (const Value& one : list.items()) texts.emplace_back(one.text(member));
  return texts;
}

Value item(const Value& node, std::string_view position) {
  for (const Value& one : node["items"].items()) {
    if (one.text("position") == position) return one;
  }
  ADD_FAILURE() << position << " in " << canonical(node);
  return {};
}

Value transcript(const CodeLog& job) {
  TranscriptBuilder builder(job.state.job, {}, uncached_plan_source());
  for (const Event& event : job.log) AE_CHECK(builder.add(event).has_value());
  return std::move(builder).take();
}

// A call, a model, a scope with a call and a wait, an emitted value, a human wait.
CodeLog support_job() {
  CodeLog job({.more = kTools});
  job.claim().call("order", "look", "{'id':43}").ok("code/order", "{'total':50}");
  job.call("how_much", "model:main",
           "{'model':'small','messages':[{'role':'user','content':'How much?'}]}");
  job.ok("code/how_much", text_answer("40"));
  job.begin_scope("items/0").call("items/0/charge", "run:idempotent", "{'n':1}");
  job.ok("code/items/0/charge", "7");
  job.wait("items/0/pause", {.type = WaitType::signal, .key = "pause"}).signal("pause", "'go'");
  job.emit("progress", "{'done':1}", "items/0");
  job.end_scope("items/0", "{'paid':7}");
  job.wait("publish", {.type = WaitType::human, .key = "publish", .accepts_data = true});
  job.suspend();
  return job;
}
CodeLog ended_job() {
  CodeLog job = support_job();
  job.signal("publish", "{'decision':'approve'}");
  job.call("late", "put", "{}", 3).ok("code/late");
  job.returns("{'refund':7}");
  AE_CHECK(job.status() == "completed", job.log_text());
  return job;
}

// ---------------------------------------------------------------- trace

AE_TEST("trace/a code node shows its code, and its requests with positions, kinds and results") {
  const CodeLog job = ended_job();
  const Value node = code_node(job);
  EXPECT_EQ(node["code"], json("{'agent':'refund','language':'typescript','version':'2026.11.3'}"));
  EXPECT_EQ(node.text("kind"), "code");
  EXPECT_TRUE(node["tool"].is_null());
  EXPECT_TRUE(node["position"].is_null());
  EXPECT_EQ(node["result"], json("{'refund':7}"));
  EXPECT_EQ(texts(node["items"], "position"),
            (std::vector<std::string>{"order", "how_much", "items/0", "publish", "late"}));
  EXPECT_EQ(texts(node["items"], "kind"),
            (std::vector<std::string>{"tool", "llm", "scope", "wait", "tool"}));
  EXPECT_EQ(texts(node["items"], "status"), std::vector<std::string>(5, "done"));
  EXPECT_EQ(item(node, "order")["result"], json("{'total':50}"));
  EXPECT_EQ(item(node, "order")["delivered"], Value(0));
  EXPECT_EQ(item(node, "late")["delivered"], Value(3));
  EXPECT_EQ(item(node, "order").text("tool"), "look");
  EXPECT_EQ(item(node, "order").text("path"), "0/0/order");
  EXPECT_EQ(item(node, "how_much")["model"].text("provider"), "openai");
  const Value wait = item(node, "publish");
  EXPECT_TRUE(wait["tool"].is_null());
  EXPECT_EQ(wait["result"], json("{'decision':'approve'}"));
  EXPECT_EQ(wait["waits"].items()[0].text("wait_type"), "human");
  // What is inside of a recorded scope is a part of it. Its results are those of the log.
  const Value scope = item(node, "items/0");
  EXPECT_TRUE(scope["tool"].is_null());
  EXPECT_EQ(scope["result"], json("{'paid':7}"));
  EXPECT_EQ(texts(scope["items"], "position"),
            (std::vector<std::string>{"items/0/charge", "items/0/pause"}));
  EXPECT_EQ(item(scope, "items/0/charge")["result"], Value(7));
  EXPECT_EQ(item(scope, "items/0/pause")["result"], Value("go"));
  EXPECT_EQ(item(scope, "items/0/charge").text("world"), "changed");
  EXPECT_EQ(scope.text("world"), "changed");
  EXPECT_EQ(node.text("world"), "changed");
}

AE_TEST("trace/the code of a running job shows its open requests, and an unknown outcome") {
  CodeLog job({.more = kTools});
  job.claim().call("a", "put").call("b", "pay").begin_scope("s").call("s/c", "look");
  Value node = code_node(job);
  EXPECT_EQ(node.text("status"), "running");
  EXPECT_EQ(texts(node["items"], "status"), std::vector<std::string>(3, "running"));
  EXPECT_TRUE(node["result"].is_null());
  job.unknown("code/b");
  node = code_node(job);
  EXPECT_EQ(item(node, "b").text("status"), "in_doubt");
  EXPECT_EQ(node.text("status"), "in_doubt");
  EXPECT_EQ(trace_of(job)["totals"]["in_doubt"], Value(1));
}

AE_TEST("trace/a job that is parked because of its code shows why") {
  CodeLog failed;
  failed.claim().ends({.exception = json("{'name':'TypeError','message':'x is undefined'}")});
  ASSERT_EQ(failed.status(), "parked") << failed.log_text();
  EXPECT_EQ(code_node(failed)["code_end"],
            json("{'exception':{'name':'TypeError','message':'x is undefined'}}"));
  EXPECT_EQ(job_view(failed.state)["parked"]["action"].text("act"), "resume");
  CodeLog diverged;
  diverged.claim().call("a", "put").ok("code/a");
  diverged.routine().divergence =
      Divergence{.delivered = 0, .finding = "missing", .found = Value(), .position = "a"};
  diverged.run_until_idle();
  ASSERT_EQ(diverged.status(), "parked") << diverged.log_text();
  EXPECT_EQ(code_node(diverged)["code_end"],
            json("{'diverged':{'delivered':0,'finding':'missing','position':'a'}}"));
  EXPECT_EQ(job_view(diverged.state)["parked"].text("reason"), "non_determinism");
  EXPECT_EQ(job_view(diverged.state)["parked"]["action"].text("act"), "resume");
}

// ---------------------------------------------------------------- lists of steps

AE_TEST("steps/the rows of code are those of its trace, each below its scope") {
  const CodeLog job = ended_job();
  const StepTree tree(job.state);
  const StepIndex index = index_of(job.log);
  const auto rows = [&](std::string_view parent) {
    const auto page = list_steps(tree, index, {.parent = std::string(parent), .limit = 100});
    EXPECT_TRUE(page) << page.error().message;
    return page ? *page : Value();
  };
  const Value nodes = rows("");
  ASSERT_EQ(nodes["steps"].size(), 1u);
  const Value code = nodes["steps"].items()[0];
  EXPECT_EQ(code["code"].text("agent"), "refund");
  EXPECT_TRUE(code["tool"].is_null());
  EXPECT_EQ(code["children"]["total"], Value(5));
  const std::string id(code.text("step_id"));
  const Value requests = rows(id);
  const Value node = code_node(job);
  ASSERT_EQ(requests["steps"].size(), node["items"].size());
  for (std::size_t i = 0; i < node["items"].size(); ++i) {
    const Value &row = requests["steps"].items()[i], &traced = node["items"].items()[i];
    for (const char* member : {"delivered", "kind", "path", "phase", "position", "role", "status",
                               "step_id", "tool", "world"}) {
      EXPECT_EQ(row[member], traced[member]) << member;
    }
    EXPECT_EQ(row.text("parent"), id);
    EXPECT_TRUE(row["code"].is_null());
  }
  const std::string scope = job.step("code/items/0").id.text.string();
  const Value inner = rows(scope);
  EXPECT_EQ(texts(inner["steps"], "position"),
            (std::vector<std::string>{"items/0/charge", "items/0/pause"}));
  EXPECT_EQ(texts(inner["steps"], "parent"), std::vector<std::string>(2, scope));
}

AE_TEST("steps/one step of code is the node of the trace, without its items") {
  const CodeLog job = ended_job();
  const StepTree tree(job.state);
  const StepIndex index = index_of(job.log);
  const Value node = code_node(job);
  for (const char* name :
       {"code", "code/order", "code/items/0", "code/items/0/pause", "code/late"}) {
    const Step& step = job.step(name);
    const std::vector<std::uint64_t> seqs = seqs_of(tree, index, step);
    std::vector<Event> events;
    for (const std::uint64_t seq : seqs) events.push_back(job.log[seq - 1]);
    TraceRecord record;
    for (const Event& event : events) record.add(event);
    const Value single = step_trace_view(job.state, record, step, world_of(tree, index, step));
    const std::string_view position =
        step.request ? std::string_view(step.request->position) : std::string_view();
    const Value& whole = position.empty()                   ? node
                         : position.starts_with("items/0/") ? item(item(node, "items/0"), position)
                                                            : item(node, position);
    EXPECT_EQ(single, whole.with("items", Value::array({}))) << name;
  }
}

AE_TEST("steps/a time that code was given belongs to the step of the code") {
  CodeLog job;
  const Value time = json("{'ms':1767225600000,'time':'2026-01-01T00:00:00Z'}");
  job.claim().advance({Advance::NewValue{.name = "time:1", .value = time},
                       Advance::NewValue{.name = "time:s/1", .value = time},
                       Advance::NewValue{.name = "random", .value = "00ff"}});
  const StepIndex index = index_of(job.log);
  const IndexedStep* const found = index.find(job.step("code").id);
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(found->seqs.size(), 4u);  // its start, and three values
  EffectKinds kinds;
  std::vector<std::string> recorded;
  for (const Event& event : job.log) {
    const std::string_view kind = kinds.kind_of(event);
    if (kind.empty()) continue;
    const Value entry = effect_entry(event, kind);
    EXPECT_EQ(entry.text("step_id"), job.step("code").id.text.view());
    recorded.emplace_back(kind);
  }
  EXPECT_EQ(recorded, (std::vector<std::string>{"time", "time", "random"}));
}

// ---------------------------------------------------------------- transcript, conversation

AE_TEST("transcript/entries of code have the positions of its requests, and what it emitted") {
  const Value whole = transcript(ended_job());
  std::vector<std::string> entries;
  for (const Value& entry : whole["entries"].items()) {
    entries.push_back(fmt::format("{} {}", entry.text("kind"), entry.text("position")));
  }
  EXPECT_EQ(entries,
            (std::vector<std::string>{
                "input ", "tool_call order", "result order", "message how_much",
                "model_call how_much", "answer how_much", "tool_call items/0/charge",
                "result items/0/charge", "wait items/0/pause", "reply items/0/pause", "emitted ",
                "wait publish", "reply publish", "tool_call late", "result late", "end "}));
  const auto emitted = std::ranges::find_if(
      whole["entries"].items(), [](const Value& entry) { return entry.text("kind") == "emitted"; });
  EXPECT_EQ((*emitted)["value"], json("{'done':1}"));
  EXPECT_EQ(emitted->text("name"), "progress");
  EXPECT_EQ(emitted->text("scope"), "items/0");
  EXPECT_EQ((*emitted)["published"], Value(true));
}

AE_TEST("conversation/a model call of code is a conversation of one turn") {
  const CodeLog job = ended_job();
  const StepTree tree(job.state);
  const StepIndex index = index_of(job.log);
  TraceRecord record;
  for (const Event& event : job.log) record.add(event);
  const auto found = Conversation::of(tree, job.step("code/how_much").id.text.view());
  ASSERT_TRUE(found) << found.error().message;
  const Value page = found->page(record, index, 0, 100);
  EXPECT_EQ(page.text("position"), "how_much");
  EXPECT_EQ(texts(page["messages"], "content"), (std::vector<std::string>{"How much?", "40"}));
  for (const char* name : {"code", "code/order", "code/items/0", "code/publish"}) {
    const auto none = Conversation::of(tree, job.step(name).id.text.view());
    ASSERT_FALSE(none) << name;
    EXPECT_EQ(none.error().code, Code::input_invalid);
  }
}

// ---------------------------------------------------------------- requests, failures, the job

AE_TEST("requests/a wait, an approval and an unknown outcome of code have their positions") {
  CodeLog job({.more = kTools});
  job.claim().call("money", "refund").call("paid", "pay");
  job.wait("publish", {.type = WaitType::human, .key = "publish", .accepts_data = true});
  job.unknown("code/paid");
  job.suspend();
  std::vector<std::string> found;
  for (const Value& request : requests_view(job.state)) {
    found.push_back(fmt::format("{} {} {}", request.text("kind"),
                                request["detail"].text("position"), request.text("tool")));
    EXPECT_EQ(request.text("node_id"), "code");
    EXPECT_TRUE(detailed_request(job.state, request).is_object());
  }
  EXPECT_EQ(found, (std::vector<std::string>{"call money refund", "wait publish ",
                                             "unknown_outcome paid pay"}));
  const Value view = job_view(job.state);
  EXPECT_EQ(view["in_doubt"].items()[0].text("position"), "paid");
  std::vector<std::string> waits = texts(view["waits"], "position");
  std::ranges::sort(waits);
  EXPECT_EQ(waits, (std::vector<std::string>{"money", "publish"}));
}

AE_TEST("requests/a human wait of code has its question, as that of a tool has") {
  CodeLog job({.more = kTools});
  job.claim().wait("publish", {.type = WaitType::human, .question = "Publish it?"});
  const std::vector<Value> requests = requests_view(job.state);
  ASSERT_EQ(requests.size(), 1u);
  EXPECT_EQ(requests[0]["detail"]["question"], json("{'data':null,'message':'Publish it?'}"));
}

AE_TEST("summary/a job of a code agent has a kind of its own") {
  EXPECT_EQ(summary_view(ended_job().state)["kind"], Value("code"));
}

AE_TEST("failure/the request whose failure ended the code is named, with its tool") {
  CodeLog job({.more = kTools});
  job.claim().call("book", "book").ok("code/book", "1");
  job.call("items/0/charge", "pay").fails("code/items/0/charge", "http_402");
  const Failure failure = *job.step("code/items/0/charge").failure;
  job.ends({.failure = boxed(failure)});
  job.ok("code/book/compensate");
  ASSERT_EQ(job.status(), "failed") << job.log_text();
  const Value error = job_error_view(job.state);
  EXPECT_EQ(error.text("position"), "items/0/charge");
  EXPECT_EQ(error.text("tool"), "pay");
  EXPECT_EQ(error.text("summary"), "node code, request items/0/charge (tool pay): the tool failed");
  const Value view = job_view(job.state);
  EXPECT_EQ(view["compensated"].items()[0].text("position"), "book");
  const std::vector<StepReference> undone = job.last<JobFailed>().compensated.read_leniently();
  ASSERT_EQ(undone.size(), 1u);
  EXPECT_EQ(undone[0].position, "book");
  EXPECT_EQ(view["compensated"].items()[0], record_json(undone[0]));
  EXPECT_EQ(view["error"]["committed"], Value::array({}));
  // A failure of the code itself names its node.
  CodeLog own;
  own.claim().ends({.failure = boxed(Failure{"no_refund", "nothing is to be paid back"})});
  EXPECT_EQ(job_error_view(own.state).text("summary"), "node code: nothing is to be paid back");
  EXPECT_TRUE(job_error_view(own.state)["position"].is_null());
  EXPECT_TRUE(job_error_view(own.state)["tool"].is_null());
}

AE_TEST("failure/a cancelled job lists code that has had an effect") {
  CodeLog job({.more = kTools});
  job.claim().call("a", "put").ok("code/a");
  job.wait("sign", {.type = WaitType::signal, .key = "k"}).begin_scope("s").suspend();
  job.cancel();
  ASSERT_EQ(job.status(), "cancelled") << job.log_text();
  EXPECT_EQ(committed_nodes(job.state), json("['code']"));
}

AE_TEST("timeline/a divergence and an exception of code are failures") {
  CodeLog job;
  job.claim().ends({.exception = json("{'name':'E','message':'m'}")});
  Timeline timeline;
  for (const Event& event : job.log) timeline.add(event);
  std::vector<std::string> kinds;
  for (const Value& entry : timeline.page(0, 100)["entries"].items()) {
    kinds.push_back(fmt::format("{} {}", entry.text("kind"), entry.text("type")));
  }
  EXPECT_EQ(kinds, (std::vector<std::string>{"attempt job_running", "failure routine_failed",
                                             "wait job_parked"}));
}

AE_TEST("state/the view of code has its requests, the order of its outcomes and its values") {
  const CodeLog job = support_job();
  const Value view = state_view(job.state);
  const auto step = [&](std::string_view path) {
    for (const Value& one : view["steps"].items()) {
      if (one.text("path") == path) return one;
    }
    ADD_FAILURE() << path;
    return Value();
  };
  const Value code = step("0/0")["code"];
  EXPECT_EQ(code["outcomes"], json("['order','how_much','items/0']"))
      << "without what is inside of the scope that ended";
  EXPECT_EQ(code["open"], Value(1));
  EXPECT_EQ(code["emitted"], json("{}"));
  EXPECT_EQ(step("0/0/publish")["request"].text("wait_type"), "human");
  EXPECT_EQ(step("0/0/publish")["request"]["accepts_data"], Value(true));
  EXPECT_EQ(view["routines"], json("['0/0']"));
  // The order of the steps does not depend on when they started.
  CodeLog one({.more = kTools}), other({.more = kTools});
  one.claim().call("a", "put").call("b", "put");
  other.claim().call("b", "put").call("a", "put");
  EXPECT_EQ(texts(state_view(one.state)["steps"], "path"),
            texts(state_view(other.state)["steps"], "path"));
}

// ---------------------------------------------------------------- no tool

// A wait, a scope and code have no tool: no view may look for it. The plan of `bare` has no tools.
AE_TEST("views/every view of code can be made after every event") {
  CodeLog unknown({.more = kTools});
  unknown.claim().call("a", "pay").call("b", "book").ok("code/b");
  unknown.begin_scope("s").unknown("code/a");
  unknown.wait("s/w", {.type = WaitType::timer, .lasts = 1h}).suspend();
  unknown.cancel();
  const auto bare_plan = compiled(
      json("{'schema':1,'tools':{},'nodes':[{'id':'code','kind':'code','code':{'agent':'a',"
           "'language':'cpp','parallel':1,'tools':[]}}]}"));
  JobFixture bare(bare_plan);
  bare.routines[0].is_live = true;
  bare.claim();
  bare.routines[0].requests.push_back({.position = "w", .kind = NodeKind::wait});
  bare.routines[0].requests.back().wait.key = "k";
  bare.run_until_idle();
  bare.signal("k").cancel();
  const CodeLog ended = ended_job();
  const std::vector<const JobFixture*> jobs{&unknown, &bare, &ended};
  for (const JobFixture* job : jobs) {
    IndexedState indexed(job->state.job);
    TranscriptBuilder builder(job->state.job, {}, uncached_plan_source());
    for (std::size_t i = 0; i < job->log.size(); ++i) {
      ASSERT_TRUE(indexed.add(std::span(&job->log[i], 1), uncached_plan_source()));
      ASSERT_TRUE(builder.add(job->log[i]));
      const State& state = indexed.state();
      if (!state.plan) continue;
      const std::vector<Event> events(job->log.begin(),
                                      job->log.begin() + static_cast<std::ptrdiff_t>(i + 1));
      EXPECT_TRUE(trace_view(state, events).is_object());
      EXPECT_TRUE(job_view(state).is_object());
      EXPECT_TRUE(state_view(state).is_object());
      EXPECT_TRUE(summary_view(state).is_object());
      EXPECT_GT(approximate_bytes(state), 0u);
      for (const Value& request : requests_view(state)) detailed_request(state, request);
      const StepTree tree(state);
      const StepIndex index = index_of(events);
      for (const Step& step : state.steps) {
        const auto rows = list_steps(tree, index, {.parent = step.id.text.string(), .limit = 100});
        EXPECT_TRUE(rows) << rows.error().message;
      }
      EXPECT_TRUE(list_steps(tree, index, {.parent = "", .limit = 100}));
      EXPECT_TRUE(Conversation::of(tree, ""));
    }
    EXPECT_TRUE(std::move(builder).take().is_object());
  }
}

AE_TEST("code views/an attempt is lost with the worker of its code, if its process continues") {
  CodeLog job;
  job.claim().add({RoutineStarted{.attempt_id = job.state.attempt.text,
                                  .code_worker = "host:7",
                                  .node_id = "code",
                                  .step_id = job.step("code").id,
                                  .version = "2026.11.3"}});
  job.claim();  // the same process
  job.crash();  // another one
  const Value trace = trace_of(job);
  const Value& attempts = trace["attempts"];
  EXPECT_EQ(texts(attempts, "ended"), (std::vector<std::string>{"lost", "lost", ""}));
  EXPECT_EQ(texts(attempts, "lost"),
            (std::vector<std::string>{"code_worker_lost", "process_died", ""}));
}

AE_TEST("code views/a version of code that was tried is no drift, and one that runs the job is") {
  CodeLog job({}, "{'version':'v1'}");
  job.claim();
  const std::string own = job.state.execution_version;
  const auto mismatch = [&](const char* version) {
    job.add({VersionMismatched{
        .attempt_id = job.state.attempt.text, .job_version = own, .worker_version = version}});
  };
  const auto drift = [&] {
    std::vector<std::string> found;
    for (const Value& one : trace_of(job)["drift"].items()) {
      found.push_back(fmt::format("{} {} {}", one.text("what"), one.text("from"), one.text("to")));
    }
    return found;
  };
  mismatch("v2");
  EXPECT_TRUE(drift().empty()) << "it is not known yet whether it fits";
  job.add({RoutineDiverged{
      .detail = Divergence{.delivered = 0, .finding = "missing", .found = {}, .position = "a"},
      .node_id = "code",
      .step_id = job.step("code").id,
      .version = "v2"}});
  std::vector<std::string> expected{fmt::format("trial {} v2", own)};
  EXPECT_EQ(drift(), expected);
  mismatch("v3");
  const StepId code = job.step("code").id;
  job.add({decision_event(VersionMoved{.from = own, .requests = 0, .to = "v3"},
                          {.decision_id = decision_at(job.state, "code#version"),
                           .node_id = "code",
                           .step_id = code})});
  expected.push_back(fmt::format("execution_version {} v3", own));
  EXPECT_EQ(drift(), expected);
}

}  // namespace
}  // namespace ae::engine::testing
