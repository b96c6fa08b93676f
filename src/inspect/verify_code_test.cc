// Tests of verify with code nodes: what their logs prove, which changes are found, and that its
// values are erased like all others.
#include <fmt/core.h>

#include <functional>
#include <variant>

#include "engine/fixtures/code_log_test.h"
#include "engine/fixtures/stored_job_test.h"
#include "engine/heart/side_record.h"
#include "engine/loop/loop_fixture_test.h"
#include "inspect/verify.h"
#include "inspect/view.h"
#include "log/redacted.h"
#include "testing/test.h"

namespace ae::engine::testing {
namespace {

VerifyInput input_of(const JobFixture& job) {
  VerifyInput input;
  input.job = job.state.job;
  input.events = job.log;
  return input;
}
Verification verified(const VerifyInput& input) { return verify(input, uncached_plan_source()); }
Verification verified(const JobFixture& job) { return verified(input_of(job)); }

// Changes the first event of a type that `selects` selects.
template <class T>
VerifyInput with_change(const JobFixture& job, const std::function<bool(const T&)>& selects,
                        const std::function<void(T&)>& change) {
  VerifyInput input = input_of(job);
  for (Event& event : input.events) {
    T* const body = std::get_if<T>(&event.body);
    if (body == nullptr || !selects(*body)) continue;
    change(*body);
    return input;
  }
  ADD_FAILURE() << "no such event\n" << job.log_text();
  return input;
}
VerifyInput with_request(const JobFixture& job, std::string_view position,
                         const std::function<void(NodeStarted&)>& change) {
  return with_change<NodeStarted>(
      job, [&](const NodeStarted& event) { return event.position == position; }, change);
}

constexpr std::string_view kMore =
    "{'tools':{'exact':{'effect':'read','args_schema':{'type':'object','required':['n'],"
    "'properties':{'n':{'type':'integer'}}}},"
    "'ask':{'effect':'idempotent','approval':'required'},"
    "'book':{'effect':'idempotent','compensate':{'tool':'put','args':{'of':'${ .result }'}}}}}";

// Calls of tools and of functions, one given before it was durable; a scope; waits; an approval
// with other arguments; a refused call; values.
CodeLog rich_job() {
  CodeLog job({.more = kMore});
  job.claim().call("order", "look", "{'id':43}").call("check", "run:read", "{'n':1}");
  job.ok("code/order", "{'total':50}");  // durable first, and given second
  job.gives("code/check", "'ok'", 0);
  job.advance({Advance::NewValue{.name = "time:1", .value = json("{'time':'2026-01-01'}")},
               Advance::NewValue{.name = "random", .value = "00ff"},
               Advance::NewValue{.name = "patch:cents", .value = true}});
  job.begin_scope("items").call("items/charge", "run:idempotent", "{'n':1}");
  job.unknown("code/items/charge", "connect").after(20s).ok("code/items/charge", "1");
  job.end_scope("items", "{'paid':1}");
  job.call("refused", "exact", "{'n':'one'}").call("late", "look", "{}", 3).ok("code/late");
  job.call("ask", "ask", "{'n':40}");
  job.answer_approval(job.open_request_id("code/ask"), "approve");
  job.ok("code/ask");
  job.wait("sign", {.type = WaitType::signal, .key = "sign-43"}).suspend();
  job.signal("sign-43", "'yes'");
  job.emit("progress", "{'done':1}").returns("{'paid':true}");
  return job;
}

// ---------------------------------------------------------------- valid logs

AE_TEST("verify/an unmodified log of code passes every proof after every commit") {
  const CodeLog job = rich_job();
  ASSERT_EQ(job.status(), "completed") << job.log_text();
  for (const std::size_t events : job.commits) {
    VerifyInput input = input_of(job);
    input.events.resize(events);
    const Verification all = verified(input);
    EXPECT_TRUE(all.ok) << events << " " << canonical(all.to_json());
  }
  EXPECT_EQ(verified(job).ledger.detail, "ledger: derived; 5 calls, 6 tries, none pending");
  EXPECT_EQ(verified(job).replay.detail, "5 calls match the plan");
  const Verification stored = verified(StoredJob(job).opened(job.state.job));
  EXPECT_TRUE(stored.ok) << canonical(stored.to_json());
}

AE_TEST("verify/the execution hash covers the requests of code by their positions") {
  CodeLog job;
  job.claim().call("a", "put").ok("code/a");
  job.returns("null");
  ASSERT_EQ(job.status(), "completed") << job.log_text();
  EXPECT_EQ(verified(job).execution_hash_hex,
            to_hex(sha256(
                fmt::format("aetheris.execution.v1\n{}\n0/0 pure\n0/0/a side_effect_committed\n",
                            to_hex(job.plan->hash)))));
}

AE_TEST("verify/the logs of code that failed, waits, or was cancelled pass") {
  CodeLog failed({.more = kMore});
  failed.claim().call("book", "book").ok("code/book", "7");
  failed.call("pay", "run:at_most_once").fails("code/pay");
  failed.ends({.failure = boxed(Failure{"no_money", "the account is empty"})});
  failed.ok("code/book/compensate");
  EXPECT_EQ(failed.status(), "failed") << failed.log_text();
  EXPECT_TRUE(verified(failed).ok) << canonical(verified(failed).to_json());

  CodeLog waits;
  waits.claim().wait("sign", {.type = WaitType::human, .key = "k"}).suspend();
  EXPECT_EQ(waits.status(), "waiting") << waits.log_text();
  EXPECT_TRUE(verified(waits).ok) << canonical(verified(waits).to_json());
  waits.cancel();
  EXPECT_EQ(waits.status(), "cancelled") << waits.log_text();
  EXPECT_TRUE(verified(waits).ok) << canonical(verified(waits).to_json());
}

// ---------------------------------------------------------------- changes that are found

void expect_invalid_state(const VerifyInput& input) {
  const Verification all = verified(input);
  EXPECT_FALSE(all.state_machine.ok);
  EXPECT_FALSE(all.ok);
}
void expect_not_replayed(const VerifyInput& input, std::string_view why) {
  const Verification all = verified(input);
  EXPECT_FALSE(all.replay.ok);
  EXPECT_NE(all.replay.detail.find(why), std::string::npos) << all.replay.detail;
}

AE_TEST("verify/a changed position or kind of a request is found: its step follows from it") {
  for (const char* other : {"orders", "items/order", "order#2", "", "no blanks", "a/"}) {
    expect_invalid_state(
        with_request(rich_job(), "order", [&](auto& event) { event.position = other; }));
  }
  for (const char* kind : {"llm", "wait", "scope", "code", ""}) {
    expect_invalid_state(
        with_request(rich_job(), "order", [&](auto& event) { event.kind = Word(kind); }));
  }
}

AE_TEST("verify/a changed number of outcomes before a request is found where the log shows it") {
  const CodeLog job = rich_job();
  const auto with = [&](std::string_view position, std::optional<std::int64_t> delivered) {
    return with_request(job, position, [&](auto& event) { event.delivered = delivered; });
  };
  ASSERT_TRUE(verified(with("late", 3)).ok);  // as it is: the log had 5 outcomes
  expect_invalid_state(with("late", 6));
  expect_invalid_state(with("late", -1));
  expect_not_replayed(with("late", 5), "states a number of outcomes that follows from the log");
  expect_not_replayed(with("items/charge", 1), "is made before its scope began");
  expect_not_replayed(with("check", 0), "states a number of outcomes that follows from the log");
}

AE_TEST("verify/a changed position of an outcome is found where the log shows it") {
  const CodeLog job = rich_job();
  using Finished = ToolInvocationFinished;
  const auto given_early = [](const Finished& event) { return event.delivered.has_value(); };
  const auto with = [&](std::optional<std::int64_t> delivered) {
    return with_change<Finished>(job, given_early,
                                 [&](Finished& event) { event.delivered = delivered; });
  };
  ASSERT_TRUE(verified(with(0)).ok);
  expect_invalid_state(with(2));
  expect_invalid_state(with(-1));
  expect_not_replayed(with(1), "states a position that follows from the log");
  const auto of_tool = [&](const Finished& event) { return !event.delivered; };
  expect_not_replayed(
      with_change<Finished>(job, of_tool, [](Finished& event) { event.delivered = 0; }),
      "has a position, and is not the success of a function of code");
}

AE_TEST("verify/an outcome that was given before its request was made is found") {
  CodeLog job;
  job.claim().call("a", "run:read").call("b", "run:read").ok("code/a");
  job.call("c", "run:read");  // after one outcome
  job.ok("code/b");
  job.gives("code/c", "1", 1);
  ASSERT_TRUE(verified(job).ok) << canonical(verified(job).to_json());
  expect_not_replayed(with_change<ToolInvocationFinished>(
                          job, [](const auto& event) { return event.delivered.has_value(); },
                          [](auto& event) { event.delivered = 0; }),
                      "is given before its request was made");
}

AE_TEST("verify/two requests with one position are found") {
  CodeLog job;
  job.claim().call("a", "put").ok("code/a");
  CodeLog other;
  other.claim().wait("a", {.type = WaitType::signal, .key = "k"});
  VerifyInput input = input_of(job);
  for (Event event : other.log) {
    if (event.seq <= 4) continue;  // the start of the code
    event.seq = input.events.size() + 1;
    input.events.push_back(event);
  }
  expect_not_replayed(input, "has the position of another request");
}

AE_TEST("verify/a changed tool of a request is found") {
  const CodeLog job = rich_job();
  expect_invalid_state(with_request(job, "order", [](auto& event) { event.tool_name = "none"; }));
  expect_invalid_state(
      with_request(job, "order", [](auto& event) { event.tool_name = std::nullopt; }));
  expect_not_replayed(with_request(job, "order", [](auto& event) { event.tool_name = "put"; }),
                      "calls another tool than the plan's");
}

AE_TEST("verify/changed arguments of a request are found") {
  const CodeLog job = rich_job();
  const auto is_first = [](const ToolInvocationStarted&) { return true; };
  const Verification all = verified(with_change<ToolInvocationStarted>(
      job, is_first, [](auto& event) { event.arguments = json("{'id':44}"); }));
  EXPECT_FALSE(all.ledger.ok);
  EXPECT_NE(all.ledger.detail.find("arguments_hash"), std::string::npos) << all.ledger.detail;
  const auto approval = [](const DecisionRecorded& event) {
    return is_decision<ApprovalRequested>(event);
  };
  expect_not_replayed(with_change<DecisionRecorded>(job, approval,
                                                    [](auto& event) {
                                                      event.payload = event.payload.value.with(
                                                          "arguments", json("{'n':41}"));
                                                    }),
                      "is about other arguments than those of its hash");
}

// Arguments with consistent hashes and keys.
AE_TEST("verify/arguments that the tool's schema refuses are found") {
  CodeLog job({.more = kMore}), loose;
  job.claim().call("a", "exact", "{'n':1}").ok("code/a");
  ASSERT_TRUE(verified(job).ok) << canonical(verified(job).to_json());
  CodeLog forged({.more = "{'tools':{'exact':{'effect':'read','args_schema':{'type':'object'}}}}"});
  forged.claim().call("a", "exact", "{'n':'one'}").ok("code/a");
  const Event plan = job.log[1];
  VerifyInput input = input_of(forged);
  ASSERT_TRUE(verified(input).ok);
  // The forged log under the plan of the other: its step ids have another plan's decision.
  input.events[1] = plan;
  EXPECT_FALSE(verified(input).ok);
}

AE_TEST("verify/only code and its scopes have results of their own") {
  const CodeLog job = rich_job();
  const StepId order = job.step("code/order").id;
  expect_not_replayed(with_change<NodeFinished>(
                          job, [&](const NodeFinished& event) { return event.step_id == order; },
                          [](auto& event) { event.result = json("{'total':5}"); }),
                      "nothing can be replayed past");
  CodeLog typed({}, "{'output_schema':{'type':'object'}}");
  typed.claim().returns("{'paid':1}");
  ASSERT_TRUE(verified(typed).ok) << canonical(verified(typed).to_json());
  expect_not_replayed(with_change<NodeFinished>(
                          typed, [](const NodeFinished&) { return true; },
                          [](auto& event) { event.result = Value(7); }),
                      "is a result that the plan's schema refuses");
}

AE_TEST("verify/the end of a scope before its requests, or a request after its end, is found") {
  const CodeLog job = rich_job();
  const std::string scope = job.step("code/items").id.text.string();
  VerifyInput input = input_of(job);
  const auto is_end = [&](const Event& event) {
    return event.type == EventType::node_finished && step_of(event) == scope;
  };
  const auto end = std::ranges::find_if(input.events, is_end);
  const auto first = std::ranges::find_if(input.events, [&](const Event& event) {
    return event.type == EventType::tool_invocation_started &&
           step_of(event) == job.step("code/items/charge").id.text;
  });
  ASSERT_TRUE(end != input.events.end() && first < end);
  std::rotate(first, end, end + 1);
  for (std::size_t i = 0; i < input.events.size(); ++i) input.events[i].seq = i + 1;
  expect_invalid_state(input);
}

// Also of a log that somebody wrote: none of them has a tool.
AE_TEST("verify/events of calls that name a wait, a scope or code are refused") {
  CodeLog job;
  job.claim().begin_scope("items").wait("items/sign", {.type = WaitType::signal, .key = "k"});
  const std::size_t opened = job.seq_of(EventType::wait_opened, "code/items/sign") - 1;
  CodeLog calls;
  calls.claim().call("a", "put").ok("code/a");
  for (const char* name : {"code/items", "code/items/sign", "code"}) {
    const StepId step = job.step(name).id;
    std::vector<EventBody> forged{
        TimeRecorded{.effect_id = fmt::format("{}:time", step.text), .value = json("{'time':'t'}")},
        decision_event(ApprovalRequested{.arguments = json("{}"),
                                         .arguments_hash = job.state.hash_of(json("{}")).string(),
                                         .command_id = step,
                                         .schema_digest = "",
                                         .tool = "put",
                                         .tool_version = ""},
                       {.decision_id = DecisionId("0123456789abcdef"), .step_id = step}),
        decision_event(CallDenied{.arguments = json("{}"),
                                  .arguments_hash = job.state.hash_of(json("{}")).string(),
                                  .command_id = step,
                                  .schema_digest = "",
                                  .tool = "put",
                                  .tool_version = ""},
                       {.decision_id = DecisionId("0123456789abcdef"), .step_id = step}),
        CommandCommitted{
            .command_id = step, .node_id = "code", .result = Value(7), .step_id = step},
        StepCommitted{.command_id = step, .node_id = "code", .step_id = step}};
    for (const Event& event : calls.log) {
      if (const auto* started = as<ToolInvocationStarted>(event)) {
        ToolInvocationStarted of_step = *started;
        of_step.step_id = of_step.command_id = step;
        forged.emplace_back(of_step);
      }
      if (const auto* finished = as<ToolInvocationFinished>(event)) {
        ToolInvocationFinished of_step = *finished;
        of_step.step_id = step;
        forged.emplace_back(of_step);
      }
      if (const auto* command = as<CommandEmitted>(event)) {
        CommandEmitted probe = *command;
        probe.of = step;
        probe.step_id = probe.command_id = StepId("0123456789abcdef");
        forged.emplace_back(probe);
      }
    }
    for (const EventBody& body : forged) {
      // Before the wait is opened, and after it.
      for (const std::size_t at : {opened, job.log.size()}) {
        VerifyInput input = input_of(job);
        input.events.resize(at);
        Event event = input.events.back();
        event.seq++;
        event.type = type_of(body);
        event.body = body;
        event.schema = schema_of(body);
        input.events.push_back(event);
        EXPECT_FALSE(verified(input).ok) << name << " " << event_name(event);
      }
    }
  }
}

AE_TEST("verify/a plan that replaces a plan with code is refused") {
  CodeLog job;
  job.claim().call("a", "put").ok("code/a");
  const JobFixture other("[{'id':'a', 'kind':'tool', 'tool':'put'}]");
  VerifyInput input = input_of(job);
  Event plan = other.log[1];
  plan.seq = input.events.size() + 1;
  input.events.push_back(plan);
  expect_invalid_state(input);
}

AE_TEST(
    "verify/a stored effect agrees with the success that code was given before it was durable") {
  CodeLog job;
  job.claim().call("a", "run:read").call("b", "run:read").ok("code/a", "1");
  const SentTry sent = sent_try_of(job.state, job.step("code/b"));
  job.gives("code/b", "2", 0);
  const auto record = [&](const Value& result) {
    return canonical(effect_record(job.state.job, sent,
                                   {.kind = OutcomeKind::success, .result = result}, job.now));
  };
  VerifyInput input = input_of(job);
  input.effects = {{.invocation = sent.invocation, .try_no = 1, .record = record(2)}};
  EXPECT_TRUE(verified(input).ok) << canonical(verified(input).to_json());
  input.effects[0].record = record(3);
  EXPECT_FALSE(verified(input).ledger.ok);
}

AE_TEST("verify/a log of code that was rewritten differs from the recorded head") {
  const CodeLog job = rich_job();
  const StoredJob stored(job);
  CodeLog changed = rich_job();
  // Which outcomes had been given is not shown by anything else in the log.
  each<NodeStarted>(changed.log, [](NodeStarted& event) {
    if (event.position == "late") event.delivered = 2;
  });
  VerifyInput input = StoredJob(changed).opened(job.state.job);
  EXPECT_TRUE(verified(input).replay.ok) << verified(input).replay.detail;
  input.last_seq = job.log.size();
  input.head = stored.head;
  EXPECT_EQ(verified(input).head, "altered");
  EXPECT_FALSE(verified(input).event_chain.ok);
}

// ---------------------------------------------------------------- redaction

AE_TEST("redacted/every value of code is erased like all others") {
  constexpr std::string_view kSecret = "a-private-text";
  CodeLog job;
  job.claim().begin_scope("items").call("items/a", "run:read", "{'of':'a-private-text'}");
  job.ok("code/items/a", "'a-private-text'");
  job.end_scope("items", "{'of':'a-private-text'}");
  job.advance({Advance::NewValue{.name = "time:1", .value = json("{'time':'a-private-text'}")},
               Advance::NewValue{.name = "uuid:1", .value = kSecret},
               Advance::NewValue{.name = "random", .value = kSecret}});
  job.emit("progress", "'a-private-text'").wait("sign", {.type = WaitType::signal, .key = "k"});
  job.signal("k", "'a-private-text'");
  job.ends({.exception = json("{'name':'TypeError','message':'a-private-text'}")});
  ASSERT_EQ(job.status(), "parked") << job.log_text();
  job.routine().end.reset();
  job.resume().claim();
  job.returns("{'of':'a-private-text'}");
  ASSERT_EQ(job.status(), "completed") << job.log_text();

  StoredJob stored(job);
  stored.redact(job.state.job, [](const Event&, std::string_view) { return true; });
  for (const std::string& bytes : stored.commits) {
    EXPECT_EQ(bytes.find(kSecret), std::string::npos);
  }
  std::size_t erased = 0;
  const VerifyInput input = stored.opened(job.state.job);
  ASSERT_EQ(input.events.size(), job.log.size());
  for (const Event& event : input.events) {
    EXPECT_EQ(canonical(envelope(job.state.job, event)).find(kSecret), std::string::npos)
        << event_name(event);
    erased += erased_fields(event).size();
  }
  // Of the input and the blind, the call's arguments and result, the scope, three values, the
  // emitted one, the answer, the exception, the code and the job.
  EXPECT_EQ(erased, 13u);
  const Verification all = verified(input);
  EXPECT_TRUE(all.ok) << canonical(all.to_json());
  const auto folded = fold(job.state.job, input.events, uncached_plan_source());
  ASSERT_TRUE(folded) << folded.error().message;
  EXPECT_EQ(canonical(state_view(*folded)).find(kSecret), std::string::npos);
  const Step* const answer = folded->find_step(job.step("code/sign").id);
  EXPECT_TRUE(delivery_of(*folded, *answer).erased);
}

}  // namespace
}  // namespace ae::engine::testing
