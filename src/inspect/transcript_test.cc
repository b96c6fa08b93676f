// Tests of transcripts: model requests and answers, and each call with its result, in log order.
#include "inspect/transcript.h"

#include <fmt/core.h>

#include "engine/fixtures/child_fixture_test.h"
#include "engine/fixtures/stored_job_test.h"
#include "engine/loop/loop_fixture_test.h"
#include "engine/planner/planner.h"
#include "inspect/trace.h"

namespace ae::engine::testing {
namespace {

Value transcript_of(const JobId& job, const std::vector<Event>& log,
                    const TranscriptPage& page = {}) {
  TranscriptBuilder builder(job, page, uncached_plan_source());
  for (const Event& event : log) {
    const Status added = builder.add(event);
    EXPECT_TRUE(added) << added.error().message;
  }
  return std::move(builder).take();
}
Value transcript_of(const JobFixture& job, const TranscriptPage& page = {}) {
  return transcript_of(job.state.job, job.log, page);
}

// "kind@node" of each entry, with its most important member.
std::string entry_text(const Value& entry) {
  const std::string_view kind = entry.text("kind");
  std::string text(kind);
  const auto more = [&](const char* name) {
    if (!entry[name].is_null()) text += fmt::format(" {}", canonical(entry[name]));
  };
  if (kind == "message") {
    more("origin");
    more("from");
    more("content");
  } else if (kind == "model_call") {
    more("model");
  } else if (kind == "answer") {
    more("text");
  } else if (kind == "tool_call") {
    more("tool");
    more("arguments");
  } else if (kind == "result") {
    more("outcome");
    more("result");
  } else if (kind == "approval" || kind == "budget") {
    more("state");
  } else if (kind == "resolution") {
    more("resolution");
    more("result");
  } else if (kind == "reply") {
    more("outcome");
    more("payload");
  } else if (kind == "end") {
    more("status");
  } else if (kind == "failed") {
    text += fmt::format(" {}", entry["error"].text("code"));
  } else if (kind == "question") {
    more("message");
  }
  return text;
}
std::vector<std::string> entry_texts(const Value& transcript) {
  std::vector<std::string> all;
  for (const Value& entry : transcript["entries"].items()) all.push_back(entry_text(entry));
  return all;
}
using Texts = std::vector<std::string>;

// The n-th entry of this kind.
Value entry(const Value& transcript, std::string_view kind, std::size_t nth = 0) {
  for (const Value& one : transcript["entries"].items()) {
    if (one.text("kind") == kind && nth-- == 0) return one;
  }
  return {};
}

AE_TEST("transcript/a loop has its prompts, answers and calls with results, in order") {
  JobFixture job = loop_job();
  job.claim().ok("chat/0",
                 tool_calls_answer({{"a", "look", "{'q': 1}"}, {"b", "nope", "{'z': 1}"}}));
  job.ok("chat/0/0", "'found'").ok("chat/1", text_answer("Done"));
  const Value all = transcript_of(job);
  EXPECT_EQ(entry_texts(all),
            (Texts{R"(input)", R"(message "prompt" "system" "Be kind")",
                   R"(message "prompt" "user" "Hello")", R"(model_call "main")", R"(answer "")",
                   R"(tool_call "nope" {"z":1})", R"(tool_call "look" {"q":1})",
                   R"(result "success" "found")", R"(model_call "main")", R"(answer "Done")",
                   R"(end "completed")"}));
  const Value refused = entry(all, "tool_call");
  EXPECT_EQ(refused["refused"].text("code"), "tool_not_granted");
  EXPECT_EQ(refused["call_id"], Value("b"));
  const Value call = entry(all, "tool_call", 1);
  EXPECT_EQ(call["call_id"], Value("a"));
  EXPECT_EQ(call["effect_class"], Value("read"));
  EXPECT_EQ(call["turn"], Value(0));
  EXPECT_EQ(call["turn_call"], Value(0));
  EXPECT_EQ(call["node_id"], Value("chat"));
  EXPECT_EQ(entry(all, "answer")["tool_calls"].size(), 2u);
  EXPECT_EQ(entry(all, "answer", 1)["turn"], Value(1));
  EXPECT_EQ(entry(all, "answer", 1)["usage"]["input_tokens"], Value(5));
  EXPECT_EQ(all["totals"], json("{'answers':2, 'cost_micros':null, 'input_tokens':5,"
                                " 'output_tokens':2, 'repeated':0, 'tool_calls':1,"
                                " 'total_tokens':7}"));
  EXPECT_EQ(all["ended"], Value(true));
  EXPECT_EQ(all["next"], Value());
}

AE_TEST("transcript/a repair and a failed try of a model are entries") {
  JobFixture job = loop_job(", 'repair': 1, 'schema': {'type': 'object'}");
  job.claim().fails("chat/0", "http_503").after(20s).ok("chat/0", text_answer("no JSON"));
  const Value all = transcript_of(job);
  EXPECT_EQ(entry(all, "answer")["error"].text("code"), "http_503");
  EXPECT_EQ(entry(all, "answer")["outcome"], Value("failure"));
  EXPECT_EQ(entry(all, "model_call", 1)["try"], Value(2));
  EXPECT_EQ(entry(all, "message", 2)["origin"], Value("repair"));
  EXPECT_EQ(all["totals"]["answers"], Value(1));
}

AE_TEST("transcript/a map of model calls names the item of each") {
  JobFixture job(
      "[{'id':'m', 'kind':'map', 'over':'${ .input.list }', 'max_parallel':2, 'do':"
      " {'tool':'model:main', 'args': {'model':'small', 'messages':"
      " [{'role':'user', 'content':'Say ${ .item }'}]}}}]",
      {.more = kTools, .input = "{'list':[1,2]}"});
  job.claim().ok("m/1", text_answer("two")).ok("m/0", text_answer("one"));
  const Value all = transcript_of(job);
  EXPECT_EQ(entry(all, "answer")["text"], Value("two"));
  EXPECT_EQ(entry(all, "answer")["item"], Value(1));
  EXPECT_EQ(entry(all, "message")["content"], Value("Say 1"));
  EXPECT_EQ(entry(all, "message")["item"], Value(0));
  EXPECT_EQ(all["totals"]["answers"], Value(2));
}

AE_TEST("transcript/a plan without a model has its calls and skipped nodes") {
  JobFixture job(
      "[{'id':'a', 'kind':'tool', 'tool':'look', 'args':{'q':1}},"
      " {'id':'b', 'kind':'tool', 'tool':'put', 'needs':['a'], 'when':'${ false }'},"
      " {'id':'w', 'kind':'wait', 'needs':['a'], 'wait':{'type':'signal', 'key':'go'}},"
      " {'id':'c', 'kind':'tool', 'tool':'once', 'needs':['w']}]");
  job.claim().ok("a", "2").signal("go", "'yes'").fails("c", "http_400");
  EXPECT_EQ(entry_texts(transcript_of(job)),
            (Texts{R"(input)", R"(tool_call "look" {"q":1})", R"(result "success" 2)", "skipped",
                   "wait", R"(reply "signalled" "yes")", R"(tool_call "once" {})",
                   R"(result "failure")", R"(end "failed")"}));
  EXPECT_EQ(entry(transcript_of(job), "end")["error"].text("code"), "http_400");
}

AE_TEST("transcript/totals count tries and repeated tries of tools as a trace does") {
  JobFixture job(
      "[{'id':'a', 'kind':'tool', 'tool':'put'}, {'id':'b', 'kind':'tool', 'tool':'put'}]");
  job.claim().fails("a", "connect").after(20s).fails("a", "connect").after(20s).ok("a").ok("b");
  ASSERT_EQ(job.status(), "completed") << job.log_text();
  const Value totals = transcript_of(job)["totals"];
  EXPECT_EQ(totals["tool_calls"], Value(4));
  EXPECT_EQ(totals["repeated"], Value(2));
  const Value traced = trace_view(job.state, job.log)["totals"];
  EXPECT_EQ(traced["tries"], totals["tool_calls"]);
  EXPECT_EQ(traced["repeated"], totals["repeated"]);
}

AE_TEST("transcript/an unknown outcome and its resolution are entries") {
  JobFixture job("[{'id':'a', 'kind':'tool', 'tool':'pay', 'args':{'n':1}}]");
  job.claim().unknown("a");
  const Value before = transcript_of(job);
  EXPECT_EQ(entry(before, "result")["outcome"], Value("unknown"));
  EXPECT_EQ(entry(before, "result")["definite"], Value(false));
  EXPECT_EQ(before["ended"], Value(false));
  job.resolve("a", "happened");
  EXPECT_EQ(entry(transcript_of(job), "resolution")["resolution"], Value("happened"));
}

AE_TEST("transcript/the result of a call names its child job, unless none was created") {
  const auto parent = [](std::string_view tool) {
    JobFixture job(fmt::format("[{{'id':'a', 'kind':'tool', 'tool':'{}'}}]", tool),
                   {.more = "{'tools': {'research': {'child': {'name': 'research'}},"
                            " 'apart': {'child': {'name': 'research', 'detached': true}}}}"});
    job.claim();
    return job;
  };
  const auto child_in_result = [](const JobFixture& job) {
    const Value all = transcript_of(job);
    for (const Value& entry : all["entries"].items()) {
      if (entry.text("kind") == "result") return entry["child"];
    }
    return Value("no result");
  };
  for (const std::string_view tool : {"research", "apart"}) {
    JobFixture refused = parent(tool);
    refused.fails("a", "not_found");
    EXPECT_EQ(child_in_result(refused), Value()) << tool;
  }
  JobFixture failed = parent("research");
  const Value id = child_of(failed.state, failed.step("a")).text;
  failed.answer("a", child_created(failed, "a"));
  child_ends(failed, "a", "{'status': 'failed', 'failure': {'code': 'no_money'}}");
  failed.answer("a", {.kind = OutcomeKind::failure,
                      .definite = true,
                      .error_code = "no_money",
                      .external_id = id.as_string()});
  EXPECT_EQ(child_in_result(failed)["id"], id);
  EXPECT_EQ(child_in_result(failed)["status"], Value("failed"));
  JobFixture detached = parent("apart");
  detached.ok("a", "{'job': 'x'}");
  EXPECT_EQ(child_in_result(detached)["status"], Value("detached"));
}

AE_TEST("transcript/an approval has its request and its answer") {
  JobFixture job = loop_job();
  job.claim().ok("chat/0",
                 tool_calls_answer({{"a", "refund", "{'n': 5}"}, {"b", "refund", "{'n': 6}"}}));
  job.approve("chat/0/0").reject("chat/0/1");
  const Value all = transcript_of(job);
  EXPECT_EQ(entry(all, "approval")["state"], Value("requested"));
  EXPECT_EQ(entry(all, "approval")["tool"], Value("refund"));
  EXPECT_EQ(entry(all, "approval")["arguments"], json("{'n':5}"));
  Texts states;
  for (const Value& one : all["entries"].items()) {
    if (one.text("kind") == "approval") states.emplace_back(one.text("state"));
  }
  EXPECT_EQ(states, (Texts{"requested", "requested", "approved", "rejected"}));
  EXPECT_EQ(entry(all, "approval", 2)["by"], Value("ann"));
  EXPECT_EQ(entry(all, "failed")["error"].text("code"), "rejected");
}

AE_TEST("transcript/a question of a tool is an entry") {
  JobFixture job("[{'id':'a', 'kind':'tool', 'tool':'pay'}]");
  job.claim().answer("a", {.kind = OutcomeKind::input_required,
                           .definite = true,
                           .result = json("{'requests':{'how':{'message':'How many?', 'mode':"
                                          "'form', 'schema':{'type':'object'}}}}")});
  EXPECT_EQ(entry(transcript_of(job), "question")["message"], Value("How many?"));
  EXPECT_EQ(entry(transcript_of(job), "question")["tool"], Value("pay"));
}

AE_TEST("transcript/a planner has its prompt, its answer, its plan and the calls of the plan") {
  const Value graph_of = json(
      "{'id':'planner', 'kind':'planner', 'planner':{'tool':'model:main', 'model':'small',"
      " 'told':'Plan it', 'prompt':'Go', 'tools':['look'], 'max_nodes':3, 'repair':1}}");
  const Value node = graph_of.with("planner", graph_of["planner"].with("schema", planner_schema()));
  JobFixture job(compiled(graph("[]", kTools).with("nodes", Value::array({node}))));
  const Value nodes = Value::object({{"nodes", json("[{'id':'find', 'tool':'look'}]")}});
  job.claim().ok("planner/0", canonical(Value::object({{"text", canonical(nodes)}})));
  job.ok("find", "7");
  const Value all = transcript_of(job);
  EXPECT_EQ(entry(all, "message")["content"], Value("Plan it"));
  EXPECT_EQ(entry(all, "answer")["node_id"], Value("planner"));
  EXPECT_EQ(entry(all, "answer")["turn"], Value(0));
  EXPECT_EQ(entry(all, "plan")["nodes"], json("['planner', 'find']"));
  EXPECT_EQ(entry(all, "plan")["plan_number"], Value(1));
  EXPECT_EQ(entry(all, "result")["result"], Value(7));
}

AE_TEST("transcript/a fork has the turns of its origin, marked as imported") {
  JobFixture origin = loop_job();
  origin.claim().ok("chat/0", tool_calls_answer({{"a", "put", "{'v': 1}"}}));
  origin.ok("chat/0/0", "'one'").fails("chat/1", "connect");
  ASSERT_EQ(origin.status(), "failed") << origin.log_text();
  const auto point = retry_point(origin.state, origin.log);
  ASSERT_TRUE(point);
  auto fork = origin.fork(*point);
  ASSERT_TRUE(fork);
  JobFixture job(*fork, "job-2");
  job.claim().ok("chat/1", text_answer("Done"));
  const Value all = transcript_of(job);
  EXPECT_EQ(entry_texts(all),
            (Texts{R"(input)", R"(message "prompt" "system" "Be kind")",
                   R"(message "prompt" "user" "Hello")", R"(answer "")",
                   R"(tool_call "put" {"v":1})", R"(result "success" "one")",
                   R"(model_call "main")", R"(answer "Done")", R"(end "completed")"}));
  EXPECT_EQ(entry(all, "answer")["imported"], Value(true));
  EXPECT_EQ(entry(all, "tool_call")["call_id"], Value("a"));
  EXPECT_EQ(entry(all, "answer", 1)["imported"], Value(false));
  EXPECT_EQ(all["totals"]["answers"], Value(1));
  EXPECT_EQ(all["totals"]["tool_calls"], Value(0));
}

AE_TEST("transcript/a fork with erased imported values has the same entries without the values") {
  JobFixture origin = loop_job();
  origin.claim().ok("chat/0", tool_calls_answer({{"a", "put", "{'v': 'secret'}"}}));
  origin.ok("chat/0/0", "'one'").fails("chat/1", "connect");
  auto fork = origin.fork(*retry_point(origin.state, origin.log));
  ASSERT_TRUE(fork);
  JobFixture job(*fork, "job-2");
  job.claim().ok("chat/1", text_answer("Done"));
  StoredJob stored(job);
  stored.redact(job.state.job, [](const Event& event, std::string_view field) {
    return event.type == EventType::fork_imported && field == "results";
  });
  const auto log = stored.opened(job.state.job).events;
  const Value all = transcript_of(job.state.job, log);
  EXPECT_EQ(canonical(all).find("secret"), std::string::npos);
  EXPECT_EQ(entry_texts(all),
            (Texts{R"(input)", R"(message "prompt" "user")", R"(answer)", R"(tool_call "put")",
                   R"(result "success")", R"(model_call "main")", R"(answer "Done")",
                   R"(end "completed")"}));
  EXPECT_EQ(entry(all, "answer")["redacted"], json("['text']"));
  EXPECT_EQ(entry(all, "tool_call")["redacted"], json("['arguments', 'call_id']"));
  EXPECT_EQ(entry(all, "result")["redacted"], json("['result']"));
}

AE_TEST("transcript/erased values are null and listed; a value of the same form is shown") {
  JobFixture job = loop_job();
  job.claim().ok("chat/0",
                 tool_calls_answer({{"a", "look", "{'q': 'secret'}"}, {"b", "secret", "{}"}}));
  job.ok("chat/0/0",
         "{'$redacted': 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'}");
  job.ok("chat/1", text_answer("Done"));
  StoredJob stored(job);
  const std::string look = job.step("chat/0/0").id.text;
  stored.redact(job.state.job, [&](const Event& event, std::string_view field) {
    if (step_of(event) == look) return field == "arguments";
    return field == "input" || field == "arguments" || field == "payload" ||
           (field == "result" && event.type == EventType::tool_invocation_finished);
  });
  const auto log = stored.opened(job.state.job).events;
  const Value all = transcript_of(job.state.job, log);
  EXPECT_EQ(canonical(all).find("secret"), std::string::npos);
  EXPECT_EQ(entry(all, "input")["input"], Value());
  EXPECT_EQ(entry(all, "input")["redacted"], json("['input']"));
  EXPECT_EQ(entry(all, "message")["redacted"], json("['content']"));
  EXPECT_EQ(entry(all, "message", 1), Value()) << "the second turn has no prompt";
  EXPECT_EQ(entry(all, "answer")["redacted"], json("['text']"));
  const Value refused = entry(all, "tool_call");
  EXPECT_EQ(refused["refused"], json("{'code':'tool_not_granted'}"));
  EXPECT_EQ(refused["redacted"], json("['arguments', 'call_id', 'refused.message', 'tool']"));
  const Value call = entry(all, "tool_call", 1);
  EXPECT_EQ(call["tool"], Value("look"));
  EXPECT_EQ(call["redacted"], json("['arguments', 'call_id']"));
  EXPECT_EQ(entry(all, "result")["redacted"], json("[]"));
  EXPECT_TRUE(entry(all, "result")["result"].is_object());
}

// Two tries of the first turn: the first times out and answers late, the second answers in time.
JobFixture answered_late() {
  std::string tools(kTools);
  const std::string_view provider = "'provider': 'openai',";
  tools.insert(tools.find(provider) + provider.size(),
               " 'price': {'input': 1000000, 'output': 2000000},");
  JobFixture job = loop_job("", {.more = tools});
  job.claim();
  const SentTry first = sent_try_of(job.state, job.step("chat/0"));
  job.times_out("chat/0").after(20s).ok("chat/0",
                                        tool_calls_answer({{"a", "look"}, {"b", "nope"}}));
  const Outcome late{.kind = OutcomeKind::success,
                     .result = json("{'model': 'small-2', 'text': 'Late', 'usage':"
                                    " {'input_tokens': 300, 'output_tokens': 20}}")};
  job.store_effect(first, late).store_effect(first, late);
  job.ok("chat/0/0", "1").ok("chat/1", text_answer("Done"));
  return job;
}

AE_TEST("transcript/totals count a late answer of a model once, with its own tokens and cost") {
  const JobFixture job = answered_late();
  ASSERT_EQ(job.status(), "completed") << job.log_text();
  const Value all = transcript_of(job);
  const Value late = entry(all, "answer", 2);
  EXPECT_EQ(late["late"], Value(true)) << canonical(all);
  EXPECT_EQ(late["text"], Value("Late"));
  EXPECT_EQ(late["answered_by"], Value("small-2"));
  EXPECT_EQ(late["usage"]["input_tokens"], Value(300));
  EXPECT_EQ(late["cost_micros"], Value(340));
  EXPECT_EQ(entry(all, "answer", 1)["usage"], Value()) << "the usage belongs to the other try";
  EXPECT_EQ(all["totals"], json("{'answers':3, 'cost_micros':349, 'input_tokens':305,"
                                " 'output_tokens':22, 'repeated':0, 'tool_calls':1,"
                                " 'total_tokens':327}"));
}

AE_TEST("transcript/the result of a resolved call is in its resolution") {
  JobFixture job("[{'id':'a', 'kind':'tool', 'tool':'pay', 'args':{'n':1}}]");
  job.claim().unknown("a").resolve("a", "happened", "{'paid': true}");
  EXPECT_EQ(entry(transcript_of(job), "resolution")["result"], json("{'paid':true}"));
}

// Reads the pages event by event: each page is built from all events and holds only the entries of
// its event.
Value event_by_event(const JobFixture& job) {
  Value all = transcript_of(job);
  std::vector<Value> joined;
  std::uint64_t after = 0;
  for (Value next(0); !next.is_null();) {
    const Value page = transcript_of(job, {.after = after, .bytes_max = 1});
    EXPECT_EQ(page["totals"], all["totals"]);
    for (const Value& one : page["entries"].items()) joined.push_back(one);
    next = page["next"];
    if (!next.is_null()) after = static_cast<std::uint64_t>(next.as_int());
  }
  return all.with("entries", Value::array(std::move(joined)));
}

JobFixture forked() {
  JobFixture origin = loop_job();
  origin.claim().ok("chat/0", tool_calls_answer({{"a", "put", "{'v': 1}"}, {"b", "nope"}}));
  origin.ok("chat/0/0", "'one'").fails("chat/1", "connect");
  JobFixture job(*origin.fork(*retry_point(origin.state, origin.log)), "job-2");
  job.claim().ok("chat/1", tool_calls_answer({{"c", "look", "{'q': 1}"}})).ok("chat/1/0", "2");
  job.ok("chat/2", text_answer("Done"));
  return job;
}

JobFixture mapped() {
  JobFixture job(
      "[{'id':'m', 'kind':'map', 'over':'${ .input.list }', 'max_parallel':2, 'do':"
      " {'tool':'model:main', 'args': {'model':'small', 'messages':"
      " [{'role':'user', 'content':'Say ${ .item }'}]}}}]",
      {.more = kTools, .input = "{'list':[1,2,3]}"});
  job.claim()
      .ok("m/1", text_answer("two"))
      .ok("m/0", text_answer("one"))
      .ok("m/2", text_answer("three"));
  return job;
}

JobFixture planned() {
  JobFixture job(
      "[{'id':'a', 'kind':'tool', 'tool':'pay', 'args':{'n':1}},"
      " {'id':'w', 'kind':'wait', 'needs':['a'], 'wait':{'type':'signal', 'key':'go'}},"
      " {'id':'c', 'kind':'tool', 'tool':'once', 'needs':['w']}]");
  job.claim().unknown("a").resolve("a", "happened", "7").signal("go", "'yes'");
  job.fails("c", "http_400");
  return job;
}

AE_TEST("transcript/pages of one event join to the whole transcript, for each kind of job") {
  for (const JobFixture& job : {planned(), mapped(), answered_late(), forked()}) {
    ASSERT_TRUE(is_terminal(job.state.status)) << job.log_text();
    const Value all = transcript_of(job);
    EXPECT_GT(all["entries"].size(), 6u);
    EXPECT_EQ(event_by_event(job), all);
    // After each event the page equals that of the log up to it.
    for (std::size_t n = 1; n <= job.log.size(); ++n) {
      const std::vector<Event> part(job.log.begin(),
                                    job.log.begin() + static_cast<std::ptrdiff_t>(n));
      EXPECT_EQ(transcript_of(job.state.job, part)["seq"], Value(n));
    }
  }
}

AE_TEST("transcript/a page ends before its bytes exceed the limit, and one large event is a page") {
  JobFixture job(
      "[{'id':'a', 'kind':'tool', 'tool':'look', 'args':{'q':1}},"
      " {'id':'b', 'kind':'tool', 'tool':'look', 'needs':['a'], 'args':{'q':2}}]");
  const std::string large = fmt::format("'{}'", std::string(5000, 'x'));
  job.claim().ok("a", large).ok("b", "2");
  const Value all = transcript_of(job);
  std::vector<Value> joined;
  std::vector<std::size_t> sizes;
  std::uint64_t after = 0;
  for (int pages = 0; pages < 100; ++pages) {
    const Value page = transcript_of(job, {.after = after, .bytes_max = 2000});
    sizes.push_back(canonical(page["entries"]).size());
    if (sizes.back() > 2000) {
      EXPECT_EQ(page["entries"].size(), 1u);
    }
    for (const Value& one : page["entries"].items()) joined.push_back(one);
    if (page["next"].is_null()) break;
    after = static_cast<std::uint64_t>(page["next"].as_int());
  }
  EXPECT_EQ(Value::array(joined), all["entries"]);
  EXPECT_EQ(sizes.size(), 3u);
  EXPECT_EQ(std::ranges::count_if(sizes, [](std::size_t n) { return n > 2000; }), 1);
}

AE_TEST("transcript/an event that is invalid after the previous one is an error") {
  const JobFixture job = mapped();
  TranscriptBuilder builder(job.state.job, {}, uncached_plan_source());
  ASSERT_TRUE(builder.add(job.log[0]));
  const Status added = builder.add(job.log.back());
  ASSERT_FALSE(added);
  EXPECT_EQ(added.error().code, Code::log_corrupt);
}

AE_TEST("transcript/pages join to the whole, and the entries of one event stay together") {
  JobFixture job = loop_job();
  job.claim().ok("chat/0", tool_calls_answer({{"a", "look", "{'q': 1}"}, {"b", "nope"}}));
  job.ok("chat/0/0", "1").ok("chat/1", text_answer("Done"));
  const Value all = transcript_of(job);
  for (const std::size_t limit : {1u, 2u, 3u, 100u}) {
    std::vector<Value> joined;
    std::uint64_t after = 0;
    for (int pages = 0; pages < 100; ++pages) {
      const Value page = transcript_of(job, {.after = after, .limit = limit});
      EXPECT_EQ(page["totals"], all["totals"]);
      for (const Value& one : page["entries"].items()) joined.push_back(one);
      if (page["next"].is_null()) break;
      after = static_cast<std::uint64_t>(page["next"].as_int());
      EXPECT_EQ(joined.back()["seq"], page["next"]);
    }
    EXPECT_EQ(Value::array(joined), all["entries"]) << limit;
  }
}

}  // namespace
}  // namespace ae::engine::testing
