// Sessions of workers: hello, resume, silence, drain, closing; what a session refuses.
#include <string>
#include <vector>

#include "routines/remote/scripted_worker_test.h"

namespace ae::routines::testing {
namespace {

AE_TEST("worker session/a hello begins a session, and its agents and tools are offered") {
  RemoteWorld world;
  EXPECT_FALSE(world.is_offered());
  ScriptedWorker worker(world);
  const Value welcome = worker.begin();
  EXPECT_FALSE(welcome.text("session").empty());
  EXPECT_EQ(canonical(welcome["limits"]),
            R"({"heartbeat_ms":2000,"resume_ms":20000,"silent_ms":15000})");
  EXPECT_EQ(canonical(welcome["agents"]), R"([{"name":"agent","version":"1"}])");
  EXPECT_EQ(welcome["resumed"], Value(false));
  EXPECT_EQ(welcome["now"], Value("2026-01-01T00:00:00.000000Z"));
  EXPECT_EQ(worker.received(), 1u) << "the welcome is frame 1";
  EXPECT_TRUE(world.is_offered());
  EXPECT_NE(world.routines->tool("score"), nullptr);
  EXPECT_EQ(world.routines->tool("other"), nullptr);
  EXPECT_EQ(world.hellos.at(0).principal, "key-1");
  EXPECT_EQ(world.hellos.at(0).tools.at(0).name, "score");
  EXPECT_GT(world.changes, 0);
}

AE_TEST("worker session/an agent with faults is not offered, and its faults are sent") {
  RemoteWorld world;
  world.faults = {{.name = "agent", .version = "1", .faults = json("['no such tool']")}};
  ScriptedWorker worker(world);
  EXPECT_EQ(canonical(worker.begin()["agents"]),
            R"([{"faults":["no such tool"],"name":"agent","version":"1"}])");
  EXPECT_FALSE(world.is_offered());
}

AE_TEST("worker session/a connection without a hello in time, or with another message, is closed") {
  RemoteWorld world;
  ScriptedWorker mute(world);
  world.loop.advance(11s);
  EXPECT_EQ(mute.close_code(), 1008u);
  for (const char* first :
       {"{'type': 'heartbeat'}", "", "{'type': 'hello'}", "7",
        "{'type': 'hello', 'protocol': 2, 'sdk': '', 'worker': '', 'capacity': {}}"}) {
    ScriptedWorker wrong(world);
    wrong.send(first);
    EXPECT_EQ(wrong.close_code(), 1008u) << first;
    EXPECT_FALSE(wrong.next("error").text("code").empty()) << first;
  }
  EXPECT_EQ(world.routines->sessions(), 0u);
  EXPECT_EQ(world.routines->connections(), 0u);
}

AE_TEST("worker session/frames are acknowledged at the latest after heartbeat_ms") {
  RemoteWorld world;
  ScriptedWorker worker(world);
  worker.begin();
  worker.send("{'type': 'heartbeat'}");
  worker.drop_texts();
  world.loop.advance(2s);
  ASSERT_EQ(worker.wire().texts.size(), 1u);
  EXPECT_EQ(worker.wire().texts.front(), R"({"frame":2,"ack":2,"messages":[]})");
  world.loop.advance(2s);
  EXPECT_EQ(worker.wire().texts.size(), 1u) << "there is nothing new to acknowledge";
}

AE_TEST("worker session/frames that are out of order or acknowledge the future end it") {
  for (const auto& [number, ack] : {std::pair(3, 1), std::pair(2, 7)}) {
    RemoteWorld world;
    ScriptedWorker worker(world);
    worker.begin();
    ASSERT_TRUE(world.start());
    worker.deliver(frame_text(static_cast<std::uint64_t>(number), static_cast<std::uint64_t>(ack),
                              R"({"type":"heartbeat"})"));
    EXPECT_EQ(worker.close_code(), 1002u);
    EXPECT_TRUE(world.client.lost);
    EXPECT_EQ(world.routines->sessions(), 0u);
  }
}

AE_TEST("worker session/a lost connection is resumed, and both sides send their frames again") {
  RemoteWorld world;
  ScriptedWorker worker(world);
  worker.begin();
  ASSERT_TRUE(world.start());
  EXPECT_FALSE(worker.next("start").is_null());
  const std::string seen = worker.send(R"({'type': 'advance', 'routine': 1, 'delivered': 0,
      'requests': [{'position': 'a', 'kind': 'tool', 'tool': 'ask', 'arguments': {},
                    'delivered': 0}]})");
  ASSERT_EQ(world.client.advances.size(), 1u);
  // Written to a connection that is gone: the worker does not get it.
  world.routine->deliver({{.position = "a", .result = json("'A'")}});
  world.loop.run_ready();
  worker.drop_texts();
  worker.disconnect();
  EXPECT_FALSE(world.client.lost);
  world.routine->deliver({{.position = "b", .result = json("'B'")}});  // while it is away
  const std::string lost =
      worker.unsent_frame(R"({'type': 'advance', 'routine': 1, 'delivered': 1})");
  world.loop.advance(5s);
  const Value welcome = worker.resume({seen, lost});
  EXPECT_EQ(welcome["resumed"], Value(true));
  EXPECT_EQ(welcome.text("session"), worker.session);
  EXPECT_EQ(worker.next("deliver")["outcomes"].items()[0].text("position"), "a");
  EXPECT_EQ(worker.next("deliver")["outcomes"].items()[0].text("position"), "b");
  EXPECT_EQ(world.client.advances.size(), 2u) << "a frame that was processed is ignored";
  EXPECT_FALSE(world.client.lost);
}

AE_TEST("worker session/a connection that is not known to be lost is replaced") {
  RemoteWorld world;
  ScriptedWorker worker(world);
  worker.begin();
  ASSERT_TRUE(world.start());
  EXPECT_EQ(worker.resume()["resumed"], Value(true));
  EXPECT_EQ(world.routines->connections(), 1u);
  EXPECT_FALSE(world.client.lost);
}

AE_TEST("worker session/a silent worker is detached, and lost after resume_ms") {
  RemoteWorld world;
  ScriptedWorker worker(world);
  worker.begin();
  ASSERT_TRUE(world.start());
  world.loop.advance(14s);
  EXPECT_EQ(worker.close_code(), 0u);
  world.loop.advance(2s);
  EXPECT_EQ(worker.close_code(), 1001u);
  EXPECT_FALSE(world.client.lost);
  EXPECT_FALSE(world.start()) << "nothing is started in a worker that is away";
  world.routine.reset();
}

AE_TEST("worker session/a session that was not resumed in time is gone, and a new one begins") {
  RemoteWorld world;
  ScriptedWorker worker(world);
  worker.begin();
  const std::string old = worker.session;
  ASSERT_TRUE(world.start());
  worker.disconnect();
  world.loop.advance(19s);
  EXPECT_FALSE(world.client.lost);
  world.loop.advance(2s);
  ASSERT_TRUE(world.client.lost);
  EXPECT_EQ(world.client.lost->code, Code::unavailable);
  worker.connect();
  const Value welcome = worker.begin(fmt::format(", 'resume': {{'session': '{}', 'ack': 1}}", old));
  EXPECT_EQ(welcome["resumed"], Value(false));
  EXPECT_NE(welcome.text("session"), old);
  EXPECT_EQ(worker.received(), 1u);
  EXPECT_TRUE(world.start());
}

AE_TEST("worker session/only its worker with its key resumes a session") {
  RemoteWorld world;
  ScriptedWorker worker(world);
  worker.begin();
  ASSERT_TRUE(world.start());
  const std::string resume =
      fmt::format(", 'resume': {{'session': '{}', 'ack': 1}}", worker.session);
  ScriptedWorker other_key(world, "key-2");
  EXPECT_EQ(other_key.begin(resume)["resumed"], Value(false));
  ScriptedWorker other_worker(world, "key-1", "host:2:def");
  EXPECT_EQ(other_worker.begin(resume)["resumed"], Value(false));
  EXPECT_EQ(worker.close_code(), 0u);
  EXPECT_FALSE(world.client.lost);
}

AE_TEST("worker session/a worker that closes with 1000 has ended") {
  RemoteWorld world;
  ScriptedWorker worker(world);
  worker.begin();
  ASSERT_TRUE(world.start());
  worker.disconnect(1000);
  EXPECT_TRUE(world.client.lost);
  EXPECT_EQ(world.routines->sessions(), 0u);
}

AE_TEST("worker session/a draining worker starts nothing, and gives settled routines back") {
  RemoteWorld world;
  ScriptedWorker worker(world);
  worker.begin();
  ASSERT_TRUE(world.start());
  worker.send("{'type': 'drain'}");
  EXPECT_FALSE(world.client.lost) << "it has not settled";
  worker.send("{'type': 'advance', 'routine': 1, 'delivered': 0}");
  EXPECT_TRUE(world.client.lost);
  EXPECT_EQ(worker.next("stop").text("reason"), "suspended");
  EXPECT_FALSE(world.start());
}

AE_TEST("worker session/a draining worker keeps a routine whose function runs") {
  RemoteWorld world;
  ScriptedWorker worker(world);
  worker.begin();
  ASSERT_TRUE(world.start());
  worker.send("{'type': 'advance', 'routine': 1, 'delivered': 0}");
  const auto call = world.perform(world.routine->functions(), "run:read");
  worker.send("{'type': 'drain'}");
  EXPECT_FALSE(world.client.lost);
  worker.send(
      "{'type': 'ended', 'call': 1, 'unknown': {'code': 'killed', 'message': 'm'}},"
      "{'type': 'advance', 'routine': 1, 'delivered': 0}");
  EXPECT_TRUE(call->is_done());
  EXPECT_TRUE(world.client.lost);
}

AE_TEST("worker session/a server that stops announces it, then closes with 1001") {
  RemoteWorld world;
  ScriptedWorker worker(world);
  worker.begin();
  world.routines->begin_closing(30s);
  EXPECT_EQ(worker.next("closing")["within_ms"], Value(30'000));
  EXPECT_FALSE(world.start());
  ScriptedWorker late(world);
  EXPECT_EQ(late.close_code(), 1001u);
  world.routines->close();
  EXPECT_EQ(worker.close_code(), 1001u);
  EXPECT_EQ(world.routines->sessions(), 0u);
}

AE_TEST("worker session/a revoked key ends its sessions and no others") {
  RemoteWorld world;
  ScriptedWorker other(world, "key-2", "host:2:def");
  other.begin();
  ScriptedWorker worker(world);
  worker.begin();
  world.routines->revoke("key-1");
  EXPECT_EQ(worker.close_code(), 1008u);
  EXPECT_EQ(other.close_code(), 0u);
  EXPECT_EQ(world.routines->sessions(), 1u);
}

AE_TEST("worker session/a message that is wrong has no effect; too many of them end the session") {
  RemoteWorld world;
  ScriptedWorker worker(world);
  worker.begin();
  ASSERT_TRUE(world.start());
  worker.next("start");
  for (const char* message :
       {"7", "[]", "{}", "{'type': 7}", "{'type': 'hello'}", "{'type': 'advance'}",
        "{'type': 'advance', 'routine': 'x', 'delivered': 0}",
        "{'type': 'advance', 'routine': 2, 'delivered': 0}",
        "{'type': 'advance', 'routine': -1, 'delivered': 0}", "{'type': 'diverged', 'routine': 0}",
        "{'type': 'lost', 'routine': 9}", "{'type': 'ended', 'call': 1, 'result': 1}",
        "{'type': 'ended'}", "{'type': 'text', 'call': 1, 'at': 0, 'text': 'x'}",
        "{'type': 'progress', 'call': 1, 'value': 1}", "{'type': 'late', 'job': 'job-1'}",
        "{'type': 'late', 'job': 'job-1', 'invocation': 'i', 'try': 0, 'result': 1}"}) {
    worker.send(message);
    EXPECT_FALSE(worker.next("error").text("code").empty()) << message;
  }
  worker.send("{'type': 'of_a_newer_protocol', 'routine': 9}, {'type': 'heartbeat'}");
  EXPECT_TRUE(worker.next("error").is_null());
  EXPECT_TRUE(world.client.advances.empty());
  EXPECT_FALSE(world.client.lost || world.client.refused || world.client.divergence);
  for (int i = 0; i < 100; ++i) worker.send("{'type': 'ended', 'call': 5, 'result': 1}");
  EXPECT_EQ(worker.close_code(), 1008u);
  EXPECT_TRUE(world.client.lost);
}

AE_TEST("worker session/a text that is not a frame ends its session") {
  for (const char* text :
       {"", "x", "[]", "{}", R"({"frame":2,"ack":1})", R"({"frame":-2,"ack":1,"messages":[]})",
        R"({"frame":2,"ack":1,"messages":{}})",
        R"({"frame":2,"ack":1,"messages":[{"n":9007199254740993}]})",
        R"({"frame":2,"ack":1,"messages":[{"a":1,"a":2}]})"}) {
    RemoteWorld world;
    ScriptedWorker worker(world);
    worker.begin();
    worker.deliver(text);
    EXPECT_EQ(worker.close_code(), 1008u) << text;
    EXPECT_EQ(world.routines->connections(), 0u);
    EXPECT_EQ(world.routines->sessions(), 0u);
  }
}

AE_TEST("worker session/a worker that acknowledges nothing of much is lost, after silent_ms") {
  RemoteWorld world;
  ScriptedWorker worker(world);
  worker.begin();
  ASSERT_TRUE(world.start());
  const Value large(std::string(15u << 20, 'x'));
  for (int i = 0; i < 5; ++i) world.routine->deliver({{.position = "a", .result = large}});
  world.loop.run_ready();
  for (int i = 2; i < 20 && worker.close_code() == 0; ++i) {
    worker.deliver(frame_text(static_cast<std::uint64_t>(i), 1, R"({"type":"heartbeat"})"));
    EXPECT_EQ(worker.close_code(), 0u) << i;
    world.loop.advance(1s);
  }
  EXPECT_EQ(worker.close_code(), 1008u);
  EXPECT_TRUE(world.client.lost);
}

AE_TEST("worker session/sessions are limited, in all and for each key") {
  RemoteWorld world({.sessions_max = 3, .sessions_of_principal_max = 2});
  ScriptedWorker one(world), two(world);
  one.begin();
  two.begin();
  ScriptedWorker three(world);
  three.send(three.hello());
  EXPECT_EQ(three.close_code(), 1008u);
  ScriptedWorker other(world, "key-2");
  other.begin();
  EXPECT_EQ(other.close_code(), 0u);
  ScriptedWorker last(world, "key-3");
  last.send(last.hello());
  EXPECT_EQ(last.close_code(), 1008u);
  ScriptedWorker a(world), b(world), c(world), d(world);
  EXPECT_EQ(c.close_code(), 0u);
  EXPECT_EQ(d.close_code(), 1008u) << "three connections are without a hello";
}

AE_TEST("worker session/a hello that was delayed behind a newer connection is refused") {
  RemoteWorld world;
  ScriptedWorker newer(world), delayed(world), other(world, "key-2");
  newer.begin(", 'connection': 2");
  delayed.send(delayed.hello(", 'connection': 1, 'left': []"));
  EXPECT_EQ(delayed.close_code(), 1008u);
  EXPECT_EQ(world.routines->sessions(), 1u) << "its session is not replaced";
  EXPECT_FALSE(other.begin(", 'connection': 1").text("session").empty());
  newer.connect();
  EXPECT_FALSE(newer.begin(", 'connection': 3, 'left': []").text("session").empty());
}

// ---------------------------------------------------------------- versions

AE_TEST("worker versions/those of all workers are offered, the newest last") {
  RemoteWorld world;
  world.registered = {"0"};
  ScriptedWorker first(world), second(world, "key-1", "host:2"), third(world, "key-1", "host:3");
  second.version = "2";
  third.version = "0";
  first.begin();
  second.begin();
  third.begin();
  using Versions = std::vector<std::string>;
  EXPECT_EQ(world.offered().versions, Versions({"0", "1", "2"}));
  first.disconnect(1000);
  EXPECT_EQ(world.offered().versions, Versions({"0", "2"}));
  first.connect();
  first.begin();
  EXPECT_EQ(world.offered().versions, Versions({"0", "1", "2"})) << "the order is that of before";
  EXPECT_EQ(world.routines->agent_versions().size(), 3u);
}

AE_TEST("worker versions/one whose workers have lost their connections is away") {
  RemoteWorld world;
  ScriptedWorker first(world), second(world, "key-1", "host:2");
  first.begin();
  second.begin();
  EXPECT_TRUE(world.offered().away.empty());
  first.disconnect(1006);
  EXPECT_TRUE(world.offered().away.empty()) << "the other one is connected";
  second.disconnect(1006);
  EXPECT_TRUE(world.is_offered());
  EXPECT_EQ(world.offered().away, std::vector<std::string>({"1"}));
  EXPECT_FALSE(world.start());
}

AE_TEST("worker versions/their order is that of the store, in whichever order workers connect") {
  RemoteWorld world;
  world.registered = {"1", "2", "3"};
  ScriptedWorker first(world), second(world, "key-1", "host:2"), third(world, "key-1", "host:3"),
      fourth(world, "key-1", "host:4");
  second.version = "3";
  third.version = "2";
  fourth.version = "4";  // of a deployment now
  fourth.begin();
  second.begin();
  third.begin();
  first.begin();
  using Versions = std::vector<std::string>;
  EXPECT_EQ(world.offered().versions, Versions({"1", "2", "3", "4"}));
  world.registered.emplace_back("4");
  EXPECT_EQ(world.offered().versions, Versions({"1", "2", "3", "4"}));
}

AE_TEST(
    "worker versions/a worker without a function of the plan does not run it, and it is named") {
  RemoteWorld world;
  EXPECT_FALSE(world.routines->missing_function(*world.plan, 0)) << "no worker has the agent";
  ScriptedWorker worker(world);
  worker.send(
      "{'type': 'hello', 'protocol': 1, 'sdk': 'test/1', 'worker': 'host:1', 'agents': "
      "[{'name': 'agent', 'version': '1'}], 'tools': [], 'capacity': {'routines': 4, "
      "'calls': 4}}");
  EXPECT_FALSE(world.is_offered());
  const auto missing = world.routines->missing_function(*world.plan, 0);
  ASSERT_TRUE(missing);
  EXPECT_EQ(missing->version, "1");
  EXPECT_EQ(missing->name, "score");
  ScriptedWorker whole(world, "key-1", "host:2");
  whole.begin();
  EXPECT_TRUE(world.is_offered());
}

AE_TEST(
    "worker versions/a routine is started in a worker with its version, as a trial if it is "
    "another") {
  RemoteWorld world;
  ScriptedWorker first(world), second(world, "key-1", "host:2");
  second.version = "2";
  first.begin();
  second.begin();
  world.version = "2";
  EXPECT_TRUE(world.start());
  EXPECT_FALSE(first.has_messages());
  const Value start = second.next("start");
  EXPECT_EQ(start["version"], Value("2"));
  EXPECT_EQ(start["trial"], Value(true));
  world.routine.reset();
  world.version = "1";
  EXPECT_TRUE(world.start());
  EXPECT_EQ(first.next("start").find("trial"), nullptr);
  world.routine.reset();
  world.version = "3";
  EXPECT_FALSE(world.start());
}

AE_TEST("worker versions/the time without a version counts from its last worker, or its drain") {
  RemoteWorld world;
  world.loop.advance(10s);
  ScriptedWorker first(world), second(world, "key-1", "host:2");
  second.version = "2";
  second.begin();
  EXPECT_EQ(world.offered().own_missing_for, 10s) << "no worker has had it since the start";
  first.begin();
  EXPECT_TRUE(world.is_offered());
  world.loop.advance(5s);
  first.send("{'type': 'drain'}");
  second.send("{'type': 'heartbeat'}");
  EXPECT_FALSE(world.is_offered());
  world.loop.advance(3s);
  EXPECT_EQ(world.offered().own_missing_for, 3s);
  first.disconnect(1000);
  world.loop.advance(4s);
  EXPECT_EQ(world.offered().own_missing_for, 7s);
  EXPECT_EQ(world.offered().versions, std::vector<std::string>{"2"});
}

}  // namespace
}  // namespace ae::routines::testing
