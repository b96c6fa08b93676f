// The kit for tests of agents in C++: models, crashes, and what it reports about defects of agents.
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <string>
#include <thread>

#include <aetheris/testing.h>

namespace aetheris::testing {
namespace {

using namespace std::chrono_literals;
using Performed = std::expected<Value, Failure>;

std::string shown(const Error& error) { return error.code + ": " + error.message; }

std::unique_ptr<Testing> started(Options options) {
  auto test = start(std::move(options));
  EXPECT_TRUE(test) << shown(test.error());
  return test ? *std::move(test) : nullptr;
}

Performed one(const Value&, Call&) { return Value(1); }

Agent agent_of(std::string name, std::function<Result<Value>(Context&, const Value&)> body,
               std::vector<std::string> uses = {}) {
  return {.name = std::move(name), .body = std::move(body), .uses = std::move(uses)};
}

TEST(Testing, a_job_that_sleeps_for_days_takes_no_time) {
  const auto t =
      started({.agents = {agent_of("sleeps", [](Context& ctx, const Value&) -> Result<Value> {
                 AETHERIS_TRY(ctx.sleep(std::chrono::hours(72)));
                 return ctx.run("say", Effect::read, Value::Object(), one);
               })}});
  const auto job = t->job("sleeps");
  ASSERT_TRUE(job) << shown(job.error());
  ASSERT_TRUE(t->until(*job, "waiting"));
  const auto before = t->now();
  ASSERT_TRUE(t->skip(std::chrono::hours(71)));
  EXPECT_EQ(t->until(*job, "waiting")->text("status"), "waiting");
  EXPECT_GE(*t->now() - *before, std::chrono::hours(71));
  EXPECT_TRUE(*t->skip_to_next());
  const auto result = job->result();
  ASSERT_TRUE(result) << shown(result.error());
  EXPECT_EQ(*result, Value(1));
  EXPECT_FALSE(*t->skip_to_next()) << "nothing is due";
  ASSERT_EQ(t->calls("run:read").size(), 1u);
  EXPECT_EQ(t->calls("say").at(0).result, Value(1));
}

TEST(Testing, requests_signals_and_messages_are_answered) {
  const auto t =
      started({.agents = {agent_of("asks", [](Context& ctx, const Value&) -> Result<Value> {
                 AETHERIS_ASSIGN(const Value first, ctx.signal({.key = "go"}));
                 AETHERIS_ASSIGN(const Value second, ctx.receive("in"));
                 AETHERIS_TRY(ctx.approval("Go on?"));
                 return Value::array({first, second});
               })}});
  const Job job = *t->job("asks", {}, {.id = "mine", .labels = {{"team", "a"}}});
  EXPECT_EQ(job.id(), "mine");
  const auto waits = job.result();
  ASSERT_FALSE(waits);
  EXPECT_EQ(waits.error().code, "waiting") << waits.error().message;
  ASSERT_TRUE(t->signal(job, "go", 1));
  ASSERT_TRUE(t->message(job, "in", 2));
  ASSERT_TRUE(t->approve(job, {.note = "fine"}));
  const auto result = job.result();
  ASSERT_TRUE(result) << shown(result.error());
  EXPECT_EQ(result->to_json(), "[1,2]");
  const Status again = t->approve(job);
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().code, "not_found");
  const Job rejected = *t->job("asks"), cancelled = *t->job("asks");
  ASSERT_TRUE(t->signal(rejected, "go"));
  ASSERT_TRUE(t->message(rejected, "in"));
  ASSERT_TRUE(t->reject(rejected));
  EXPECT_EQ(rejected.result().error().code, "rejected");
  ASSERT_TRUE(t->cancel(cancelled));
  EXPECT_EQ(cancelled.result().error().code, "cancelled");
  EXPECT_EQ(t->until(cancelled, "completed").error().code, "timeout");
}

TEST(Testing, a_model_gives_the_answers_of_the_test) {
  const auto ask = [](Context& ctx, const Value&) -> Result<Value> {
    const auto request = [](const Value& text) {
      return Value::object(
          {{"messages", Value::array({Value::object({{"content", text}, {"role", "user"}})})}});
    };
    AETHERIS_ASSIGN(const Value first, ctx.generate("main", request("When?")));
    AETHERIS_ASSIGN(const Value second, ctx.generate("main", request("again")));
    return Value::array({first["text"], second["text"]});
  };
  const auto t = started(
      {.agents = {agent_of("asks", ask, {"model:main"})},
       .models = {{"main", std::vector<Value>{"one", Value::object({{"status", 429}}), "two"}}}});
  const Job job = *t->job("asks");
  const auto result = job.result();
  ASSERT_TRUE(result) << shown(result.error());
  EXPECT_EQ(result->to_json(), R"(["one","two"])");
  const auto calls = t->calls("model:main");
  ASSERT_EQ(calls.size(), 3u);
  EXPECT_EQ(calls[1].failure->code, "http_429");
  EXPECT_EQ(calls[1].key, calls[2].key);
  EXPECT_EQ(calls[2].job, job.id());
  const auto again = started({.agents = {agent_of("asks", ask, {"model:main"})},
                              .models = {{"main", std::vector<Value>{"one", "two"}}}});
  const auto crashes = crash_everywhere([&] { return again->job("asks"); });
  ASSERT_TRUE(crashes) << shown(crashes.error());
  EXPECT_GE(crashes->crashes, 6u);
}

TEST(Testing, a_model_that_is_a_function_is_given_the_request) {
  const auto t = started(
      {.agents = {agent_of("asks",
                           [](Context& ctx, const Value&) {
                             return ctx.generate(
                                 "main",
                                 Value::object(
                                     {{"messages", Value::array({Value::object(
                                                       {{"content", "Hi"}, {"role", "user"}})})}}));
                           },
                           {"model:main"})},
       .models = {{"main", [](const ModelCall& call) -> Value {
                     if (call.try_no == 1) return 7;  // not an answer
                     return call.messages[std::size_t{0}].text("content");
                   }}}});
  const auto result = t->job("asks")->result();
  ASSERT_FALSE(result);
  EXPECT_NE(result.error().message.find("an answer is a text or an object"), std::string::npos)
      << shown(result.error());
}

TEST(Testing, crashes_everywhere_change_nothing) {
  const auto body = [](Context& ctx, const Value& input) -> Result<Value> {
    AETHERIS_ASSIGN(const std::vector<Value> all,
                    ctx.map("items", {1, 2, 3}, [](Context& inner, const Value& item, std::size_t) {
                      return inner.run("add", Effect::idempotent, Value::object({{"n", item}}),
                                       [](const Value& args, Call&) -> Performed {
                                         return Value(args["n"].as_int() + 1);
                                       });
                    }));
    AETHERIS_TRY(ctx.sleep(std::chrono::hours(1)));
    AETHERIS_TRY(ctx.signal({.key = "go"}));
    AETHERIS_TRY(ctx.run("tell", Effect::at_most_once, input, one));
    return Value(all);
  };
  const auto t = started({.agents = {agent_of("works", body)}});
  const Job job = *t->job("works", Value::object({{"n", 1}}));
  ASSERT_TRUE(t->signal(job, "go"));
  const auto result = job.result();
  ASSERT_TRUE(result) << shown(result.error());
  EXPECT_EQ(result->to_json(), "[2,3,4]");
  const auto crashes = crash_everywhere([&]() -> Result<Job> {
    AETHERIS_ASSIGN(Job job, t->job("works", Value::object({{"n", 1}})));
    AETHERIS_TRY(t->signal(job, "go"));
    return job;
  });
  ASSERT_TRUE(crashes) << shown(crashes.error());
  EXPECT_GE(crashes->crashes, 8u);
  EXPECT_GE(crashes->in_doubt, 1u);
}

TEST(Testing, a_result_that_is_not_recorded_is_found_by_a_crash) {
  std::atomic<int> begun = 0;
  const auto body = [&](Context& ctx, const Value&) -> Result<Value> {
    const int number = ++begun;
    AETHERIS_TRY(ctx.run("say", Effect::read, Value::Object(), one));
    begun = 0;
    return Value(number);
  };
  const auto t = started({.agents = {agent_of("counts", body)}});
  const auto crashes = crash_everywhere([&] { return t->job("counts"); });
  ASSERT_FALSE(crashes);
  EXPECT_EQ(crashes.error().code, "crash_changed_result");
  EXPECT_NE(crashes.error().message.find("a crash "), std::string::npos) << crashes.error().message;
}

TEST(Testing, a_wrong_definition_is_reported) {
  const auto wrong = start(
      {.agents = {agent_of("a", [](Context&, const Value&) -> Result<Value> { return Value(); },
                           {"nothing_like_this"})}});
  ASSERT_FALSE(wrong);
  EXPECT_EQ(wrong.error().code, "plan_invalid");
}

TEST(Testing, replay_explains_what_differs_in_the_jobs_of_a_store) {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / "aetheris-testing-replay";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  const std::string store = "sqlite:" + (folder / "store.db").string();
  const auto waits = [](std::int64_t n) {
    return agent_of("waits", [n](Context& ctx, const Value&) -> Result<Value> {
      AETHERIS_TRY(ctx.run("say", Effect::read, Value::object({{"n", n}}), one));
      return ctx.signal({.key = "go"});
    });
  };
  {
    auto runtime = Aetheris::open({.store = store, .agents = {waits(1)}});
    ASSERT_TRUE(runtime) << shown(runtime.error());
    ASSERT_TRUE((*runtime)->start("waits", {}, {.id = "job"}));
    for (int i = 0; i < 500; ++i) {
      if ((*runtime)->request("GET", "/api/jobs/job")->text("status") == "waiting") break;
      std::this_thread::sleep_for(10ms);
    }
  }
  const auto fits = replay({.store = store}, {waits(1)});
  ASSERT_TRUE(fits) << shown(fits.error());
  ASSERT_EQ(fits->size(), 1u);
  EXPECT_EQ((*fits)[0].verdict, "continues");
  EXPECT_EQ((*fits)[0].recorded_requests, 2u);
  const auto differs = replay({.store = store}, {waits(2)});
  ASSERT_FALSE(differs);
  EXPECT_EQ(differs.error().code, "replay_diverged");
  EXPECT_NE(differs.error().message.find("job job (agent waits) diverges"), std::string::npos)
      << differs.error().message;
  EXPECT_NE(differs.error().message.find("position say"), std::string::npos)
      << differs.error().message;
  EXPECT_EQ(replay({.store = store, .jobs = {"none"}}, {waits(1)}).error().code, "not_found");
  EXPECT_EQ(replay({.logs = {(folder / "none.json").string()}}, {waits(1)}).error().code, "usage");
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace aetheris::testing
