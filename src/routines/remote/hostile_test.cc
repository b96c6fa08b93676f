// A hostile worker: changed messages and frames harm nothing but its own session.
#include <string>
#include <vector>

#include "routines/remote/scripted_worker_test.h"
#include "testing/seeded_random.h"

namespace ae::routines::testing {
namespace {

const char* const kMessages[] = {
    R"({'type': 'advance', 'routine': 1, 'delivered': 1, 'settled': true,
        'functions': [{'call': 1, 'result': {'x': 1}, 'delivered': 0}],
        'items': [{'kind': 'value', 'name': 'time:s/1', 'value': {'ms': 1, 'time': 'x'}},
                  {'kind': 'scope_begun', 'position': 's', 'delivered': 0},
                  {'kind': 'scope_ended', 'position': 's', 'delivered': 1, 'result': 1},
                  {'kind': 'emitted', 'scope': 's', 'name': 'x', 'value': 1}],
        'requests': [{'position': 'a', 'kind': 'tool', 'tool': 'ask', 'arguments': {},
                      'delivered': 0},
                     {'position': 'b', 'kind': 'wait', 'delivered': 0,
                      'wait': {'type': 'timer', 'lasts_ms': 5}}],
        'cancelled': ['c']})",
    R"({'type': 'advance', 'routine': 1, 'delivered': 0,
        'end': {'exception': {'name': 'E', 'message': 'm', 'stack': 's'}}})",
    R"({'type': 'diverged', 'routine': 1, 'finding': 'missing', 'delivered': 0, 'position': 'a',
        'found': {'kind': 'tool'}, 'where': 'x'})",
    R"({'type': 'lost', 'routine': 1, 'code': 'c', 'message': 'm'})",
    R"({'type': 'ended', 'call': 1, 'failure': {'code': 'c', 'message': 'm', 'definite': true,
        'retry_after_ms': 1}})",
    R"({'type': 'ended', 'call': 2, 'result': [1]})",
    R"({'type': 'late', 'job': 'job-1', 'invocation': 'i-f', 'try': 1, 'result': 1})",
    R"({'type': 'text', 'call': 1, 'at': 0, 'text': 't'})",
    R"({'type': 'progress', 'call': 1, 'value': {}})",
    R"({'type': 'hello', 'protocol': 1, 'sdk': 's', 'worker': 'host:1:abc', 'agents':
        [{'name': 'agent', 'version': '1'}], 'tools': [{'name': 'score'}], 'capacity':
        {'routines': 1, 'calls': 1}, 'resume': {'session': 's', 'ack': 0}, 'left':
        [{'job': 'job-1', 'invocation': 'i-f', 'try': 1}]})",
    "{'type': 'drain'}",
    "{'type': 'heartbeat'}",
};

const char* const kValues[] = {
    "null",  "true",      "0",       "1",     "2",  "-1", "1.5",    "9007199254740991",
    "'x'",   "''",        "'a/b#2'", "'/'",   "[]", "{}", "[null]", "{'code': 'c', 'message': 'm'}",
    "1e300", "'\\u0000'", "'tool'",  "'wait'"};

// A copy in which some values are others, and some members are missing.
Value changed(const Value& value, ae::testing::SeededRandom& random, std::size_t one_of) {
  if (random.below(one_of) == 0) return json(kValues[random.below(std::size(kValues))]);
  if (value.is_array()) {
    std::vector<Value> items;
    for (const Value& item : value.items()) items.push_back(changed(item, random, one_of));
    return Value::array(std::move(items));
  }
  if (!value.is_object()) return value;
  std::vector<Member> members;
  for (const auto& [name, member] : value.members()) {
    if (random.below(one_of) != 0) members.emplace_back(name, changed(member, random, one_of));
  }
  return Value::object(std::move(members));
}

AE_TEST("worker session/changed messages touch nothing that the worker was not given") {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    ae::testing::SeededRandom random(seed);
    RemoteWorld world;
    ScriptedWorker honest(world, "key-2", "host:2:def");
    honest.begin();
    ASSERT_TRUE(world.start());
    const auto kept = std::move(world.routine);
    world.client.routine = nullptr;
    RecordingClient client;
    const auto call = world.perform(kept->functions(), "run:read");
    honest.next("perform");

    ScriptedWorker hostile(world);
    hostile.begin();
    std::unique_ptr<Routine> routine = world.routines->start({.job = JobId("job-2"),
                                                              .plan = world.plan,
                                                              .version = "1",
                                                              .record = {},
                                                              .client = &client});
    ASSERT_NE(routine, nullptr);
    client.routine = &routine;
    const auto its_call = world.perform(routine->functions(), "run:read", "g");
    for (int i = 0; i < 40 && hostile.close_code() == 0; ++i) {
      const Value message = json(kMessages[random.below(std::size(kMessages))]);
      hostile.send(canonical(changed(message, random, 4 + random.below(30))));
      if (routine == nullptr && random.below(4) == 0) {
        routine = world.routines->start({.job = JobId("job-2"),
                                         .plan = world.plan,
                                         .version = "1",
                                         .record = {},
                                         .client = &client});
      }
    }
    EXPECT_LE(its_call->outcomes.size(), 1u) << seed;
    EXPECT_LE(its_call->late.size(), 1u) << seed;
    EXPECT_FALSE(call->is_done()) << seed;
    EXPECT_TRUE(world.client.advances.empty() && !world.client.lost && !world.client.refused);
    honest.send("{'type': 'heartbeat'}");
    EXPECT_EQ(honest.close_code(), 0u);
    routine.reset();
  }
}

AE_TEST("worker session/a frame of many wrong messages costs 100 errors, then the session") {
  RemoteWorld world;
  ScriptedWorker worker(world);
  worker.begin();
  std::string messages = "{}";
  for (int i = 0; i < 100'000; ++i) messages += ",{}";
  worker.send(messages);
  EXPECT_EQ(worker.close_code(), 1008u);
  EXPECT_EQ(world.routines->sessions(), 0u);
}

AE_TEST("worker session/changed frames end at most its connection") {
  const std::string frame = frame_text(
      2, 1, R"({"type":"ended","call":1,"result":{"x":[1,2,"y"]}},{"type":"heartbeat"})");
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    ae::testing::SeededRandom random(seed);
    RemoteWorld world;
    ScriptedWorker worker(world);
    worker.begin();
    std::string changed_frame = frame;
    for (std::uint64_t i = 0; i <= random.below(4); ++i) {
      const auto at = static_cast<std::size_t>(random.below(changed_frame.size()));
      switch (random.below(3)) {
        case 0:
          changed_frame[at] = static_cast<char>(random.below(256));
          break;
        case 1:
          changed_frame.erase(at, 1 + random.below(5));
          break;
        default:
          changed_frame.insert(at, changed_frame.substr(random.below(changed_frame.size()), 6));
      }
      if (changed_frame.empty()) break;
    }
    worker.deliver(changed_frame);
    EXPECT_LE(world.routines->connections(), 1u);
  }
}

}  // namespace
}  // namespace ae::routines::testing
