// Routines in workers: their records, outcomes and advances; what is refused.
#include <string>

#include "routines/remote/scripted_worker_test.h"
#include "routines/remote/server_messages.h"

namespace ae::routines::testing {
namespace {

// A world with a worker, and a routine that was started in it.
struct Started {
  Started() {
    worker.begin();
    EXPECT_TRUE(world.start());
    worker.next("start");
  }
  RemoteWorld world;
  ScriptedWorker worker{world};
};

AE_TEST("remote routine/start has the job, its input and its record") {
  RemoteWorld world;
  ScriptedWorker worker(world);
  worker.begin();
  engine::CodeRecord record;
  record.requests = {{.position = "a", .tool = "ask", .arguments_hash = Hash(), .delivered = 0},
                     {.position = "w",
                      .kind = engine::NodeKind::wait,
                      .wait = engine::WaitType::human,
                      .delivered = 1}};
  record.deliveries = {{.position = "a", .result = json("{'x': 1}")},
                       {.position = "w", .kind = engine::NodeKind::wait, .rejected = true}};
  record.values = {{"random", Value("00")}};
  record.emitted = {{"", 2}};
  ASSERT_TRUE(world.start(record));
  const Value start = worker.next("start");
  EXPECT_EQ(canonical(start),
            R"({"agent":"agent","blind":"bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb","input":{"n":1},)"
            R"("job":{"agent":"agent","id":"job-1"},"now":"2026-01-01T00:00:00.000000Z",)"
            R"("record":{"deliveries":[{"kind":"tool","position":"a","result":{"x":1}},)"
            R"({"kind":"wait","position":"w","rejected":true,"result":null}],"emitted":{"":2},)"
            R"("requests":[{"arguments_hash":")" +
                std::string(64, '0') +
                R"(","delivered":0,"kind":"tool","position":"a","tool":"ask"},)"
                R"({"delivered":1,"kind":"wait","position":"w","wait":"human"}],)"
                R"("values":{"random":"00"}},"routine":1,"steps":{"decision":")" +
                world.plan->decision.text.string() +
                R"(","path":"0/0"},"type":"start","version":"1"})");
}

AE_TEST("remote routine/a long record is sent in parts, each request before its outcomes") {
  RemoteWorld world;
  ScriptedWorker worker(world);
  worker.begin();
  engine::CodeRecord record;
  for (std::uint64_t i = 0; i < 30; ++i) {
    record.requests.push_back(
        {.position = fmt::format("r#{}", i + 2), .tool = "ask", .delivered = i});
    record.deliveries.push_back(
        {.position = fmt::format("r#{}", i + 2), .result = Value(std::string(200'000, 'x'))});
  }
  std::ranges::reverse(record.requests);  // the order of their starts may be another
  ASSERT_TRUE(world.start(record));
  std::uint64_t requests = 0, deliveries = 0;
  int parts = 0;
  Value message = worker.next("start");
  for (bool more = true; more; ++parts) {
    ASSERT_FALSE(message.is_null());
    EXPECT_LE(canonical(message).size(), (1u << 20) + 10'000);
    for (const Value& request : message["record"]["requests"].items()) {
      EXPECT_EQ(request["delivered"], Value(requests++));
    }
    deliveries += message["record"]["deliveries"].size();
    EXPECT_GE(requests, deliveries);
    more = message.find("more") != nullptr;
    if (more) message = worker.next("record");
  }
  EXPECT_EQ(requests, 30u);
  EXPECT_EQ(deliveries, 30u);
  EXPECT_GE(parts, 6);
}

AE_TEST("remote routine/an advance comes to the client with all of its parts") {
  Started one;
  one.worker.send(R"({'type': 'advance', 'routine': 1, 'delivered': 3, 'settled': false,
    'items': [{'kind': 'value', 'name': 'uuid:1', 'value': 'u'},
              {'kind': 'scope_begun', 'position': 's', 'delivered': 1},
              {'kind': 'scope_ended', 'position': 's', 'delivered': 2, 'result': 7},
              {'kind': 'emitted', 'name': 'progress', 'value': 1, 'published': true}],
    'requests': [{'position': 'a', 'kind': 'tool', 'tool': 'ask', 'arguments': {'x': 1},
                  'options': {'timeout': '2s'}, 'delivered': 3},
                 {'position': 'm', 'kind': 'llm', 'tool': 'model:main', 'arguments': {},
                  'delivered': 3},
                 {'position': 'w', 'kind': 'wait', 'delivered': 3,
                  'wait': {'type': 'human', 'key': 'k', 'expires_ms': 1500,
                           'accepts_data': true, 'question': 'Pay?', 'data': {'n': 1}}},
                 {'position': 't', 'kind': 'wait', 'delivered': 3,
                  'wait': {'type': 'timer', 'due_at': '2026-01-02T00:00:00Z'}}],
    'cancelled': ['x'], 'end': {'failure': {'code': 'no', 'message': 'never'}}})");
  EXPECT_FALSE(one.world.client.refused) << one.world.client.refused->message;
  ASSERT_EQ(one.world.client.advances.size(), 1u);
  const Advance& advance = one.world.client.advances[0];
  EXPECT_EQ(advance.delivered, 3u);
  EXPECT_FALSE(advance.has_settled);
  ASSERT_EQ(advance.recorded.items.size(), 4u);
  EXPECT_EQ(std::get<engine::Advance::ScopeEnded>(advance.recorded.items[2]).result, Value(7));
  EXPECT_TRUE(std::get<engine::Advance::Emitted>(advance.recorded.items[3]).is_published);
  ASSERT_EQ(advance.requests.size(), 4u);
  EXPECT_EQ(one.world.plan->tools[advance.requests[0].tool].name, "ask");
  EXPECT_EQ(one.world.plan->tools[advance.requests[1].tool].name, "model:main");
  EXPECT_EQ(advance.requests[2].wait.expires, Duration(1500ms));
  EXPECT_TRUE(advance.requests[2].wait.accepts_data);
  EXPECT_EQ(advance.requests[0].options.timeout, Duration(2s));
  EXPECT_EQ(advance.requests[2].wait.question, "Pay?");
  EXPECT_EQ(canonical(advance.requests[2].wait.data), R"({"n":1})");
  EXPECT_TRUE(advance.requests[3].wait.due_at);
  EXPECT_EQ(advance.cancelled, std::vector<std::string>{"x"});
  ASSERT_TRUE(advance.end && advance.end->failure);
  EXPECT_EQ(advance.end->failure->code, "no");
}

AE_TEST("remote routine/an advance that breaks a rule refuses its routine, and only that") {
  for (const char* part : {
           "'delivered': -1",
           "'delivered': 1.5",
           "'delivered': 0, 'settled': 1",
           "'delivered': 0, 'items': {}",
           "'delivered': 0, 'items': [7]",
           "'delivered': 0, 'items': [{'kind': 'value', 'name': 'uuid:1', 'value': 7}]",
           "'delivered': 0, 'items': [{'kind': 'value', 'name': 'other', 'value': 'x'}]",
           "'delivered': 0, 'items': [{'kind': 'scope_begun', 'position': '', 'delivered': 0}]",
           "'delivered': 0, 'items': [{'kind': 'scope_ended', 'position': 's', 'delivered': 0}]",
           "'delivered': 0, 'items': [{'kind': 'emitted', 'name': 'x'}]",
           "'delivered': 0, 'requests': [{}]",
           "'delivered': 0, 'requests': [{'position': '/', 'kind': 'tool', 'tool': 'ask', "
           "'arguments': {}, 'delivered': 0}]",
           "'delivered': 0, 'requests': [{'position': 'a', 'kind': 'scope', 'delivered': 0}]",
           "'delivered': 0, 'requests': [{'position': 'a', 'kind': 'tool', 'tool': 'other', "
           "'arguments': {}, 'delivered': 0}]",
           "'delivered': 0, 'requests': [{'position': 'a', 'kind': 'llm', 'tool': 'ask', "
           "'arguments': {}, 'delivered': 0}]",
           "'delivered': 0, 'requests': [{'position': 'a', 'kind': 'tool', 'tool': 'ask', "
           "'arguments': [], 'delivered': 0}]",
           "'delivered': 0, 'requests': [{'position': 'a', 'kind': 'wait', 'delivered': 0, "
           "'wait': {'type': 'dream'}}]",
           "'delivered': 0, 'requests': [{'position': 'a', 'kind': 'wait', 'delivered': 0, "
           "'wait': {'type': 'timer'}}]",
           "'delivered': 0, 'requests': [{'position': 'a', 'kind': 'wait', 'delivered': 0, "
           "'wait': {'type': 'timer', 'lasts_ms': 9007199254740991}}]",
           "'delivered': 0, 'cancelled': ['/']",
           "'delivered': 0, 'end': {}",
           "'delivered': 0, 'end': {'result': 1, 'failure': {'code': 'x', 'message': ''}}",
           "'delivered': 0, 'end': {'failure': {'code': '', 'message': ''}}",
           "'delivered': 0, 'functions': [{'call': 1, 'delivered': 0}]",
           "'delivered': 0, 'functions': [{'call': 99, 'result': 1, 'delivered': 0}]",
       }) {
    Started one;
    one.worker.send(fmt::format("{{'type': 'advance', 'routine': 1, {}}}", part));
    EXPECT_TRUE(one.world.client.refused) << part;
    EXPECT_TRUE(one.world.client.advances.empty()) << part;
    EXPECT_EQ(one.worker.next("error")["routine"], Value(1)) << part;
    EXPECT_EQ(one.worker.next("stop").text("reason"), "refused") << part;
    EXPECT_EQ(one.worker.close_code(), 0u);
    EXPECT_TRUE(one.world.start());
  }
}

AE_TEST("remote routine/what is durable is delivered, in parts") {
  Started one;
  one.world.routine->deliver({{.position = "a", .result = json("1")},
                              {.position = "b", .kind = engine::NodeKind::wait, .timed_out = true},
                              {.position = "c", .failure = engine::Failure{"x", "y"}}});
  EXPECT_EQ(canonical(one.worker.next("deliver")["outcomes"]),
            R"([{"kind":"tool","position":"a","result":1},)"
            R"({"kind":"wait","position":"b","result":null,"timed_out":true},)"
            R"({"failure":{"code":"x","message":"y"},"kind":"tool","position":"c"}])");
  const Value large(std::string(700'000, 'x'));
  one.world.routine->deliver(
      {{.position = "d", .result = large}, {.position = "e", .result = large}});
  EXPECT_EQ(one.worker.next("deliver")["outcomes"].size(), 1u);
  EXPECT_EQ(one.worker.next("deliver")["outcomes"].size(), 1u);
}

AE_TEST("remote routine/a divergence and a loss come to the client once") {
  Started diverged;
  diverged.worker.send(R"({'type': 'diverged', 'routine': 1, 'finding': 'missing', 'delivered': 2,
                           'position': 'a', 'where': 'x.ts:1'},
                          {'type': 'advance', 'routine': 1, 'delivered': 0},
                          {'type': 'lost', 'routine': 1, 'code': 'x', 'message': 'y'})");
  ASSERT_TRUE(diverged.world.client.divergence);
  EXPECT_EQ(diverged.world.client.divergence->position, "a");
  EXPECT_EQ(diverged.world.client.divergence->delivered, 2);
  EXPECT_TRUE(diverged.world.client.advances.empty());
  EXPECT_FALSE(diverged.world.client.lost);
  EXPECT_TRUE(diverged.worker.next("error").is_null()) << "it is gone, that is no error";
  Started lost;
  lost.worker.send("{'type': 'lost', 'routine': 1, 'code': 'memory', 'message': 'too little'}");
  ASSERT_TRUE(lost.world.client.lost);
  EXPECT_EQ(lost.world.client.lost->message, "memory: too little");
  Started wrong;
  wrong.worker.send(
      "{'type': 'diverged', 'routine': 1, 'finding': 'x', 'delivered': 0, 'position': 'a'}");
  EXPECT_TRUE(wrong.world.client.refused);
}

AE_TEST("remote routine/a routine that is dropped is stopped in its worker") {
  Started one;
  one.world.routine.reset();
  EXPECT_EQ(canonical(one.worker.next("stop")),
            R"({"reason":"suspended","routine":1,"type":"stop"})");
  ASSERT_TRUE(one.world.start());
  one.world.client.drops = true;
  one.worker.send("{'type': 'advance', 'routine': 2, 'delivered': 0, 'end': {'result': 1}}");
  EXPECT_EQ(canonical(one.worker.next("stop")), R"({"reason":"ended","routine":2,"type":"stop"})");
  EXPECT_EQ(one.world.routines->running_routines(), 0u);
}

AE_TEST("remote routine/it is started where there is room, in the worker with the fewest") {
  RemoteWorld world;
  ScriptedWorker one(world), two(world, "key-1", "host:2:def");
  one.begin();
  two.begin();
  std::vector<std::unique_ptr<Routine>> running;
  for (int i = 0; i < 8; ++i) {
    ASSERT_TRUE(world.start());
    running.push_back(std::move(world.routine));
  }
  EXPECT_FALSE(world.start()) << "each has room for four";
  EXPECT_TRUE(world.is_offered());
  int starts = 0;
  while (!one.next("start").is_null()) starts++;
  EXPECT_EQ(starts, 4);
  running.pop_back();
  EXPECT_TRUE(world.start());
  world.routine.reset();
  one.wire().unsent = two.wire().unsent = 5u << 20;
  EXPECT_FALSE(world.start()) << "neither reads what it is sent";
  running.clear();
}

}  // namespace
}  // namespace ae::routines::testing
