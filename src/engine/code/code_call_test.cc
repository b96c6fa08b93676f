// Calls of code: refused arguments, approvals, budgets, pauses, retries, unknown outcomes. A new
// routine replays after each.
#include <fmt/core.h>

#include <string>
#include <string_view>
#include <vector>

#include "engine/code/code_helpers_test.h"
#include "log/seal.h"
#include "plan/model_calls.h"
#include "schema/question.h"
#include "testing/test.h"

namespace ae::engine::testing {
namespace {

// Calls `tool` with the job's input, then reports what it got.
Script call_once(CodeContext ctx, std::string_view tool) {
  Value got;
  try {
    got = argument("result", co_await ctx.call_as("a", tool, ctx.input()));
  } catch (const CodeFailure& failed) {
    got = Value::object({{"code", failed.failure.code}});
  }
  co_return co_await ctx.call("report", got);
}
Program code_calls(std::string_view tool) {
  return [tool](CodeContext ctx) { return call_once(std::move(ctx), tool); };
}

struct Setup {
  std::string tool = "'effect':'idempotent'";  // members of the tool `buy`
  std::string_view more = "";                  // members of the graph
  std::string_view input = "{'n':250}";
};
CodeJob buying(const Setup& setup, std::string_view code = "{}") {
  const std::string more = fmt::format(
      "{{{}'tools':{{'buy':{{{}}},'report':{{'effect':'idempotent'}}}}}}", setup.more, setup.tool);
  return CodeJob(code_calls("buy"), code, {.more = more, .input = setup.input});
}
const std::string kFunction = "'effect':'idempotent','function':true";

// What the code got of its call.
Value reported(const CodeJob& job) {
  return job.sent.empty() || job.sent.back().tool != "report" ? Value() : job.sent.back().arguments;
}
// The next routine gets the same, and the job ends.
void expect_same_again(CodeJob& job) {
  const Value before = reported(job);
  lose(job);
  EXPECT_FALSE(job.diverged) << job.log_text();
  EXPECT_EQ(reported(job), before) << job.log_text();
  EXPECT_EQ(job.ok("code/report").status(), "completed") << job.log_text();
  expect_proved(job);
}

// ---------------------------------------------------------------- refused arguments

AE_TEST("code call/refused arguments are recorded, and given again") {
  CodeJob job = buying({.tool = "'args_schema':{'type':'object','required':['m']}"});
  job.claim();
  EXPECT_EQ(reported(job), json("{'code':'input_invalid'}")) << job.log_text();
  EXPECT_EQ(job.types("code/a"), (std::vector<std::string>{"node_started", "node_finished"}));
  EXPECT_EQ(job.step("code/report").request->delivered, 1u);
  expect_same_again(job);
}

AE_TEST("code call/arguments are an object") {
  CodeJob job = buying({.input = "[1]"});
  job.claim();
  EXPECT_EQ(reported(job), json("{'code':'input_invalid'}")) << job.log_text();
  expect_same_again(job);
}

AE_TEST("code call/arguments have at most 16 MiB") {
  CodeJob job([](CodeContext ctx) -> Script {
    const Value args = Value::object({{"x", std::string(kValueMax, 'x')}});
    co_return co_await ctx.call("put", args);
  });
  job.claim();
  EXPECT_EQ(job.status(), "failed");
  EXPECT_EQ(job.state.error->code, "payload_too_large");
}

AE_TEST("code call/several refused requests of one advance count as outcomes in their order") {
  CodeJob job(
      [](CodeContext ctx) -> Script {
        std::vector<Awaited> all;
        for (const std::string_view tool : {"picky", "put", "picky", "put"}) {
          all.push_back(ctx.call(tool));
        }
        Value last;
        for (const Awaited& one : all) {
          try {
            last = co_await one;
          } catch (const CodeFailure& failed) {
            last = Value(failed.failure.code);
          }
        }
        co_return last;
      },
      "{}", {.more = "{'tools':{'picky':{'args_schema':{'type':'object','required':['n']}}}}"});
  job.claim();
  EXPECT_EQ(job.step("code/put").request->delivered, 0u) << job.log_text();
  EXPECT_EQ(job.step("code/put#2").request->delivered, 0u) << job.log_text();
  job.ok("code/put").crash().ok("code/put#2", "4");
  EXPECT_EQ(job.state.result, json("{'code':4}")) << job.log_text();
  expect_proved(job);
}

// ---------------------------------------------------------------- approvals

constexpr std::string_view kApproval = "'approval':'required','approval_expires':'1h'";

// The same for a remote tool and for a function of the worker.
void for_each_kind(const auto& test) {
  for (const char* function : {"", ",'function':true"}) {
    SCOPED_TRACE(function);
    CodeJob job = buying({.tool = fmt::format("{}{}", kApproval, function)});
    job.claim();
    ASSERT_EQ(job.status(), "waiting") << job.log_text();
    EXPECT_EQ(job.types("code/a"), (std::vector<std::string>{"node_started", "decision_recorded",
                                                             "wait_opened", "job_waiting"}));
    EXPECT_TRUE(job.sent.empty());
    lose(job);
    test(job);
  }
}

AE_TEST("code approval/an approved call is made with the requested arguments") {
  for_each_kind([](CodeJob& job) {
    job.approve("code/a");
    ASSERT_EQ(job.sent.size(), 1u) << job.log_text();
    EXPECT_EQ(job.sent[0].arguments, json("{'n':250}"));
    job.crash().ok("code/a", "7");
    EXPECT_EQ(reported(job), json("{'result':7}"));
    expect_same_again(job);
  });
}

AE_TEST(
    "code approval/an edited call is made with the approver's arguments, and does not diverge") {
  for_each_kind([](CodeJob& job) {
    job.send_request({.by = "ann",
                      .body = ApproveRequest{.approval_id = job.open_request_id("code/a"),
                                             .decision = "approve",
                                             .arguments = json("{'n':100}")}});
    ASSERT_EQ(job.sent.size(), 1u) << job.refusal << job.log_text();
    EXPECT_EQ(job.sent[0].arguments, json("{'n':100}"));
    job.crash().ok("code/a", "7");
    EXPECT_EQ(reported(job), json("{'result':7}"));
    expect_same_again(job);
  });
}

AE_TEST("code approval/a rejection is a failure that the code gets") {
  for_each_kind([](CodeJob& job) {
    job.reject("code/a");
    EXPECT_EQ(job.reply.text("then"), "the code of node code gets the rejection as a failure");
    EXPECT_EQ(reported(job), json("{'code':'rejected'}")) << job.log_text();
    expect_same_again(job);
  });
}

AE_TEST("code approval/a request that expires is a failure that the code gets") {
  for_each_kind([](CodeJob& job) {
    job.after(2h);
    EXPECT_EQ(reported(job), json("{'code':'wait_expired'}")) << job.log_text();
    expect_same_again(job);
  });
}

AE_TEST("code approval/the approved call of a function waits for its routine") {
  CodeJob job = buying({.tool = fmt::format("{},{}", kApproval, kFunction)});
  job.claim();
  job.reload();
  job.is_stepwise = true;
  job.approve("code/a");
  EXPECT_EQ(job.status(), "running");
  EXPECT_TRUE(job.sent.empty()) << "no routine is here";
  job.start_routines();
  job.run_until_idle();
  EXPECT_TRUE(job.sent.empty()) << "it has not reached the frontier";
  job.replay_one();
  job.record_advances();
  job.run_until_idle();
  EXPECT_EQ(job.sent.size(), 1u) << job.log_text();
}

AE_TEST("code approval/a call is denied by a policy, and the denial is given again") {
  CodeJob job = buying({.tool = "'rules':[{'action':'deny','when':'${ .args.n > 100 }'}]"});
  job.claim();
  EXPECT_EQ(reported(job), json("{'code':'denied'}")) << job.log_text();
  expect_same_again(job);
}

AE_TEST("code approval/only the arguments that a policy names need an approval") {
  const std::string_view tool = "'approval':'${ .args.n > 300 }'";
  CodeJob allowed = buying({.tool = std::string(tool)});
  EXPECT_EQ(allowed.claim().ok("code/a", "1").status(), "running");
  EXPECT_EQ(reported(allowed), json("{'result':1}"));
  CodeJob gated = buying({.tool = std::string(tool), .input = "{'n':301}"});
  EXPECT_EQ(gated.claim().status(), "waiting");
}

// ---------------------------------------------------------------- budgets

AE_TEST(
    "code budget/a call that does not fit parks the job, and goes on when the budget is raised") {
  CodeJob job = buying({.more = "'budget':{'tool_calls':1},"});
  job.claim().ok("code/a", "7");
  EXPECT_EQ(job.status(), "parked") << job.log_text();
  EXPECT_EQ(job.last<JobParked>().until, "budget");
  EXPECT_EQ(job.sent.size(), 1u);
  lose(job).raise("{'tool_calls':2}");
  EXPECT_EQ(reported(job), json("{'result':7}")) << job.log_text();
  EXPECT_EQ(job.step("code/report").request->delivered, 1u);
  expect_same_again(job);
}

AE_TEST("code budget/what waits for the budget does not hold up a wait of the same advance") {
  CodeJob job(
      [](CodeContext ctx) -> Script {
        const Awaited call = ctx.call("put"), wait = ctx.wait(signal_wait("k"));
        co_await wait;
        co_return co_await call;
      },
      "{}", {.more = "{'budget':{'tool_calls':0}}"});
  job.claim();
  EXPECT_EQ(job.step("code/signal").phase, StepPhase::waiting) << job.log_text();
  EXPECT_EQ(job.status(), "parked");
  job.signal("k", "1");
  EXPECT_EQ(job.step("code/signal").phase, StepPhase::answered) << job.log_text();
  lose(job).raise("{'tool_calls':1}");
  EXPECT_EQ(job.step("code/put").request->delivered, 0u) << "as it was requested";
  EXPECT_EQ(job.ok("code/put").status(), "completed") << job.log_text();
  expect_proved(job);
}

Value hello() {
  return json("{'model':'small','max_tokens':50,'messages':[{'role':'user','content':'Hello'}]}");
}
Script ask_model(CodeContext ctx) {
  const Value answer = co_await ctx.call_as("ask", "model:main", hello());
  co_return answer["text"];
}
constexpr std::string_view kModel =
    "{'budget':{'tokens':200},'tools':{'model:main':{'effect':'read','provider':'openai',"
    "'price':{'input':1000000,'output':2000000}}}}";

AE_TEST("code call/a model call is a step of kind llm, with a reservation and its usage") {
  CodeJob job(&ask_model, "{}", {.more = kModel});
  job.claim();
  EXPECT_EQ(job.last<NodeStarted>().kind->view(), "llm");
  EXPECT_EQ(job.state.budget.reserved.tokens, 61u) << job.log_text();
  job.crash();
  EXPECT_EQ(job.sent.size(), 2u);
  job.ok("code/ask",
         "{'text':'Hi','model':'small-7','usage':{'input_tokens':5,'output_tokens':2}}");
  EXPECT_EQ(job.status(), "completed") << job.log_text();
  EXPECT_EQ(job.state.result, json("{'code':'Hi'}"));
  EXPECT_EQ(job.last<CommandCommitted>().llm_model, "small-7");
  EXPECT_EQ(job.state.budget.reserved.tokens, 0u);
  expect_proved(job);
}

// ---------------------------------------------------------------- models that code calls itself

Value model_request(std::string_view url = "https://api.example.com/v1/chat/completions?x=1") {
  return Value::object({{"method", "POST"}, {"url", url}});
}
Script fetch_twice(CodeContext ctx) {
  co_await ctx.run("first", "read", model_request());
  co_await ctx.run("other", "read", model_request("https://api.example.com/v1/files"));
  co_return co_await ctx.run("second", "read", model_request());
}
Outcome answered(std::string_view usage) {
  return {.kind = OutcomeKind::success, .result = json("'Hi'"), .usage = json(usage)};
}
constexpr std::string_view kUsage =
    "{'input_tokens':40,'output_tokens':20,'cached_tokens':8,'model':'small'}";
constexpr std::string_view kPrices =
    "'prices':{'small':{'input':1000000,'output':2000000,'cached':500000}}";

AE_TEST("code budget/the usage that a function reports is charged, and the next model call parks") {
  CodeJob job(&fetch_twice, "{}", {.more = "{'budget':{'tokens':60}}"});
  job.claim().answer("code/first", answered(kUsage));
  EXPECT_EQ(job.state.budget.spent.tokens, 60u) << job.log_text();
  EXPECT_EQ(job.state.budget.spent.tool_calls, 1u);
  EXPECT_EQ(job.state.budget.spent.model_calls, 0u);
  EXPECT_EQ(job.state.models.cached_tokens, 8u);
  EXPECT_EQ(job.state.models.unpriced_calls, 1u);
  EXPECT_EQ(job.last<ToolInvocationFinished>().usage.json(), json(kUsage));
  job.ok("code/other");
  EXPECT_EQ(job.status(), "parked") << "only another model call needs tokens";
  EXPECT_EQ(job.last<JobParked>().until, "budget");
  lose(job).raise("{'tokens':61}");
  EXPECT_EQ(job.answer("code/second", answered(kUsage)).status(), "completed") << job.log_text();
  EXPECT_EQ(job.state.budget.spent.tokens, 120u) << "it was known afterwards";
  expect_proved(job);
  expect_every_prefix(job);
}

AE_TEST("code budget/a model that a function calls has the price of the plan") {
  const std::string more = fmt::format("{{'budget':{{'cost_micros':76}},{}}}", kPrices);
  CodeJob job(&fetch_twice, "{}", {.more = more});
  const Value priced = with_cost(*job.state.plan, json(kUsage));
  EXPECT_EQ(priced["cost_micros"], Value(32 + 4 + 40));
  EXPECT_EQ(with_cost(*job.state.plan, json("{'input_tokens':4,'model':'large'}"))["cost_micros"],
            Value());
  EXPECT_EQ(with_cost(*job.state.plan, json("{'total_tokens':4,'model':'small'}"))["cost_micros"],
            Value(8))
      << "of an estimate the higher price applies";
  job.claim();
  const SentTry sent = sent_try_of(job.state, job.step("code/first"));
  const Value late = effect_record(job.state.job, sent, answered(kUsage), job.now, Arrival::late);
  EXPECT_EQ(late["usage"], priced) << "a result that arrives late costs the same";
  job.answer("code/first", answered(canonical(priced))).ok("code/other");
  EXPECT_EQ(job.state.budget.spent.cost_micros, 76u);
  EXPECT_EQ(job.state.models.unpriced_calls, 0u);
  EXPECT_EQ(job.status(), "parked");
  expect_proved(job);
}

AE_TEST("code budget/usage is in the effect record, and charged when it is late") {
  CodeJob job(&fetch_twice, "{}", {.more = "{'budget':{'tokens':1000}}"});
  job.claim();
  const SentTry first = sent_try_of(job.state, job.step("code/first"));
  job.times_out("code/first").after(10s);
  EXPECT_EQ(job.tries("code/first"), 2u) << job.log_text();
  EXPECT_EQ(job.state.budget.spent.tokens, 0u);
  job.store_effect(first, answered(kUsage));
  EXPECT_TRUE(job.last<ToolInvocationFinished>().late.value_or(false)) << job.log_text();
  EXPECT_EQ(job.state.budget.spent.tokens, 60u);
  job.answer("code/first", answered(kUsage)).ok("code/other");
  EXPECT_EQ(job.state.budget.spent.tokens, 120u);
  EXPECT_EQ(job.ok("code/second").status(), "completed") << job.log_text();
  expect_proved(job);
}

AE_TEST("code budget/a request is one to a model API by its method and its path") {
  for (const char* url :
       {"http://a/chat/completions", "https://a/v1/responses", "https://a/v1/messages?beta=true"}) {
    EXPECT_TRUE(is_model_request(model_request(url))) << url;
    EXPECT_FALSE(is_model_request(model_request(url).with("method", "GET"))) << url;
  }
  for (const char* url : {"https://a/v1/messages/1", "https://a/v1?x=/messages", ""}) {
    EXPECT_FALSE(is_model_request(model_request(url))) << url;
  }
  EXPECT_FALSE(is_model_request(json("{'method':1,'url':['/messages']}")));
  EXPECT_FALSE(is_model_request(Value(1)));
}

// ---------------------------------------------------------------- limits of open tries

Script three_at_once(CodeContext ctx) {
  const Awaited a = ctx.call_as("a", "put", Value::object({})),
                b = ctx.call_as("b", "put", Value::object({})),
                c = ctx.call_as("c", "put", Value::object({}));
  co_await a;
  co_await b;
  co_return co_await c;
}

AE_TEST("code limit/at most `parallel` tries are open, and the others wait to be admitted") {
  CodeJob job(&three_at_once, "{'parallel':2}");
  job.claim();
  EXPECT_EQ(job.sent.size(), 2u);
  job.ok("code/b");
  EXPECT_EQ(job.sent.size(), 3u) << job.log_text();
  EXPECT_EQ(job.step("code/c").request->delivered, 0u) << "as it was requested";
  EXPECT_EQ(job.crash().ok("code/a").ok("code/c").status(), "completed") << job.log_text();
  expect_proved(job);
}

AE_TEST("code limit/a retry waits for room, too") {
  CodeJob job(&three_at_once, "{'parallel':1}");
  job.claim().fails("code/a", "connect");
  EXPECT_EQ(job.sent.size(), 2u) << "b takes the place of a";
  job.after(10s);
  EXPECT_EQ(job.tries("code/a"), 1u) << job.log_text();
  job.ok("code/b");
  EXPECT_EQ(job.tries("code/a"), 2u) << job.log_text();
  EXPECT_EQ(job.in_flight.size(), 1u);
  job.ok("code/a").ok("code/c");
  EXPECT_EQ(job.status(), "completed");
}

AE_TEST("code limit/an approved call waits for room, too") {
  CodeJob job(
      [](CodeContext ctx) -> Script {
        const Awaited first = ctx.call("gated"), second = ctx.call("gated");
        co_await first;
        co_return co_await second;
      },
      "{'parallel':1}", {.more = "{'tools':{'gated':{'approval':'required'}}}"});
  job.claim().approve("code/gated").approve("code/gated#2");
  EXPECT_EQ(job.sent.size(), 1u) << job.log_text();
  job.ok("code/gated");
  EXPECT_EQ(job.sent.size(), 2u) << job.log_text();
  EXPECT_EQ(job.ok("code/gated#2").status(), "completed");
}

AE_TEST("code limit/calls of other nodes do not count against `parallel`") {
  CodeJob job(code_plan("[{'id':'other','kind':'tool','tool':'put'},"
                        "{'id':'code','kind':'code','code':{'parallel':1}}]"),
              {{"code", &three_at_once}});
  job.claim();
  EXPECT_EQ(job.in_flight.size(), 2u) << job.log_text();
  job.ok("code/a").ok("code/b").ok("code/c");
  EXPECT_EQ(job.step("code").phase, StepPhase::done) << job.log_text();
}

// ---------------------------------------------------------------- pause

AE_TEST("code pause/a pause admits nothing, and the requests go on after resume") {
  CodeJob job = buying({.tool = kFunction});
  job.claim().pause();
  EXPECT_EQ(job.status(), "running") << "a call is in flight";
  job.ok("code/a", "7");
  EXPECT_EQ(job.status(), "parked");
  EXPECT_EQ(job.sent.size(), 1u);
  lose(job).resume();
  EXPECT_EQ(reported(job), json("{'result':7}")) << job.log_text();
  expect_same_again(job);
}

AE_TEST("code pause/code that has returned ends after resume") {
  CodeJob job([](CodeContext ctx) -> Script { co_return co_await ctx.run("a", "idempotent"); });
  job.claim().pause().ok("code/a", "7");
  EXPECT_EQ(job.status(), "parked");
  EXPECT_EQ(job.resume().status(), "completed") << job.log_text();
}

// ---------------------------------------------------------------- retries

AE_TEST("code retry/a failure that a retry may repair is not given to the code") {
  for (const std::string_view function : {"", ",'function':true"}) {
    CodeJob job = buying(
        {.tool = fmt::format("'retry':{{'max_attempts':3,'retry_on':['connect']}}{}", function)});
    job.claim().fails("code/a", "connect");
    EXPECT_EQ(job.count(EventType::node_finished), 0u);
    job.after(1s);
    EXPECT_EQ(job.tries("code/a"), 2u) << job.log_text();
    job.crash();
    EXPECT_EQ(job.tries("code/a"), 3u) << job.log_text();
    job.ok("code/a", "7");
    EXPECT_EQ(reported(job), json("{'result':7}"));
    expect_same_again(job);
  }
}

AE_TEST("code retry/the last failure is given to the code after its commit") {
  CodeJob job = buying({.tool = kFunction});
  job.claim().fails("code/a", "http_422");
  EXPECT_EQ(reported(job), json("{'code':'http_422'}"));
  EXPECT_EQ(job.step("code/report").request->delivered, 1u);
  expect_same_again(job);
}

AE_TEST("code retry/a long back-off releases the job, and the next routine makes the try") {
  CodeJob job = buying({.tool = "'function':true,'retry':{'max_attempts':2,'initial_backoff':'1m',"
                                "'max_backoff':'1m','retry_on':['connect']}"});
  job.claim().fails("code/a", "connect");
  EXPECT_EQ(job.status(), "queued") << job.log_text();
  lose(job).after(2min);
  EXPECT_EQ(job.tries("code/a"), 2u) << job.log_text();
  job.ok("code/a", "7");
  expect_same_again(job);
}

// ---------------------------------------------------------------- unknown outcomes

AE_TEST("code unknown/a lost function of idempotent effect is sent again under its key") {
  CodeJob job = buying({.tool = kFunction});
  job.claim();
  job.reload();
  job.is_stepwise = true;
  job.claim();
  EXPECT_EQ(job.sent.size(), 1u) << "no routine is here";
  job.start_routines();
  job.run_until_idle();
  EXPECT_EQ(job.sent.size(), 1u) << "it has not reached the frontier";
  EXPECT_EQ(job.status(), "running");
  job.replay_one();
  job.record_advances();
  job.run_until_idle();
  ASSERT_EQ(job.sent.size(), 2u) << job.log_text();
  EXPECT_EQ(job.sent[1].external_key, job.sent[0].external_key);
  EXPECT_EQ(job.sent[1].arguments, job.sent[0].arguments);
  job.is_stepwise = false;
  job.ok("code/a", "7");
  expect_same_again(job);
}

AE_TEST("code unknown/a lost remote call is sent again without a routine") {
  CodeJob job = buying({});
  job.claim();
  job.reload();
  job.is_stepwise = true;
  job.claim();
  EXPECT_EQ(job.sent.size(), 2u) << job.log_text();
  EXPECT_EQ(job.sent[1].external_key, job.sent[0].external_key);
}

AE_TEST("code unknown/an at_most_once call parks, and goes on as it is resolved") {
  for (const std::string_view function : {"", ",'function':true"}) {
    const std::string tool =
        fmt::format("'effect':'at_most_once','on_in_doubt':'park'{}", function);
    CodeJob happened = buying({.tool = tool});
    happened.claim().crash();
    EXPECT_EQ(happened.status(), "parked") << happened.log_text();
    EXPECT_EQ(happened.last<JobParked>().until, "resolve");
    EXPECT_EQ(happened.sent.size(), 1u);
    lose(happened).resolve("code/a", "happened", "7");
    EXPECT_EQ(reported(happened), json("{'result':7}")) << happened.log_text();
    expect_same_again(happened);

    CodeJob again = buying({.tool = tool});
    again.waits_for_settling = true;
    again.claim().crash();
    again.resolve("code/a", "not_happened");
    EXPECT_EQ(again.tries("code/a"), 2u) << again.log_text();
    again.ok("code/a", "8");
    EXPECT_EQ(reported(again), json("{'result':8}"));
    expect_same_again(again);

    CodeJob failed = buying({.tool = tool});
    failed.claim().crash();
    failed.resolve("code/a", "fail");
    EXPECT_EQ(reported(failed), json("{'code':'invocation_in_doubt'}")) << failed.log_text();
    expect_same_again(failed);
  }
}

AE_TEST("code unknown/a function whose outcome is unknown is retried by its routine") {
  CodeJob job = buying({.tool = kFunction + ",'retry':{'max_attempts':2,'retry_on':['unknown']}"});
  job.claim().unknown("code/a").after(1s);
  EXPECT_EQ(job.tries("code/a"), 2u) << job.log_text();
  job.ok("code/a", "7");
  EXPECT_EQ(reported(job), json("{'result':7}"));
  expect_same_again(job);
}

AE_TEST("code unknown/a call whose worker was lost is sent again without a retry policy") {
  for (const std::string_view effect : {"idempotent", "read"}) {
    CodeJob job = buying({.tool = fmt::format("'effect':'{}','function':true", effect)});
    job.claim().unknown("code/a", "worker_lost").after(1s);
    ASSERT_EQ(job.tries("code/a"), 2u) << effect << job.log_text();
    EXPECT_EQ(job.sent[1].external_key, job.sent[0].external_key);
    job.ok("code/a", "7");
    EXPECT_EQ(reported(job), json("{'result':7}"));
    expect_same_again(job);
  }
}

AE_TEST("code unknown/a function that ends its worker is not sent again for ever") {
  CodeJob job = buying({.tool = kFunction});
  job.claim();
  for (int i = 0; i < 20 && job.status() == "running"; ++i) {
    job.unknown("code/a", "worker_lost").after(1h);
  }
  EXPECT_EQ(job.tries("code/a"), 10u) << job.log_text();
  EXPECT_EQ(job.status(), "parked");
}

AE_TEST("code unknown/an at_most_once call parks when its worker was lost") {
  CodeJob job = buying({.tool = "'effect':'at_most_once','on_in_doubt':'park','function':true"});
  job.claim().unknown("code/a", "worker_lost").after(1s);
  EXPECT_EQ(job.tries("code/a"), 1u) << job.log_text();
  EXPECT_EQ(job.status(), "parked");
}

AE_TEST("code unknown/a function that outlived its routine is recorded without a position") {
  CodeJob job = buying({.tool = kFunction});
  job.claim();
  const engine::SentTry sent = sent_try_of(job.state, job.step("code/a"));
  job.reload();
  job.is_stepwise = true;
  job.claim();
  job.start_routines();
  Outcome success{.kind = OutcomeKind::success};
  success.result = Value(7);
  job.store_effect(sent, success);  // during the replay
  EXPECT_EQ(job.last<ToolInvocationFinished>().delivered, std::nullopt);
  job.is_stepwise = false;
  job.run_until_idle();
  EXPECT_EQ(reported(job), json("{'result':7}")) << job.log_text();
  EXPECT_EQ(job.sent.size(), 2u) << "it was not performed again";
  expect_same_again(job);
}

AE_TEST("code unknown/a call is probed, and its answer is given to the code") {
  constexpr std::string_view kProbe =
      "'effect':'at_most_once','on_in_doubt':'probe','probe':{'tool':'look',"
      "'args':{'key':'${ .call.external_key }'},'happened':'${ .result.charge }'}";
  CodeJob job = buying({.tool = std::string(kProbe)});
  job.claim().crash().after(2min);
  ASSERT_EQ(job.sent.back().tool, "look") << job.log_text();
  job.ok("code/a/probe", "{'charge':7}");
  EXPECT_EQ(reported(job), json("{'result':7}")) << job.log_text();
  expect_same_again(job);
}

AE_TEST("code call/a tool may ask a user during a call of code") {
  CodeJob job = buying({.tool = "'effect':'idempotent'"});
  job.claim();
  const Value how = json(
      "{'requests':{'how':{'message':'How many?','mode':'form','schema':{'type':'object',"
      "'properties':{'n':{'type':'integer'}}}}}}");
  job.answer("code/a", {.kind = OutcomeKind::input_required, .definite = true, .result = how});
  EXPECT_EQ(job.status(), "waiting") << job.log_text();
  lose(job).send_request({.by = "ann",
                          .body = ApproveRequest{.approval_id = job.open_request_id("code/a"),
                                                 .decision = "approve",
                                                 .arguments = json("{'n':3}")}});
  EXPECT_EQ(job.tries("code/a"), 2u) << job.refusal << job.log_text();
  job.ok("code/a", "7");
  EXPECT_EQ(reported(job), json("{'result':7}"));
  expect_same_again(job);
}

// ---------------------------------------------------------------- results

AE_TEST("code result/one that breaks its schema is a failure, given after its commit") {
  for (const std::string_view function : {"", ",'function':true"}) {
    CodeJob job = buying({.tool = fmt::format("'result_schema':{{'type':'integer'}}{}", function)});
    job.claim().ok("code/a", "'text'");
    EXPECT_EQ(reported(job), json("{'code':'tool_output_invalid'}")) << job.log_text();
    expect_same_again(job);
  }
}

AE_TEST("code result/a success that was given before the log stays one") {
  constexpr std::string_view kChanges =
      ",'changes':[{'type':'file','id':'${ .result.path }','op':'create'}]";
  CodeJob job = buying({.tool = kFunction + std::string(kChanges)});
  job.claim().ok("code/a", "{'other':1}");
  EXPECT_EQ(job.step("code/a").failure->code, "tool_output_invalid") << job.log_text();
  EXPECT_EQ(reported(job), json("{'result':{'other':1}}"));
  expect_same_again(job);
}

AE_TEST("code call/a recorded value may be a tool of the plan") {
  CodeJob job(
      [](CodeContext ctx) -> Script {
        const Value drawn = co_await ctx.call("id", argument("version", 4));
        co_return co_await ctx.call("put", argument("id", drawn));
      },
      "{}", {.more = "{'tools':{'id':{'effect':'read','records':'uuid'}}}"});
  job.claim();
  ASSERT_EQ(job.sent.size(), 1u) << job.log_text();
  const Value args = job.sent[0].arguments;
  EXPECT_EQ(args["id"].as_string().size(), 36u);
  job.crash();
  EXPECT_EQ(job.sent.back().arguments, args);
  EXPECT_EQ(job.ok("code/put").status(), "completed");
  expect_proved(job);
}

AE_TEST("code call/a policy of a recorded value reads the arguments of the code") {
  CodeJob job(
      [](CodeContext ctx) -> Script { co_return co_await ctx.call("id", argument("version", 4)); },
      "{}",
      {.more = "{'tools':{'id':{'effect':'read','records':'uuid',"
               "'approval':'${ .args.version != 4 }'}}}"});
  EXPECT_EQ(job.claim().status(), "completed") << job.log_text();
  expect_proved(job);
}

}  // namespace
}  // namespace ae::engine::testing
