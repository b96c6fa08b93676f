// Policies of a plan: allow, require approval, deny; and calls that are
// approved with edited arguments.
#include <set>

#include "base/hash.h"
#include "engine/heart/policy.h"
#include "engine/loop/loop_fixture_test.h"
#include "engine/state/checkpoint.h"
#include "inspect/view.h"

namespace ae::engine::testing {
namespace {

using Types = std::vector<std::string>;

constexpr std::string_view kBuy =
    "[{'id':'a', 'kind':'tool', 'tool':'buy', 'args':{'n':'${ .input.n }'}}]";

std::string ruled(std::string_view rules, std::string_view more = "") {
  return "{'tools':{'buy':{'rules':[" + std::string(rules) + "]" + std::string(more) + "}}}";
}

JobFixture buys(std::string_view more, std::string_view input = "{'n':250}",
                std::string_view nodes = kBuy) {
  return JobFixture(nodes, {.more = more, .input = input});
}

std::string hash_of(std::string_view arguments) {
  return blinded_hash(kBlind, canonical(json(arguments)));
}

JobFixture& edit(JobFixture& job, std::string_view id, std::string_view arguments,
                 std::string_view decision = "approve") {
  return job.send_request(
      {.by = "ann",
       .body = SignalRequest{.approval = std::string(id),
                             .wait_type = "human",
                             .arguments = json(arguments),
                             .payload = Value::object({{"decision", decision}})}});
}

// ---------------------------------------------------------------- rules

AE_TEST("policy/a denied call is never declared, and the log has the reason") {
  const std::string rules = ruled("{'action':'deny', 'reason':'not on Sundays'}");
  JobFixture job = buys(rules);
  job.claim();
  EXPECT_EQ(job.status(), "failed") << job.log_text();
  EXPECT_EQ(job.state.error->code, "denied");
  EXPECT_NE(job.state.error->message.find("not on Sundays"), std::string::npos);
  EXPECT_EQ(job.types("a"), (Types{"node_started", "decision_recorded", "node_finished"}));
  const auto denied = job.last<DecisionRecorded>();
  EXPECT_EQ(denied.kind, "approval");
  EXPECT_EQ(denied.state, "denied");
  EXPECT_EQ(denied.reason, "not on Sundays");
  EXPECT_EQ(denied.payload.value["arguments"], json("{'n':250}"));
  EXPECT_TRUE(job.sent.empty());
  expect_verified(job);
}

AE_TEST("policy/a call denied by a new plan before its retry fails without an approval request") {
  constexpr std::string_view kRetry = ", 'retry':{'max_attempts':3, 'retry_on':['connect']}";
  const std::string now = "{'tools':{'buy':{'effect':'at_most_once', 'on_in_doubt':'park'" +
                          std::string(kRetry) + "}}}";
  const std::string then =
      "{'tools':{'buy':{'effect':'at_most_once', 'on_in_doubt':'park',"
      " 'rules':[{'action':'deny', 'reason':'not any more'}]" +
      std::string(kRetry) + "}}}";
  for (const bool outcome_unknown : {false, true}) {
    JobFixture job = buys(now);
    job.claim();
    if (outcome_unknown) {
      job.unknown("a").after(2min);
      job.decides = false;
      job.resolve("a", "not_happened");
      ASSERT_FALSE(job.refused);
    } else {
      job.fails("a", "connect");
      job.decides = false;
    }
    job.replan(compiled(graph(kBuy, then)));
    ASSERT_FALSE(job.refused);
    job.decides = true;
    job.after(1min);
    EXPECT_EQ(job.status(), "failed") << job.log_text();
    EXPECT_EQ(job.state.error->code, "denied");
    EXPECT_NE(job.state.error->message.find("not any more"), std::string::npos);
    EXPECT_EQ(job.sent.size(), 1u);
    for (const WaitOpened& wait : job.all<WaitOpened>()) {
      EXPECT_FALSE(wait.correlation_key.starts_with("approval/"));
    }
    expect_verified(job);
  }
}

AE_TEST("policy/the first matching rule applies") {
  const std::string rules = ruled(
      "{'action':'allow', 'when':'${ .args.n < 10 }'},"
      "{'action':'require_approval', 'when':'${ .args.n < 100 }', 'reason':'not small'},"
      "{'action':'deny'}");
  EXPECT_EQ(buys(rules, "{'n':5}").claim().sent.size(), 1u);
  JobFixture approval_job = buys(rules, "{'n':50}");
  EXPECT_EQ(approval_job.claim().status(), "waiting");
  EXPECT_EQ(approvals_view(approval_job.state)[0]["reason"], "not small");
  EXPECT_EQ(approval_job.last<DecisionRecorded>().reason, "not small");
  EXPECT_EQ(buys(rules, "{'n':500}").claim().state.error->code, "denied");
}

AE_TEST("policy/a policy cannot relax the approval rule of the tool") {
  const std::string allowed = ruled("{'action':'allow'}", ", 'approval':'required'");
  EXPECT_EQ(buys(allowed).claim().status(), "waiting");
  const std::string small = ruled("{'action':'allow'}", ", 'approval':'${ .args.n > 100 }'");
  EXPECT_EQ(buys(small, "{'n':5}").claim().sent.size(), 1u);
  const std::string denied = ruled("{'action':'deny'}", ", 'approval':'required'");
  EXPECT_EQ(buys(denied).claim().state.error->code, "denied");
}

AE_TEST("policy/a rule with a label applies only to jobs with that label") {
  const auto labelled = [](const Value& labels) {
    State state;
    state.plan = compiled(
        graph(kBuy, "{'tools':{'buy':{'rules':[{'action':'deny', 'label':'tier:free'}]}}}"));
    state.labels = labels;
    const auto buy = std::ranges::find(state.plan->tools, "buy", &ToolPolicy::name);
    return evaluate_policy(state, *buy, json("{}"))->action;
  };
  EXPECT_EQ(labelled(json("{'tier':'free'}")), PolicyAction::deny);
  EXPECT_EQ(labelled(json("{'tier':'paid'}")), PolicyAction::allow);
  EXPECT_EQ(labelled(json("{'other':'free'}")), PolicyAction::allow);
  EXPECT_EQ(labelled(json("{'tier':''}")), PolicyAction::allow);
  EXPECT_EQ(labelled(json("{'tier':5}")), PolicyAction::allow);
  EXPECT_EQ(labelled({}), PolicyAction::allow);
}

// agents::check_policies rejects such a rule; older logs contain plans with it.
AE_TEST("policy/a label rule without a value keeps its meaning in a stored plan") {
  const auto labelled = [](const Value& labels) {
    State state;
    state.plan =
        compiled(graph(kBuy, "{'tools':{'buy':{'rules':[{'action':'deny', 'label':'tier:'}]}}}"));
    state.labels = labels;
    const auto buy = std::ranges::find(state.plan->tools, "buy", &ToolPolicy::name);
    return evaluate_policy(state, *buy, json("{}"))->action;
  };
  EXPECT_EQ(labelled(json("{'tier':'free'}")), PolicyAction::allow);
  EXPECT_EQ(labelled(json("{'tier':''}")), PolicyAction::deny);
  EXPECT_EQ(labelled(json("{'tier':5}")), PolicyAction::deny);
  EXPECT_EQ(labelled(json("{'other':'free'}")), PolicyAction::deny);
  EXPECT_EQ(labelled({}), PolicyAction::deny);
}

AE_TEST("policy/a condition reads arguments and job, and a failing condition blocks the call") {
  const std::string of_job = ruled("{'action':'deny', 'when':'${ .job.agent == \\\"tester\\\" }'}");
  EXPECT_EQ(buys(of_job).claim().state.error->code, "denied");
  const std::string broken = ruled("{'action':'deny', 'when':'${ .args.n + \\\"x\\\" }'}");
  JobFixture job = buys(broken);
  EXPECT_EQ(job.claim().state.error->code, "expression_failed");
  EXPECT_TRUE(job.sent.empty());
}

AE_TEST("policy/a condition that reads a missing argument blocks the call") {
  const auto strict = [](std::string_view rules, std::string_view more = "") {
    return "{'conditions':'strict', " + ruled(rules, more).substr(1);
  };
  const auto ends = [](const std::string& more, std::string_view input = "{'n':250}") {
    JobFixture job = buys(more, input);
    job.claim();
    expect_verified(job);
    if (!job.sent.empty()) return std::string("sent");
    return job.state.error ? job.state.error->code : std::string(job.status());
  };
  // Misspelt or null: it neither holds nor fails to hold.
  for (const char* action : {"deny", "require_approval", "allow"}) {
    const std::string rule =
        "{'action':'" + std::string(action) + "', 'when':'${ .args.nn > 500 }'}";
    EXPECT_EQ(ends(strict(rule)), "expression_failed") << action;
    EXPECT_EQ(ends(ruled(rule)), "sent") << "a plan without strict conditions keeps its behavior";
  }
  const std::string over = "{'action':'deny', 'when':'${ .args.n > 500 }'}";
  EXPECT_EQ(ends(strict(over), "{'n':null}"), "expression_failed");
  EXPECT_EQ(ends(strict(over)), "sent");
  EXPECT_EQ(ends(strict(over), "{'n':501}"), "denied");
  EXPECT_EQ(ends(strict("{'action':'allow'}", ", 'approval':'${ .args.nn > 500 }'")),
            "expression_failed");
  // The expression names an alternative.
  EXPECT_EQ(ends(strict("{'action':'deny', 'when':'${ (.args.nn // 0) > 500 }'}")), "sent");
  EXPECT_EQ(ends(strict("{'action':'deny', 'when':'${ .args.nn == null }'}")), "denied");
  // A label that a job does not have is not a missing argument.
  EXPECT_EQ(ends(strict("{'action':'deny', 'when':'${ .job.labels.tier == \\\"free\\\" }'}")),
            "sent");
  EXPECT_FALSE(Plan::compile(graph(kBuy, "{'conditions':'lax', 'tools':{'buy':{}}}")).has_value());
}

AE_TEST("policy/a condition that compares values of different types blocks the call") {
  const auto ends = [](std::string_view conditions, const std::string& when,
                       std::string_view action, std::string_view n) {
    const std::string rule = "{'action':'" + std::string(action) + "', 'when':'${ " + when + " }'}";
    JobFixture job =
        buys(std::string(conditions) + ruled(rule).substr(1), "{'n':" + std::string(n) + "}");
    job.claim();
    expect_verified(job);
    if (!job.sent.empty()) return std::string("sent");
    return job.state.error ? job.state.error->code : std::string(job.status());
  };
  constexpr std::string_view kStrict = "{'conditions':'strict', ";
  for (const char* action : {"deny", "require_approval", "allow"}) {
    for (const char* n : {"'5'", "true", "[5]", "{}"}) {
      EXPECT_EQ(ends(kStrict, ".args.n > 1000", action, n), "expression_failed") << action << n;
      EXPECT_EQ(ends(kStrict, ".args.n < 10", action, n), "expression_failed") << action << n;
    }
    EXPECT_EQ(ends(kStrict, ".args.n == 5", action, "'5'"), "expression_failed") << action;
  }
  EXPECT_EQ(ends("{", ".args.n < 10", "deny", "'5'"), "sent")
      << "a plan without strict conditions keeps its behavior";
  EXPECT_EQ(ends(kStrict, ".args.n < 10", "deny", "5"), "denied");
  EXPECT_EQ(ends(kStrict, ".args.n < 10", "deny", "50"), "sent");
  EXPECT_EQ(ends(kStrict, ".args.n == \\\"x\\\"", "deny", "['x']"), "sent")
      << "a list differs from a string";
}

AE_TEST("policy/a condition that reads an unknown member of .job blocks the call") {
  for (const char* action : {"deny", "require_approval", "allow"}) {
    const std::string rule = "{'action':'" + std::string(action) +
                             "', 'when':'${ .job.label.tier == \\\"untrusted\\\" }'}";
    JobFixture strict = buys("{'conditions':'strict', " + ruled(rule).substr(1));
    EXPECT_EQ(strict.claim().state.error->code, "expression_failed") << action;
    EXPECT_TRUE(strict.sent.empty()) << action;
    expect_verified(strict);
    JobFixture before = buys(ruled(rule));
    EXPECT_EQ(before.claim().sent.size(), 1u)
        << "a plan without strict conditions keeps its behavior";
  }
}

AE_TEST("policy/a condition failure that quotes a long argument can be recorded") {
  std::string key = "a";
  while (key.size() < 300) key += "\xC3\xA9";
  JobFixture job =
      buys("{'conditions':'strict', " +
               ruled("{'action':'deny', 'when':'${ .args.n[.args.n.k] == 1 }'}").substr(1),
           "{'n':{'k':'" + key + "'}}");
  EXPECT_EQ(job.claim().state.error->code, "expression_failed");
  EXPECT_TRUE(job.sent.empty());
  expect_verified(job);
}

AE_TEST("policy/the expiry of a rule overrides the approval_expires of the tool") {
  const auto expires = [](std::string_view more) {
    JobFixture job(kBuy, {.more = more, .input = "{'n':1}"});
    job.claim();
    return *job.state.next_due() - job.now;
  };
  EXPECT_EQ(expires(ruled("{'action':'require_approval', 'expires':'5m'}")), 5min);
  EXPECT_EQ(expires(ruled("{'action':'require_approval', 'expires':'5m'}",
                          ", 'approval':'required', 'approval_expires':'1h'")),
            5min);
  EXPECT_EQ(expires(ruled("{'action':'require_approval'}",
                          ", 'approval':'required', 'approval_expires':'1h'")),
            1h);
}

AE_TEST("policy/map items are checked one by one, and a denied item is an ordinary failure") {
  JobFixture job =
      buys(ruled("{'action':'deny', 'when':'${ .args.n > 2 }'}"), "{}",
           "[{'id':'m', 'kind':'map', 'over':[1,2,3], 'max_parallel':3,"
           " 'on_item_error':'collect', 'do':{'tool':'buy', 'args':{'n':'${ .item }'}}}]");
  job.claim().ok("m/0", "1").ok("m/1", "2");
  EXPECT_EQ(job.status(), "completed") << job.log_text();
  EXPECT_EQ(job.state.result["m"].items()[2]["error"]["code"], "denied");
  EXPECT_EQ(job.sent.size(), 2u);
  expect_verified(job);
}

AE_TEST("policy/a node with on_error: continue continues after a denied call") {
  JobFixture job = buys(ruled("{'action':'deny'}"), "{'n':1}",
                        "[{'id':'a', 'kind':'tool', 'tool':'buy', 'on_error':'continue'}]");
  EXPECT_EQ(job.claim().status(), "completed");
  EXPECT_EQ(job.state.result["a"]["error"]["code"], "denied");
}

AE_TEST("policy/a compensation is not subject to the policies of its tool") {
  JobFixture job(
      "[{'id':'a', 'kind':'tool', 'tool':'book'},"
      " {'id':'b', 'kind':'tool', 'tool':'pay', 'needs':['a']}]",
      {.more = "{'tools':{'book':{'compensate':{'tool':'put'}},"
               " 'put':{'rules':[{'action':'deny'}]}}}"});
  job.claim().ok("a").fails("b");
  EXPECT_EQ(job.status(), "running") << job.log_text();
  EXPECT_EQ(job.sent.back().tool, "put");
}

AE_TEST("policy/a probe is not subject to the policies of its tool") {
  for (const char* action : {"deny", "require_approval"}) {
    JobFixture job("[{'id':'a', 'kind':'tool', 'tool':'buy'}]",
                   {.more = "{'tools':{'buy':{'effect':'at_most_once', 'on_in_doubt':'probe',"
                            "'probe':{'tool':'find', 'happened':'${ .result }'}},"
                            "'find':{'effect':'read', 'rules':[{'action':'" +
                            std::string(action) + "'}]}}}"});
    job.claim().after(71s).times_out("a");
    ASSERT_EQ(job.sent.back().tool, "find") << action << "\n" << job.log_text();
    job.ok("a/probe", "{'id':7}");
    EXPECT_EQ(job.status(), "completed") << action << "\n" << job.log_text();
  }
}

AE_TEST("policy/a crash at any commit denies once and requests approval once") {
  const std::string rules =
      ruled("{'action':'deny', 'when':'${ .args.n > 2 }'}, {'action':'require_approval'}");
  constexpr std::string_view kTwo =
      "[{'id':'a', 'kind':'tool', 'tool':'buy', 'args':{'n':9}, 'on_error':'continue'},"
      " {'id':'b', 'kind':'tool', 'tool':'buy', 'args':{'n':1}, 'needs':['a']}]";
  for (std::size_t crash_at = 1; crash_at < 8; ++crash_at) {
    JobFixture job = buys(rules, "{}", kTwo);
    const auto may_crash = [&] {
      if (job.commits.size() == crash_at && job.state.status == JobStatus::running) job.crash();
    };
    job.claim();
    may_crash();
    job.approve("b");
    may_crash();
    if (!job.in_flight.empty()) job.ok("b");
    EXPECT_EQ(job.status(), "completed") << job.log_text();
    std::size_t denied = 0;
    for (const auto& decision : job.all<DecisionRecorded>()) {
      denied += decision.state == "denied" ? 1 : 0;
    }
    EXPECT_EQ(denied, 1u);
    EXPECT_EQ(job.count(EventType::wait_opened), 1u);
    expect_verified(job);
  }
}

AE_TEST("policy/a log with a call that the plan denies is rejected") {
  JobFixture job = buys(ruled("{'action':'allow'}"));
  job.claim();
  const Value before = job.plan->task_graph;
  const Value after = compiled(graph(kBuy, ruled("{'action':'deny'}")))->task_graph;
  const auto refused = [&](const Value& task_graph) {
    const auto plan = compiled(task_graph);
    State state;
    state.job = job.state.job;
    const PlanSource source = [&](const Value&, std::string_view) {
      auto disguised = std::make_shared<Plan>(*plan);
      disguised->hash = job.plan->hash;
      disguised->decision = job.plan->decision;
      return Result<std::shared_ptr<const Plan>>(disguised);
    };
    for (const Event& event : job.log) {
      auto applied = apply(state, event.body, event.created_at, source);
      if (!applied) return applied.error().message;
    }
    return std::string();
  };
  EXPECT_EQ(refused(before), "");
  EXPECT_NE(refused(after).find("denies"), std::string::npos);
}

AE_TEST("policy/a log that denies or requests approval for an allowed call is rejected") {
  JobFixture job = buys(ruled("{'action':'deny', 'when':'${ .args.n > 500 }'}"));
  job.claim();
  ASSERT_EQ(job.sent.size(), 1u) << job.log_text();
  const std::uint64_t begun = job.seq_of(EventType::node_started, "a");
  const Step& step = job.step("a");
  const auto error_of = [&](std::string_view state, std::string_view arguments) {
    State then = job.folded(begun);
    const Value call = Value::object({{"arguments", json(arguments)},
                                      {"arguments_hash", hash_of(arguments)},
                                      {"command_id", step.id.text},
                                      {"schema_digest", ""},
                                      {"tool", "buy"},
                                      {"tool_version", "0123456789abcdef"}});
    const DecisionRecorded decision{.decision_id = DecisionId("0123456789abcdef"),
                                    .kind = "approval",
                                    .node_id = "a",
                                    .payload = call,
                                    .state = std::string(state),
                                    .step_id = step.id};
    const auto applied = apply(then, decision, job.now, uncached_plan_source());
    return applied ? std::string() : applied.error().message;
  };
  EXPECT_NE(error_of("denied", "{'n':250}").find("no policy denies"), std::string::npos);
  EXPECT_NE(error_of("requested", "{'n':250}").find("no approval is required"), std::string::npos);
  EXPECT_EQ(error_of("denied", "{'n':501}"), "");
}

AE_TEST("policy/verify rejects a denied call with other arguments than the plan's") {
  JobFixture job = buys(ruled("{'action':'deny', 'when':'${ .args.n > 200 }'}"));
  job.claim();
  ASSERT_EQ(job.state.error->code, "denied");
  expect_verified(job);
  each<DecisionRecorded>(job.log, [](DecisionRecorded& event) {
    if (event.state != "denied") return;
    event.payload = event.payload.value.with("arguments", json("{'n':501}"))
                        .with("arguments_hash", hash_of("{'n':501}"));
  });
  const Verification proof =
      verify({.job = job.state.job, .events = job.log, .last_seq = {}, .head = {}},
             uncached_plan_source());
  EXPECT_FALSE(proof.replay.ok);
}

// ---------------------------------------------------------------- plans made by a model

constexpr std::string_view kCan = "{'tools':{'buy':{'capabilities':['net', 'payments']}}}";

AE_TEST("policy/a plan made by a model may call only tools whose capabilities are granted") {
  const auto run = [](std::string_view planned_by, std::string_view grants) {
    const std::string more =
        "{'grants':" + std::string(grants) + ", " + std::string(kCan.substr(1));
    JobFixture job(kBuy, {.more = more, .input = "{'n':1}", .planned_by = planned_by});
    job.claim();
    if (!job.in_flight.empty()) job.ok("a");
    expect_verified(job);
    return std::string(job.status()) + (job.state.error ? ": " + job.state.error->message : "");
  };
  EXPECT_EQ(run("file", "[]"), "completed") << "a plan from a file";
  EXPECT_EQ(run("model:main", "['payments', 'net']"), "completed");
  for (const std::string_view grants : {"[]", "['net']", "['net', 'pay']"}) {
    const std::string outcome = run("model:main", grants);
    EXPECT_TRUE(outcome.starts_with("failed: ")) << grants;
    EXPECT_NE(
        outcome.find(grants == "[]" ? "does not grant it `net`" : "does not grant it `payments`"),
        std::string::npos)
        << outcome;
  }
}

AE_TEST("policy/a capability that is not granted is denied in a map too") {
  constexpr std::string_view kEach =
      "[{'id':'a', 'kind':'map', 'over':[1, 2], 'max_parallel':2,"
      "  'do':{'tool':'buy', 'args':{'n':'${ .item }'}}}]";
  JobFixture job(kEach, {.more = kCan, .planned_by = "model:main"});
  job.claim();
  EXPECT_EQ(job.status(), "failed") << job.log_text();
  EXPECT_EQ(job.state.error->code, "denied");
  EXPECT_EQ(job.count(EventType::tool_invocation_started), 0u);
  expect_verified(job);
}

AE_TEST("policy/an approval does not replace a grant; tools without capabilities need none") {
  const std::string tools =
      "{'tools':{'buy':{'approval':'required'}, 'wire':{'capabilities':['net']}}}";
  constexpr std::string_view kTwo =
      "[{'id':'a', 'kind':'tool', 'tool':'buy', 'args':{'n':1}},"
      " {'id':'b', 'kind':'tool', 'tool':'wire', 'needs':['a'], 'on_error':'continue'}]";
  JobFixture job(kTwo, {.more = tools, .planned_by = "model:main"});
  job.claim().approve("a");
  EXPECT_EQ(job.in_flight.size(), 1u) << job.log_text();
  job.ok("a");
  EXPECT_EQ(job.status(), "completed");
  EXPECT_EQ(job.count(EventType::wait_opened), 1u);
  EXPECT_EQ(job.count(EventType::tool_invocation_started), 1u);
  expect_verified(job);
}

AE_TEST("policy/a log in which a model's plan uses a capability without a grant is rejected") {
  JobFixture job(kBuy, {.more = kCan, .input = "{'n':1}"});
  job.claim().ok("a");
  const auto refused = [&](std::string_view planned_by) {
    State state;
    state.job = job.state.job;
    for (const Event& event : job.log) {
      EventBody draft = event.body;
      if (auto* plan = std::get_if<PlanGenerated>(&draft)) plan->planned_by = planned_by;
      auto applied = apply(state, draft, event.created_at, uncached_plan_source());
      if (!applied) return applied.error().message;
    }
    return std::string();
  };
  EXPECT_EQ(refused("file"), "");
  EXPECT_NE(refused("model:main").find("denies"), std::string::npos);
}

// ---------------------------------------------------------------- loops

constexpr std::string_view kLoopRules =
    "{'tools': {'model:main': {'effect': 'read', 'provider': 'openai'},"
    " 'refund': {'effect': 'idempotent', 'approval': 'required'},"
    " 'book': {}, 'exact': {},"
    " 'put': {'rules': [{'action': 'deny', 'when': '${ .args.v > 10 }', 'reason': 'too much'}]}}}";

AE_TEST("policy/a model receives the denial of its call and continues") {
  JobFixture job = loop_job("", {.more = kLoopRules});
  job.claim().ok("chat/0",
                 tool_calls_answer({{"a", "put", "{'v': 11}"}, {"b", "put", "{'v': 1}"}}));
  EXPECT_EQ(job.sent.back().arguments, json("{'v': 1}"));
  job.ok("chat/0/1", "'done'");
  const Value message = last_message(job, "chat/1", 2);
  EXPECT_EQ(message["error"], Value(true));
  EXPECT_NE(message.text("content").find("\"denied\""), std::string::npos) << canonical(message);
  EXPECT_NE(message.text("content").find("too much"), std::string::npos);
  job.ok("chat/1", text_answer("Well"));
  EXPECT_EQ(job.status(), "completed") << job.log_text();
  expect_verified(job);
}

AE_TEST("policy/a model receives the edited arguments of its call") {
  JobFixture job = loop_job("", {.more = kLoopRules});
  job.claim().ok("chat/0", tool_calls_answer({{"a", "refund", "{'amount': 500}"}}));
  edit(job, job.open_request_id("chat/0/0"), "{'amount': 50}");
  EXPECT_EQ(job.sent.back().arguments, json("{'amount': 50}"));
  job.ok("chat/0/0", "'paid'");
  EXPECT_EQ(last_message(job, "chat/1").text("content"),
            R"({"edited_arguments":{"amount":50},"result":"paid"})");
  job.crash();
  EXPECT_EQ(last_message(job, "chat/1").text("content"),
            R"({"edited_arguments":{"amount":50},"result":"paid"})");
  job.ok("chat/1", text_answer("Fifty"));
  EXPECT_EQ(job.status(), "completed") << job.log_text();
  expect_verified(job);
}

// ---------------------------------------------------------------- edit and approve

constexpr std::string_view kAsked =
    "{'tools':{'buy':{'approval':'required', 'approval_expires':'1h', 'args_schema':"
    "{'type':'object', 'properties':{'n':{'type':'integer'}}},"
    " 'rules':[{'action':'deny', 'when':'${ .args.n > 1000 }', 'reason':'far too much'}]}}}";

AE_TEST("edit/the edited arguments are sent under their own keys") {
  JobFixture job = buys(kAsked);
  job.claim();
  const std::size_t before = job.log.size();
  edit(job, job.open_request_id("a"), "{'n':100}");
  EXPECT_EQ(job.reply["outcome"], "edited");
  const auto decided = std::get<DecisionRecorded>(job.log[before].body);
  EXPECT_EQ(decided.state, "edited");
  EXPECT_EQ(decided.by, "ann");
  EXPECT_EQ(decided.payload.value["arguments"], json("{'n':100}"));
  EXPECT_EQ(decided.payload.value["arguments_hash"], hash_of("{'n':100}"));
  EXPECT_EQ(decided.payload.value["edited_from"], hash_of("{'n':250}"));
  EXPECT_EQ(std::get<WaitCompleted>(job.log[before + 1].body).outcome, "edited");
  ASSERT_EQ(job.sent.size(), 1u);
  EXPECT_EQ(job.sent[0].arguments, json("{'n':100}"));
  const auto started = job.last<ToolInvocationStarted>();
  EXPECT_EQ(to_hex(started.arguments_hash), hash_of("{'n':100}"));
  const StepId step = job.step("a").id;
  EXPECT_EQ(started.idempotency_key.text,
            idempotency_key(job.state.job, step, "buy", canonical(json("{'n':100}")), kBlind).text);
  EXPECT_EQ(job.ok("a").status(), "completed");
  expect_verified(job);
}

AE_TEST("edit/unchanged arguments count as a plain approval") {
  JobFixture job = buys(kAsked);
  job.claim();
  edit(job, job.open_request_id("a"), "{'n':250}");
  EXPECT_EQ(job.reply["outcome"], "approved");
  EXPECT_EQ(job.sent.size(), 1u);
}

AE_TEST("edit/an edit that the schema or a policy rejects leaves the request open") {
  JobFixture job = buys(kAsked);
  job.claim();
  const std::string id = job.open_request_id("a");
  edit(job, id, "{'n':'many'}");
  EXPECT_EQ(job.refused, Code::input_invalid);
  edit(job, id, "{'n':2000}");
  EXPECT_EQ(job.refused, Code::denied);
  edit(job, id, "[1]");
  EXPECT_EQ(job.refused, Code::input_invalid);
  edit(job, id, "{'n':1}", "reject");
  EXPECT_EQ(job.refused, Code::input_invalid);
  job.send_request(
      {.body = SignalRequest{.approval = id,
                             .payload = json("{'decision':'approve', 'arguments':{'n':1}}")}});
  EXPECT_EQ(job.refused, Code::input_invalid) << "never approved without the edit";
  EXPECT_TRUE(job.sent.empty());
  EXPECT_EQ(job.open_request_id("a"), id);
  EXPECT_EQ(job.approve("a").sent.size(), 1u);
}

AE_TEST("edit/an answer to the arguments before an edit is rejected, and nothing is sent") {
  JobFixture job = buys(kAsked);
  job.claim();
  const std::string id = job.open_request_id("a");
  edit(job, id, "{'n':100}");
  job.answer_approval(id, "approve");
  EXPECT_EQ(job.refused, Code::approval_edited);
  job.answer_approval(id, "reject");
  EXPECT_EQ(job.refused, Code::approval_edited);
  edit(job, id, "{'n':101}");
  EXPECT_EQ(job.refused, Code::approval_edited);
  edit(job, id, "{'n':100}");
  EXPECT_EQ(job.reply["duplicate"], Value(true));
  EXPECT_EQ(job.reply["applied"], Value(true));
  EXPECT_EQ(job.sent.size(), 1u);
}

AE_TEST("edit/an edit after a plain approval is reported as not applied") {
  JobFixture job = buys(kAsked);
  job.claim();
  const std::string id = job.open_request_id("a");
  job.approve("a");
  edit(job, id, "{'n':100}");
  EXPECT_EQ(job.reply["duplicate"], Value(true));
  EXPECT_EQ(job.reply["applied"], Value(false));
  EXPECT_EQ(job.reply["outcome"], "approved");
  EXPECT_EQ(job.sent[0].arguments, json("{'n':250}"));
}

AE_TEST("edit/an edit that expired before the call is requested again as edited") {
  JobFixture job = buys(kAsked);
  job.claim().pause();
  edit(job, job.open_request_id("a"), "{'n':100}");
  job.after(2h).resume();
  EXPECT_EQ(job.status(), "waiting") << job.log_text();
  EXPECT_TRUE(job.sent.empty());
  EXPECT_EQ(approvals_view(job.state)[0]["arguments"], json("{'n':100}"));
  job.approve("a");
  EXPECT_EQ(job.sent[0].arguments, json("{'n':100}"));
  EXPECT_EQ(job.ok("a").status(), "completed");
  expect_verified(job);
}

AE_TEST("edit/a call that was already sent keeps its arguments") {
  JobFixture job = buys("{'tools':{'buy':{'approval':'required', 'retry':{'max_attempts':3}}}}");
  job.claim().approve("a").fails("a", "connect");
  job.versions.assign(job.plan->tools.size(), "fedcba9876543210");
  job.after(20s);
  const auto approvals = approvals_view(job.state);
  ASSERT_EQ(approvals.size(), 1u) << job.log_text();
  EXPECT_EQ(approvals[0]["editable"], Value(false));
  edit(job, job.open_request_id("a"), "{'n':1}");
  EXPECT_EQ(job.refused, Code::input_invalid);
}

AE_TEST("edit/a crash at any commit sends the edited arguments under one key") {
  for (std::size_t crash_at = 1; crash_at < 8; ++crash_at) {
    JobFixture job = buys(kAsked);
    const auto may_crash = [&] {
      if (job.commits.size() == crash_at && job.state.status == JobStatus::running) job.crash();
    };
    job.claim();
    may_crash();
    edit(job, job.open_request_id("a"), "{'n':100}");
    may_crash();
    if (!job.in_flight.empty()) job.ok("a");
    EXPECT_EQ(job.status(), "completed") << job.log_text();
    std::set<std::string> keys;
    for (const auto& sent : job.sent) {
      keys.insert(sent.key);
      EXPECT_EQ(sent.arguments, json("{'n':100}"));
    }
    EXPECT_EQ(keys.size(), 1u);
  }
}

AE_TEST("edit/a log that sends other arguments than the edited ones is rejected") {
  JobFixture job = buys(kAsked);
  job.claim();
  edit(job, job.open_request_id("a"), "{'n':100}");
  const auto error_of_log = [&](const std::vector<Event>& log) {
    State state;
    state.job = job.state.job;
    for (const Event& event : log) {
      auto applied = apply(state, event.body, event.created_at, uncached_plan_source());
      if (!applied) return applied.error().message;
    }
    return std::string();
  };
  const auto with_edit = [&](const auto& change) {
    std::vector<Event> log = job.log;
    each<DecisionRecorded>(log, [&](DecisionRecorded& event) {
      if (event.state == "edited") event.payload = change(event.payload.value);
    });
    return error_of_log(log);
  };
  EXPECT_EQ(with_edit([](const Value& call) { return call; }), "");
  EXPECT_NE(with_edit([](const Value& call) { return call.with("arguments", json("{'n':99}")); }),
            "");
  EXPECT_NE(with_edit([](const Value& call) {
              return call.with("arguments", json("{'n':2000}"))
                  .with("arguments_hash", hash_of("{'n':2000}"));
            }),
            "")
      << "an edit that a policy denies";
  std::vector<Event> other = job.log;
  each<ToolInvocationStarted>(other, [](ToolInvocationStarted& call) {
    call.arguments = json("{'n':250}");
    call.arguments_hash = *hash_from_hex(hash_of("{'n':250}"));
  });
  EXPECT_NE(error_of_log(other), "");
}

AE_TEST("edit/the stored request has the edit in its own member, not in the payload") {
  const ControlRequest request{.body = SignalRequest{.approval = "0123456789abcdef",
                                                     .arguments = json("{'n':1}"),
                                                     .payload = json("{'decision':'approve'}")}};
  const Value stored = request.to_json();
  EXPECT_NE(stored.find("arguments"), nullptr)
      << "a separate member, which an older program rejects";
  EXPECT_EQ(stored["payload"].find("arguments"), nullptr);
  const auto read = ControlRequest::from_json(stored);
  ASSERT_TRUE(read && read->is<SignalRequest>());
  EXPECT_EQ(read->as<SignalRequest>()->arguments, json("{'n':1}"));
}

AE_TEST("edit/a checkpoint keeps the edit of a call") {
  JobFixture job = loop_job("", {.more = kLoopRules});
  job.claim().ok("chat/0", tool_calls_answer({{"a", "refund", "{'amount': 500}"}}));
  edit(job, job.open_request_id("chat/0/0"), "{'amount': 50}");
  job.ok("chat/0/0", "'paid'");
  for (std::size_t at = 2; at <= job.log.size(); ++at) {
    const std::string bytes = checkpoint(job.folded(at), {});
    auto restored = restore(job.state.job, at, bytes, uncached_plan_source());
    ASSERT_TRUE(restored) << at;
    State state = std::move(restored->state);
    for (std::size_t i = at; i < job.log.size(); ++i) {
      const Event& event = job.log[i];
      ASSERT_TRUE(apply(state, event.body, event.created_at, uncached_plan_source()));
    }
    EXPECT_EQ(state_view(state), state_view(job.state)) << at;
    ASSERT_TRUE(state.steps[0].loop->turns[0].calls[0].edited.has_value()) << at;
  }
}

// ---------------------------------------------------------------- plan validation

AE_TEST("policy/a plan with invalid rules is rejected") {
  for (const char* rules :
       {"[]", "[{}]", "[{'action':'ask'}]", "[{'action':'deny', 'when':'true'}]",
        "[{'action':'deny', 'when':'${ .input.x }'}]",
        "[{'action':'deny', 'when':'${ .steps.a }'}]", "[{'action':'deny', 'label':'tier'}]",
        "[{'action':'deny', 'label':':x'}]", "[{'action':'deny', 'expires':'1h'}]",
        "[{'action':'deny', 'else':1}]", "[{'action':'deny', 'reason':5}]"}) {
    const auto plan =
        Plan::compile(graph(kBuy, "{'tools':{'buy':{'rules':" + std::string(rules) + "}}}"));
    EXPECT_FALSE(plan.has_value()) << rules;
  }
  const auto labelled = [](std::size_t name, std::size_t value) {
    const std::string label = std::string(name, 'n') + ":" + std::string(value, 'v');
    return Plan::compile(
        graph(kBuy, "{'tools':{'buy':{'rules':[{'action':'deny', 'label':'" + label + "'}]}}}"));
  };
  EXPECT_TRUE(labelled(kPolicyLabelMax, kPolicyLabelMax).has_value());
  EXPECT_FALSE(labelled(kPolicyLabelMax + 1, 1).has_value()) << "no agents file can contain it";
  EXPECT_FALSE(labelled(1, kPolicyLabelMax + 1).has_value());
  EXPECT_FALSE(Plan::compile(graph(kBuy, "{'grants':'all', 'tools':{'buy':{}}}")).has_value());
  EXPECT_FALSE(Plan::compile(graph(kBuy, "{'tools':{'buy':{'capabilities':[5]}}}")).has_value());
}

}  // namespace
}  // namespace ae::engine::testing
