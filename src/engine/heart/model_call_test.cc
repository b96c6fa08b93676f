// Nodes that call a model: a call like any other, whose answer is pure and recorded.
#include "plan/model_calls.h"

#include <fmt/core.h>

#include "engine/fixtures/job_fixture_test.h"
#include "engine/state/checkpoint.h"
#include "inspect/trace.h"
#include "inspect/verify.h"
#include "inspect/view.h"
#include "testing/test.h"

namespace ae::engine::testing {
namespace {

constexpr std::string_view kOneModel =
    "{'tools': {'model:main': {'effect': 'read', 'provider': 'openai',"
    "  'retry': {'max_attempts': 3, 'retry_on': ['timeout', '5xx']}}}}";
constexpr std::string_view kNote =
    "{'id': 'note', 'kind': 'llm', 'tool': 'model:main', 'args': {'model': 'small',"
    " 'temperature': 0.5, 'messages': [{'role': 'user', 'content': 'About ${ .input.x }'}]}}";
constexpr std::string_view kAnswer =
    "{'text': 'Hi', 'finish_reason': 'stop', 'model': 'small-7',"
    " 'usage': {'input_tokens': 9, 'output_tokens': 3, 'total_tokens': 12, 'cached_tokens': 4}}";

std::string list(std::string_view node) { return fmt::format("[{}]", node); }

JobFixture llm_job(std::string_view more = "") {
  return JobFixture(list(std::string(kNote) + std::string(more)),
                    {.more = kOneModel, .input = "{'x': {'n': 1}}"});
}

Verification verified_proof(const JobFixture& job, std::vector<VerifyInput::Effect> effects = {}) {
  return verify({.job = job.state.job,
                 .events = job.log,
                 .last_seq = {},
                 .head = {},
                 .effects = std::move(effects)},
                uncached_plan_source());
}

AE_TEST("model call/an llm node makes one call, and its answer is recorded as pure") {
  JobFixture job = llm_job();
  job.claim();
  ASSERT_EQ(job.sent.size(), 1u);
  EXPECT_EQ(job.sent[0].tool, "model:main");
  EXPECT_EQ(canonical(job.sent[0].arguments),
            R"({"messages":[{"content":"About {\"n\":1}","role":"user"}],)"
            R"("model":"small","temperature":0.5})");
  job.ok("note", kAnswer);
  EXPECT_EQ(job.status(), "completed");
  EXPECT_EQ(job.types("note"),
            (std::vector<std::string>{"node_started", "command_emitted", "tool_invocation_started",
                                      "tool_invocation_finished", "command_committed",
                                      "node_finished", "step_committed"}));
  EXPECT_EQ(job.last<CommandEmitted>().kind, "llm");
  const auto committed = job.last<CommandCommitted>();
  EXPECT_EQ(committed.llm_provider, "openai");
  EXPECT_EQ(committed.llm_model, "small-7");
  EXPECT_EQ(committed.llm_temperature, Value(0.5));
  EXPECT_EQ(committed.usage.json()["total_tokens"], Value(12));
  EXPECT_EQ(to_hex(*committed.prompt_hash),
            blinded_hash(kBlind, R"([{"content":"About {\"n\":1}","role":"user"}])"));
  EXPECT_TRUE(committed.result.is_null());
  EXPECT_EQ(job.last<NodeFinished>().result_type, "pure");
  EXPECT_EQ(job.state.result["note"]["text"], Value("Hi"));
}

AE_TEST("model call/a model call is a step of kind llm, as a node and as a map item") {
  JobFixture job(
      "[{'id': 'each', 'kind': 'map', 'over': ['a', {'b': 1}], 'max_parallel': 2, 'do':"
      " {'tool': 'model:main', 'args': {'model': 'm', 'messages':"
      " [{'role': 'user', 'content': '${ .item }'}]}}}]",
      {.more = kOneModel});
  job.claim();
  ASSERT_EQ(job.sent.size(), 2u);
  EXPECT_EQ(job.sent[1].arguments["messages"].items()[0]["content"], Value(R"({"b":1})"));
  EXPECT_EQ(job.sent[0].step,
            step_id(job.state.job, job.plan->decision, Plan::path(0, 0, 0), "llm"));
  job.ok("each/0", "{'text': 'A'}").ok("each/1", "{'text': 'B'}");
  EXPECT_EQ(job.status(), "completed");
  EXPECT_EQ(canonical(job.state.result), R"({"each":[{"text":"A"},{"text":"B"}]})");
  EXPECT_TRUE(verified_proof(job).replay.ok) << verified_proof(job).replay.detail;
  EXPECT_EQ(llm_job().state.steps[0].id,
            step_id(JobId("job-1"), llm_job().plan->decision, Plan::path(0, 0), "llm"));
}

AE_TEST("model call/a call left open by a crash is resent and counted, and does not park the job") {
  JobFixture job = llm_job();
  job.claim().crash().crash();
  EXPECT_EQ(job.tries("note"), 3u);
  EXPECT_EQ(job.sent[0].key, job.sent[2].key);
  EXPECT_EQ(job.sent[0].external_key, job.sent[2].external_key);
  job.ok("note", kAnswer);
  EXPECT_EQ(job.status(), "completed");
  const Value usage = job_view(job.state)["usage"];
  EXPECT_EQ(canonical(usage),
            R"({"cached_tokens":4,"cost_micros":0,"input_tokens":9,"model_calls":3,)"
            R"("output_tokens":3,"reasoning_tokens":0,"tool_calls":0,"total_tokens":12,)"
            R"("unpriced_calls":1})");
}

AE_TEST("model call/a recorded answer is never requested again, wherever the process dies") {
  JobFixture whole = llm_job(
      ", {'id': 'then', 'kind': 'tool', 'tool': 'put', 'needs': ['note'],"
      " 'args': {'n': '${ .steps.note.text }'}}");
  whole.claim().ok("note", kAnswer);
  const std::size_t events = whole.log.size();
  for (std::size_t kept = 1; kept <= events; ++kept) {
    JobFixture job = llm_job(
        ", {'id': 'then', 'kind': 'tool', 'tool': 'put', 'needs': ['note'],"
        " 'args': {'n': '${ .steps.note.text }'}}");
    const bool answered =
        std::any_of(whole.log.begin(), whole.log.begin() + static_cast<std::ptrdiff_t>(kept),
                    [](const Event& e) { return e.type == EventType::tool_invocation_finished; });
    job.log.assign(whole.log.begin(), whole.log.begin() + static_cast<std::ptrdiff_t>(kept));
    if (kept < 2) continue;  // creation is one commit
    job.state = job.folded(kept);
    job.attempt_count = 1;
    job.claim();
    EXPECT_EQ(job.tries("note"), answered ? 0u : 1u) << "cut at " << kept;
    if (!answered) job.ok("note", kAnswer);
    job.ok("then");
    EXPECT_EQ(job.status(), "completed") << "cut at " << kept << "\n" << job.log_text();
    EXPECT_EQ(job_view(job.state)["usage"]["total_tokens"], Value(12));
    EXPECT_EQ(job.count(EventType::command_committed), 2u);
    EXPECT_EQ(job.all<CommandCommitted>()[0], whole.all<CommandCommitted>()[0]);
    EXPECT_TRUE(verified_proof(job).ledger.ok) << verified_proof(job).ledger.detail;
    EXPECT_TRUE(verified_proof(job).replay.ok) << verified_proof(job).replay.detail;
  }
}

AE_TEST("model call/failures are retried by the model's policy, and unsent calls cost nothing") {
  JobFixture job = llm_job();
  job.claim();
  job.times_out("note").after(1s);
  job.fails("note", "not_sent").after(1s);
  job.unknown("note", "http_503").after(10s);
  EXPECT_EQ(job.tries("note"), 4u);
  EXPECT_EQ(job_view(job.state)["usage"]["model_calls"], Value(3));
  job.unknown("note", "http_503");
  EXPECT_EQ(job.status(), "failed") << job.log_text();  // not parked: it only reads
  EXPECT_EQ(job.state.error->code, "http_503");
}

AE_TEST("model call/a failure message names the node, the model, the error and the tries") {
  const Outcome refused{.kind = OutcomeKind::failure,
                        .definite = true,
                        .error_code = "http_401",
                        .error_message = "no such key"};
  const Outcome busy{
      .kind = OutcomeKind::unknown, .error_code = "http_503", .error_message = "busy"};
  JobFixture once = llm_job();
  once.claim().answer("note", refused);
  EXPECT_EQ(once.state.error->message, "node note, model main: no such key (tried once)");
  EXPECT_EQ(once.last<NodeFinished>().error->message.value.as_string(), once.state.error->message);
  EXPECT_EQ(once.last<ToolInvocationFinished>().error->message.value.as_string(), "no such key")
      << "a try has the message of its own response";

  JobFixture often = llm_job();
  often.claim();
  for (int i = 0; i < 3; ++i) often.answer("note", busy).after(10s);
  EXPECT_EQ(often.state.error->message, "node note, model main: busy (tried 3 times)");

  JobFixture each(
      "[{'id': 'each', 'kind': 'map', 'over': ['a', 'b'], 'max_parallel': 1, 'do':"
      " {'tool': 'model:main', 'args': {'model': 'm', 'messages':"
      " [{'role': 'user', 'content': '${ .item }'}]}}}]",
      {.more = kOneModel});
  each.claim().ok("each/0", "{'text': 'A'}").answer("each/1", refused);
  EXPECT_EQ(each.state.error->message, "node each, item 1, model main: no such key (tried once)");

  JobFixture broken = llm_job();
  Outcome outcome{.kind = OutcomeKind::success};
  outcome.invalid = json("{'invalid': true, 'reason': 'the answer has no choices'}");
  broken.claim().answer("note", outcome);
  EXPECT_EQ(broken.state.error->message,
            "node note, model main: the call succeeded, but the answer has no choices");
  outcome.invalid = json("{'invalid': true, 'reason': 'is no JSON'}");
  JobFixture form = llm_job();
  form.claim().answer("note", outcome);
  EXPECT_EQ(form.state.error->message,
            "node note, model main: the call succeeded, but its output is no JSON");
  for (const JobFixture* job : {&once, &often, &each, &broken}) {
    EXPECT_TRUE(verified_proof(*job).replay.ok) << verified_proof(*job).replay.detail;
  }
}

AE_TEST("model call/an invalid answer fails the node and is not requested again") {
  JobFixture job = llm_job();
  Outcome outcome{.kind = OutcomeKind::success};
  outcome.invalid = json("{'invalid': true, 'reason': 'the answer has no choices'}");
  job.claim().answer("note", outcome);
  EXPECT_EQ(job.tries("note"), 1u);
  EXPECT_EQ(job.status(), "failed");
  EXPECT_EQ(job.state.error->code, "tool_output_invalid");
  EXPECT_EQ(job.last<CommandCommitted>().llm_model, "small");
  EXPECT_TRUE(verified_proof(job).replay.ok) << verified_proof(job).replay.detail;
}

AE_TEST("model call/an invalid list of messages fails before anything is sent") {
  for (const char* messages :
       {"[]", "'hello'", "7", "[7]", "[{'role': 'user'}]", "[{'role': 'user', 'content': null}]",
        "[{'role': 'robot', 'content': 'x'}]", "[{'role': 'user', 'content': 'x', 'name': 'y'}]"}) {
    JobFixture job(
        "[{'id': 'note', 'kind': 'llm', 'tool': 'model:main', 'args':"
        " {'model': 'm', 'messages': '${ .input.m }'}}]",
        {.more = kOneModel, .input = fmt::format("{{'m': {}}}", messages)});
    job.claim();
    EXPECT_TRUE(job.sent.empty()) << messages;
    EXPECT_EQ(job.status(), "failed");
    EXPECT_EQ(job.state.error->code, "expression_failed") << messages;
    EXPECT_NE(job.state.error->message.find("message"), std::string::npos)
        << job.state.error->message;
  }
}

AE_TEST("model call/a late result or one from the effect store is applied with its cost") {
  for (const Arrival arrival : {Arrival::late, Arrival::in_time}) {
    JobFixture job = llm_job();
    job.claim();
    const engine::SentTry first = sent_try_of(job.state, job.step("note"));
    job.reload();
    job.begin_attempt();
    job.store_effect(first, {.kind = OutcomeKind::success, .result = json(kAnswer)}, arrival);
    EXPECT_EQ(job.tries("note"), 1u);
    EXPECT_EQ(job.status(), "completed") << job.log_text();
    EXPECT_EQ(job.last<CommandCommitted>().llm_model, "small-7");
    EXPECT_EQ(job_view(job.state)["usage"]["input_tokens"], Value(9));
  }
}

AE_TEST("model call/the effect record has the provider, the model and the usage") {
  JobFixture job = llm_job();
  job.claim();
  const engine::SentTry sent = sent_try_of(job.state, job.step("note"));
  const Outcome outcome{.kind = OutcomeKind::success, .result = json(kAnswer)};
  const Value record = effect_record(job.state.job, sent, outcome, job.now);
  EXPECT_EQ(record.text("kind"), "llm");
  EXPECT_EQ(canonical(record["metadata"]),
            R"({"model":"small-7","prompt_hash":")" +
                blinded_hash(kBlind, canonical(job.sent[0].arguments["messages"])) +
                R"(","provider":"openai","temperature":0.5,"usage":{"cached_tokens":4,)"
                R"("input_tokens":9,"output_tokens":3,"total_tokens":12}})");
  job.ok("note", kAnswer);
  const auto proved = verified_proof(job, {{sent.invocation, 1, canonical(record)}});
  EXPECT_TRUE(proved.ledger.ok) << proved.ledger.detail;
}

AE_TEST("model call/verify detects a changed provider, model, temperature, usage or kind") {
  JobFixture job = llm_job();
  job.claim().ok("note", kAnswer);
  ASSERT_TRUE(verified_proof(job).replay.ok) << verified_proof(job).replay.detail;
  const std::vector<Event> log = job.log;
  using Change = void (*)(CommandCommitted&);
  const std::pair<std::string_view, Change> changes[] = {
      {"llm_provider", [](CommandCommitted& event) { event.llm_provider = "other"; }},
      {"llm_model", [](CommandCommitted& event) { event.llm_model = "large"; }},
      {"llm_temperature", [](CommandCommitted& event) { event.llm_temperature = 1; }},
      {"usage", [](CommandCommitted& event) { event.usage = TokenUsage{.total_tokens = 1}; }}};
  for (const auto& [name, change] : changes) {
    job.log = log;
    each<CommandCommitted>(job.log, change);
    const Proof replay = verified_proof(job).replay;
    EXPECT_FALSE(replay.ok) << name;
    EXPECT_NE(replay.detail.find(name), std::string::npos) << replay.detail;
  }
  job.log = log;
  each<CommandEmitted>(job.log, [](CommandEmitted& event) { event.kind = "tool"; });
  EXPECT_FALSE(verified_proof(job).replay.ok);
}

AE_TEST("model call/the trace shows the provider, both models, the usage and the tries") {
  JobFixture job = llm_job();
  job.claim().crash().ok("note", kAnswer);
  const Value node = trace_view(job.state, job.log)["nodes"].items()[0];
  EXPECT_EQ(node.text("kind"), "llm");
  EXPECT_EQ(node["model"].text("provider"), "openai");
  EXPECT_EQ(node["model"].text("requested"), "small");
  EXPECT_EQ(node["model"]["asked"], node["model"]["requested"]) << "the alias";
  EXPECT_EQ(node["model"].text("answered"), "small-7");
  EXPECT_EQ(node["model"]["usage"]["output_tokens"], Value(3));
  EXPECT_EQ(node["tries"].size(), 2u);
  EXPECT_EQ(node.text("world"), "unchanged");
}

AE_TEST("model call/extreme token counts do not overflow the totals") {
  ModelUsage total;
  const TokenUsage huge{.input_tokens = 9007199254740991, .output_tokens = 9007199254740991};
  for (int i = 0; i < 5000; ++i) add_usage(huge, total);
  EXPECT_EQ(Value::object(usage_members(total))["total_tokens"], Value(9007199254740991));
  const Value wrong = json("{'input_tokens': -5, 'output_tokens': 'x', 'total_tokens': 1.5}");
  add_usage(JsonOf<TokenUsage>(wrong).read_leniently(), total);
  EXPECT_EQ(total.input_tokens, 9007199254740991u);
}

constexpr std::string_view kPriced =
    "{'tools': {'model:main': {'effect': 'read', 'provider': 'openai',"
    "  'retry': {'max_attempts': 3, 'retry_on': ['timeout', '5xx']},"
    "  'price': {'input': 2500000, 'output': 10000000, 'cached': 250000}}}}";

AE_TEST("model call/an answer costs its tokens at the plan's price, and the job sums the costs") {
  const std::string second =
      ", {'id': 'more', 'kind': 'llm', 'tool': 'model:main', 'needs': ['note'], 'args':"
      " {'model': 'small', 'messages': [{'role': 'user', 'content': 'More'}]}}";
  JobFixture job(list(std::string(kNote) + second), {.more = kPriced, .input = "{'x': {'n': 1}}"});
  job.claim().crash().ok("note", kAnswer);
  // 5 tokens at 2.5, 4 cached ones at 0.25, 3 at 10: 43.5 millionths.
  EXPECT_EQ(job.last<CommandCommitted>().usage.json()["cost_micros"], Value(44));
  job.ok("more", "{'text': 'Hi', 'usage': {'input_tokens': 2, 'output_tokens': 1}}");
  EXPECT_EQ(job.status(), "completed");
  const Value usage = job_view(job.state)["usage"];
  EXPECT_EQ(usage["cost_micros"], Value(44 + 15));
  EXPECT_EQ(usage["unpriced_calls"], Value(0));
  EXPECT_EQ(trace_view(job.state, job.log)["usage"]["cost_micros"], Value(59));
  EXPECT_EQ(trace_view(job.state, job.log)["nodes"].items()[0]["model"]["usage"]["cost_micros"],
            Value(44));
  // The provider's answer stays unchanged.
  EXPECT_EQ(job.state.result["more"]["usage"].find("cost_micros"), nullptr);
  EXPECT_TRUE(verified_proof(job).replay.ok) << verified_proof(job).replay.detail;
  each<CommandCommitted>(job.log, [](CommandCommitted& event) {
    event.usage.json() = event.usage.json().with("cost_micros", 1'000'000);
  });
  EXPECT_FALSE(verified_proof(job).replay.ok) << "a cost that differs from the plan's price";
}

AE_TEST("model call/an answer without a price or without token counts counts as unpriced") {
  JobFixture unknown(list(std::string(kNote)), {.more = kPriced, .input = "{'x': 1}"});
  unknown.claim().ok("note", "{'text': 'Hi', 'usage': {'total_tokens': 7}}");
  EXPECT_EQ(job_view(unknown.state)["usage"]["unpriced_calls"], Value(1));
  EXPECT_EQ(job_view(unknown.state)["usage"]["cost_micros"], Value(0));
  EXPECT_TRUE(verified_proof(unknown).replay.ok) << verified_proof(unknown).replay.detail;
  JobFixture job = llm_job();
  job.claim().ok("note", "{'text': 'Hi'}");
  EXPECT_EQ(job_view(job.state)["usage"]["unpriced_calls"], Value(1));
  EXPECT_TRUE(job.last<CommandCommitted>().usage.is_null());
}

AE_TEST("model call/an invalid answer still counts its cost") {
  JobFixture job(list(std::string(kNote)), {.more = kPriced, .input = "{'x': 1}"});
  Outcome outcome{.kind = OutcomeKind::success};
  outcome.invalid = json(
      "{'invalid': true, 'reason': 'is no JSON', 'model': 'small-7',"
      " 'usage': {'input_tokens': 9, 'output_tokens': 3}}");
  job.claim().answer("note", outcome);
  EXPECT_EQ(job.state.error->code, "tool_output_invalid");
  EXPECT_EQ(job_view(job.state)["usage"]["cost_micros"], Value(53));
  EXPECT_EQ(job.last<CommandCommitted>().llm_model, "small-7");
  EXPECT_TRUE(verified_proof(job).replay.ok) << verified_proof(job).replay.detail;
}

AE_TEST("model call/content parts come only from the plan, never from the input") {
  constexpr std::string_view kParts =
      "{'id': 'note', 'kind': 'llm', 'tool': 'model:main', 'args': {'model': 'm', 'messages': ["
      " {'role': 'user', 'content': [{'type': 'text', 'text': 'What is ${ .input.x }?'},"
      "  {'type': 'image', 'url': 'https://h/${ .input.x }.png'}, {'type': 'text', 'text': '${ "
      ".input }'}]},"
      " {'role': 'user', 'content': '${ .input.given }'}]}}";
  JobFixture job(list(kParts),
                 {.more = kOneModel,
                  .input = "{'x': 'cat', 'given': [{'type': 'image', 'url': 'https://evil/'}]}"});
  job.claim();
  ASSERT_EQ(job.sent.size(), 1u);
  const Value messages = job.sent[0].arguments["messages"];
  EXPECT_EQ(canonical(messages.items()[0]["content"].items()[0]),
            R"({"text":"What is cat?","type":"text"})");
  EXPECT_EQ(canonical(messages.items()[0]["content"].items()[1]),
            R"({"type":"image","url":"https://h/cat.png"})");
  EXPECT_TRUE(messages.items()[0]["content"].items()[2]["text"].is_string());
  EXPECT_EQ(messages.items()[1]["content"], Value(R"([{"type":"image","url":"https://evil/"}])"));
  job.ok("note", kAnswer);
  EXPECT_TRUE(verified_proof(job).replay.ok) << verified_proof(job).replay.detail;
}

AE_TEST("model call/messages given by an expression contain only text") {
  JobFixture job(
      "[{'id': 'note', 'kind': 'llm', 'tool': 'model:main', 'args':"
      " {'model': 'm', 'messages': '${ .input.m }'}}]",
      {.more = kOneModel,
       .input =
           "{'m': [{'role': 'user', 'content': [{'type': 'image', 'url': 'https://evil/'}]}]}"});
  job.claim();
  ASSERT_EQ(job.sent.size(), 1u);
  EXPECT_TRUE(job.sent[0].arguments["messages"].items()[0]["content"].is_string());
}

AE_TEST("model call/an empty part or an invalid image address fails before anything is sent") {
  for (const char* input : {"{'x': null}", "{'x': 'a b'}", "{'x': 'a\\nb'}"}) {
    JobFixture job(
        "[{'id': 'note', 'kind': 'llm', 'tool': 'model:main', 'args': {'model': 'm', 'messages':"
        " [{'role': 'user', 'content': [{'type': 'image', 'url': 'https://h/${ .input.x }'}]}]}}]",
        {.more = kOneModel, .input = input});
    job.claim();
    EXPECT_TRUE(job.sent.empty()) << input;
    ASSERT_TRUE(job.state.error) << input;
    EXPECT_EQ(job.state.error->code, "expression_failed") << input;
  }
}

AE_TEST("model call/a plan with an invalid content part, schema or price is rejected") {
  const auto refused = [](const std::string& content, const std::string& more = "") {
    return !Plan::compile(
        graph("[{'id': 'a', 'kind': 'llm', 'tool': 'model:main', 'args': {'model': 'm', 'messages':"
              " [{'role': 'user', 'content': " +
                  content + "}]" + more + "}}]",
              kOneModel));
  };
  EXPECT_FALSE(refused("[{'type': 'text', 'text': 'x'}]", ", 'schema': {'type': 'object'}"));
  EXPECT_FALSE(refused("[{'type': 'image', 'url': 'data:image/png;base64,${ .input.x }'}]"));
  EXPECT_FALSE(refused("[{'type': 'image', 'url': 'https://h'}]"));
  for (const char* content :
       {"[]", "[7]", "[{'type': 'audio', 'url': 'x'}]", "[{'type': 'text'}]",
        "[{'type': 'text', 'text': 'x', 'more': 1}]", "[{'type': 'image', 'url': '${ .input.x }'}]",
        "[{'type': 'image', 'url': 'https://${ .input.x }/a'}]",
        "[{'type': 'image', 'url': 'https://h${ .input.x }/a'}]",
        "[{'type': 'image', 'url': 'data:text/html,x'}]",
        "[{'type': 'image', 'url': 'data:image/${ .input.x };base64,QQ'}]"}) {
    EXPECT_TRUE(refused(content)) << content;
  }
  for (const char* schema : {"{'type': 'text'}", "7", "{'const': '${ .input.x }'}"}) {
    EXPECT_TRUE(refused("'x'", ", 'schema': " + std::string(schema))) << schema;
  }
  for (const char* price : {"7", "{}", "{'input': 1}", "{'input': 1, 'output': 0.5}"}) {
    EXPECT_FALSE(
        Plan::compile(graph(list(kNote),
                            "{'tools': {'model:main': {'effect': 'read', 'provider': 'openai',"
                            " 'price': " +
                                std::string(price) + "}}}")))
        << price;
  }
  EXPECT_FALSE(Plan::compile(graph("[{'id': 'a', 'kind': 'tool', 'tool': 'look'}]",
                                   "{'tools': {'look': {'price': {'input': 1, 'output': 1}}}}")));
}

AE_TEST("model call/a plan with an invalid model tool or request is rejected") {
  const auto refused = [](std::string_view node, std::string_view more) {
    return !Plan::compile(graph(list(node), more));
  };
  EXPECT_FALSE(refused(kNote, kOneModel));
  const std::string base = "'effect': 'read', 'provider': 'openai'";
  for (const std::string& policy :
       {std::string("'effect': 'read'"),
        std::string("'effect': 'idempotent', 'provider': 'openai'"),
        base + ", 'on_in_doubt': 'park'", base + ", 'approval': 'required'",
        base + ", 'args_schema': true", std::string("'effect': 'read', 'provider': ''")}) {
    EXPECT_TRUE(refused(kNote, "{'tools': {'model:main': {" + policy + "}}}")) << policy;
  }
  EXPECT_TRUE(refused("{'id': 'a', 'kind': 'tool', 'tool': 'look'}",
                      "{'tools': {'other': {'effect': 'read', 'provider': 'openai'}}}"));
  EXPECT_TRUE(refused("{'id': 'a', 'kind': 'llm', 'tool': 'look'}", kOneModel));
  for (const char* args :
       {"{}", "{'model': 'm'}", "{'messages': [1]}", "{'model': 'm', 'messages': []}",
        "{'model': 'm', 'messages': 'x'}", "{'model': 7, 'messages': [1]}",
        "{'model': 'm', 'messages': [1], 'tools': []}",
        "{'model': 'm', 'messages': [1], 'max_tokens': 0}",
        "{'model': 'm', 'messages': [1], 'temperature': 'hot'}"}) {
    const std::string node = "{'id': 'a', 'kind': 'llm', 'tool': 'model:main', 'args': ";
    EXPECT_TRUE(refused(fmt::format("{}{}}}", node, args), kOneModel)) << args;
  }
  EXPECT_TRUE(
      refused("{'id': 'a', 'kind': 'tool', 'tool': 'model:main', 'args':"
              " {'model': 'm', 'messages': [1]}}",
              kOneModel));
}

}  // namespace
}  // namespace ae::engine::testing
