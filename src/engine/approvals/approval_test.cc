// Approval of a call: nothing is declared before exactly this call is
// approved; and races for a wait.
#include <fmt/core.h>

#include <algorithm>
#include <numeric>

#include "engine/fixtures/job_fixture_test.h"
#include "inspect/verify.h"
#include "inspect/view.h"
#include "testing/test.h"

namespace ae::engine::testing {
namespace {

using Types = std::vector<std::string>;

constexpr std::string_view kPay =
    "[{'id':'a', 'kind':'tool', 'tool':'buy', 'args':{'n':'${ .input.n }'}}]";
constexpr std::string_view kAlways =
    "{'tools':{'buy':{'effect':'at_most_once',"
    " 'on_in_doubt':'park', 'approval':'required'}}}";
constexpr std::string_view kExpires =
    "{'tools':{'buy':{'approval':'required', 'approval_expires':'1h'}}}";

JobFixture pay(std::string_view more = kAlways, std::string_view nodes = kPay) {
  return JobFixture(nodes, {.more = more, .input = "{'n':250}"});
}

AE_TEST("approval/an approval is requested in one commit, and no call is declared") {
  JobFixture job = pay();
  job.claim();
  EXPECT_EQ(job.status(), "waiting");
  EXPECT_EQ(job.types("a"),
            (Types{"node_started", "decision_recorded", "wait_opened", "job_waiting"}));
  EXPECT_TRUE(job.sent.empty());
  const auto approval = job.last<DecisionRecorded>();
  EXPECT_EQ(approval.kind, "approval");
  EXPECT_EQ(approval.state, "requested");
  EXPECT_EQ(approval.payload.value["tool"], "buy");
  EXPECT_EQ(approval.payload.value["arguments"], json("{'n':250}"));
  EXPECT_EQ(approval.payload.value["command_id"], job.step("a").id.text);
  const auto wait = job.last<WaitOpened>();
  EXPECT_EQ(wait.wait_type, "human");
  EXPECT_EQ(wait.correlation_key, "approval/" + job.step("a").id.text);
  const auto listed = approvals_view(job.state);
  ASSERT_EQ(listed.size(), 1u);
  EXPECT_EQ(listed[0]["kind"], "call");
  EXPECT_EQ(listed[0]["arguments"], json("{'n':250}"));
  EXPECT_EQ(listed[0]["arguments_hash"], approval.payload.value["arguments_hash"]);
}

AE_TEST("approval/an approval permits exactly one call, which refers to it") {
  JobFixture job = pay();
  job.claim();
  const std::string id = job.open_request_id("a");
  const std::size_t before = job.log.size();
  job.approve("a");
  const auto& decided = std::get<DecisionRecorded>(job.log[before].body);
  EXPECT_EQ(decided.state, "approved");
  EXPECT_EQ(decided.by, "ann");
  EXPECT_EQ(std::get<WaitCompleted>(job.log[before + 1].body).outcome, "approved");
  ASSERT_EQ(job.sent.size(), 1u);
  const auto started = job.last<ToolInvocationStarted>();
  EXPECT_EQ(started.approval_id, id);
  EXPECT_EQ(started.arguments.value, json("{'n':250}"));
  EXPECT_TRUE(approvals_view(job.state).empty());
  EXPECT_EQ(job.ok("a").status(), "completed");
  VerifyInput input;
  input.job = job.state.job;
  input.events = job.log;
  const Verification proved = verify(input, uncached_plan_source());
  EXPECT_TRUE(proved.ok) << canonical(proved.to_json());
}

AE_TEST("approval/a rejection fails the node, and no call is declared") {
  JobFixture job = pay();
  job.claim().reject("a");
  EXPECT_EQ(job.status(), "failed");
  EXPECT_EQ(job.state.error->code, "rejected");
  EXPECT_NE(job.state.error->message.find("ann"), std::string::npos);
  EXPECT_EQ(job.count(EventType::tool_invocation_started), 0u);
  EXPECT_EQ(job.count(EventType::command_emitted), 0u);
}

AE_TEST("approval/the reply to a rejection states what the job does next") {
  const auto then = [](JobFixture job, std::string_view node) {
    return std::string(job.claim().reject(node).reply.text("then"));
  };
  EXPECT_EQ(then(pay(), "a"), "the job fails at node a");
  EXPECT_EQ(
      then(pay(kAlways, "[{'id':'a','kind':'tool','tool':'buy','on_error':'continue'}]"), "a"),
      "node a fails and the job continues");
  const char* const kMap =
      "[{'id':'m', 'kind':'map', 'over':[1], 'max_parallel':1, %'do':{'tool':'buy'}}]";
  const auto map = [&](std::string_view more) {
    return pay(kAlways, std::string(kMap).replace(std::string_view(kMap).find('%'), 1, more));
  };
  EXPECT_EQ(then(map(""), "m/0"), "the job fails at node m");
  EXPECT_EQ(then(map("'on_item_error':'collect',"), "m/0"),
            "item 0 of node m fails and the job continues");
  const auto wait = [](std::string_view more) {
    return JobFixture(std::string("[{'id':'w','kind':'wait','wait':{'type':'human'") +
                      std::string(more) + "}}]");
  };
  EXPECT_EQ(then(wait(""), "w"), "the job fails at node w");
  EXPECT_EQ(then(wait(",'on_reject':'continue'"), "w"), "the job continues after node w");
  JobFixture approved = pay();
  EXPECT_EQ(approved.claim().approve("a").reply.find("then"), nullptr);
}

AE_TEST("approval/an unanswered request expires, and no call is declared") {
  JobFixture job = pay(kExpires);
  job.claim().after(2h);
  EXPECT_EQ(job.state.error->code, "wait_expired");
  EXPECT_EQ(job.count(EventType::tool_invocation_started), 0u);
}

AE_TEST("approval/an approval that expires before its call is declared is requested again") {
  JobFixture job = pay(kExpires);
  job.claim().pause();
  const std::string first = job.open_request_id("a");
  job.approve("a");
  EXPECT_EQ(job.status(), "parked");
  job.after(2h).resume();
  EXPECT_EQ(job.status(), "waiting");
  EXPECT_TRUE(job.sent.empty());
  EXPECT_NE(job.open_request_id("a"), first);
  EXPECT_TRUE(job.state.waits.contains(fmt::format("approval/{}#2", job.step("a").id.text)));
  EXPECT_EQ(job.answer_approval(first, "approve").reply["duplicate"], Value(true))
      << "an answer to the first request does not apply to the second";
  EXPECT_TRUE(job.sent.empty());
  EXPECT_EQ(job.approve("a").ok("a").status(), "completed");
}

AE_TEST("approval/after a change of the tool the approval is requested again") {
  JobFixture job = pay();
  const std::vector<std::string> usual(job.plan->tools.size(), "0123456789abcdef");
  job.versions = usual;
  job.claim().pause().approve("a");
  for (std::string& version : job.versions) version = "fedcba9876543210";
  job.resume();
  EXPECT_EQ(job.status(), "waiting");
  EXPECT_TRUE(job.sent.empty());
  EXPECT_EQ(job.last<DecisionRecorded>().payload.value["tool_version"], "fedcba9876543210");
  job.approve("a");
  EXPECT_EQ(job.last<ToolInvocationStarted>().tool_version, "fedcba9876543210");
  EXPECT_EQ(job.ok("a").status(), "completed");
}

constexpr std::string_view kRetried =
    "{'tools':{'buy':{'approval':'required', 'approval_expires':'1h',"
    " 'retry':{'max_attempts':3}}}}";

AE_TEST("approval/an approval covers all tries of its call, also after it has expired") {
  JobFixture job = pay(kRetried);
  job.claim().approve("a");
  job.fails("a", "connect").after(2h);
  EXPECT_EQ(job.tries("a"), 2u);
  const auto started = job.all<ToolInvocationStarted>();
  EXPECT_EQ(started[0].approval_id, started[1].approval_id);
  EXPECT_EQ(job.ok("a").status(), "completed");
}

AE_TEST("approval/a retry by a changed tool needs a new approval") {
  JobFixture job = pay(kRetried);
  job.claim().approve("a").fails("a", "connect");
  job.versions.assign(job.plan->tools.size(), "fedcba9876543210");
  job.after(20s);
  EXPECT_EQ(job.tries("a"), 1u);
  ASSERT_FALSE(job.open_request_id("a").empty()) << job.log_text();
  job.approve("a");
  EXPECT_EQ(job.tries("a"), 2u);
  EXPECT_EQ(job.step("a").call->counted_tries, 2u);
  EXPECT_EQ(job.ok("a").status(), "completed");
}

AE_TEST("approval/a retry by a changed tool that is rejected fails the node") {
  JobFixture job = pay(kRetried);
  job.claim().approve("a").fails("a", "connect");
  job.versions.assign(job.plan->tools.size(), "fedcba9876543210");
  job.after(20s).reject("a");
  EXPECT_EQ(job.state.error->code, "rejected");
  EXPECT_EQ(job.tries("a"), 1u);
}

AE_TEST("approval/a condition requires approval for some calls only") {
  constexpr std::string_view kLarge = "{'tools':{'buy':{'approval':'${ .args.n > 100 }'}}}";
  EXPECT_EQ(pay(kLarge).claim().status(), "waiting");
  JobFixture small(kPay, {.more = kLarge, .input = "{'n':50}"});
  EXPECT_EQ(small.claim().sent.size(), 1u);
  EXPECT_FALSE(small.last<ToolInvocationStarted>().approval_id);
  JobFixture broken(kPay, {.more = "{'tools':{'buy':{'approval':'${ .args.n + \\\"x\\\" }'}}}",
                           .input = "{'n':50}"});
  EXPECT_EQ(broken.claim().state.error->code, "expression_failed");
  EXPECT_TRUE(broken.sent.empty()) << "a failing condition blocks the call";
}

AE_TEST("approval/the calls of a map are approved item by item") {
  JobFixture job =
      pay("{'tools':{'buy':{'approval':'${ .args.n > 1 }'}}}",
          "[{'id':'m', 'kind':'map', 'over':[1,2,3], 'max_parallel':3, 'on_item_error':'collect',"
          " 'do':{'tool':'buy', 'args':{'n':'${ .item }'}}}]");
  job.claim();
  EXPECT_EQ(job.sent.size(), 1u);
  EXPECT_EQ(approvals_view(job.state).size(), 2u);
  job.approve("m/2").reject("m/1").ok("m/0", "0").ok("m/2", "2");
  EXPECT_EQ(job.status(), "completed");
  EXPECT_EQ(job.state.result["m"].items()[2], Value(2));
  EXPECT_EQ(job.state.result["m"].items()[1]["error"]["code"], "rejected");
}

AE_TEST("approval/when an item of a map has failed, the requests of the others are withdrawn") {
  JobFixture job = pay("{'tools':{'buy':{'approval':'required'}}}",
                       "[{'id':'m', 'kind':'map', 'over':[1,2,3], 'max_parallel':3,"
                       " 'do':{'tool':'buy', 'args':{'n':'${ .item }'}}}]");
  job.claim().pause().approve("m/0");
  job.reject("m/1").resume();
  EXPECT_EQ(job.status(), "failed") << job.log_text();
  EXPECT_EQ(job.state.error->code, "rejected");
  EXPECT_TRUE(job.sent.empty()) << "approved items are not called either";
  EXPECT_TRUE(job.state.waits.empty());
}

AE_TEST("approval/a crash at any commit requests once and calls once") {
  for (std::size_t crash_at = 1; crash_at < 8; ++crash_at) {
    JobFixture job = pay(kExpires);
    const auto may_crash = [&] {
      if (job.commits.size() == crash_at && job.state.status == JobStatus::running) job.crash();
    };
    job.claim();
    may_crash();
    job.approve("a");
    may_crash();
    if (!job.in_flight.empty()) job.ok("a");
    EXPECT_EQ(job.status(), "completed") << job.log_text();
    EXPECT_EQ(job.count(EventType::wait_opened), 1u);
    std::set<std::string> invocations;
    for (const auto& started : job.all<ToolInvocationStarted>()) {
      invocations.insert(started.invocation_id.text);
      EXPECT_FALSE(or_empty(started.approval_id).empty());
    }
    EXPECT_EQ(invocations.size(), 1u);
  }
}

AE_TEST("approval/admit refuses a call that differs from the approved one") {
  JobFixture job = pay(kExpires);
  job.claim();
  const std::uint32_t step = job.index_of("a");
  const Value args = json("{'n':250}"), other = json("{'n':251}");
  const auto verdict = [&](const Value& sent, std::string_view version, Duration later) {
    const Hash of = blinded_digest(kBlind, canonical(sent));
    return admit(job.state, {.step = step,
                             .tool = "buy",
                             .arguments_hash = of,
                             .arguments = &sent,
                             .tool_version = version,
                             .now = job.now + later});
  };
  EXPECT_EQ(verdict(args, "0123456789abcdef", 0s), Verdict::unapproved) << "not answered";
  job.pause().approve("a");
  EXPECT_EQ(verdict(args, "0123456789abcdef", 0s), Verdict::declare);
  EXPECT_EQ(verdict(other, "0123456789abcdef", 0s), Verdict::unapproved);
  EXPECT_EQ(verdict(args, "fedcba9876543210", 0s), Verdict::unapproved);
  EXPECT_EQ(verdict(args, "0123456789abcdef", 2h), Verdict::unapproved);
}

AE_TEST("approval/a log with a call that was not approved is rejected") {
  JobFixture job = pay();
  job.claim().approve("a");
  using Call = ToolInvocationStarted;
  const auto with = [&](const auto& change) {
    State state;
    state.job = job.state.job;
    std::vector<Event> log = job.log;
    each<Call>(log, change);
    for (const Event& event : log) {
      auto applied = apply(state, event.body, event.created_at, uncached_plan_source());
      if (!applied) return applied.error().message;
    }
    return std::string();
  };
  EXPECT_EQ(with([](Call& call) { call.try_no = 1; }), "");
  EXPECT_NE(with([](Call& call) { call.approval_id = "0123456789abcdef"; }), "");
  EXPECT_NE(with([](Call& call) { call.approval_id = ""; }), "");
  EXPECT_NE(with([](Call& call) { call.arguments_hash = sha256("other"); }), "");
  EXPECT_NE(with([](Call& call) { call.tool_version = "fedcba9876543210"; }), "");
  EXPECT_NE(with([](Call& call) { call.request_schema_hash = sha256("other"); }), "");
}

AE_TEST("approval/arguments that only look erased are checked against the approval condition") {
  constexpr std::string_view kOdd = "{'tools':{'buy':{'approval':'${ .args.n != 50 }'}}}";
  JobFixture job(kPay, {.more = kOdd, .input = "{'n':50}"});
  job.claim();
  const auto refused = [&](const Erasable& arguments) {
    std::vector<Event> log = job.log;
    each<ToolInvocationStarted>(log,
                                [&](ToolInvocationStarted& call) { call.arguments = arguments; });
    return !fold(job.state.job, log, uncached_plan_source());
  };
  const Value placeholder = erased_value().value;
  EXPECT_FALSE(refused(Value::object({{"n", 50}})));
  EXPECT_FALSE(refused(erased_value()));
  EXPECT_TRUE(refused(placeholder.with("n", 250)));
  EXPECT_TRUE(refused(placeholder));
}

AE_TEST("approval/a cancel and the deadline withdraw the request") {
  JobFixture job = pay();
  job.claim().cancel();
  EXPECT_EQ(job.status(), "cancelled");
  EXPECT_EQ(job.last<WaitCompleted>().outcome, "cancelled");
  JobFixture late(kPay, {.more = kAlways, .input = "{'n':1}", .deadline = 60s});
  late.claim().after(61s);
  EXPECT_EQ(late.state.error->code, "deadline_exceeded");
  EXPECT_TRUE(late.sent.empty());
}

AE_TEST("approval/an approved call that was lost is unknown like any other") {
  JobFixture job = pay();
  job.claim().approve("a").crash();
  EXPECT_EQ(job.status(), "parked");
  EXPECT_TRUE(approvals_view(job.state).empty()) << "a resolution is not listed as an approval";
  job.waits_for_settling = true;
  job.resolve("a", "not_happened");
  EXPECT_EQ(job.tries("a"), 2u) << "the same invocation under the same approval";
  EXPECT_EQ(job.ok("a").status(), "completed");
}

// ---------------------------------------------------------------- races

// All ways to end a wait, in every order: the first one ends it, the others change nothing.
enum WaitAction { approve, reject, expire, cancel, pause, deadline, kWaitActions };

void race(std::string_view nodes, std::string_view more, bool crash) {
  std::vector<int> order(kWaitActions);
  std::iota(order.begin(), order.end(), 0);
  do {
    JobFixture job(nodes, {.more = more, .input = "{'n':1}", .deadline = 10h});
    job.claim();
    const std::string id = job.open_request_id("a");
    ASSERT_FALSE(id.empty());
    std::string first;
    for (const int action : order) {
      const bool open = !job.state.waits.empty();
      const bool paused = job.state.is_paused();
      switch (action) {
        case approve:
          job.answer_approval(id, "approve");
          if (open) first = "approved";
          break;
        case reject:
          job.answer_approval(id, "reject");
          if (open) first = "rejected";
          break;
        case expire:
          if (job.now < *job.state.deadline - 5h) job.after(2h);
          if (open && !paused) first = "timed_out";
          break;
        case cancel:
          job.cancel();
          if (open) first = "cancelled";
          break;
        case pause:
          job.pause();
          break;
        default:
          job.after(11h);  // a deadline closes open waits, also in a pause
          if (open) first = "cancelled";
          break;
      }
      if (crash && !is_terminal(job.state.status)) {
        if (job.state.status == JobStatus::running) {
          job.crash();
        } else {
          job.reload();
        }
      }
    }
    if (!job.in_flight.empty()) job.ok("a");
    const auto ends = job.all<WaitCompleted>();
    ASSERT_EQ(ends.size(), 1u) << job.log_text();
    ASSERT_EQ(ends[0].outcome, first) << job.log_text();
    ASSERT_TRUE(first == "approved" || job.sent.empty()) << job.log_text();
    ASSERT_TRUE(is_terminal(job.state.status)) << job.log_text();
    ASSERT_EQ(state_view(job.folded(job.log.size())), state_view(job.state));
  } while (std::ranges::next_permutation(order).found);
}

AE_TEST("race/an approval of a call has one end, whatever the order of its ends") {
  race("[{'id':'a', 'kind':'tool', 'tool':'buy'}]", kExpires, false);
}

AE_TEST("race/a human wait has one end, whatever the order of its ends, despite crashes") {
  race("[{'id':'a', 'kind':'wait', 'wait':{'type':'human', 'key':'k', 'expires':'1h'}}]", "{}",
       true);
}

}  // namespace
}  // namespace ae::engine::testing
