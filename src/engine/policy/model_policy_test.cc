// Policies for plans and calls of models: grants, denials and edited arguments.
#include <fmt/core.h>

#include <string>
#include <string_view>
#include <variant>

#include "engine/fixtures/job_fixture_test.h"
#include "engine/loop/loop_fixture_test.h"
#include "engine/policy/policy_fixture_test.h"
#include "testing/test.h"

namespace ae::engine::testing {
namespace {

constexpr std::string_view kCan = "{'tools':{'buy':{'capabilities':['net', 'payments']}}}";

AE_TEST("policy/a plan made by a model may call only tools whose capabilities are granted") {
  const auto run = [](std::string_view planned_by, std::string_view grants) {
    const std::string more = fmt::format("{{'grants':{}, {}", grants, kCan.substr(1));
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
      if (auto* plan = std::get_if<PlanGenerated>(&draft))
        plan->planned_by = std::string(planned_by);
      auto applied = apply(state, draft, event.created_at, uncached_plan_source());
      if (!applied) return applied.error().message;
    }
    return std::string();
  };
  EXPECT_EQ(refused("file"), "");
  EXPECT_NE(refused("model:main").find("denies"), std::string::npos);
}

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

}  // namespace
}  // namespace ae::engine::testing
