// A process dies, another takes its job over and looks at what it changed: what the runtime does with what is seen, and
// with what is not.
//
// Method: a Process is a runtime on a disk in memory that outlives it; its tool `make` changes a thing, `use` changes nothing, and
// both answer when the test says so. So does the verifier. Time moves only by `advance`.
#include "runtime/confirmer.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <memory>

#include "json/json.h"
#include "runtime/runtime.h"
#include "store/memory/memory_store.h"
#include "testing/test.h"
#include "testing/test_loop.h"

namespace ae::runtime {
namespace {

using namespace std::chrono_literals;
using testing::TestChance;
using testing::TestLoop;
using testing::TestSteady;

const JobId kJob("job-1");
constexpr std::string_view kVersion = "0123456789abcdef", kOtherVersion = "fedcba9876543210";

std::shared_ptr<const engine::Plan> plan(std::string_view mode) {
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

struct Waiting {
  tools::Call call;
  async::Done<Outcome> done;
};

class SlowTool final : public tools::Tool {
 public:
  explicit SlowTool(std::deque<Waiting>& calls) : calls_(calls) {}
  void perform(tools::Permit permit, tools::Call call, async::Done<Outcome> done) override {
    std::move(permit).use(call.invocation, call.try_no);
    calls_.push_back({std::move(call), std::move(done)});
  }
  void abandon(const InvocationId&, std::uint32_t) override {}

 private:
  std::deque<Waiting>& calls_;
};

class SlowVerifier final : public tools::Verifier {
 public:
  explicit SlowVerifier(std::deque<async::Done<Sighting>>& looks) : looks_(looks) {}
  void look(Value change, async::Done<Sighting> done) override {
    EXPECT_EQ(change.text("id"), "t1");
    EXPECT_EQ(change.text("version"), "1");
    looks_.push_back(std::move(done));
  }

 private:
  std::deque<async::Done<Sighting>>& looks_;
};

struct Ground {
  TestLoop loop;
  TestSteady steady{loop};
  store::MemoryDisk disk;
};

class Process final : public RuntimeObserver {
 public:
  explicit Process(Ground& ground, std::uint64_t seed, bool verifies = true,
                   Durability durability = Durability::fused, bool renewed = false)
      : ground_(ground), chance_(seed), store_(ground.loop, ground.loop, ground.disk) {
    performers_.add("make", {std::make_unique<SlowTool>(calls), std::string(kVersion),
                             verifies ? std::make_unique<SlowVerifier>(looks) : nullptr});
    if (renewed) {
      performers_.renew("make", {std::make_unique<SlowTool>(calls), std::string(kOtherVersion)});
    }
    performers_.add("use", {std::make_unique<SlowTool>(calls), std::string(kVersion)});
    RuntimeObserver* const self = this;
    runtime.emplace(World{ground.loop, ground.steady, chance_, store_, performers_},
                    RuntimeOptions{.durability = durability}, self);
    runtime->start();
    ground.loop.run_ready();
  }
  void create(std::string_view mode) {
    NewJobRequest request;
    request.job = kJob;
    request.agent = "agent";
    request.plan = plan(mode);
    auto made = ground_.loop.await<Result<Created>>(
        [&](auto done) { runtime->create(request, std::move(done)); });
    AE_CHECK(made.has_value(), made ? "" : made.error().message);
    ground_.loop.run_ready();
  }
  void ok(std::size_t call, std::string_view result) {
    calls.at(call).done({.kind = OutcomeKind::success, .result = Value(result)});
    ground_.loop.run_ready();
  }
  void seen(Sight sight, std::string observed = {}) {
    AE_CHECK(!looks.empty(), "nobody looks");
    async::Done<Sighting> done = std::move(looks.front());
    looks.pop_front();
    done({.sight = sight, .expected = "1", .observed = std::move(observed), .reason = "r"});
    ground_.loop.run_ready();
  }
  Result<Value> act(engine::Act act) {
    auto answer = ground_.loop.await<Result<Value>>(
        [&](auto done) { runtime->act(kJob, std::move(act), std::move(done)); });
    ground_.loop.run_ready();
    ground_.loop.advance(2s);
    return answer;
  }
  engine::State state() {
    auto read = ground_.loop.await<Result<Runtime::Read>>(
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
  Ground& ground_;
  TestChance chance_;
  store::MemoryStore store_;
  Performers performers_;

 public:
  std::deque<Waiting> calls;
  std::deque<async::Done<Sighting>> looks;
  std::vector<std::string> warnings;
  std::optional<Runtime> runtime;
};

// A process made the thing and died while it used it; another one has taken the job over.
struct TakenOver {
  explicit TakenOver(std::string_view mode, Durability durability = Durability::fused) {
    first.emplace(ground, 1, true, durability);
    first->create(mode);
    first->ok(0, "t1");
    AE_CHECK(first->calls.size() == 2 && first->looks.empty());
    first.reset();
    take_over(durability);
  }
  void take_over(Durability durability = Durability::fused) {
    second.reset();
    second.emplace(ground, seed += 1'000'000, true, durability);
    ground.loop.advance(2s);
    AE_CHECK(second->runtime->holds(kJob), second->status());
  }
  Ground ground;
  std::uint64_t seed = 1;
  std::optional<Process> first, second;
};

AE_TEST("confirmer/who takes a job over calls nothing before it has looked at what was changed") {
  for (const Durability durability : {Durability::fused, Durability::split}) {
    TakenOver jobs("strict", durability);
    Process& next = *jobs.second;
    EXPECT_EQ(next.looks.size(), 1u);
    EXPECT_EQ(next.calls.size(), 0u);
    jobs.ground.loop.advance(5s);
    EXPECT_EQ(next.looks.size(), 1u) << "it is asked once";
    next.seen(Sight::match);
    ASSERT_EQ(next.calls.size(), 1u);
    next.ok(0, "used");
    EXPECT_EQ(next.status(), "completed");
  }
}

AE_TEST("confirmer/a process that dies between the look and what follows leaves nothing behind") {
  TakenOver jobs("strict");
  const std::uint64_t seq = jobs.second->state().seq;
  jobs.take_over();
  EXPECT_EQ(jobs.second->looks.size(), 1u);
  EXPECT_EQ(jobs.second->state().seq, seq + 3)
      << "another job_running and the two notes of its recovery, nothing else";
  jobs.second->seen(Sight::mismatch, "2");
  EXPECT_EQ(jobs.second->status(), "failed");
  EXPECT_EQ(jobs.second->state().error->code, "confirmation_failed");
  EXPECT_EQ(jobs.second->calls.size(), 0u);
}

AE_TEST("confirmer/warn: the job goes on; it is counted once, and said") {
  TakenOver jobs("warn");
  Process& next = *jobs.second;
  next.seen(Sight::mismatch, "2");
  EXPECT_EQ(next.calls.size(), 1u);
  EXPECT_EQ(next.runtime->counters().aetheris_confirmation_replay_warn_total, 1u);
  EXPECT_TRUE(next.warned("thing \"t1\" is not as the job left it"));
}

AE_TEST("confirmer/human: it parks and gives the job back; an answer sets it going") {
  TakenOver jobs("human");
  Process& next = *jobs.second;
  next.seen(Sight::mismatch, "2");
  EXPECT_EQ(next.status(), "parked");
  EXPECT_FALSE(next.runtime->holds(kJob));
  const auto answer = next.act({.kind = engine::Act::Kind::resolve,
                                .id = "x",
                                .by = "ann",
                                .resolution = "accept",
                                .step_id = next.state().steps[0].id.text});
  ASSERT_TRUE(answer) << answer.error().message;
  EXPECT_EQ(answer->text("resolution"), "accept");
  ASSERT_EQ(next.looks.size(), 1u) << "it is a recovery again: it looks";
  next.seen(Sight::mismatch, "2");
  ASSERT_EQ(next.calls.size(), 1u);
  next.ok(0, "used");
  EXPECT_EQ(next.status(), "completed");
}

AE_TEST(
    "confirmer/what cannot be reached is tried four times; then the job parks until somebody "
    "acts") {
  TakenOver jobs("warn");
  Process& next = *jobs.second;
  for (int i = 0; i < 3; ++i) {
    next.seen(Sight::unreachable);
    EXPECT_EQ(next.status(), "running");
    jobs.ground.loop.advance(6s);
    ASSERT_EQ(next.looks.size(), 1u) << i;
  }
  next.seen(Sight::unreachable);
  EXPECT_EQ(next.status(), "parked");
  EXPECT_EQ(next.state().parked_reason, "verifier_unreachable");
  ASSERT_TRUE(next.act({.kind = engine::Act::Kind::resume, .id = "y", .by = "ann"}));
  ASSERT_EQ(next.looks.size(), 1u);
  next.seen(Sight::unreachable);
  jobs.ground.loop.advance(1s);
  ASSERT_EQ(next.looks.size(), 1u) << "it may be there the second time";
  next.seen(Sight::match);
  EXPECT_EQ(next.calls.size(), 1u);
}

AE_TEST("confirmer/a verifier that never answers is one that cannot be reached") {
  TakenOver jobs("strict");
  jobs.ground.loop.advance(10min);
  EXPECT_EQ(jobs.second->looks.size(), 4u);
  EXPECT_EQ(jobs.second->status(), "parked");
  EXPECT_EQ(jobs.second->state().parked_reason, "verifier_unreachable");
  jobs.second->seen(Sight::match);  // too late
  EXPECT_EQ(jobs.second->status(), "parked");
}

AE_TEST(
    "confirmer/an answer that comes when the job is cancelled, paused or gone changes nothing") {
  TakenOver cancelled("strict");
  ASSERT_TRUE(cancelled.second->act({.kind = engine::Act::Kind::cancel, .id = "c"}));
  EXPECT_EQ(cancelled.second->status(), "cancelled");
  cancelled.second->seen(Sight::mismatch, "2");
  EXPECT_EQ(cancelled.second->status(), "cancelled");

  TakenOver paused("strict");
  ASSERT_TRUE(paused.second->act({.kind = engine::Act::Kind::pause, .id = "p"}));
  EXPECT_EQ(paused.second->status(), "parked");
  paused.second->seen(Sight::mismatch, "2");
  EXPECT_EQ(paused.second->status(), "parked");
  EXPECT_TRUE(paused.second->state().is_paused());

  TakenOver stopped("strict");
  bool over = false;
  stopped.second->runtime->stop(1s, [&over] { over = true; });
  stopped.ground.loop.advance(2s);
  EXPECT_TRUE(over);
  EXPECT_EQ(stopped.second->status(), "queued");
  stopped.second->seen(Sight::mismatch, "2");
  EXPECT_EQ(stopped.second->status(), "queued");
}

AE_TEST("confirmer/a job's changes are checked by its version of the tool, not by the newest") {
  Ground ground;
  {
    Process first(ground, 1);
    first.create("strict");
    first.ok(0, "t1");
  }
  Process next(ground, 1'000'001, true, Durability::fused, true);
  ground.loop.advance(2s);
  ASSERT_EQ(next.looks.size(), 1u);
  next.seen(Sight::match);
  ASSERT_EQ(next.calls.size(), 1u);
  next.ok(0, "used");
  EXPECT_EQ(next.status(), "completed");
}

AE_TEST("confirmer/a process without the verifier leaves the job to one that has it") {
  Ground ground;
  {
    Process first(ground, 1);
    first.create("strict");
    first.ok(0, "t1");
  }
  {
    Process blind(ground, 1'000'001, false);
    ground.loop.advance(2s);
    EXPECT_FALSE(blind.runtime->holds(kJob));
    ASSERT_NE(blind.runtime->refuses(kJob), nullptr);
    EXPECT_EQ(blind.runtime->refuses(kJob)->code, Code::needs_version);
    EXPECT_EQ(blind.calls.size(), 0u);
  }
  Process sees(ground, 2'000'001);
  ground.loop.advance(2s);
  EXPECT_EQ(sees.looks.size(), 1u);
}

}  // namespace
}  // namespace ae::runtime
