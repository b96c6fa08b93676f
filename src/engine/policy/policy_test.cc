// Policies of a plan: allow, require approval, deny.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/fixtures/job_fixture_test.h"
#include "engine/loop/loop_fixture_test.h"
#include "engine/policy/policy.h"
#include "engine/policy/policy_fixture_test.h"
#include "inspect/view.h"
#include "testing/test.h"

namespace ae::engine::testing {
namespace {

using Types = std::vector<std::string>;

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
        buys(std::string(conditions) + ruled(rule).substr(1), fmt::format("{{'n':{}}}", n));
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
    const std::string label = fmt::format("{}:{}", std::string(name, 'n'), std::string(value, 'v'));
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
