// Tests of jobs that wait for a process that offers their version: left to it, parked, and resumed.
#include "runtime/scheduler/versions.h"

#include "runtime/worker_fixture_test.h"
#include "testing/test.h"

namespace ae::runtime::testing {
namespace {

using namespace std::chrono_literals;

std::shared_ptr<const engine::Plan> bound(std::string_view policy,
                                          std::string_view effect = "idempotent",
                                          std::string_view nodes = kOneCall) {
  const auto unbound = plan(effect, nodes);
  auto compiled = engine::Plan::compile(
      unbound->task_graph.with("versions", Value::object({{"policy", policy}})));
  AE_CHECK(compiled.has_value(), compiled ? "" : compiled.error().message);
  return *compiled;
}

WorkerFixture::Setup worker_setup(std::string version, std::uint64_t seed) {
  return {.seed = seed, .version = std::move(version), .announces = true};
}

WorkerFixture::Setup owner_setup(std::string version, std::uint64_t seed) {
  WorkerFixture::Setup setup = worker_setup(std::move(version), seed);
  setup.owned = true;
  return setup;
}

std::size_t count(WorkerFixture& worker, EventType type) {
  return all_of(worker.read().events, type).size();
}

// A process created the job and exited.
void create_and_drop_first(TestEnvironment& env, std::string_view policy, bool owned) {
  WorkerFixture first(env, "first", owned ? owner_setup("one", 1) : worker_setup("one", 1));
  first.create(bound(policy));
  AE_CHECK(first.calls.size() == 1);
  first.runtime.reset();
}

AE_TEST("versions/an owner of another version parks a strict job, and its own version resumes it") {
  TestEnvironment env;
  create_and_drop_first(env, "strict", true);
  {
    WorkerFixture other(env, "other", owner_setup("two", 2));
    other.runtime->start();
    env.loop.advance(5s);
    ASSERT_EQ(other.status(), "parked");
    EXPECT_EQ(other.calls.size(), 0u);
    EXPECT_FALSE(other.read().row.claim);
    EXPECT_TRUE(other.read().state.awaits_version());
    EXPECT_EQ(count(other, EventType::version_mismatched), 1u);
    env.loop.advance(3min);
    EXPECT_EQ(count(other, EventType::job_parked), 1u) << "it stays parked";
    other.runtime.reset();
  }
  WorkerFixture matching(env, "matching", owner_setup("one", 3));
  matching.runtime->start();
  env.loop.advance(5s);
  ASSERT_EQ(matching.calls.size(), 1u);
  EXPECT_EQ(matching.calls[0].call.try_no, 2u) << "the open call was sent again under its key";
  matching.answer(0, {.kind = OutcomeKind::success, .result = json("1")});
  EXPECT_EQ(matching.status(), "completed");
  EXPECT_EQ(count(matching, EventType::job_resumed), 1u);
}

AE_TEST("versions/a strict job without a worker of its version parks until one starts") {
  TestEnvironment env;
  create_and_drop_first(env, "strict", false);
  WorkerFixture other(env, "other", worker_setup("two", 2));
  other.runtime->start();
  env.loop.advance(65s);  // the first process's lease has expired
  ASSERT_EQ(other.status(), "parked");
  EXPECT_EQ(other.calls.size(), 0u);
  WorkerFixture matching(env, "matching", worker_setup("one", 3));
  matching.runtime->start();
  env.loop.advance(65s);
  ASSERT_EQ(matching.calls.size(), 1u);
  EXPECT_EQ(other.calls.size(), 0u);
  matching.answer(0, {.kind = OutcomeKind::success, .result = json("1")});
  EXPECT_EQ(matching.status(), "completed");
}

AE_TEST("versions/a strict job is left to an announced worker of its version") {
  TestEnvironment env;
  WorkerFixture matching(env, "matching", worker_setup("one", 1));
  matching.script = [](const store::Call& call) {  // busy: claims nothing
    return call.method == Method::claim ? Fault::fail_before : Fault::none;
  };
  matching.runtime->start();
  create_and_drop_first(env, "strict", false);
  WorkerFixture other(env, "other", worker_setup("two", 2));
  const auto before = other.read().row.last_seq;
  other.runtime->start();
  env.loop.advance(2min);
  EXPECT_EQ(other.read().row.last_seq, before) << "a worker that leaves the job writes nothing";
  EXPECT_FALSE(other.read().row.claim);
  ASSERT_TRUE(other.runtime->refusal_of(kJob));
  EXPECT_EQ(other.runtime->refusal_of(kJob)->code, Code::execution_version_mismatch);
  matching.runtime.reset();  // dies: its announcement expires
  env.loop.advance(2min);
  EXPECT_EQ(other.status(), "parked");
  EXPECT_EQ(other.calls.size(), 0u);
}

AE_TEST("versions/a route job without a worker of its version stays queued and never parks") {
  TestEnvironment env;
  {
    WorkerFixture first(env, "first", worker_setup("one", 1));
    NewJobRequest request;
    request.job = kJob;
    request.agent = "agent";
    request.plan = bound("route");
    request.start_here = false;
    auto made = env.loop.await<Result<CreateResult>>(
        [&](auto done) { first.runtime->create(request, std::move(done)); });
    ASSERT_TRUE(made);
    first.runtime.reset();
  }
  WorkerFixture other(env, "other", worker_setup("two", 2));
  const auto before = other.read().row.last_seq;
  other.runtime->start();
  env.loop.advance(3min);
  EXPECT_EQ(other.status(), "queued");
  EXPECT_EQ(other.read().row.last_seq, before);
  EXPECT_EQ(other.read().state.epoch, 0u) << "it was never claimed";
  EXPECT_EQ(other.runtime->missing_capabilities(other.read().row),
            std::vector<std::string>{"execution_version:agent=one"});
  WorkerFixture matching(env, "matching", worker_setup("one", 3));
  matching.runtime->start();
  env.loop.advance(5s);
  EXPECT_EQ(matching.calls.size(), 1u);
}

AE_TEST("versions/a parked strict job that a sweep misses is found by the next one") {
  TestEnvironment env;
  WorkerFixture matching(env, "matching", worker_setup("one", 1));
  bool query_fails = true;
  matching.script = [&](const store::Call& call) {
    return query_fails && call.method == Method::query ? Fault::fail_before : Fault::none;
  };
  create_and_drop_first(env, "strict", false);
  {
    WorkerFixture other(env, "other", worker_setup("two", 2));
    other.runtime->start();
    env.loop.advance(65s);
    ASSERT_EQ(other.status(), "parked");
    other.runtime.reset();
  }
  matching.runtime->start();
  env.loop.advance(5s);
  EXPECT_EQ(matching.status(), "parked");
  query_fails = false;
  env.loop.advance(2min);
  EXPECT_EQ(matching.calls.size(), 1u);
}

AE_TEST("versions/a process that offers a new version checks parked jobs again") {
  TestEnvironment env;
  create_and_drop_first(env, "strict", true);
  WorkerFixture worker(env, "desk", owner_setup("two", 2));
  worker.runtime->start();
  env.loop.advance(5s);
  ASSERT_EQ(worker.status(), "parked");
  env.loop.advance(5min);  // swept, and checked again only when the log has grown
  worker.runtime->offer({"agent"}, {{"agent", "one"}});
  env.loop.advance(5s);
  ASSERT_EQ(worker.calls.size(), 1u);
  EXPECT_EQ(count(worker, EventType::job_resumed), 1u);
}

AE_TEST("versions/a process that gets the version during the check of workers runs the job") {
  TestEnvironment env;
  create_and_drop_first(env, "strict", false);
  WorkerFixture worker(env, "desk", worker_setup("two", 2));
  bool counting = false;
  worker.script = [&](const store::Call& call) {
    if (call.method != Method::count_jobs) return Fault::none;
    counting = true;
    return Fault::delay_answer;
  };
  worker.runtime->start();
  for (int i = 0; i < 2000 && !(counting && worker.runtime->is_leased(kJob)); ++i)
    env.loop.advance(50ms);
  ASSERT_TRUE(counting && worker.runtime->is_leased(kJob));
  EXPECT_EQ(count(worker, EventType::job_running), 1u) << "its own attempt has not begun";
  worker.runtime->offer({"agent"}, {{"agent", "one"}});
  env.loop.advance(45s);
  ASSERT_EQ(worker.calls.size(), 1u);
  EXPECT_EQ(count(worker, EventType::job_parked), 0u);
  EXPECT_EQ(count(worker, EventType::version_mismatched), 0u);
  const auto read = worker.read();
  for (const auto* started : all_of<ToolInvocationStarted>(read.events)) {
    EXPECT_EQ(started->tool_version, "0123456789abcdef");
  }
  worker.answer(0, {.kind = OutcomeKind::success, .result = json("1")});
  EXPECT_EQ(worker.status(), "completed");
}

AE_TEST("versions/a parked job that a sweep could not load is resumed by the next one") {
  TestEnvironment env;
  create_and_drop_first(env, "strict", true);
  {
    WorkerFixture other(env, "other", owner_setup("two", 2));
    other.runtime->start();
    env.loop.advance(5s);
    ASSERT_EQ(other.status(), "parked");
    other.runtime.reset();
  }
  WorkerFixture matching(env, "matching", owner_setup("one", 3));
  std::size_t refused = 0;
  matching.script = [&](const store::Call& call) {
    if (call.method != Method::load || refused > 0) return Fault::none;
    ++refused;
    return Fault::fail_before;
  };
  matching.runtime->start();
  env.loop.advance(5s);
  ASSERT_EQ(refused, 1u);
  EXPECT_EQ(matching.status(), "parked");
  env.loop.advance(2min);
  EXPECT_EQ(matching.calls.size(), 1u);
}

AE_TEST("versions/a worker without the job's capabilities neither delays nor resumes it") {
  TestEnvironment env;
  WorkerFixture::Setup able = worker_setup("one", 1);
  able.capabilities = {"gpu"};
  {
    WorkerFixture first(env, "first", able);
    NewJobRequest request;
    request.job = kJob;
    request.agent = "agent";
    request.plan = bound("strict");
    request.required_capabilities = {"gpu"};
    request.start_here = false;
    ASSERT_TRUE(env.loop.await<Result<CreateResult>>(
        [&](auto done) { first.runtime->create(request, std::move(done)); }));
    first.runtime.reset();
  }
  WorkerFixture unable(env, "unable", worker_setup("one", 2));
  unable.runtime->start();
  WorkerFixture::Setup two = worker_setup("two", 3);
  two.capabilities = {"gpu"};
  WorkerFixture other(env, "other", two);
  other.runtime->start();
  env.loop.advance(10s);
  EXPECT_EQ(other.status(), "parked");
  env.loop.advance(4min);
  EXPECT_EQ(count(other, EventType::job_parked), 1u);
  EXPECT_EQ(other.status(), "parked");
  able.seed = 4;
  WorkerFixture matching(env, "matching", able);
  matching.runtime->start();
  env.loop.advance(5s);
  EXPECT_EQ(matching.calls.size(), 1u);
}

AE_TEST("versions/an attempt keeps its version when the offer changes") {
  TestEnvironment env;
  WorkerFixture worker(env, "desk", owner_setup("one", 1));
  worker.runtime->start();
  worker.create(bound("strict", "at_most_once",
                      "[{'id':'a', 'kind':'tool', 'tool':'do'}, {'id':'b', 'kind':'tool', "
                      "'tool':'do'}, {'id':'c', 'kind':'tool', 'tool':'do', 'needs':['a']}]"));
  ASSERT_EQ(worker.calls.size(), 2u);
  worker.runtime->offer({"agent"}, {{"agent", "two"}});
  worker.answer(0, {.kind = OutcomeKind::success, .result = json("1")});
  EXPECT_EQ(worker.status(), "running");
  EXPECT_EQ(count(worker, EventType::job_parked), 0u);
  ASSERT_EQ(worker.calls.size(), 3u);
  worker.answer(1, {.kind = OutcomeKind::success, .result = json("1")});
  worker.answer(2, {.kind = OutcomeKind::success, .result = json("1")});
  EXPECT_EQ(worker.status(), "completed");
  EXPECT_EQ(count(worker, EventType::version_mismatched), 0u);
}

AE_TEST("versions/a process with automatic claims off resumes a job that it claims by id") {
  TestEnvironment env;
  create_and_drop_first(env, "strict", true);
  {
    WorkerFixture other(env, "other", owner_setup("two", 2));
    other.runtime->start();
    env.loop.advance(5s);
    ASSERT_EQ(other.status(), "parked");
    other.runtime.reset();
  }
  WorkerFixture::Setup only = owner_setup("one", 3);
  only.may_claim = false;
  WorkerFixture matching(env, "matching", only);
  matching.runtime->start();
  env.loop.advance(5s);
  EXPECT_EQ(matching.status(), "parked");
  const auto claimed = env.loop.await<Result<bool>>(
      [&](auto done) { matching.runtime->claim_job(kJob, std::move(done)); });
  ASSERT_TRUE(claimed);
  EXPECT_TRUE(*claimed);
  env.loop.run_ready();
  EXPECT_EQ(matching.calls.size(), 1u);
}

AE_TEST("versions/a call left unknown by a changed tool is retried by a worker with its version") {
  TestEnvironment env;
  std::string key;
  {
    WorkerFixture first(env, "first", owner_setup("one", 1));
    first.create(plan("idempotent", kOneCall));
    key = first.calls.at(0).call.key.text;
    first.runtime.reset();
  }
  {
    WorkerFixture::Setup changed = owner_setup("one", 2);
    changed.tool_version = "ffffffffffffffff";
    WorkerFixture other(env, "other", changed);
    other.runtime->start();
    env.loop.advance(5s);
    ASSERT_EQ(other.status(), "parked");
    EXPECT_EQ(other.read().state.parked_until, "resolve");
    env.loop.advance(2min);
    EXPECT_EQ(other.status(), "parked");
    other.runtime.reset();
  }
  WorkerFixture matching(env, "matching", owner_setup("one", 3));
  matching.runtime->start();
  env.loop.advance(5s);
  ASSERT_EQ(matching.calls.size(), 1u);
  EXPECT_EQ(matching.calls[0].call.key.text, key);
  matching.answer(0, {.kind = OutcomeKind::success, .result = json("1")});
  EXPECT_EQ(matching.status(), "completed");
}

AE_TEST("versions/a job keeps its tool version when a newer one is registered") {
  TestEnvironment env;
  WorkerFixture worker(env, "w", owner_setup("one", 1));
  worker.create(plan("idempotent",
                     "[{'id':'a', 'kind':'tool', 'tool':'do'},"
                     " {'id':'b', 'kind':'tool', 'tool':'do', 'needs':['a']}]"));
  ASSERT_EQ(worker.calls.size(), 1u);
  std::deque<PendingCall> newer;
  worker.tool_registry.renew("do", {std::make_unique<ManualTool>(newer), "ffffffffffffffff"});
  worker.answer(0, {.kind = OutcomeKind::success, .result = json("1")});
  ASSERT_EQ(worker.calls.size(), 2u) << "its next call uses the same tool";
  EXPECT_TRUE(newer.empty());
  worker.answer(1, {.kind = OutcomeKind::success, .result = json("2")});
  EXPECT_EQ(worker.status(), "completed");
  EXPECT_FALSE(worker.warned("has changed"));
}

AE_TEST("versions/an invalid announcement of a worker is rejected") {
  EXPECT_FALSE(worker_offer(""));
  EXPECT_FALSE(worker_offer("[]"));
  const auto offer = worker_offer(R"({"agents":["a"],"offers":["gpu","execution_version:a=1"]})");
  ASSERT_TRUE(offer);
  EXPECT_TRUE(may_claim_agent(*offer, "a"));
  EXPECT_FALSE(may_claim_agent(*offer, "b"));
}

AE_TEST("versions/a job that lacked a tool is claimed again once the tool is there") {
  TestEnvironment env;
  WorkerFixture worker(env, "w", {.owned = true});
  worker.create(plan("idempotent", kOneCall));
  worker.runtime.reset();
  WorkerFixture other(env, "other", {.owned = true, .seed = 99});
  ToolRegistry tools = std::exchange(other.tool_registry, ToolRegistry());
  other.runtime->start();
  env.loop.advance(60s);
  ASSERT_TRUE(other.runtime->refusal_of(kJob));
  other.tool_registry = std::move(tools);
  other.runtime->retry_refused();
  env.loop.advance(60s);
  EXPECT_FALSE(other.runtime->refusal_of(kJob));
  EXPECT_TRUE(other.read().row.claim);
  EXPECT_EQ(other.calls.size(), 1u);
}

AE_TEST("versions/a worker without the job's tool releases it once without writing") {
  TestEnvironment env;
  WorkerFixture worker(env, "w", {.owned = true});
  worker.create(plan("idempotent", kOneCall));
  worker.runtime.reset();
  worker.calls.clear();
  WorkerFixture other(env, "other", {.owned = true, .seed = 99});
  other.tool_registry = ToolRegistry();
  const auto before = other.read().row.last_seq;
  other.runtime->start();
  env.loop.advance(60s);
  const auto read = other.read();
  EXPECT_EQ(read.row.last_seq, before);
  EXPECT_FALSE(read.row.claim);
  ASSERT_TRUE(other.runtime->refusal_of(kJob));
  EXPECT_EQ(other.runtime->refusal_of(kJob)->code, Code::needs_version);
  EXPECT_EQ(std::ranges::count_if(
                other.warnings,
                [](const std::string& text) { return text.find("cannot run") != text.npos; }),
            1)
      << "it is tried once";
}

AE_TEST("versions/a worker of another version continues and records the mismatch") {
  TestEnvironment env;
  WorkerFixture worker(env, "w", {.owned = true});
  worker.create(plan("idempotent", kOneCall));
  worker.runtime.reset();
  worker.calls.clear();
  WorkerFixture other(env, "other", {.owned = true, .seed = 99, .version = "0.2.0"});
  other.runtime->start();
  env.loop.advance(2s);
  const auto read = other.read();
  const auto noted = all_of<VersionMismatched>(read.events);
  ASSERT_EQ(noted.size(), 1u);
  EXPECT_EQ(noted[0]->job_version, "0.1.0");
  EXPECT_EQ(noted[0]->worker_version, "0.2.0");
  EXPECT_EQ(noted[0]->attempt_id, read.state.attempt.text);
}

// A commit with one event of a type that no version has: everything except its last 32 bytes is
// read before it is rejected.
std::string unknown_event(std::uint64_t seq) {
  std::string bytes(1, '\x01');
  bytes.append(16, '\0');             // first event id
  bytes.append(8, '\0');              // created_at
  bytes += std::string("\0\x01", 2);  // no attempt, one event
  put_varint(seq, bytes);
  bytes += "\x7f\x01";  // type 127, schema 1
  put_text("", bytes);
  return bytes.append(32, '\0');
}

AE_TEST("versions/a job with an unknown event type is released once and unchanged") {
  TestEnvironment env;
  std::optional<WorkerFixture> worker;
  worker.emplace(env, "w", WorkerFixture::Setup{.owned = true});
  worker->create(plan("idempotent", kOneCall));
  const auto read = worker->read();
  ASSERT_TRUE(read.row.claim);
  store::Batch batch;
  batch.job = kJob;
  batch.authority = store::Batch::Leased{*read.row.claim};
  batch.expected_seq = read.row.last_seq;
  batch.row.status = "running";
  const std::uint64_t seq = read.row.last_seq + 1;
  batch.sealed = SealedBatch{.bytes = unknown_event(seq),
                             .blobs = {},
                             .first_seq = seq,
                             .last_seq = seq,
                             .head = sha256("a newer program knows"),
                             .events = {}};
  worker->runtime.reset();
  auto put = env.loop.await<Result<store::CommitResult>>(
      [&](auto done) { worker->memory->commit(batch, std::move(done)); });
  ASSERT_TRUE(put);
  WorkerFixture other(env, "other", {.owned = true, .seed = 99});
  other.runtime->start();
  env.loop.advance(120s);
  ASSERT_TRUE(other.runtime->refusal_of(kJob));
  EXPECT_EQ(other.runtime->refusal_of(kJob)->code, Code::needs_version);
  auto loaded = env.loop.await<Result<store::LoadedJob>>(
      [&](auto done) { other.memory->load(kJob, 1, std::move(done)); });
  ASSERT_TRUE(loaded);
  EXPECT_EQ(loaded->row.last_seq, seq) << "nothing was appended, no attempt begun";
  EXPECT_EQ(loaded->row.status, "running") << "it did not fail";
  EXPECT_FALSE(loaded->row.claim);
  EXPECT_EQ(other.warnings.size(), 1u) << "it is claimed once";
  EXPECT_TRUE(other.calls.empty());
}

}  // namespace
}  // namespace ae::runtime::testing
