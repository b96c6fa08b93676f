// Tests of the list of events: pages, filters, and waits for the next event.
#include "api/api_fixture_test.h"

#include <stop_token>

#include "json/json.h"
#include "testing/test.h"

namespace ae::api {
namespace {

AE_TEST("api/events are listed as envelopes, in pages, by class and by type") {
  ApiFixture fixture;
  fixture.make(R"({"agent":"echo","id":"j"})");
  const auto all = fixture.get({"api", "jobs", "j", "events"}).body;
  EXPECT_TRUE(all["next"].is_null());
  const std::size_t count = all["events"].size();
  ASSERT_GT(count, 5u);
  const auto page =
      fixture.get({"api", "jobs", "j", "events"}, {{"limit", "2"}, {"after", "1"}}).body;
  EXPECT_EQ(page["events"].size(), 2u);
  EXPECT_EQ(page["next"], Value(3));
  EXPECT_EQ(canonical(page["events"].items()[0]), canonical(all["events"].items()[1]));
  const auto last =
      fixture.get({"api", "jobs", "j", "events"}, {{"after", std::to_string(count - 1)}});
  EXPECT_EQ(canonical(last.body["events"].items()[0]), canonical(all["events"].items()[count - 1]));
  const auto typed = fixture.get({"api", "jobs", "j", "events"}, {{"type", "node_finished"}}).body;
  EXPECT_EQ(typed["events"].size(), 1u);
  const auto classed =
      fixture.get({"api", "jobs", "j", "events"}, {{"class", "coordination"}}).body;
  for (const Value& event : classed["events"].items()) EXPECT_EQ(event.text("type"), "job_running");
  expect_problem(fixture.get({"api", "jobs", "j", "events"}, {{"class", "some"}}), 400,
                 "input_invalid");
}

AE_TEST("api/class=effect lists the events that record an effect, each with its kind") {
  ApiFixture fixture;
  const auto id = fixture.make(R"({"agent":"buys","input":{"n":250}})");
  const Value open = fixture.get({"api", "approvals"}).body["approvals"];
  fixture.post({"api", "approvals", std::string(open.items()[0].text("id"))},
               R"({"decision":"approve"})");
  fixture.loop.run_ready();
  ASSERT_EQ(fixture.status(id), "completed");
  const Path path{"api", "jobs", id, "events"};
  const Value all = fixture.get(path, {{"class", "effect"}}).body["events"];
  ASSERT_EQ(all.size(), 2u) << canonical(all);
  EXPECT_EQ(all.items()[0]["kind"], "human");
  EXPECT_EQ(all.items()[0]["type"], "decision_recorded");
  EXPECT_EQ(all.items()[1]["kind"], "tool");
  EXPECT_EQ(all.items()[1]["type"], "tool_invocation_finished");
  EXPECT_TRUE(all.items()[1].find("hash") != nullptr) << "the whole envelope";
  const Value page = fixture.get(path, {{"class", "effect"}, {"limit", "1"}}).body;
  EXPECT_EQ(page["events"].items()[0], all.items()[0]);
  const Value rest =
      fixture.get(path, {{"class", "effect"}, {"after", canonical(page["next"])}}).body["events"];
  ASSERT_EQ(rest.size(), 1u);
  EXPECT_EQ(rest.items()[0], all.items()[1]);
  EXPECT_EQ(fixture.get(path, {{"class", "recorded_effect"}}).body["events"].size(), 0u);
  EXPECT_EQ(fixture.get(path).body["events"].items()[0].find("kind"), nullptr);
  EXPECT_EQ(fixture.get({"api", "jobs", id, "trace"}).body["effects"].size(), 2u);
  EXPECT_EQ(fixture.get({"api", "jobs", id, "trace"}).body["drift"], Value::array({}));
}

AE_TEST("api/events with ?wait are returned at the next commit") {
  ApiFixture fixture;
  const auto id = fixture.make(R"({"agent":"asks","id":"j"})");
  const auto seen = fixture.get({"api", "jobs", id, "events"}).body["events"].size();
  std::optional<ApiResponse> received;
  ApiRequest request;
  request.path = {"api", "jobs", id, "events"};
  request.query = {{"after", std::to_string(seen)}, {"wait", "60s"}};
  fixture.api->handle(request, [&](ApiResponse response) { received = std::move(response); });
  fixture.loop.run_ready();
  EXPECT_FALSE(received);
  fixture.post({"api", "jobs", id, "signal"}, R"({"correlation_key":"go","payload":1})");
  ASSERT_TRUE(fixture.loop.run_until([&] { return received.has_value(); }));
  EXPECT_EQ(received->body["events"].items()[0].text("type"), "wait_completed");
}

AE_TEST("api/events with ?wait return an empty list at the timeout") {
  ApiFixture fixture;
  const auto id = fixture.make(R"({"agent":"asks","id":"j"})");
  const auto seen = fixture.get({"api", "jobs", id, "events"}).body["events"].size();
  std::optional<ApiResponse> received;
  ApiRequest request;
  request.path = {"api", "jobs", id, "events"};
  request.query = {{"after", std::to_string(seen)}, {"wait", "3s"}};
  fixture.api->handle(request, [&](ApiResponse response) { received = std::move(response); });
  fixture.loop.advance(std::chrono::seconds(2));
  EXPECT_FALSE(received);
  fixture.loop.advance(std::chrono::seconds(2));
  ASSERT_TRUE(received);
  EXPECT_EQ(received->status, 200);
  EXPECT_EQ(received->body["events"].size(), 0u);
}

AE_TEST("api/a list of events shows whether the job has ended, whatever its filter") {
  ApiFixture fixture;
  const auto id = fixture.make(R"({"agent":"asks","id":"j"})");
  const auto read_events = [&](QueryPairs query) {
    return fixture.get({"api", "jobs", id, "events"}, std::move(query)).body;
  };
  EXPECT_EQ(read_events({})["ended"], Value(false));
  fixture.post({"api", "jobs", id, "cancel"}, "{}");
  ASSERT_TRUE(fixture.loop.run_until([&] { return fixture.status(id) == "cancelled"; }));
  EXPECT_EQ(read_events({})["ended"], Value(true));
  const Value hidden = read_events({{"type", "progress"}, {"wait", "60s"}});
  EXPECT_EQ(hidden["ended"], Value(true));
  EXPECT_EQ(hidden["events"].size(), 0u);
}

AE_TEST("api/each of 1,200 concurrent waits lasts until its timeout") {
  ApiFixture fixture;
  const auto id = fixture.make(R"({"agent":"asks","id":"j"})");
  const auto seen = fixture.get({"api", "jobs", id, "events"}).body["events"].size();
  std::size_t answered = 0;
  constexpr std::size_t kMany = 1'200;
  for (std::size_t i = 0; i < kMany; ++i) {
    ApiRequest request;
    request.path = {"api", "jobs", id, "events"};
    request.query = {{"after", std::to_string(seen)}, {"wait", "3s"}};
    fixture.api->handle(request, [&](const ApiResponse&) { ++answered; });
  }
  fixture.loop.advance(std::chrono::milliseconds(500));
  EXPECT_EQ(answered, 0u) << "an immediate empty response is repeated at once";
  fixture.loop.advance(std::chrono::seconds(4));
  EXPECT_EQ(answered, kMany);
}

AE_TEST("api/a wait ends when its client disconnects") {
  ApiFixture fixture;
  const auto id = fixture.make(R"({"agent":"asks","id":"j"})");
  const auto seen = fixture.get({"api", "jobs", id, "events"}).body["events"].size();
  const std::stop_source disconnect;
  bool answered = false;
  ApiRequest request;
  request.path = {"api", "jobs", id, "events"};
  request.query = {{"after", std::to_string(seen)}, {"wait", "5m"}};
  request.disconnected = disconnect.get_token();
  fixture.api->handle(request, [&](const ApiResponse&) { answered = true; });
  fixture.loop.advance(std::chrono::seconds(10));
  EXPECT_FALSE(answered);
  disconnect.request_stop();
  fixture.loop.advance(std::chrono::seconds(1));
  EXPECT_TRUE(answered);
}

}  // namespace
}  // namespace ae::api
