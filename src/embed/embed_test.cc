// The library: agents in this process, with a real store and real threads.
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <string>
#include <thread>

#include <aetheris/aetheris.h>

namespace aetheris {
namespace {

using namespace std::chrono_literals;

class Embed : public ::testing::Test {
 protected:
  Embed()
      : folder_(std::filesystem::temp_directory_path() /
                (std::string("aetheris-embed-") +
                 ::testing::UnitTest::GetInstance()->current_test_info()->name())) {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  ~Embed() override { std::filesystem::remove_all(folder_); }

  Result<std::unique_ptr<Aetheris>> open(std::vector<Agent> agents, std::vector<Tool> tools = {}) {
    return Aetheris::open({.store = "sqlite:" + (folder_ / "store.db").string(),
                           .agents = std::move(agents),
                           .tools = std::move(tools)});
  }

  const std::filesystem::path folder_;
};

std::string text(const Error& error) { return error.code + ": " + error.message; }

TEST_F(Embed, an_agent_runs_its_functions_and_returns_a_result) {
  std::atomic<int> calls = 0;
  auto runtime = open(
      {{.name = "adder", .body = [&](Context& ctx, const Value& input) -> Result<Value> {
          AETHERIS_ASSIGN(const Value once,
                          ctx.run("add", Effect::read, input,
                                  [&](const Value& args, Call&) -> std::expected<Value, Failure> {
                                    ++calls;
                                    return Value(args["n"].as_int() + 1);
                                  }));
          AETHERIS_TRY(ctx.sleep(1ms));
          return ctx.run("add", Effect::idempotent, Value::object({{"n", once}}),
                         [&](const Value& args, Call& call) -> std::expected<Value, Failure> {
                           ++calls;
                           EXPECT_FALSE(call.key().empty());
                           return Value(args["n"].as_int() + 1);
                         });
        }}});
  ASSERT_TRUE(runtime) << text(runtime.error());
  const auto result = (*runtime)->run("adder", Value::object({{"n", 1}}));
  ASSERT_TRUE(result) << text(result.error());
  EXPECT_EQ(*result, Value(3));
  EXPECT_EQ(calls, 2);
}

TEST_F(Embed, a_failure_of_an_agent_is_the_failure_of_its_job) {
  auto runtime = open({{.name = "broken", .body = [](Context&, const Value&) -> Result<Value> {
                          return std::unexpected(Error{"tests_failed", "3 tests failed"});
                        }}});
  ASSERT_TRUE(runtime) << text(runtime.error());
  const auto result = (*runtime)->run("broken", {});
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code, "tests_failed");
  EXPECT_EQ(result.error().message, "3 tests failed");
}

TEST_F(Embed, a_second_process_goes_on_where_the_first_one_stopped) {
  std::atomic<int> calls = 0;
  const auto agent = [&] {
    return Agent{.name = "waits", .body = [&](Context& ctx, const Value&) -> Result<Value> {
                   AETHERIS_TRY(ctx.run("count", Effect::at_most_once, Value::Object(),
                                        [&](const Value&, Call&) -> std::expected<Value, Failure> {
                                          return Value(++calls);
                                        }));
                   AETHERIS_ASSIGN(const Value payload, ctx.signal({.key = "go"}));
                   return payload;
                 }};
  };
  std::string job;
  {
    auto runtime = open({agent()});
    ASSERT_TRUE(runtime) << text(runtime.error());
    const auto started = (*runtime)->start("waits", {}, {.id = "job-1"});
    ASSERT_TRUE(started) << text(started.error());
    for (int i = 0; i < 500 && calls == 0; ++i) std::this_thread::sleep_for(10ms);
    EXPECT_EQ(calls, 1);
  }
  auto runtime = open({agent()});
  ASSERT_TRUE(runtime) << text(runtime.error());
  // Also before the wait is open.
  const auto sent = (*runtime)->request(
      "POST", "/api/jobs/job-1/signal",
      Value::object({{"buffer", true}, {"correlation_key", "go"}, {"payload", 7}}));
  ASSERT_TRUE(sent) << text(sent.error());
  for (int i = 0; i < 200; ++i) {
    const auto view = (*runtime)->request("GET", "/api/jobs/job-1");
    ASSERT_TRUE(view) << text(view.error());
    if (view->text("status") != "completed") {
      std::this_thread::sleep_for(20ms);
      continue;
    }
    EXPECT_EQ((*view)["result"], Value(7));
    EXPECT_EQ(calls, 1) << "the call was not made again";
    return;
  }
  FAIL() << "the job did not end";
}

TEST_F(Embed, a_request_decodes_its_path_and_its_query) {
  auto runtime = open({{.name = "waits", .body = [](Context& ctx, const Value&) -> Result<Value> {
                          return ctx.signal({.key = "go"});
                        }}});
  ASSERT_TRUE(runtime) << text(runtime.error());
  ASSERT_TRUE((*runtime)->start("waits", {}, {.id = "job:1", .labels = {{"team", "a b"}}}));
  const auto view = (*runtime)->request("GET", "/api/jobs/job%3A1");
  ASSERT_TRUE(view) << text(view.error());
  EXPECT_EQ(view->text("id"), "job:1");
  const auto found = (*runtime)->request("GET", "/api/jobs?label=team%3Da%20b");
  ASSERT_TRUE(found) << text(found.error());
  EXPECT_NE(found->to_json().find("job:1"), std::string::npos) << found->to_json();
  const auto other = (*runtime)->request("GET", "/api/jobs?label=team%3Dc");
  ASSERT_TRUE(other) << text(other.error());
  EXPECT_EQ(other->to_json().find("job:1"), std::string::npos) << other->to_json();
  EXPECT_EQ((*runtime)->request("GET", "/api/jobs/%zz").error().code, "input_invalid");
  EXPECT_EQ((*runtime)->request("GET", "api").error().code, "input_invalid");
}

// A parent that starts two children, and sends to the one that waits.
Result<Value> run_parent(Context& ctx, const Value&) {
  const Child waits = ctx.start("waits", Value::object({{"n", 1}}));
  const Child fails = ctx.start("fails", {}, {.key = "second"});
  AETHERIS_TRY(ctx.send(waits.id(), {.channel = "in"}, 41));
  AETHERIS_ASSIGN(const Value sum, waits.get());
  const Result<Value> failed = fails.get();
  AETHERIS_ASSIGN(const Value apart,
                  ctx.start("waits", Value::object({{"n", 2}}), {.detached = true}).get());
  const Status missing = ctx.send("missing", {.key = "k"}, {});
  const Status unaddressed = ctx.send("missing", {}, {});
  return Value::array({sum, failed ? "" : failed.error().code, apart.text("job").size() == 36,
                       missing ? "" : missing.error().code,
                       unaddressed ? "" : unaddressed.error().code});
}

TEST_F(Embed, a_job_starts_other_jobs_and_sends_to_them) {
  auto runtime = open(
      {{.name = "parent", .body = run_parent, .uses = {"agent:waits", "agent:fails", "job:send"}},
       {.name = "waits",
        .body = [](Context& ctx, const Value& input) -> Result<Value> {
          AETHERIS_ASSIGN(const Value more, ctx.receive("in"));
          return Value(input["n"].as_int() + more.as_int());
        }},
       {.name = "fails", .body = [](Context&, const Value&) -> Result<Value> {
          return std::unexpected(Error{"no_money", "the account is empty"});
        }}});
  ASSERT_TRUE(runtime) << text(runtime.error());
  const auto result = (*runtime)->run("parent", {}, {.id = "p"});
  ASSERT_TRUE(result) << text(result.error());
  EXPECT_EQ(result->to_json(), R"([42,"no_money",true,"not_found","input_invalid"])");
  const auto view = (*runtime)->request("GET", "/api/jobs/p");
  ASSERT_TRUE(view) << text(view.error());
  const Value& counts = (*view)["children"]["counts"];
  EXPECT_EQ(counts["completed"], Value(1)) << counts.to_json();
}

TEST_F(Embed, a_child_that_is_not_granted_is_not_started) {
  auto runtime = open({{.name = "parent", .body = [](Context& ctx, const Value&) -> Result<Value> {
                          const Child child = ctx.start("parent", {});
                          EXPECT_EQ(child.id(), "");
                          return child.get();
                        }}});
  ASSERT_TRUE(runtime) << text(runtime.error());
  const auto result = (*runtime)->run("parent", {});
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code, "tool_not_granted");
}

TEST_F(Embed, a_wrong_definition_is_rejected_with_its_place) {
  const auto runtime =
      open({{.name = "agent",
             .body = [](Context&, const Value&) -> Result<Value> { return Value(); },
             .uses = {"nothing_like_this"}}});
  ASSERT_FALSE(runtime);
  EXPECT_EQ(runtime.error().code, "plan_invalid");
  EXPECT_NE(runtime.error().message.find("nothing_like_this"), std::string::npos)
      << runtime.error().message;
}

}  // namespace
}  // namespace aetheris
