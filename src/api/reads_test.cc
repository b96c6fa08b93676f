// Tests of reads of a job: reader threads, slots, disconnected clients, ETags, rendering, and what
// ?wait loads.
#include <fmt/core.h>

#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "api/api.h"
#include "api/authenticator.h"
#include "api/target.h"
#include "json/json.h"
#include "net/thread_pool.h"
#include "store/faulty/faulty_store.h"
#include "store/memory/memory_store.h"
#include "testing/test.h"
#include "testing/test_loop.h"
#include "tools/native/native.h"

namespace ae::api {
namespace {

using namespace std::chrono_literals;

constexpr std::string_view kAgents = R"(
aetheris: 1
tools:
  echo: { native: echo, effect: read }
agents:
  echo: { plan: [ { id: say, tool: echo, args: { said: "${ .input }" } } ], output: "${ .steps.say.said }" }
  asks:
    plan:
      - { id: w, wait: { type: signal, key: "go" } }
      - { id: x, needs: [w], wait: { type: signal, key: "end" } }
    output: "${ .steps.w }"
  sleeps: { plan: [ { id: w, wait: { type: timer, for: 1h } } ] }
  maps: { plan: [ { id: m, map: "${ .input.list }", do: { tool: echo, args: { x: "${ .item }" } } } ] }
)";

// Holds work until the test runs it.
class HeldExecutor final : public async::Executor {
 public:
  void run(Work work, async::Task then) override {
    jobs_.emplace_back(std::move(work), std::move(then));
  }
  std::size_t held() const { return jobs_.size(); }
  void run_next() {
    auto [work, then] = std::move(jobs_.front());
    jobs_.pop_front();
    work({});
    work = nullptr;
    then();
  }

 private:
  std::deque<std::pair<Work, async::Task>> jobs_;
};

class ReadsFixture final : runtime::RuntimeObserver {
 public:
  // `make`: makes the executor; nullptr = reads run on the loop.
  explicit ReadsFixture(std::unique_ptr<async::Executor> (*make)(async::Loop&) = nullptr) {
    if (make != nullptr) readers = make(loop);
    const auto diagnostics = agents::load({.name = "agents.yaml",
                                           .text = kAgents,
                                           .env = [](std::string_view) { return std::nullopt; },
                                           .native = [](std::string_view) { return true; }},
                                          file);
    AE_CHECK(diagnostics.empty(), agents::diagnostics_text(diagnostics));
    for (const auto& [name, tool] : file.tools) {
      const std::string function(tool.definition.text("function"));
      tool_registry.add(name, {std::make_unique<tools::NativeTool>(
                                   loop, steady, tools::built_in_functions().at(function).function),
                               tool.policy.version});
    }
    runtime.emplace(runtime::World{.loop = loop,
                                   .steady = steady,
                                   .random = random,
                                   .store = store,
                                   .tool_registry = tool_registry,
                                   .readers = readers.get()},
                    runtime::RuntimeOptions(), static_cast<runtime::RuntimeObserver*>(this));
    api.emplace(loop, steady, store, *runtime,
                ApiOptions{.agents = &file,
                           .runs = true,
                           .version = "0",
                           .store = "memory:",
                           .random_source = &random});
    runtime->start();
  }
  ~ReadsFixture() { readers.reset(); }

  std::shared_ptr<std::optional<ApiResponse>> start(ApiRequest request) {
    auto response = std::make_shared<std::optional<ApiResponse>>();
    api->handle(std::move(request),
                [response](ApiResponse received) { *response = std::move(received); });
    loop.run_ready();
    return response;
  }
  ApiResponse send(ApiRequest request) {
    return loop.await<ApiResponse>(
        [&](auto done) { api->handle(std::move(request), std::move(done)); });
  }
  ApiResponse post(Path path, std::string body) {
    ApiRequest request;
    request.method = "POST";
    request.path = std::move(path);
    request.body = std::move(body);
    request.by = "ada";
    ApiResponse response = send(std::move(request));
    for (int i = 0; i < 3; ++i) loop.run_ready();
    return response;
  }
  static ApiRequest get(Path path, QueryPairs query = {}) {
    ApiRequest request;
    request.path = std::move(path);
    request.query = std::move(query);
    request.by = "ada";
    return request;
  }
  // Pages of the steps of a job, with that of its first step.
  std::vector<Path> pages(const std::string& job) {
    const Value steps = send(get({"api", "jobs", job, "steps"})).body["steps"];
    AE_CHECK(steps.size() > 0, "the job has steps");
    return {{"api", "jobs", job, "steps"},
            {"api", "jobs", job, "steps", std::string(steps.items()[0].text("step_id"))},
            {"api", "jobs", job, "timeline"},
            {"api", "jobs", job, "conversation"}};
  }
  void run_all() {
    while (held().held() > 0) {
      held().run_next();
      loop.run_ready();
    }
  }
  HeldExecutor& held() { return static_cast<HeldExecutor&>(*readers); }
  // With an executor that holds work: the id is chosen, because a response reads the job.
  void make(const std::string& id, const std::string& rest) {
    ApiRequest request;
    request.method = "POST";
    request.path = {"api", "jobs"};
    request.body = fmt::format(R"({{"id":"{}",{}}})", id, rest);
    const auto created = start(std::move(request));
    for (int i = 0; i < 3; ++i) loop.run_ready();
    held().run_next();
    EXPECT_TRUE(*created && (*created)->status == 201);
  }
  std::size_t loads_from(std::uint64_t seq) const {
    return static_cast<std::size_t>(std::ranges::count(loads, seq));
  }

  std::vector<std::uint64_t> loads;    // `from_seq` of each load
  std::vector<std::uint64_t> windows;  // `seq` of each window
  testing::TestLoop loop;
  testing::TestSteadyClock steady{loop};
  testing::TestRandom random;
  std::unique_ptr<async::Executor> readers;
  store::MemoryStore memory{loop, loop};
  store::FaultyStore store{loop, memory,
                           store::FaultyStore::Options{.script = [this](const store::Call& call) {
                             if (call.method == store::Method::load) {
                               loads.push_back(call.from_seq);
                             }
                             if (call.method == store::Method::load_window) {
                               windows.push_back(call.from_seq);
                             }
                             return store::Fault::none;
                           }}};
  runtime::ToolRegistry tool_registry;
  agents::AgentsFile file;
  std::optional<runtime::Runtime> runtime;
  std::optional<Api> api;

 private:
  void on_events(const JobId& job, const std::vector<Event>& events) override {
    if (api) api->on_events(job, events);
  }
};

std::unique_ptr<async::Executor> held_executor(async::Loop&) {
  return std::make_unique<HeldExecutor>();
}
std::unique_ptr<async::Executor> thread_pool(async::Loop& loop) {
  return std::make_unique<net::ThreadPool>(loop, 3);
}

RenderedBody print(const Value& body) { return {canonical(body)}; }

AE_TEST("reads/every view is the same from reader threads as from the loop") {
  ReadsFixture plain, threaded(thread_pool);
  for (ReadsFixture* fixture : {&plain, &threaded}) {
    const auto made = fixture->post({"api", "jobs"},
                                    R"({"id":"j","agent":"maps","input":{"list":[1,2,3,4,5,6]}})");
    ASSERT_EQ(made.status, 201) << canonical(made.body);
    fixture->post({"api", "jobs"}, R"({"id":"w","agent":"asks"})");
  }
  for (const char* job : {"j", "w"}) {
    for (const char* view : {"", "events", "trace", "transcript", "replay", "verify", "steps",
                             "conversation", "timeline", "forks"}) {
      Path path{"api", "jobs", job};
      if (*view != 0) path.emplace_back(view);
      const ApiResponse on_loop = plain.send(ReadsFixture::get(path));
      const ApiResponse on_thread = threaded.send(ReadsFixture::get(path));
      EXPECT_EQ(on_loop.status, 200) << view;
      EXPECT_EQ(canonical(on_thread.body), canonical(on_loop.body)) << job << " " << view;
      ApiRequest rendering = ReadsFixture::get(path);
      rendering.render = print;
      const ApiResponse rendered = threaded.send(std::move(rendering));
      ASSERT_TRUE(rendered.rendered) << view;
      EXPECT_EQ(rendered.rendered->bytes, canonical(on_loop.body)) << job << " " << view;
      EXPECT_TRUE(rendered.body.is_null());
    }
  }
}

AE_TEST("reads/many concurrent reads on reader threads succeed while jobs run") {
  ReadsFixture fixture(thread_pool);
  fixture.post({"api", "jobs"}, R"({"id":"j","agent":"maps","input":{"list":[1,2,3,4,5,6]}})");
  std::size_t answered = 0, created = 0;
  constexpr std::size_t kRequests = 60;
  for (std::size_t i = 0; i < kRequests; ++i) {
    const char* const views[] = {"events", "trace", "transcript",   "replay",
                                 "verify", "steps", "conversation", "timeline"};
    ApiRequest request = ReadsFixture::get({"api", "jobs", "j", views[i % std::size(views)]});
    request.by = i % 2 == 0 ? "ada" : "bob";
    request.render = print;
    fixture.api->handle(std::move(request), [&answered](const ApiResponse& response) {
      answered += response.status == 200 && response.rendered ? 1 : 0;
    });
    ApiRequest create;
    create.method = "POST";
    create.path = {"api", "jobs"};
    create.body = R"({"agent":"echo","input":1})";
    fixture.api->handle(std::move(create), [&created](const ApiResponse& response) {
      created += response.status == 201 ? 1 : 0;
    });
  }
  EXPECT_TRUE(
      fixture.loop.run_until([&] { return answered == kRequests && created == kRequests; }));
}

AE_TEST("reads/the loop answers other requests while logs are read, two at once") {
  ReadsFixture fixture(held_executor);
  fixture.make("j", R"("agent":"echo","input":1)");
  const auto first = fixture.start(ReadsFixture::get({"api", "jobs", "j", "trace"}));
  const auto second = fixture.start(ReadsFixture::get({"api", "jobs", "j", "verify"}));
  const auto third = fixture.start(ReadsFixture::get({"api", "jobs", "j", "replay"}));
  EXPECT_EQ(fixture.held().held(), kConcurrentReadsMax);
  const auto health = fixture.start(ReadsFixture::get({"api", "health"}));
  ASSERT_TRUE(*health);
  EXPECT_EQ((*health)->status, 200);
  EXPECT_FALSE(*first || *second || *third);
  fixture.held().run_next();
  EXPECT_TRUE(*first);
  fixture.loop.run_ready();
  EXPECT_EQ(fixture.held().held(), kConcurrentReadsMax) << "the third has the slot of the first";
  fixture.run_all();
  ASSERT_TRUE(*second && *third);
  EXPECT_EQ((*third)->status, 200);
}

AE_TEST("reads/a read for a client that disconnected is skipped, or ends early") {
  ReadsFixture fixture(held_executor);
  fixture.make("j", R"("agent":"maps","input":{"list":[1,2,3]})");
  const std::stop_source running, waiting;
  for (const char* view : {"trace", "transcript"}) {
    ApiRequest request = ReadsFixture::get({"api", "jobs", "j", view});
    request.disconnected = running.get_token();
    const auto response = fixture.start(std::move(request));
    EXPECT_FALSE(*response);
  }
  ApiRequest request = ReadsFixture::get({"api", "jobs", "j", "verify"});
  request.disconnected = waiting.get_token();
  const auto skipped = fixture.start(std::move(request));
  const std::size_t loads = fixture.loads.size();
  running.request_stop();
  waiting.request_stop();
  fixture.held().run_next();
  fixture.held().run_next();
  fixture.loop.run_ready();
  EXPECT_EQ(fixture.held().held(), 0u);
  EXPECT_EQ(fixture.loads.size(), loads) << "the log is not loaded";
  ASSERT_TRUE(*skipped);
  EXPECT_EQ((*skipped)->body.text("code"), "unavailable");
}

AE_TEST("reads/work that is interrupted fails with unavailable") {
  ReadsFixture fixture(held_executor);
  fixture.make("j", R"("agent":"maps","input":{"list":[1,2,3]})");
  for (const char* view : {"", "events", "trace", "transcript", "replay", "verify", "steps",
                           "conversation", "timeline"}) {
    const std::stop_source disconnect;
    ApiRequest request = ReadsFixture::get({"api", "jobs", "j"});
    if (*view != 0) request.path.emplace_back(view);
    request.disconnected = disconnect.get_token();
    const auto response = fixture.start(std::move(request));
    ASSERT_EQ(fixture.held().held(), 1u) << view;
    disconnect.request_stop();
    fixture.run_all();
    ASSERT_TRUE(*response) << view;
    EXPECT_EQ((*response)->status, 503) << view;
  }
}

AE_TEST("reads/a view has an ETag, and the client that has it gets 304 without a read of the log") {
  ReadsFixture fixture;
  fixture.post({"api", "jobs"}, R"({"id":"j","agent":"asks"})");
  std::vector<Path> paths = fixture.pages("j");
  paths.push_back({"api", "jobs", "j"});
  for (const char* view : {"events", "trace", "transcript", "replay"}) {
    paths.push_back({"api", "jobs", "j", view});
  }
  for (const Path& path : paths) {
    const std::string view = target(path, {});
    const ApiResponse first = fixture.send(ReadsFixture::get(path));
    ASSERT_FALSE(first.etag.empty()) << view;
    ApiRequest again = ReadsFixture::get(path);
    again.if_none_match = "\"other\", " + first.etag;
    fixture.loads.clear();
    fixture.windows.clear();
    const ApiResponse unchanged = fixture.send(again);
    EXPECT_EQ(unchanged.status, 304) << view;
    EXPECT_EQ(unchanged.etag, first.etag);
    EXPECT_TRUE(unchanged.body.is_null());
    EXPECT_EQ(fixture.loads, std::vector<std::uint64_t>{store::kNoCommits}) << view;
    EXPECT_TRUE(fixture.windows.empty()) << view;
    again.if_none_match = "\"other\"";
    EXPECT_EQ(fixture.send(again).status, 200);
  }
  const auto tag = [&](QueryPairs query) {
    return fixture.send(ReadsFixture::get({"api", "jobs", "j", "events"}, std::move(query))).etag;
  };
  EXPECT_NE(tag({{"after", "1"}}), tag({}));
  EXPECT_EQ(tag({{"wait", "1ms"}}), "") << "the response to a wait is no representation";
  EXPECT_EQ(fixture.send(ReadsFixture::get({"api", "jobs", "j", "verify"})).etag, "");
  for (const Path& path : {Path{"api", "jobs", "missing"}, Path{"api", "jobs", "missing", "steps"},
                           Path{"api", "jobs", "j", "steps", "missing"}}) {
    ApiRequest missing = ReadsFixture::get(path);
    missing.if_none_match = "*";
    EXPECT_EQ(fixture.send(missing).status, 404) << target(path, {});
  }
  ApiRequest any = ReadsFixture::get(paths.front());
  any.if_none_match = "*";
  EXPECT_EQ(fixture.send(any).status, 304);
}

AE_TEST("reads/the ETag of a page of steps changes with the next event and with an erased value") {
  ReadsFixture fixture;
  fixture.post({"api", "jobs"}, R"({"id":"j","agent":"asks","input":{"secret":1}})");
  std::map<std::string, std::string> tags;  // by target
  const auto expect_new_tags = [&](const char* after) {
    for (const Path& path : fixture.pages("j")) {
      std::string& tag = tags[target(path, {})];
      ApiRequest request = ReadsFixture::get(path);
      request.if_none_match = tag.empty() ? "\"none\"" : tag;
      const ApiResponse response = fixture.send(request);
      EXPECT_EQ(response.status, 200) << target(path, {}) << " after " << after;
      EXPECT_NE(response.etag, tag) << target(path, {}) << " after " << after;
      tag = response.etag;
    }
  };
  expect_new_tags("the creation");
  fixture.post({"api", "jobs", "j", "signal"}, R"({"correlation_key":"go","payload":{"a":1}})");
  fixture.loop.advance(1s);
  expect_new_tags("a signal");
  fixture.post({"api", "jobs", "j", "signal"}, R"({"correlation_key":"end","payload":1})");
  fixture.loop.advance(1s);
  expect_new_tags("the end");
  const ApiResponse redacted =
      fixture.post({"api", "jobs", "j", "redact"}, R"({"all":true,"reason":"asked"})");
  ASSERT_EQ(redacted.status, 200) << canonical(redacted.body);
  fixture.loop.advance(kKeyCacheTtl + 1ms);
  expect_new_tags("a redaction");
}

AE_TEST("reads/agents, tools and the OpenAPI document have the ETag of their text") {
  ReadsFixture fixture;
  std::set<std::string> tags;
  const std::vector<Path> paths{
      {"api", "agents"}, {"api", "agents", "echo"}, {"api", "tools"}, {"openapi.json"}};
  for (const Path& path : paths) {
    ApiRequest request = ReadsFixture::get(path);
    const ApiResponse first = fixture.send(request);
    ASSERT_EQ(first.status, 200);
    ASSERT_FALSE(first.etag.empty()) << target(path, {});
    tags.insert(first.etag);
    request.if_none_match = first.etag;
    const ApiResponse unchanged = fixture.send(request);
    EXPECT_EQ(unchanged.status, 304) << target(path, {});
    EXPECT_EQ(unchanged.etag, first.etag);
    EXPECT_TRUE(unchanged.body.is_null());
    request.if_none_match = "\"other\"";
    EXPECT_EQ(fixture.send(request).status, 200);
  }
  EXPECT_EQ(tags.size(), paths.size());
  ApiRequest missing = ReadsFixture::get({"api", "agents", "missing"});
  missing.if_none_match = "*";
  EXPECT_EQ(fixture.send(missing).status, 404);
}

AE_TEST("reads/the OpenAPI document is rendered once for each encoding") {
  ReadsFixture fixture(held_executor);
  for (const bool accepts_gzip : {false, true}) {
    ApiRequest request = ReadsFixture::get({"openapi.json"});
    request.render = print;
    request.accepts_gzip = accepts_gzip;
    const auto first = fixture.start(request);
    ASSERT_EQ(fixture.held().held(), 1u);
    fixture.held().run_next();
    ASSERT_TRUE(*first && (*first)->rendered);
    const auto second = fixture.start(request);
    EXPECT_EQ(fixture.held().held(), 0u);
    ASSERT_TRUE(*second && (*second)->rendered);
    EXPECT_EQ((*second)->rendered->bytes, (*first)->rendered->bytes);
    EXPECT_EQ((*second)->etag, (*first)->etag);
  }
}

AE_TEST(
    "reads/an ETag changes with the next event, with an erased value, and when a timer is due") {
  ReadsFixture fixture;
  fixture.post({"api", "jobs"}, R"({"id":"j","agent":"asks","input":{"secret":1}})");
  const Path events{"api", "jobs", "j", "events"};
  const std::string first = fixture.send(ReadsFixture::get(events)).etag;
  fixture.post({"api", "jobs", "j", "signal"}, R"({"correlation_key":"go","payload":{"a":1}})");
  ApiRequest request = ReadsFixture::get(events);
  request.if_none_match = first;
  const ApiResponse second = fixture.send(request);
  EXPECT_EQ(second.status, 200);
  EXPECT_NE(second.etag, first);
  // A redaction adds no event.
  fixture.loop.advance(1s);
  fixture.post({"api", "jobs", "j", "signal"}, R"({"correlation_key":"end","payload":1})");
  fixture.loop.advance(1s);
  const ApiResponse before = fixture.send(ReadsFixture::get(events));
  ASSERT_EQ(before.body["ended"], Value(true)) << canonical(before.body);
  const ApiResponse redacted =
      fixture.post({"api", "jobs", "j", "redact"}, R"({"all":true,"reason":"asked"})");
  ASSERT_EQ(redacted.status, 200) << canonical(redacted.body);
  fixture.loop.advance(kKeyCacheTtl + 1ms);
  request.if_none_match = before.etag;
  const ApiResponse after = fixture.send(request);
  EXPECT_EQ(after.status, 200);
  EXPECT_NE(canonical(after.body), canonical(before.body));

  fixture.post({"api", "jobs"}, R"({"id":"s","agent":"sleeps"})");
  EXPECT_NE(fixture.send(ReadsFixture::get({"api", "jobs", "s"})).etag, "");
  fixture.loop.skip_time(2h);
  EXPECT_EQ(fixture.send(ReadsFixture::get({"api", "jobs", "s"})).etag, "");
}

AE_TEST("reads/lists are rendered on reader threads") {
  ReadsFixture fixture(held_executor);
  fixture.make("j", R"("agent":"echo","input":1)");
  for (const Path& path : {Path{"api", "jobs"}, Path{"openapi.json"}, Path{"api", "agents"}}) {
    ApiRequest request = ReadsFixture::get(path);
    request.render = print;
    const auto response = fixture.start(std::move(request));
    EXPECT_FALSE(*response);
    ASSERT_EQ(fixture.held().held(), 1u);
    fixture.held().run_next();
    ASSERT_TRUE(*response && (*response)->rendered);
    EXPECT_FALSE((*response)->rendered->bytes.empty());
  }
}

AE_TEST("reads/rows of lists become JSON on reader threads") {
  ReadsFixture fixture(held_executor);
  fixture.make("j", R"("agent":"echo","input":1)");
  for (const QueryPairs& query : {QueryPairs{}, {{"q", "j"}}, {{"stalled", "true"}}}) {
    const auto response = fixture.start(ReadsFixture::get({"api", "jobs"}, query));
    EXPECT_FALSE(*response);
    ASSERT_EQ(fixture.held().held(), 1u);
    fixture.held().run_next();
    ASSERT_TRUE(*response);
    EXPECT_EQ((*response)->status, 200);
    const bool is_stalled = !query.empty() && query.front().first == "stalled";
    EXPECT_EQ((*response)->body["jobs"].size(), is_stalled ? 0u : 1u);
  }
}

AE_TEST("reads/events with ?wait load each commit once, and the row while nothing happens") {
  for (const auto& [name, value] :
       {std::pair("type", "job_completed"), std::pair("class", "effect")}) {
    ReadsFixture fixture;
    const std::string id = value;
    fixture.post({"api", "jobs"}, fmt::format(R"({{"agent":"asks","id":"{}"}})", id));
    const Path path{"api", "jobs", id, "events"};
    const auto last = static_cast<std::uint64_t>(
        fixture.send(ReadsFixture::get(path)).body["events"].items().back()["seq"].as_int());
    fixture.loads.clear();
    fixture.windows.clear();
    const auto response = fixture.start(
        ReadsFixture::get(path, {{name, value}, {"after", std::to_string(last)}, {"wait", "60s"}}));
    fixture.loop.advance(10s);
    EXPECT_FALSE(*response);
    EXPECT_EQ(fixture.windows.size(), 1u);
    EXPECT_GE(fixture.loads_from(store::kNoCommits), 5u);
    EXPECT_EQ(fixture.loads.size(), fixture.loads_from(store::kNoCommits));
    fixture.windows.clear();
    fixture.post({"api", "jobs", id, "signal"}, R"({"correlation_key":"go","payload":1})");
    fixture.loop.advance(1s);
    EXPECT_FALSE(*response);
    ASSERT_FALSE(fixture.windows.empty());
    EXPECT_EQ(fixture.windows[0], last) << "only what follows is read";
    fixture.api->stop_waiting();
    fixture.loop.run_ready();
    EXPECT_TRUE(*response);
  }
}

AE_TEST("reads/when waits stop, open requests are answered and later ones do not wait") {
  ReadsFixture fixture;
  fixture.post({"api", "jobs"}, R"({"agent":"asks","id":"j"})");
  const auto wait = [&](std::uint64_t after) {
    return fixture.start(ReadsFixture::get({"api", "jobs", "j", "events"},
                                           {{"after", std::to_string(after)}, {"wait", "60s"}}));
  };
  const auto response = wait(1000);
  fixture.loop.advance(1s);
  EXPECT_FALSE(*response);
  bool answered = false;
  fixture.api->stop_waiting([&] { answered = true; });
  EXPECT_FALSE(answered) << "a request is open";
  fixture.loop.run_ready();
  EXPECT_TRUE(*response);
  EXPECT_TRUE(answered);
  const auto later = wait(1000);
  fixture.loop.run_ready();
  EXPECT_TRUE(*later);
  answered = false;
  fixture.api->stop_waiting([&] { answered = true; });
  fixture.loop.run_ready();
  EXPECT_TRUE(answered) << "no request is open";
}

AE_TEST("reads/a wait for the end of a creation loads rows, and the log once") {
  ReadsFixture fixture;
  ApiRequest request;
  request.method = "POST";
  request.path = {"api", "jobs"};
  request.query = {{"wait", "60s"}};
  request.body = R"({"id":"j","agent":"maps","input":{"list":[1,2,3,4,5,6,7,8,9]}})";
  request.render = print;
  const ApiResponse response = fixture.send(std::move(request));
  EXPECT_EQ(response.status, 201);
  EXPECT_EQ(response.location, "/api/jobs/j");
  ASSERT_TRUE(response.rendered);
  EXPECT_NE(response.rendered->bytes.find(R"("status":"completed")"), std::string::npos);
  EXPECT_EQ(fixture.loads.size() - fixture.loads_from(store::kNoCommits), 1u);
  EXPECT_EQ(fixture.loads_from(store::kFirstCommit), 0u);
}

AE_TEST("reads/a page of events ends the read of the log, and the next page starts there") {
  ReadsFixture fixture;
  fixture.post({"api", "jobs"}, R"({"id":"j","agent":"maps","input":{"list":[1,2,3,4,5,6]}})");
  const Path path{"api", "jobs", "j", "events"};
  const Value whole = fixture.send(ReadsFixture::get(path)).body["events"];
  std::vector<Value> paged;
  std::string after = "0";
  std::vector<std::uint64_t> starts;
  fixture.loads.clear();
  fixture.windows.clear();
  for (std::size_t pages = 0; pages < 100; ++pages) {
    starts.push_back(std::stoull(after));
    const Value page =
        fixture.send(ReadsFixture::get(path, {{"after", after}, {"limit", "3"}})).body;
    for (const Value& event : page["events"].items()) paged.push_back(event);
    if (page["next"].is_null()) break;
    after = std::to_string(page["next"].as_int());
  }
  EXPECT_EQ(canonical(Value::array(std::move(paged))), canonical(whole));
  EXPECT_GT(starts.size(), 2u);
  EXPECT_EQ(fixture.windows, starts) << "each page reads one window";
  EXPECT_TRUE(fixture.loads.empty());
}

AE_TEST(
    "reads/the events of a step are read without a scan, and pages of steps read no commit again") {
  ReadsFixture fixture;
  std::string list;
  for (int i = 0; i < 400; ++i) list += fmt::format("{}{}", i == 0 ? "" : ",", i);
  fixture.post({"api", "jobs"},
               fmt::format(R"({{"id":"j","agent":"maps","input":{{"list":[{}]}}}})", list));
  fixture.loop.advance(10s);
  const Path path{"api", "jobs", "j", "events"};
  const Value whole = fixture.send(ReadsFixture::get(path, {{"limit", "100000"}})).body;
  ASSERT_EQ(whole["ended"], Value(true));
  const auto last = static_cast<std::uint64_t>(whole["last_seq"].as_int());
  ASSERT_GT(last, 2'000u);
  const auto steps = [&](QueryPairs query) {
    return fixture.send(ReadsFixture::get({"api", "jobs", "j", "steps"}, std::move(query))).body;
  };
  const std::string map(steps({})["steps"].items()[0].text("step_id"));
  const Value items = steps({{"parent", map}, {"limit", "300"}});
  const std::string item(items["steps"].items()[250].text("step_id"));
  std::vector<Value> expected;
  for (const Value& event : whole["events"].items()) {
    if (event["payload"].text("step_id") == item) expected.push_back(event);
  }
  ASSERT_GT(expected.size(), 3u);
  fixture.windows.clear();
  const Value shown = fixture.send(ReadsFixture::get(path, {{"step", item}})).body;
  EXPECT_EQ(shown["events"], Value::array(expected));
  EXPECT_TRUE(shown["next"].is_null());
  ASSERT_FALSE(fixture.windows.empty());
  EXPECT_EQ(fixture.windows[0], last) << "there is nothing new";
  EXPECT_LE(fixture.windows.size(), 1 + expected.size());
  const Value newest =
      fixture.send(ReadsFixture::get(path, {{"step", item}, {"order", "desc"}, {"limit", "2"}}))
          .body;
  EXPECT_EQ(newest["events"], Value::array({expected.end()[-1], expected.end()[-2]}));
  EXPECT_EQ(newest["next"], expected.end()[-2]["seq"]);
  const Value none = fixture.send(ReadsFixture::get(path, {{"step", "0123456789abcdef"}})).body;
  EXPECT_EQ(none["events"].size(), 0u);
  EXPECT_TRUE(none["next"].is_null());
  fixture.windows.clear();
  EXPECT_EQ(steps({{"parent", map}, {"limit", "300"}}), items);
  EXPECT_EQ(fixture.windows, std::vector<std::uint64_t>{last});
}

}  // namespace
}  // namespace ae::api
