// The jobs of the golden logs, by what they cover: see golden_jobs_test.h.
#include "engine/golden/golden_jobs_test.h"

#include <fmt/core.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "engine/fixtures/child_fixture_test.h"
#include "engine/fixtures/code_log_test.h"
#include "engine/loop/loop_fixture_test.h"
#include "engine/planner/planner.h"
#include "engine/version/code_version.h"
#include "json/json.h"

namespace ae::engine::testing {
namespace {

const std::string kUserMessage =
    "{'role':'user', 'content':'a question that is long enough to be worth "
    "a place of its own: ${ .input.x }'}";

// Adds the jobs of one subject at a time.
struct GoldenJobs {
  JobFixture& add(const char* name, std::string_view nodes, JobFixtureOptions setup = {}) {
    setup.id = name;
    jobs.push_back({name, JobFixture(nodes, setup)});
    return jobs.back().job;
  }
  void add_statuses();
  void add_retries();
  void add_models();
  void add_forks();
  void add_unknown_calls();
  void add_answers();
  void add_recorded_values();
  void add_versions();
  void add_erased();
  void add_loop();
  void add_thread();
  void add_contexts();
  void add_children();
  void add_sends();
  void add_planner();
  void add_code();

  std::list<GoldenJob> jobs;
};

// Jobs that complete, fail, wait, park and are cancelled.
void GoldenJobs::add_statuses() {
  // Retries, a crash, a map, a branch, a signal, a human answer.
  add("completed",
      R"([{'id':'a', 'kind':'tool', 'tool':'put', 'args':{'n':'${ .input.n }'}},
      {'id':'p', 'kind':'tool', 'tool':'pay', 'needs':['a'], 'args':{'n':'${ .steps.a }'}},
      {'id':'s', 'kind':'tool', 'tool':'pay', 'when':'${ .input.n > 5 }'},
      {'id':'m', 'kind':'map', 'over':'${ .input.list }', 'max_parallel':2, 'needs':['a'],
       'do':{'tool':'once', 'args':{'i':'${ .index }'}}},
      {'id':'w', 'kind':'wait', 'needs':['m'], 'wait':{'type':'signal','key':'k-${ .input.n }'}}])",
      {.more = "{'output':'${ .steps }'}", .input = "{'n':1,'list':[4,5,6]}"})
      .claim()
      .fails("a", "connect")
      .after(10s)
      .ok("a", "'A'")
      .crash()
      .ok("m/1", "2")
      .ok("m/0", "1")
      .ok("m/2", "3")
      .signal("k-1", "'go'")
      .resolve("p", "happened", "'paid'");
  add("waiting",
      "[{'id':'t', 'kind':'wait', 'wait':{'type':'timer','for':'1h'}},"
      " {'id':'w', 'kind':'wait', 'wait':{'type':'signal','key':'k','expires':'2h'},"
      "  'needs':['t']},"
      " {'id':'h', 'kind':'wait', 'wait':{'type':'webhook','key':'hook'}}]")
      .claim()
      .after(1h);
  add("expired", "[{'id':'w', 'kind':'wait', 'wait':{'type':'signal','key':'k','expires':'1h'}}]")
      .claim()
      .after(1h);
  add("failed",
      "[{'id':'a', 'kind':'tool', 'tool':'risk'}, {'id':'b', 'kind':'tool', 'tool':'put'}]")
      .claim()
      .unknown("a")
      .times_out("b");
  add("cancelled", "[{'id':'a', 'kind':'tool', 'tool':'pay'}]").claim().crash().cancel("enough");
  add("parked", "[{'id':'a', 'kind':'tool', 'tool':'pay'}]").claim().unknown("a");
  add("deadline", "[{'id':'w', 'kind':'wait', 'wait':{'type':'signal','key':'k'}}]",
      {.deadline = 1h})
      .claim()
      .after(1h);
}

// Jobs whose calls are repeated, and jobs that are not finished.
void GoldenJobs::add_retries() {
  add("redone", "[{'id':'a', 'kind':'tool', 'tool':'pay'}]")
      .claim()
      .unknown("a")
      .after(1h)
      .resolve("a", "not_happened")
      .ok("a", "7");
  add("requeued", "[{'id':'a', 'kind':'tool', 'tool':'slow'}]",
      {.more = "{'tools':{'slow':{'retry':{'max_attempts':2, 'initial_backoff':'20s',"
               " 'max_backoff':'30s'}}}}"})
      .claim()
      .fails("a", "connect")
      .after(1h)
      .ok("a", "[]");
  add("running", "[{'id':'a', 'kind':'tool', 'tool':'put'}]").claim();
  add("queued", "[{'id':'a', 'kind':'tool', 'tool':'put'}]",
      {.input = "{'deep':[[[1.5,-0.25,1e300]]]}"});
}

// Two turns of a conversation, the first one called twice: its messages are blobs, each stored
// once.
void GoldenJobs::add_models() {
  add("models",
      "[{'id':'one', 'kind':'llm', 'tool':'model:main', 'args':{'model':'small', 'temperature':0.5,"
      "  'messages':[" +
          kUserMessage +
          "]}},"
          " {'id':'two', 'kind':'llm', 'tool':'model:main', 'needs':['one'], "
          "'args':{'model':'small',"
          "  'messages':[" +
          kUserMessage +
          ", {'role':'assistant', 'content':'${ .steps.one.text }'},"
          "  {'role':'user', 'content':'Go on.'}]}}]",
      {.more = "{'tools':{'model:main':{'effect':'read', 'provider':'openai'}}}",
       .input = "{'x':'why?'}"})
      .claim()
      .crash()
      .ok("one",
          "{'text':'Because.', 'model':'small-1', 'usage':{'input_tokens':9,"
          " 'output_tokens':1, 'total_tokens':10}}")
      .ok("two", "{'text':'And so on.'}");
}

// A job that failed in the middle of a map, and a fork of it that is finally re-planned.
void GoldenJobs::add_forks() {
  constexpr std::string_view kFirst =
      "{'id':'a', 'kind':'tool', 'tool':'put', 'args':{'n':'${ .input.n }'}}";
  constexpr std::string_view kMap =
      "{'id':'m', 'kind':'map', 'over':'${ .steps.a }', 'max_parallel':2, 'needs':['a'],"
      " 'do':{'tool':'once', 'args':{'i':'${ .item }'}}}";
  constexpr std::string_view kLast = "{'id':'w', 'kind':'wait', 'wait':{'type':'signal','key':'k'}";
  JobFixture& origin =
      add("origin", fmt::format("[{},{},{}, 'needs':['m']}}]", kFirst, kMap, kLast),
          {.input = "{'n':1}"});
  origin.claim().ok("a", "[7,8,9]").ok("m/1", "'B'").fails("m/0").ok("m/2", "'C'");
  jobs.push_back({"forked", JobFixture(*origin.fork(origin.log.size()), "forked")});
  JobFixture& forked = jobs.back().job;
  forked.claim()
      .ok("m/0", "'A'")
      .replan(
          compiled(graph("[" + std::string(kLast) + "}, {'id':'z', 'kind':'tool', 'tool':'look'}," +
                         std::string(kFirst) + "]")),
          {"m"});
  forked.ok("z", "1").signal("k", "'go'");
}

// Calls that were given up: a re-plan drops one of them, and both outcomes are noted after the end.
void GoldenJobs::add_unknown_calls() {
  JobFixture& unknown =
      add("unknown",
          "[{'id':'a', 'kind':'tool', 'tool':'risk', 'args':{'n':1}, 'on_error':'continue'},"
          " {'id':'b', 'kind':'tool', 'tool':'risk', 'args':{'n':2}, 'on_error':'continue'},"
          " {'id':'w', 'kind':'wait', 'wait':{'type':'signal','key':'k'}, 'needs':['a','b']}]");
  unknown.claim();
  const SentTry late = sent_try_of(unknown.state, unknown.step("b"));
  unknown.unknown("a").unknown("b").replan(
      compiled(
          graph("[{'id':'b', 'kind':'tool', 'tool':'risk', 'args':{'n':2}, 'on_error':'continue'},"
                " {'id':'z', 'kind':'wait', 'wait':{'type':'signal','key':'z'}}]")),
      {"a"});
  unknown.signal("z").after(1h).store_effect(
      late, {.kind = OutcomeKind::success, .result = json("{'id':7}")});
  unknown.send_request({.by = "ann",
                        .body = ResolveRequest{.idempotency_key = unknown.sent[0].key,
                                               .resolution = "not_happened",
                                               .reason = "looked"}});
}

// Answers of users: a call happened without a result; an invalid early answer; a result that breaks
// its schema.
void GoldenJobs::add_answers() {
  JobFixture& people =
      add("people",
          "[{'id':'p', 'kind':'tool', 'tool':'pay'},"
          " {'id':'h', 'kind':'wait', 'needs':['p'], 'wait':{'type':'human', 'key':'k'}},"
          " {'id':'s', 'kind':'tool', 'tool':'strict', 'needs':['h'], 'on_error':'continue'}]",
          {.more = "{'tools':{'strict':{'args_schema':{'type':'object'},"
                   "'result_schema':{'type':'integer'}}}}"});
  people.claim().crash().resolve("p", "happened");
  people.add(expire_request(
      people.state,
      {.id = "early",
       .body = SignalRequest{
           .correlation_key = "k", .buffer = true, .payload = json("{'note':'hm'}")}}));
  people.run_until_idle();
  people.signal("k", "{'decision':'approve'}").ok("s", "'no number'");
}

// Values that are recorded without a call: of nodes, of items, of a step that needed approval.
void GoldenJobs::add_recorded_values() {
  add("recorded",
      R"([{'id':'t', 'kind':'tool', 'tool':'clock'},
      {'id':'r', 'kind':'tool', 'tool':'dice', 'needs':['t'], 'args':{'min':1, 'max':6}},
      {'id':'u', 'kind':'map', 'over':'${ [4, 7] }', 'max_parallel':2,
       'do':{'tool':'ids', 'args':{'version':'${ .item }'}}},
      {'id':'a', 'kind':'tool', 'tool':'put', 'needs':['r', 'u'],
       'args':{'at':'${ .steps.t.ms }', 'n':'${ .steps.r }', 'u':'${ .steps.u }'}}])",
      {.more = R"({'tools': {'clock': {'effect':'read', 'records':'time'},
      'dice': {'effect':'read', 'records':'random', 'approval':'required'},
      'ids': {'effect':'read', 'records':'uuid'}}})"})
      .claim()
      .approve("r")
      .ok("a");
}

// A strict job: another version of the program parks it, and its original version completes it.
void GoldenJobs::add_versions() {
  JobFixture& strict = add("versions",
                           "[{'id':'a', 'kind':'tool', 'tool':'put'},"
                           " {'id':'b', 'kind':'tool', 'tool':'once', 'needs':['a']}]",
                           {.more = "{'versions':{'policy':'strict'}}"});
  strict.claims_when_free = false;
  strict.claim();
  strict.execution_version = "v2";
  strict.reload().begin_attempt();
  strict.add({VersionMismatched{
      .attempt_id = strict.state.attempt.text, .job_version = "v1", .worker_version = "v2"}});
  strict.run_until_idle();
  strict.execution_version = "v1";
  strict.offer().claim().ok("a").ok("b");
}

// Without its values: a branch, a map, messages in blobs, a human answer, an error.
void GoldenJobs::add_erased() {
  add("erased",
      R"([{'id':'yes', 'kind':'tool', 'tool':'put', 'when':'${ .input.n > 5 }',
       'args':{'to':'${ .input.to }'}},
      {'id':'m', 'kind':'map', 'over':'${ .input.list }', 'max_parallel':2,
       'do':{'tool':'once', 'args':{'i':'${ .item }'}}},
      {'id':'one', 'kind':'llm', 'tool':'model:main', 'needs':['yes', 'm'],
       'args':{'model':'small', 'messages':[)" +
          kUserMessage +
          R"(]}},
      {'id':'p', 'kind':'tool', 'tool':'sends', 'needs':['one'], 'args':{'to':'${ .input.to }'}},
      {'id':'w', 'kind':'wait', 'needs':['p'], 'wait':{'type':'signal', 'key':'k'}},
      {'id':'e', 'kind':'tool', 'tool':'put', 'needs':['w'], 'on_error':'continue'}])",
      {.more = "{'output':'${ .steps }', 'tools':{'sends':{'approval':'required'},"
               " 'model:main':{'effect':'read', 'provider':'openai'}}}",
       .input = "{'n':7, 'to':'ada@example.org', 'list':['ada', 'bob'], 'x':'who is ada?'}"})
      .claim()
      .ok("yes", "'ada'")
      .ok("m/1", "'sent to bob'")
      .ok("m/0", "'sent to ada'")
      .ok("one", "{'text':'Ada.', 'model':'small-1'}")
      .approve("p")
      .ok("p", "'ada'")
      .signal("k", "{'from':'ada'}")
      .fails("e");
  jobs.back().erased = true;
}

// A loop with a refused call, an answer that breaks its schema, and the repair message.
void GoldenJobs::add_loop() {
  add("repaired", chat_node(", 'schema': {'type': 'object', 'required': ['n']}, 'repair': 1"),
      {.more = kTools, .input = "{'message':'Hello'}"})
      .claim()
      .ok("chat/0", tool_calls_answer({{"a", "nothing"}, {"b", "exact", "{'n':'x'}"}}))
      .ok("chat/1", text_answer("no JSON"))
      .ok("chat/2", R"({"text": "{\"n\": 1}", "finish_reason": "stop"})");
}

// A thread of three exchanges: one with a call, one whose message came before, and its end.
void GoldenJobs::add_thread() {
  add("thread", chat_node(", 'thread': true"), {.more = kTools, .input = "{'message':'Hello'}"})
      .claim()
      .ok("chat/0", tool_calls_answer({{"a", "look"}}))
      .ok("chat/0/0", "'found'")
      .ok("chat/1", text_answer("Hi"))
      .message("thread", "'And now?'", "m1")
      .message("thread", "{'message':'Then?'}", "m2")
      .message("thread", "'And now?'", "m1")
      .ok("chat/2", text_answer("Now"))
      .ok("chat/3", text_answer("Then"))
      .send_request({.id = "end", .body = MessageRequest{.channel = "thread", .control = "end"}});
  add("thread-waiting", chat_node(", 'thread': true"),
      {.more = kTools, .input = "{'message':'Hello'}"})
      .claim()
      .ok("chat/0", text_answer("Hi"));
}

// Threads whose oldest messages are left out, without a summary and with one that is made at the
// second try, then with one that fails.
void GoldenJobs::add_contexts() {
  const std::string long_text(180, 'x');
  const auto long_answer = [&](std::string_view text) {
    return fmt::format("{{'text': '{}', 'finish_reason': 'stop'}}", text);
  };
  JobFixture& truncated =
      add("context-truncated",
          chat_node(", 'thread': true, 'context': {'limit': 700, 'policy': 'truncate'}"),
          {.more = kTools, .input = "{'message':'Hello'}"});
  truncated.claim();
  for (int n = 0; n < 8; ++n) {
    truncated.ok(fmt::format("chat/{}", n), long_answer(fmt::format("{}{}", n, long_text)))
        .message("thread", fmt::format("'{}{}'", n, long_text), fmt::format("m{}", n));
  }
  truncated.ok("chat/8", tool_calls_answer({{"a", "look"}}));
  JobFixture& summarized =
      add("context-summarized",
          chat_node(", 'thread': true, 'context': {'limit': 700, 'policy': 'summarize',"
                    " 'tool': 'model:main', 'model': 'brief'}"),
          {.more = kTools, .input = "{'message':'Hello'}"});
  summarized.claim();
  bool is_first = true;
  for (int n = 0; n < 8; ++n) {
    const std::string turn = fmt::format("chat/{}", n);
    const auto& loop = *summarized.step("chat").loop;
    if (loop.summary != kNoStep) {
      if (is_first) {
        summarized.fails(turn + "/summary", "timeout").after(10s);
        summarized.ok(turn + "/summary", long_answer("They talked"));
      } else {
        summarized.fails(turn + "/summary", "http_400");
      }
      is_first = false;
    }
    summarized.ok(turn, long_answer(fmt::format("{}{}", n, long_text)))
        .message("thread", fmt::format("'{}{}'", n, long_text), fmt::format("m{}", n));
  }
}

// Two parents, one of which is cancelled, and a child that fails. The ends of children come before
// their wait and after it, with unknown calls and with what they used of a budget.
void GoldenJobs::add_children() {
  constexpr std::string_view kMore =
      "{'budget': {'tool_calls': 9}, 'tools': {'research': {'child': {'name': 'research',"
      " 'budget': {'tool_calls': 3}}, 'dedupe_window': 'unlimited'}}}";
  constexpr std::string_view kTwo =
      "[{'id':'a', 'kind':'tool', 'tool':'research', 'args': {'topic': 'tides'}},"
      " {'id':'b', 'kind':'tool', 'tool':'research'}]";
  JobFixture& parent = add("parent", kTwo, {.more = kMore}).claim();
  child_ends(parent, "a",
             "{'status': 'completed', 'result': {'n': 7}, 'child_use': {'tool_calls': 2}}");
  parent.answer("a", child_created(parent, "a")).answer("b", child_created(parent, "b"));
  parent.claim().ok("a", "{'n': 7}");
  child_ends(parent, "b",
             "{'status': 'completed', 'result': 1, 'in_doubt': [{'job_id': 'c',"
             " 'idempotency_keys': ['k1', 'k2']}], 'child_use': {'tool_calls': 1}}");
  parent.claim().ok("b", "1");
  JobFixture& cancelled = add("parent-cancelled", kTwo, {.more = kMore}).claim();
  cancelled.answer("a", child_created(cancelled, "a")).cancel("enough");
  cancelled.answer("b", child_created(cancelled, "b"));
  child_ends(cancelled, "a", "{'status': 'cancelled', 'failure': {'code': 'cancelled'}}");
  add("child", "[{'id':'a', 'kind':'tool', 'tool':'look'}]",
      {.more = kTools,
       .parent = JobParent{.command_id = parent.step("a").id, .job_id = "parent", .tree_depth = 1}})
      .claim()
      .fails("a");
}

// Calls that send to other jobs: one is repeated, and one is refused.
void GoldenJobs::add_sends() {
  add("sends",
      R"([{'id':'a', 'kind':'tool', 'tool':'job:send', 'args':{'job':'j', 'to':{'key':'go'}, 'payload':1}},
      {'id':'b', 'kind':'tool', 'tool':'job:send', 'needs':['a'], 'on_error':'continue',
       'args':{'job':'j', 'to':{'channel':'in'}, 'payload':'${ .steps.a }'}}])",
      {.more = "{'tools':{'job:send':{'effect':'idempotent', 'sends':true,"
               " 'dedupe_window':'unlimited'}}}"})
      .claim()
      .crash()
      .ok("a", "{'accepted': true}")
      .fails("b", "job_terminal");
}

// A planner whose first answer is no valid plan; the valid one uses every member that an answer may
// have.
void GoldenJobs::add_planner() {
  const Value planner_spec = json(
      "{'tool': 'model:main', 'model': 'small', 'told': 'Plan', 'prompt': '${ .input.message }',"
      " 'tools': ['look', 'put'], 'max_nodes': 4, 'repair': 1}");
  const Value planner = Value::object({{"id", "planner"},
                                       {"kind", "planner"},
                                       {"planner", planner_spec.with("schema", planner_schema())}});
  const auto answers = [](std::string_view plan) {
    return canonical(Value::object({{"text", canonical(json(plan))}}));
  };
  jobs.push_back(
      {"planned", JobFixture(compiled(graph("[]", kTools).with("nodes", Value::array({planner}))),
                             {.input = "{'message':'Go', 'n':7}", .id = "planned"})});
  jobs.back()
      .job.claim()
      .ok("planner/0", answers("{'nodes':[{'id':'a', 'tool':'once'}]}"))
      .ok("planner/1",
          answers("{'nodes':[{'id':'find', 'tool':'look'},"
                  " {'id':'rest', 'wait_for':'30s', 'needs':['find']},"
                  " {'id':'each', 'tool':'put', 'map':'${ [1, 2] }', 'as':'one', 'needs':['rest']},"
                  " {'id':'never', 'tool':'put', 'when':'${ .input.n > 8 }',"
                  "  'on_error':'continue'}]}"))
      .ok("find", "'it'")
      .after(31s)
      .ok("each/0", "'a'")
      .ok("each/1", "'b'");
}

// Code: calls of each class, a model, scopes and the turns of a loop, recorded values, outcomes that
// the routine was given in another order than that of the log, a person's approval, and a wait.
CodeLog refund_job(const char* id) {
  CodeLog job({.more = kTools, .id = id});
  job.claim().add(routine_started_events(job.state, job.step("code"),
                                         {.version = "2026.11.3", .requests = 0, .worker = {}}));
  job.advance(
      {Advance::NewValue{.name = "time:1",
                         .value = json("{'ms':1767225600000,"
                                       "'time':'2026-01-01T00:00:00.000000Z'}")},
       Advance::NewValue{.name = "uuid:1", .value = Value("01a200a8-0c3d-7fe2-acb1-ec5aaed45267")},
       Advance::NewValue{.name = "random", .value = Value(std::string(64, '7'))},
       Advance::NewValue{.name = "patch:limits", .value = Value(true)}});
  job.call("order", "look", "{'id':43}").after(20ms).ok("code/order", "{'total':50}");
  job.call("how_much", "model:main",
           "{'model':'small','messages':[{'role':'user','content':'How much?'}]}");
  job.after(900ms).ok("code/how_much", text_answer("40"));
  // The routine was given the result of its function before the one that is first in the log.
  job.call("stock", "run:read", "{'n':1}").call("price", "look", "{'n':2}");
  job.ok("code/price", "2");
  job.gives("code/stock", "1", 2);
  job.begin_scope("items/0").call("items/0/charge", "run:idempotent", "{'n':1}");
  job.after(10ms).unknown("code/items/0/charge", "connect").after(2s);
  job.after(10ms).ok("code/items/0/charge", "{'id':'re_1'}");
  job.end_scope("items/0", "{'id':'re_1'}").emit("charged", "{'items':1}");
  for (const char* turn : {"poll/0", "poll/1"}) {
    job.advance({Advance::ScopeBegun{.position = turn, .delivered = job.given(), .is_turn = true}});
    job.call(fmt::format("{}/ask", turn), "run:read");
    job.after(10ms).ok(fmt::format("code/{}/ask", turn), "'no'");
    job.end_scope(turn, "{'last':'no'}");
  }
  job.call("pay_back", "refund", "{'amount':40}");
  job.after(60s).answer_approval(job.open_request_id("code/pay_back"), "approve");
  job.after(30ms).ok("code/pay_back", "{'id':'re_3'}");
  job.wait("cool_off", {.type = WaitType::timer, .lasts = 30s}).suspend();
  return job;
}

void GoldenJobs::add_code() {
  jobs.push_back({"code-waiting", refund_job("code-waiting")});
  CodeLog completed = refund_job("code");
  completed.after(30s);
  completed.call("mail", "run:at_most_once", "{'to':'ada@example.org'}");
  completed.after(40ms).ok("code/mail");
  completed.returns("{'refund':'re_3'}");
  jobs.push_back({"code", std::move(completed)});

  CodeLog unknown({.more = kTools, .id = "code-unknown"});
  unknown.claim().call("mail", "run:at_most_once", "{'to':'ada@example.org'}");
  unknown.after(40ms).unknown("code/mail", "connect").after(120s);
  unknown.suspend();
  jobs.push_back({"code-unknown", std::move(unknown)});

  CodeLog diverged = refund_job("code-diverged");
  diverged.after(30s);
  diverged.routine().divergence =
      Divergence{.delivered = 4,
                 .finding = "arguments",
                 .found = json("{'kind':'tool','position':'order','tool':'look'}"),
                 .position = "order"};
  diverged.run_until_idle();
  jobs.push_back({"code-diverged", std::move(diverged)});

  CodeLog failed({.more = kTools, .id = "code-exception"});
  failed.claim().call("order", "look").after(20ms).fails("code/order", "http_404");
  failed.ends({.exception = json("{'name':'TypeError','message':'cannot read total of undefined',"
                                 "'stack':'at refund (agent.ts:14)'}")});
  jobs.push_back({"code-exception", std::move(failed)});
}

}  // namespace

std::list<GoldenJob> golden_jobs() {
  GoldenJobs golden;
  golden.add_statuses();
  golden.add_retries();
  golden.add_models();
  golden.add_forks();
  golden.add_unknown_calls();
  golden.add_answers();
  golden.add_recorded_values();
  golden.add_versions();
  golden.add_erased();
  golden.add_loop();
  golden.add_planner();
  golden.add_thread();
  golden.add_contexts();
  golden.add_children();
  golden.add_sends();
  golden.add_code();
  return std::move(golden.jobs);
}

}  // namespace ae::engine::testing
