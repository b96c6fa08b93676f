// Loops with a budget: notices to the model, and reservations for the conversation.
#include <fmt/core.h>

#include <cstdint>
#include <string>

#include "engine/budget/budget_fixture_test.h"
#include "engine/fixtures/job_fixture_test.h"
#include "engine/loop/loop_fixture_test.h"
#include "testing/test.h"

namespace ae::engine::testing {
namespace {

std::string tool_request_with_usage(int tokens) {
  return "{'text': '', 'tool_calls': [{'id': 'a', 'name': 'look', 'arguments': {}}],"
         " 'usage': {'input_tokens': " +
         std::to_string(tokens) + ", 'output_tokens': 0}}";
}

AE_TEST("budget/the model of a loop receives one notice when its budget runs low") {
  const std::string more =
      "{'budget': {'tokens': 4000, 'soft': 50}, " + std::string(kTools.substr(1));
  JobFixture job = loop_job(", 'max_tokens': 20", {.more = more});
  job.claim().ok("chat/0", tool_request_with_usage(2000)).ok("chat/0/0", "1");
  const Value& notice = job.step("chat/1").call->arguments["notice"];
  EXPECT_EQ(notice, json("{'tokens': {'left': '2000', 'of': '4000'}}"));
  EXPECT_EQ(last_message(job, "chat/1")["role"], Value("user"));
  EXPECT_TRUE(
      last_message(job, "chat/1").text("content").starts_with("budget: 2000 of 4000 tokens left"));
  EXPECT_EQ(last_message(job, "chat/1", 2)["role"], Value("tool"));
  job.crash();
  EXPECT_EQ(last_message(job, "chat/1")["role"], Value("user"));
  job.ok("chat/1", tool_request_with_usage(500)).ok("chat/1/0", "1");
  EXPECT_EQ(job.step("chat/2").call->arguments.find("notice"), nullptr);
  const Value messages = request(job, "chat/2")["messages"];
  EXPECT_EQ(messages.size(), request(job, "chat/1")["messages"].size() + 2u);
  // After a raise it is notified again when half of the new limit is spent.
  job.raise("{'tokens': 8000}").ok("chat/2", tool_request_with_usage(3000)).ok("chat/2/0", "1");
  EXPECT_EQ(job.step("chat/3").call->arguments["notice"]["tokens"]["of"], Value("8000"));
  job.ok("chat/3", text_answer("Done"));
  EXPECT_EQ(job.status(), "completed") << job.log_text();
  expect_verified(job);
}

AE_TEST("budget/a turn reserves tokens for the whole conversation") {
  const std::string more = "{'budget': {'tokens': 100000}, " + std::string(kTools.substr(1));
  JobFixture job = loop_job(", 'max_tokens': 20", {.more = more});
  job.claim();
  const Value first = job.last<ToolInvocationStarted>().reserved.json();
  std::uint64_t bytes = 0;
  const Value model_request = request(job, "chat/0");
  for (const Value& message : model_request["messages"].items()) bytes += estimate_tokens(message);
  EXPECT_GT(first["input_tokens"].as_int(), static_cast<std::int64_t>(bytes));
  EXPECT_EQ(first["output_tokens"], Value(20));
  job.ok("chat/0", tool_request_with_usage(10))
      .ok("chat/0/0", fmt::format("'{}'", std::string(3000, 'x')));
  const Value second = job.last<ToolInvocationStarted>().reserved.json();
  EXPECT_GT(second["input_tokens"].as_int(), first["input_tokens"].as_int() + 1000);
}

AE_TEST("budget/a loop that exceeded its budget continues after a raise") {
  const std::string more = "{'budget': {'model_calls': 1}, " + std::string(kTools.substr(1));
  JobFixture job = loop_job("", {.more = more});
  job.claim().ok("chat/0", tool_calls_answer({{"a", "look"}})).ok("chat/0/0", "1");
  EXPECT_EQ(job.state.parked_until, "budget") << job.log_text();
  EXPECT_EQ(job.sent.size(), 2u);
  job.raise("{'model_calls': 2}");
  EXPECT_EQ(job.sent.size(), 3u);
  job.ok("chat/1", text_answer("Done"));
  EXPECT_EQ(job.status(), "completed");
  expect_verified(job);
}

}  // namespace
}  // namespace ae::engine::testing
