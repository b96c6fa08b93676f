// Tests of the Confirmer: a process dies, another takes its job over and verifies what it changed;
// how the runtime handles results and missing results.
//
// Method: a Process is a runtime on an in-memory disk that outlives it. Its tool `make` changes a
// resource, `use` changes nothing; the test answers both, and the verifier. Time moves only by
// `advance`.
#include "runtime/driver/confirmer.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <memory>

#include "json/json.h"
#include "runtime/scheduler/runtime.h"
#include "store/memory/memory_store.h"
#include "testing/test.h"
#include "testing/test_loop.h"

namespace ae::runtime {
namespace {

using namespace std::chrono_literals;
using testing::TestLoop;
using testing::TestRandom;
using testing::TestSteadyClock;

const JobId kJob("job-1");
constexpr std::string_view kVersion = "0123456789abcdef", kOtherVersion = "fedcba9876543210";

std::shared_ptr<const engine::Plan> confirmed_plan(std::string_view mode) {
  std::string text = R"({"schema": 1,
    "nodes": [{"id": "a", "kind": "tool", "tool": "make"},
              {"id": "b", "kind": "tool", "tool": "use", "needs": ["a"]}],
    "tools": {"make": {POLICY, "changes": [{"type": "thing", "id": "${ .result }", "op": "create",
                                            "version": "1"}], "verify": {"by": "file", "mode": "MODE"}},
              "use": {POLICY}}})";
  const std::string policy =
      R"("effect": "idempotent", "on_in_doubt": "resend", "timeout": "10s", "grace": "30s",
         "dedupe_window": "24h", "version": "0123456789abcdef",
         "retry": {"max_attempts": 1, "initial_backoff": "200ms", "max_backoff": "10s",
                   "multiplier": 2, "retry_on": ["connect"]})";
  const auto put = [&](std::string_view mark, std::string_view with) {
    for (std::size_t at; (at = text.find(mark)) != text.npos;) text.replace(at, mark.size(), with);
  };
  put("POLICY", policy);
  put("MODE", mode);
  auto compiled = engine::Plan::compile(*parse_json(text));
  AE_CHECK(compiled.has_value(), compiled ? "" : compiled.error().message);
  return *compiled;
}

struct PendingCall {
  tools::Call call;
  async::Done<Outcome> done;
};

class ManualTool final : public tools::Tool {
 public:
  explicit ManualTool(std::deque<PendingCall>& calls) : calls_(calls) {}
  void perform(tools::Permit permit, tools::Call call, async::Done<Outcome> done) override {
    std::move(permit).consume(call.invocation, call.try_no);
    calls_.push_back({std::move(call), std::move(done)});
  }
  void abandon(const InvocationId&, std::uint32_t) override {}

 private:
  std::deque<PendingCall>& calls_;
};

class ManualVerifier final : public tools::Verifier {
 public:
  explicit ManualVerifier(std::deque<async::Done<CheckResult>>& checks) : checks_(checks) {}
  void check(Value change, async::Done<CheckResult> done) override {
    EXPECT_EQ(change.text("id"), "t1");
    EXPECT_EQ(change.text("version"), "1");
    checks_.push_back(std::move(done));
  }

 private:
  std::deque<async::Done<CheckResult>>& checks_;
};

struct TestEnvironment {
  TestLoop loop;
  TestSteadyClock steady{loop};
  store::MemoryDisk disk;
};

class Process final : public RuntimeObserver {
 public:
  explicit Process(TestEnvironment& env, std::uint64_t seed, bool has_verifier = true,
                   Durability durability = Durability::fused, bool has_newer_version = false)
      : env_(env), chance_(seed), store_(env.loop, env.loop, env.disk) {
    tool_registry_.add("make", {std::make_unique<ManualTool>(calls), std::string(kVersion),
                                has_verifier ? std::make_unique<ManualVerifier>(checks) : nullptr});
    if (has_newer_version) {
      tool_registry_.renew("make",
                           {std::make_unique<ManualTool>(calls), std::string(kOtherVersion)});
    }
    tool_registry_.add("use", {std::make_unique<ManualTool>(calls), std::string(kVersion)});
    RuntimeObserver* const self = this;
    runtime.emplace(World{env.loop, env.steady, chance_, store_, tool_registry_},
                    RuntimeOptions{.durability = durability}, self);
    runtime->start();
    env.loop.run_ready();
  }
  void create(std::string_view mode) {
    NewJobRequest request;
    request.job = kJob;
    request.agent = "agent";
    request.plan = confirmed_plan(mode);
    auto made = env_.loop.await<Result<CreateResult>>(
        [&](auto done) { runtime->create(request, std::move(done)); });
    AE_CHECK(made.has_value(), made ? "" : made.error().message);
    env_.loop.run_ready();
  }
  void succeed(std::size_t call, std::string_view result) {
    calls.at(call).done({.kind = OutcomeKind::success, .result = Value(result)});
    env_.loop.run_ready();
  }
  void finish_check(CheckVerdict verdict, std::string observed = {}) {
    AE_CHECK(!checks.empty(), "no check is pending");
    async::Done<CheckResult> done = std::move(checks.front());
    checks.pop_front();
    done({.verdict = verdict, .expected = "1", .observed = std::move(observed), .reason = "r"});
    env_.loop.run_ready();
  }
  Result<Value> submit(engine::ControlRequest request) {
    auto answer = env_.loop.await<Result<Value>>(
        [&](auto done) { runtime->submit_request(kJob, std::move(request), std::move(done)); });
    env_.loop.run_ready();
    env_.loop.advance(2s);
    return answer;
  }
  engine::State state() {
    auto read = env_.loop.await<Result<Runtime::JobSnapshot>>(
        [&](auto done) { runtime->read(kJob, std::move(done)); });
    AE_CHECK(read.has_value(), read ? "" : read.error().message);
    return std::move(read->state);
  }
  std::string status() { return std::string(engine::to_text(state().status)); }
  bool warned(std::string_view words) const {
    return std::ranges::any_of(
        warnings, [&](const std::string& text) { return text.find(words) != text.npos; });
  }
  void on_warning(const JobId&, const std::string& what) override { warnings.push_back(what); }

 private:
  TestEnvironment& env_;
  TestRandom chance_;
  store::MemoryStore store_;
  ToolRegistry tool_registry_;

 public:
  std::deque<PendingCall> calls;
  std::deque<async::Done<CheckResult>> checks;
  std::vector<std::string> warnings;
  std::optional<Runtime> runtime;
};

// One process made the resource and died while it used it; a second process has taken the job over.
struct TakeoverFixture {
  explicit TakeoverFixture(std::string_view mode, Durability durability = Durability::fused) {
    first.emplace(env, 1, true, durability);
    first->create(mode);
    first->succeed(0, "t1");
    AE_CHECK(first->calls.size() == 2 && first->checks.empty());
    first.reset();
    take_over(durability);
  }
  void take_over(Durability durability = Durability::fused) {
    second.reset();
    second.emplace(env, seed += 1'000'000, true, durability);
    env.loop.advance(2s);
    AE_CHECK(second->runtime->is_leased(kJob), second->status());
  }
  TestEnvironment env;
  std::uint64_t seed = 1;
  std::optional<Process> first, second;
};

AE_TEST("confirmer/a new lease holder verifies recorded changes before its first call") {
  for (const Durability durability : {Durability::fused, Durability::split}) {
    TakeoverFixture takeover("strict", durability);
    Process& next = *takeover.second;
    EXPECT_EQ(next.checks.size(), 1u);
    EXPECT_EQ(next.calls.size(), 0u);
    takeover.env.loop.advance(5s);
    EXPECT_EQ(next.checks.size(), 1u) << "it is called once";
    next.finish_check(CheckVerdict::match);
    ASSERT_EQ(next.calls.size(), 1u);
    next.succeed(0, "used");
    EXPECT_EQ(next.status(), "completed");
  }
}

AE_TEST("confirmer/a process that dies during verification records no verdict") {
  TakeoverFixture takeover("strict");
  const std::uint64_t seq = takeover.second->state().seq;
  takeover.take_over();
  EXPECT_EQ(takeover.second->checks.size(), 1u);
  EXPECT_EQ(takeover.second->state().seq, seq + 3)
      << "another job_running and the two notes of its recovery, nothing else";
  takeover.second->finish_check(CheckVerdict::mismatch, "2");
  EXPECT_EQ(takeover.second->status(), "failed");
  EXPECT_EQ(takeover.second->state().error->code, "confirmation_failed");
  EXPECT_EQ(takeover.second->calls.size(), 0u);
}

AE_TEST("confirmer/warn mode: the job continues, the mismatch is logged and counted once") {
  TakeoverFixture takeover("warn");
  Process& next = *takeover.second;
  next.finish_check(CheckVerdict::mismatch, "2");
  EXPECT_EQ(next.calls.size(), 1u);
  EXPECT_EQ(next.runtime->counters().aetheris_confirmation_replay_warn_total, 1u);
  EXPECT_TRUE(next.warned("thing \"t1\" is not as the job left it"));
}

AE_TEST("confirmer/human mode: a mismatch parks the job until an operator accepts it") {
  TakeoverFixture takeover("human");
  Process& next = *takeover.second;
  next.finish_check(CheckVerdict::mismatch, "2");
  EXPECT_EQ(next.status(), "parked");
  EXPECT_FALSE(next.runtime->is_leased(kJob));
  const auto answer =
      next.submit({.id = "x",
                   .by = "ann",
                   .body = engine::ResolveRequest{.step_id = next.state().steps[0].id.text,
                                                  .resolution = "accept"}});
  ASSERT_TRUE(answer) << answer.error().message;
  EXPECT_EQ(answer->text("resolution"), "accept");
  ASSERT_EQ(next.checks.size(), 1u) << "a new recovery verifies again";
  next.finish_check(CheckVerdict::mismatch, "2");
  ASSERT_EQ(next.calls.size(), 1u);
  next.succeed(0, "used");
  EXPECT_EQ(next.status(), "completed");
}

AE_TEST("confirmer/an unreachable verifier is tried four times, then the job parks until resumed") {
  TakeoverFixture takeover("warn");
  Process& next = *takeover.second;
  for (int i = 0; i < 3; ++i) {
    next.finish_check(CheckVerdict::unreachable);
    EXPECT_EQ(next.status(), "running");
    takeover.env.loop.advance(6s);
    ASSERT_EQ(next.checks.size(), 1u) << i;
  }
  next.finish_check(CheckVerdict::unreachable);
  EXPECT_EQ(next.status(), "parked");
  EXPECT_EQ(next.state().parked_reason, "verifier_unreachable");
  ASSERT_TRUE(next.submit({.id = "y", .by = "ann", .body = engine::ResumeRequest{}}));
  ASSERT_EQ(next.checks.size(), 1u);
  next.finish_check(CheckVerdict::unreachable);
  takeover.env.loop.advance(1s);
  ASSERT_EQ(next.checks.size(), 1u) << "it may be reachable the second time";
  next.finish_check(CheckVerdict::match);
  EXPECT_EQ(next.calls.size(), 1u);
}

AE_TEST("confirmer/a verifier that never responds counts as unreachable") {
  TakeoverFixture takeover("strict");
  takeover.env.loop.advance(10min);
  EXPECT_EQ(takeover.second->checks.size(), 4u);
  EXPECT_EQ(takeover.second->status(), "parked");
  EXPECT_EQ(takeover.second->state().parked_reason, "verifier_unreachable");
  takeover.second->finish_check(CheckVerdict::match);  // too late
  EXPECT_EQ(takeover.second->status(), "parked");
}

AE_TEST("confirmer/a verdict after a cancel, pause or shutdown changes nothing") {
  TakeoverFixture cancelled("strict");
  ASSERT_TRUE(cancelled.second->submit({.id = "c", .body = engine::CancelRequest{}}));
  EXPECT_EQ(cancelled.second->status(), "cancelled");
  cancelled.second->finish_check(CheckVerdict::mismatch, "2");
  EXPECT_EQ(cancelled.second->status(), "cancelled");

  TakeoverFixture paused("strict");
  ASSERT_TRUE(paused.second->submit({.id = "p", .body = engine::PauseRequest{}}));
  EXPECT_EQ(paused.second->status(), "parked");
  paused.second->finish_check(CheckVerdict::mismatch, "2");
  EXPECT_EQ(paused.second->status(), "parked");
  EXPECT_TRUE(paused.second->state().is_paused());

  TakeoverFixture stopped("strict");
  bool over = false;
  stopped.second->runtime->stop(1s, [&over] { over = true; });
  stopped.env.loop.advance(2s);
  EXPECT_TRUE(over);
  EXPECT_EQ(stopped.second->status(), "queued");
  stopped.second->finish_check(CheckVerdict::mismatch, "2");
  EXPECT_EQ(stopped.second->status(), "queued");
}

AE_TEST("confirmer/changes are verified with the job's version of the tool, not the newest") {
  TestEnvironment env;
  {
    Process first(env, 1);
    first.create("strict");
    first.succeed(0, "t1");
  }
  Process next(env, 1'000'001, true, Durability::fused, true);
  env.loop.advance(2s);
  ASSERT_EQ(next.checks.size(), 1u);
  next.finish_check(CheckVerdict::match);
  ASSERT_EQ(next.calls.size(), 1u);
  next.succeed(0, "used");
  EXPECT_EQ(next.status(), "completed");
}

AE_TEST("confirmer/a process without the verifier leaves the job to one that has it") {
  TestEnvironment env;
  {
    Process first(env, 1);
    first.create("strict");
    first.succeed(0, "t1");
  }
  {
    Process without_verifier(env, 1'000'001, false);
    env.loop.advance(2s);
    EXPECT_FALSE(without_verifier.runtime->is_leased(kJob));
    ASSERT_NE(without_verifier.runtime->refusal_of(kJob), nullptr);
    EXPECT_EQ(without_verifier.runtime->refusal_of(kJob)->code, Code::needs_version);
    EXPECT_EQ(without_verifier.calls.size(), 0u);
  }
  Process with_verifier(env, 2'000'001);
  env.loop.advance(2s);
  EXPECT_EQ(with_verifier.checks.size(), 1u);
}

}  // namespace
}  // namespace ae::runtime
