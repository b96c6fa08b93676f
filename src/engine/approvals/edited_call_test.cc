// Calls that are approved with edited arguments.
#include <chrono>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/hash.h"
#include "engine/approvals/edited_call.h"
#include "engine/fixtures/job_fixture_test.h"
#include "engine/loop/loop_fixture_test.h"
#include "engine/policy/policy_fixture_test.h"
#include "engine/state/checkpoint.h"
#include "inspect/view.h"
#include "testing/test.h"

namespace ae::engine::testing {
namespace {

constexpr std::string_view kRequested =
    "{'tools':{'buy':{'approval':'required', 'approval_expires':'1h', 'args_schema':"
    "{'type':'object', 'properties':{'n':{'type':'integer'}}},"
    " 'rules':[{'action':'deny', 'when':'${ .args.n > 1000 }', 'reason':'far too much'}]}}}";

AE_TEST("edit/the edited arguments are sent under their own keys") {
  JobFixture job = buys(kRequested);
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
  JobFixture job = buys(kRequested);
  job.claim();
  edit(job, job.open_request_id("a"), "{'n':250}");
  EXPECT_EQ(job.reply["outcome"], "approved");
  EXPECT_EQ(job.sent.size(), 1u);
}

AE_TEST("edit/an edit that the schema or a policy rejects leaves the request open") {
  JobFixture job = buys(kRequested);
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
  job.signal("approval/" + job.step("a").id.text, "{'decision':'approve', 'arguments':{'n':1}}");
  EXPECT_EQ(job.refused, Code::input_invalid) << "never approved without the edit";
  EXPECT_TRUE(job.sent.empty());
  EXPECT_EQ(job.open_request_id("a"), id);
  EXPECT_EQ(job.approve("a").sent.size(), 1u);
}

AE_TEST("edit/the check of arguments reports all faults, and the verdict of the policies") {
  JobFixture job = buys(kRequested);
  job.claim();
  const std::size_t before = job.log.size();
  const auto check = [&](std::string_view arguments) {
    return check_edited_call(job.state, job.step("a"), json(arguments));
  };
  const EditedCall good = check("{'n':100}");
  EXPECT_TRUE(good.faults.empty() && good.changed);
  EXPECT_EQ(good.arguments_hash, hash_of("{'n':100}"));
  EXPECT_EQ(good.verdict, PolicyAction::require_approval);
  const EditedCall same = check("{'n':250}");
  EXPECT_TRUE(same.faults.empty() && !same.changed);
  const EditedCall mistyped = check("{'n':'many'}");
  ASSERT_EQ(mistyped.faults.size(), 1u);
  EXPECT_EQ(mistyped.faults[0].path, "/n");
  EXPECT_EQ(mistyped.faults[0].error.code, Code::input_invalid);
  EXPECT_FALSE(mistyped.verdict);
  const EditedCall denied = check("{'n':2000}");
  ASSERT_EQ(denied.faults.size(), 1u);
  EXPECT_EQ(denied.faults[0].error.code, Code::denied);
  EXPECT_EQ(denied.verdict, PolicyAction::deny);
  EXPECT_EQ(check("[1]").arguments_hash, "");
  EXPECT_EQ(job.log.size(), before);
}

AE_TEST("edit/an answer to the arguments before an edit is rejected, and nothing is sent") {
  JobFixture job = buys(kRequested);
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
  JobFixture job = buys(kRequested);
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
  JobFixture job = buys(kRequested);
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
    JobFixture job = buys(kRequested);
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
  JobFixture job = buys(kRequested);
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
  const ControlRequest request{.body = ApproveRequest{.approval_id = "0123456789abcdef",
                                                      .decision = "approve",
                                                      .arguments = json("{'n':1}")}};
  const Value stored = request.to_json();
  EXPECT_NE(stored.find("arguments"), nullptr)
      << "a separate member, which an older program rejects";
  EXPECT_EQ(stored["payload"].find("arguments"), nullptr);
  const auto read = ControlRequest::from_json(stored);
  ASSERT_TRUE(read && read->is<ApproveRequest>());
  EXPECT_EQ(read->as<ApproveRequest>()->arguments, json("{'n':1}"));
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

}  // namespace
}  // namespace ae::engine::testing
