// Tests of the views of a job in pages: transcript, events, steps, and the state at an earlier
// event.
#include "api/api_fixture_test.h"

#include <fmt/core.h>

#include <algorithm>

#include "api/command_line.h"
#include "inspect/view.h"
#include "json/json.h"
#include "runtime/log.h"
#include "runtime/service/log_walk.h"
#include "testing/test.h"

namespace ae::api {
namespace {

AE_TEST("api/a transcript is listed in pages, each with the totals of the whole job") {
  ApiFixture fixture;
  fixture.make(R"({"agent":"echo","id":"j"})");
  const Path path{"api", "jobs", "j", "transcript"};
  const Value all = fixture.get(path).body;
  ASSERT_EQ(all["entries"].size(), 4u) << canonical(all);
  EXPECT_EQ(all["entries"].items()[1].text("kind"), "tool_call");
  EXPECT_TRUE(all["next"].is_null());
  EXPECT_EQ(all["ended"], Value(true));
  const Value page = fixture.get(path, {{"limit", "2"}}).body;
  EXPECT_EQ(page["entries"].size(), 2u);
  EXPECT_EQ(page["totals"], all["totals"]);
  const Value rest = fixture.get(path, {{"after", canonical(page["next"])}}).body;
  EXPECT_EQ(canonical(rest["entries"].items()[0]), canonical(all["entries"].items()[2]));
  expect_problem(fixture.get(path, {{"limit", "0"}}), 400, "input_invalid");
  expect_problem(fixture.get(path, {{"after", "x"}}), 400, "input_invalid");
  expect_problem(fixture.get(path, {{"type", "x"}}), 400, "input_invalid");
}

AE_TEST("api/a transcript with ?wait returns at the next entry or when the job has ended") {
  ApiFixture fixture;
  const auto id = fixture.make(R"({"agent":"asks","id":"j"})");
  const Value before = fixture.get({"api", "jobs", id, "transcript"}).body;
  const auto seen = std::to_string(before["entries"].items().back()["seq"].as_int());
  std::optional<ApiResponse> received;
  ApiRequest request;
  request.path = {"api", "jobs", id, "transcript"};
  request.query = {{"after", seen}, {"wait", "60s"}};
  fixture.api->handle(request, [&](ApiResponse response) { received = std::move(response); });
  fixture.loop.advance(std::chrono::seconds(10));
  EXPECT_FALSE(received);
  fixture.post({"api", "jobs", id, "signal"}, R"({"correlation_key":"go","payload":1})");
  ASSERT_TRUE(fixture.loop.run_until([&] { return received.has_value(); }));
  EXPECT_EQ(received->body["entries"].items()[0].text("kind"), "reply");
  request.query = {{"after", "100000"}, {"wait", "60s"}};
  received.reset();
  ASSERT_TRUE(fixture.loop.run_until(
      [&] { return fixture.get({"api", "jobs", id}).body.text("status") == "completed"; }));
  fixture.api->handle(request, [&](ApiResponse response) { received = std::move(response); });
  ASSERT_TRUE(fixture.loop.run_until([&] { return received.has_value(); }));
  EXPECT_EQ(received->body["entries"].size(), 0u);
  EXPECT_EQ(received->body["ended"], Value(true));
}

AE_TEST("api/a transcript with ?wait reads the log at most twice a second") {
  ApiFixture fixture;
  const auto id = fixture.make(R"({"agent":"asks","id":"j"})");
  const Value before = fixture.get({"api", "jobs", id, "transcript"}).body;
  std::optional<ApiResponse> received;
  ApiRequest request;
  request.path = {"api", "jobs", id, "transcript"};
  request.query = {{"after", std::to_string(before["seq"].as_int())}, {"wait", "60s"}};
  fixture.api->handle(request, [&](ApiResponse response) { received = std::move(response); });
  fixture.loop.run_ready();
  fixture.post({"api", "jobs", id, "signal"}, R"({"correlation_key":"go","payload":1})");
  fixture.loop.advance(std::chrono::milliseconds(400));
  EXPECT_FALSE(received) << "it has just read the log";
  fixture.loop.advance(std::chrono::milliseconds(200));
  ASSERT_TRUE(received);
  EXPECT_EQ(received->body["entries"].items()[0].text("kind"), "reply");
}

AE_TEST(
    "api/a transcript page ends before its entries exceed 8 MiB, and the pages have all entries") {
  ApiFixture fixture;
  std::vector<Value> list(9, Value(std::string(400'000, 'x')));
  fixture.make(canonical(
      Value::object({{"agent", "maps"},
                     {"id", "j"},
                     {"input", Value::object({{"list", Value::array(std::move(list))}})}})));
  ASSERT_EQ(fixture.status("j"), "completed");
  std::size_t pages = 0, calls = 0, results = 0, entries = 0;
  for (Value after(0); !after.is_null(); ++pages) {
    const ApiResponse page =
        fixture.get({"api", "jobs", "j", "transcript"}, {{"after", canonical(after)}});
    ASSERT_EQ(page.status, 200);
    EXPECT_LE(canonical(page.body["entries"]).size(), (8u << 20) + 100);
    for (const Value& entry : page.body["entries"].items()) {
      ++entries;
      if (entry.text("kind") == "tool_call") ++calls;
      if (entry.text("kind") == "result") ++results;
    }
    after = page.body["next"];
  }
  EXPECT_EQ(pages, 2u);
  EXPECT_EQ(calls, 9u);
  EXPECT_EQ(results, 9u);
  EXPECT_EQ(entries, 20u);
}

AE_TEST("api/replay returns the state of a job at an earlier event") {
  ApiFixture fixture;
  fixture.make(R"({"agent":"echo","id":"j"})");
  const auto early = fixture.get({"api", "jobs", "j", "replay"}, {{"at", "2"}}).body;
  const auto late = fixture.get({"api", "jobs", "j", "replay"}).body;
  EXPECT_EQ(early.text("status"), "queued");
  EXPECT_EQ(late.text("status"), "completed");
  expect_problem(fixture.get({"api", "jobs", "j", "replay"}, {{"at", "0"}}), 400, "input_invalid");
  expect_problem(fixture.get({"api", "jobs", "j", "replay"}, {{"at", "99"}}), 400, "input_invalid");
}

// A job whose log has several windows: a map of 150 items.
std::string long_job(ApiFixture& fixture) {
  std::string list;
  for (int i = 0; i < 150; ++i) list += fmt::format("{}{}", i == 0 ? "" : ",", i);
  const std::string id =
      fixture.make(R"({"agent":"maps","id":"long","input":{"list":[)" + list + "]}}");
  EXPECT_TRUE(fixture.loop.run_until([&] { return fixture.status(id) == "completed"; }));
  return id;
}

std::vector<Event> log_of(ApiFixture& fixture, const std::string& id) {
  const auto loaded = fixture.loop.await<Result<store::LoadedJob>>(
      [&](auto done) { fixture.store.load(JobId(id), 1, std::move(done)); });
  AE_CHECK(loaded.has_value(), "the job exists");
  auto events = runtime::open_log(JobId(id), *loaded);
  AE_CHECK(events.has_value(), "its log can be opened");
  return *std::move(events);
}

AE_TEST("api/a request for a job starts at its checkpoint") {
  std::vector<std::uint64_t> loads;
  ApiFixture fixture(true, [&](const store::Call& call) {
    if (call.method == store::Method::load) loads.push_back(call.from_seq);
    return store::Fault::none;
  });
  const std::string id = long_job(fixture);
  loads.clear();
  const Value job = fixture.get({"api", "jobs", id}).body;
  EXPECT_EQ(job.text("status"), "completed");
  EXPECT_EQ(loads, std::vector{store::kFromCheckpoint});
  loads.clear();
  const ApiResponse again =
      fixture.post({"api", "jobs"}, fmt::format(R"({{"agent": "maps", "id": "{}"}})", id));
  EXPECT_EQ(again.status, 409) << "the input differs";
  EXPECT_EQ(loads, std::vector{store::kFromCheckpoint});
}

AE_TEST("pages/events are listed backwards in pages; a page reads only its own commits") {
  std::size_t loads = 0, windows = 0;
  ApiFixture fixture(true, [&](const store::Call& call) {
    loads += call.method == store::Method::load ? 1 : 0;
    windows += call.method == store::Method::load_window ? 1 : 0;
    return store::Fault::none;
  });
  const std::string id = long_job(fixture);
  const Path path{"api", "jobs", id, "events"};
  const Value all = fixture.get(path, {{"limit", "100000"}}).body;
  const std::vector<Value> events(all["events"].items().begin(), all["events"].items().end());
  ASSERT_GT(events.size(), 3 * runtime::kPartEvents / 2);
  EXPECT_EQ(all["last_seq"], Value(events.size()));
  EXPECT_EQ(all["total"], Value(events.size()));
  loads = windows = 0;
  const Value last = fixture.get(path, {{"order", "desc"}, {"limit", "10"}}).body;
  EXPECT_EQ(loads, 0u);
  EXPECT_EQ(windows, 1u);
  ASSERT_EQ(last["events"].size(), 10u);
  EXPECT_EQ(last["events"].items()[0], events.back());
  EXPECT_EQ(last["next"], Value(events.size() - 9));
  std::vector<Value> joined;
  std::string before;
  for (int pages = 0; pages < 100; ++pages) {
    QueryPairs query{{"order", "desc"}, {"limit", "333"}};
    if (!before.empty()) query.emplace_back("before", before);
    const Value page = fixture.get(path, query).body;
    for (const Value& event : page["events"].items()) joined.push_back(event);
    if (page["next"].is_null()) break;
    before = canonical(page["next"]);
  }
  std::ranges::reverse(joined);
  EXPECT_EQ(Value::array(joined), all["events"]);
  const Value middle = fixture.get(path, {{"after", "700"}, {"before", "703"}}).body;
  EXPECT_EQ(middle["events"].size(), 2u);
  EXPECT_EQ(middle["events"].items()[0], events[700]);
  const std::string step(events[700]["payload"].text("step_id"));
  const Value of_step = fixture.get(path, {{"step", step}}).body;
  EXPECT_GT(of_step["events"].size(), 0u);
  EXPECT_TRUE(of_step["total"].is_null());
  EXPECT_EQ(fixture.get(path, {{"class", "effect"}, {"limit", "1000"}}).body["events"].size(),
            150u);
  for (const QueryPairs& query : {QueryPairs{{"order", "up"}}, QueryPairs{{"fields", "all"}},
                                  QueryPairs{{"order", "desc"}, {"wait", "1s"}},
                                  QueryPairs{{"order", "desc"}, {"class", "effect"}}}) {
    expect_problem(fixture.get(path, query), 400, "input_invalid");
  }
}

AE_TEST("pages/steps are listed by parent; a single step equals that of the trace") {
  ApiFixture fixture;
  const std::string id = long_job(fixture);
  const Path path{"api", "jobs", id, "steps"};
  const Value nodes = fixture.get(path).body;
  ASSERT_EQ(nodes["steps"].size(), 1u) << canonical(nodes);
  const Value& map = nodes["steps"].items()[0];
  EXPECT_EQ(map["children"]["total"], Value(150));
  EXPECT_EQ(map["children"]["by_status"]["done"], Value(150));
  const std::string parent(map.text("step_id"));
  std::vector<Value> items;
  std::string after;
  for (int pages = 0; pages < 10; ++pages) {
    QueryPairs query{{"parent", parent}, {"limit", "100"}};
    if (!after.empty()) query.emplace_back("after", after);
    const Value page = fixture.get(path, query).body;
    EXPECT_EQ(page["total"], Value(150));
    for (const Value& row : page["steps"].items()) items.push_back(row);
    if (page["next"].is_null()) break;
    after = page["next"].as_string();
  }
  ASSERT_EQ(items.size(), 150u);
  EXPECT_EQ(items[149]["item"], Value(149));
  const Value trace = fixture.get({"api", "jobs", id, "trace"}).body;
  const Value& traced = trace["nodes"].items()[0];
  for (const std::size_t item : {0u, 77u, 149u}) {
    Path of_step = path;
    of_step.emplace_back(items[item].text("step_id"));
    EXPECT_EQ(canonical(fixture.get(of_step).body), canonical(traced["items"].items()[item]));
  }
  Path of_map = path;
  of_map.push_back(parent);
  EXPECT_EQ(canonical(fixture.get(of_map).body), canonical(traced.with("items", Value::array({}))));
  EXPECT_EQ(fixture.get(path, {{"parent", parent}, {"status", "failed"}, {"status", "running"}})
                .body["steps"]
                .size(),
            0u);
  expect_problem(fixture.get(path, {{"parent", "nothing"}}), 404, "not_found");
  expect_problem(fixture.get(path, {{"status", "asleep"}}), 400, "input_invalid");
  of_map.back() = "nothing";
  expect_problem(fixture.get(of_map), 404, "not_found");
}

AE_TEST("pages/the index of steps is updated as the log grows") {
  ApiFixture fixture;
  const std::string id = fixture.make(R"({"agent":"asks","id":"j"})");
  const Path path{"api", "jobs", id, "steps"};
  EXPECT_EQ(fixture.get(path).body["by_status"]["waiting"], Value(1));
  const std::string seen = canonical(fixture.get(path).body["seq"]);
  EXPECT_EQ(fixture.get(path, {{"changed_since", seen}}).body["steps"].size(), 0u);
  fixture.post({"api", "jobs", id, "signal"}, R"({"correlation_key":"go","payload":1})");
  ASSERT_TRUE(fixture.loop.run_until([&] { return fixture.status(id) == "completed"; }));
  const Value changed = fixture.get(path, {{"changed_since", seen}}).body;
  ASSERT_EQ(changed["steps"].size(), 1u);
  EXPECT_EQ(changed["steps"].items()[0].text("status"), "done");
  EXPECT_TRUE(changed["steps"].items()[0]["finished_at"].is_string());
}

AE_TEST("pages/replay at an event is the fold of the events up to it, whatever is cached") {
  ApiFixture fixture;
  const std::string id = long_job(fixture);
  const std::vector<Event> log = log_of(fixture, id);
  const auto expected = [&](std::size_t at) {
    const std::vector<Event> part(log.begin(), log.begin() + static_cast<std::ptrdiff_t>(at));
    const auto state = engine::fold(JobId(id), part, engine::uncached_plan_source());
    AE_CHECK(state.has_value(), "the log can be folded");
    return canonical(with_wait_commands(engine::state_view(*state)).with("at", at));
  };
  const Path path{"api", "jobs", id, "replay"};
  for (const std::size_t at : {log.size(), std::size_t{1}, std::size_t{2}, std::size_t{499},
                               std::size_t{500}, std::size_t{501}, log.size() - 1, log.size()}) {
    EXPECT_EQ(canonical(fixture.get(path, {{"at", std::to_string(at)}}).body), expected(at)) << at;
  }
  EXPECT_EQ(canonical(fixture.get(path).body), expected(log.size()));
  const Value summary = fixture.get(path, {{"at", "2"}, {"fields", "summary"}}).body;
  EXPECT_EQ(summary.text("status"), "queued");
  EXPECT_EQ(summary["at"], Value(2));
  const Value steps = fixture.get(path, {{"at", "600"}, {"fields", "steps"}}).body;
  ASSERT_EQ(steps["steps"].size(), 1u);
  EXPECT_EQ(steps["steps"].items()[0].text("status"), "running");
  expect_problem(fixture.get(path, {{"fields", "all"}}), 400, "input_invalid");
}

AE_TEST("pages/replay with diff_from has the changes between two events") {
  ApiFixture fixture;
  const std::string id = fixture.make(R"({"agent":"echo","id":"j"})");
  ASSERT_EQ(fixture.status(id), "completed");
  const Path path{"api", "jobs", id, "replay"};
  const Value changes = fixture.get(path, {{"diff_from", "2"}}).body;
  EXPECT_EQ(changes["diff_from"], Value(2));
  EXPECT_EQ(changes["at"], fixture.get({"api", "jobs", id}).body["seq"]);
  EXPECT_EQ(changes["capped"], Value(false));
  const auto has = [](const Value& body, std::string_view change, const Value& value) {
    return std::ranges::any_of(body["changes"].items(), [&](const Value& one) {
      return one.text("path") == change && one["value"] == value;
    });
  };
  EXPECT_TRUE(has(changes, "/status", Value("completed"))) << canonical(changes);
  EXPECT_TRUE(has(changes, "/steps/0/phase", Value("done"))) << canonical(changes);
  const Value back = fixture.get(path, {{"at", "2"}, {"diff_from", "5"}, {"fields", "steps"}}).body;
  EXPECT_TRUE(has(back, "/seq", Value(2))) << canonical(back);
  const Value none =
      fixture.get(path, {{"at", "5"}, {"diff_from", "5"}, {"fields", "summary"}}).body;
  EXPECT_EQ(none["changes"].size(), 0u);
  for (const char* wrong : {"0", "1000", "x", "-1"}) {
    expect_problem(fixture.get(path, {{"diff_from", wrong}}), 400, "input_invalid");
  }
}

AE_TEST("pages/a timeline has pages of at most 2,000 entries") {
  ApiFixture fixture;
  const std::string id = fixture.make(R"({"agent":"asks","id":"j"})");
  fixture.post({"api", "jobs", id, "signal"}, R"({"correlation_key":"go","payload":1})");
  ASSERT_TRUE(fixture.loop.run_until([&] { return fixture.status(id) == "completed"; }));
  const Path path{"api", "jobs", id, "timeline"};
  const Value all = fixture.get(path).body;
  ASSERT_GE(all["entries"].size(), 3u) << canonical(all);
  EXPECT_EQ(all["seq"], fixture.get({"api", "jobs", id}).body["seq"]);
  const Value first = fixture.get(path, {{"limit", "1"}}).body;
  EXPECT_EQ(first["next"], first["entries"].items()[0]["seq"]);
  const Value rest = fixture.get(path, {{"after", canonical(first["next"])}}).body;
  EXPECT_EQ(rest["entries"].size(), all["entries"].size() - 1);
  EXPECT_TRUE(rest["next"].is_null());
  for (const QueryPairs& query : {QueryPairs{{"limit", "0"}}, QueryPairs{{"limit", "2001"}},
                                  QueryPairs{{"after", "x"}}, QueryPairs{{"before", "1"}}}) {
    expect_problem(fixture.get(path, query), 400, "input_invalid");
  }
}

AE_TEST("pages/a conversation refuses steps without a model and wrong parameters") {
  ApiFixture fixture;
  const std::string id = fixture.make(R"({"agent":"echo","id":"j"})");
  const Path path{"api", "jobs", id, "conversation"};
  const Value steps = fixture.get({"api", "jobs", id, "steps"}).body["steps"];
  const std::string step(steps.items()[0].text("step_id"));
  expect_problem(fixture.get(path, {{"step", step}}), 400, "input_invalid");
  expect_problem(fixture.get(path, {{"step", "nothing"}}), 404, "not_found");
  expect_problem(fixture.get(path, {{"as", "sent"}}), 404, "not_found");
  for (const QueryPairs& query :
       {QueryPairs{{"as", "raw"}}, QueryPairs{{"turn", "0"}}, QueryPairs{{"limit", "1001"}},
        QueryPairs{{"as", "sent"}, {"turn", "-1"}}, QueryPairs{{"after", "x"}}}) {
    expect_problem(fixture.get(path, query), 400, "input_invalid");
  }
}

AE_TEST("pages/erased values are in no cached state") {
  ApiFixture fixture;
  const std::string id = fixture.make(R"({"agent":"echo","id":"j","input":{"n":471147114711}})");
  ASSERT_EQ(fixture.status(id), "completed");
  const Path path{"api", "jobs", id, "replay"};
  EXPECT_TRUE(canonical(fixture.get(path).body).contains("471147114711"));
  const ApiResponse erased =
      fixture.post({"api", "jobs", id, "redact"}, R"({"all":true,"reason":"x"})");
  ASSERT_EQ(erased.status, 200) << canonical(erased.body);
  EXPECT_FALSE(canonical(fixture.get(path).body).contains("471147114711"));
  EXPECT_FALSE(canonical(fixture.get({"api", "jobs"}).body).contains("471147114711"));
}

}  // namespace
}  // namespace ae::api
