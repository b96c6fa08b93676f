// External keys: which key each call has, in jobs of this build and of earlier ones.
#include "engine/loop/loop_fixture_test.h"

#include <fmt/core.h>

namespace ae::engine::testing {
namespace {

constexpr std::string_view kTwo = R"([{'id':'a', 'kind':'tool', 'tool':'put'},
    {'id':'b', 'kind':'tool', 'tool':'put', 'needs':['a']}])";

AE_TEST("key/another attempt at the same step has the same external key") {
  // A restored store is an earlier state of the log, from which another attempt continues.
  JobFixture first(kTwo), restored(kTwo);
  first.claim();
  restored.claim();
  restored.crash();
  ASSERT_NE(first.state.attempt, restored.state.attempt);
  first.ok("a", "1");
  restored.ok("a", "1");
  const auto before = first.last<ToolInvocationStarted>();
  EXPECT_EQ(before.node_id, "b");
  EXPECT_EQ(before.external_key, restored.last<ToolInvocationStarted>().external_key);
  EXPECT_EQ(before.external_key.text, fmt::format("aetheris:job-1:{}:0", first.step("b").id.text));
}

AE_TEST("key/a call of a model has a prefix of its idempotency key in its external key") {
  JobFixture job = loop_job();
  job.claim();
  EXPECT_EQ(job.sent.back().external_key,
            fmt::format("aetheris:job-1:{}:0", job.step("chat/0").id.text));
  job.ok("chat/0", tool_calls_answer({{"a", "put", "{'n': 1}"}}));
  const auto& sent = job.sent.back();
  EXPECT_EQ(sent.external_key, fmt::format("aetheris:job-1:{}:{}", job.step("chat/0/0").id.text,
                                           sent.key.substr(0, 16)));
}

AE_TEST("key/the external key of a compensation has a prefix of its idempotency key") {
  JobFixture job = loop_job();
  job.claim().ok("chat/0", tool_calls_answer({{"a", "book", "{'n': 1}"}})).ok("chat/0/0", "7");
  job.fails("chat/1", "connect");
  const auto undo = job.last<ToolInvocationStarted>();
  const std::string own = undo.idempotency_key.text.substr(0, 16);
  EXPECT_TRUE(undo.external_key.text.ends_with(":" + own)) << undo.external_key.text;
}

AE_TEST("key/keys of both schemas are accepted in a job begun by an earlier build") {
  JobFixture job(kTwo);
  job.claim().ok("a", "1").ok("b", "2");
  const auto folds = [&](std::string_view last, std::uint8_t schema) {
    std::vector<Event> log = job.log;
    for (Event& event : log) {
      auto* call = std::get_if<ToolInvocationStarted>(&event.body);
      if (call == nullptr || call->node_id != "a") continue;
      event.schema = schema;
      call->external_key =
          ExternalKey(fmt::format("aetheris:job-1:{}:{}", call->step_id.text, last));
    }
    return fold(job.state.job, log, uncached_plan_source()).has_value();
  };
  EXPECT_TRUE(folds(job.state.attempt.text, 1));
  EXPECT_TRUE(folds("0", 2));
  EXPECT_FALSE(folds("0", 1));
  EXPECT_FALSE(folds(job.state.attempt.text, 2));
}

}  // namespace
}  // namespace ae::engine::testing
