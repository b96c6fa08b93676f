#include "store/faulty/faulty_store.h"

#include <fmt/core.h>

#include <string>

#include "store/conformance_fixture_test.h"
#include "store/memory/memory_store.h"
#include "testing/seeded_random.h"
#include "testing/test.h"

namespace ae::store {
namespace {

struct FaultyFixture {
  explicit FaultyFixture(FaultScript script)
      : store(loop, inner, {.script = std::move(script), .on_crash = [this] { ++crashes; }}) {}

  // Makes one commit and appends its result to `answers`.
  void create(const char* id) {
    Batch b{.job = JobId(id), .authority = Batch::Create{store::NewJob{.agent = "a"}}};
    b.sealed = conformance::sealed(id, 1);
    store.commit(std::move(b), [this](Result<CommitResult> answer) {
      answers += conformance::show(answer) + ";";
    });
  }
  bool exists(const char* id) {
    return loop
        .await<Result<LoadedJob>>([&](auto done) { inner.load(JobId(id), 1, std::move(done)); })
        .has_value();
  }

  testing::TestLoop loop;
  MemoryStore inner{loop, loop};
  int crashes = 0;
  FaultyStore store;
  std::string answers;
};

AE_TEST("faulty/without faults every call is passed through") {
  FaultyFixture w({});
  w.create("j1");
  w.loop.run_ready();
  EXPECT_EQ(w.answers, "seq 1;");
  EXPECT_TRUE(w.store.owned());
  EXPECT_EQ(w.store.now(), w.loop.now());
  EXPECT_EQ(w.store.calls(), 1U);
}

AE_TEST("faulty/fail_before changes nothing, fail_after applies the call and loses the result") {
  FaultyFixture w(
      [](const Call& call) { return call.number == 1 ? Fault::fail_before : Fault::fail_after; });
  w.create("j1");
  w.create("j2");
  EXPECT_EQ(w.answers, "") << "never inside the call";
  w.loop.run_ready();
  EXPECT_EQ(w.answers, "unavailable;unknown_outcome;");
  EXPECT_FALSE(w.exists("j1"));
  EXPECT_TRUE(w.exists("j2"));
}

AE_TEST("faulty/a read whose result is lost returns unavailable") {
  FaultyFixture w(inject_at(Method::load, 1, Fault::fail_after));
  Code code{};
  w.store.load(JobId("j1"), 1, [&](Result<LoadedJob> answer) { code = answer.error().code; });
  w.loop.run_ready();
  EXPECT_EQ(code, Code::unavailable);
}

AE_TEST("faulty/a delayed call runs after later calls, a delayed result only arrives late") {
  FaultyFixture w([](const Call& call) {
    return call.number == 1 ? Fault::delay : call.number == 2 ? Fault::delay_answer : Fault::none;
  });
  w.create("j1");
  w.create("j2");
  w.create("j3");
  w.loop.run_ready();
  EXPECT_EQ(w.answers, "seq 1;");
  EXPECT_FALSE(w.exists("j1"));
  EXPECT_TRUE(w.exists("j2"));
  w.loop.advance(std::chrono::seconds(1));
  EXPECT_EQ(w.answers, "seq 1;seq 1;seq 1;");
  EXPECT_TRUE(w.exists("j1"));
}

AE_TEST("faulty/after a crash no call is answered") {
  for (const Fault fault : {Fault::crash_before, Fault::crash_after}) {
    FaultyFixture w(inject_at(2, fault));
    w.create("j1");
    w.create("j2");
    w.loop.run_ready();
    w.create("j3");
    w.loop.run_ready();
    EXPECT_EQ(w.crashes, 1);
    EXPECT_TRUE(w.store.crashed());
    // The first answer was still pending when the caller crashed before its second call.
    EXPECT_EQ(w.answers, fault == Fault::crash_before ? "" : "seq 1;");
    EXPECT_TRUE(w.exists("j1"));
    EXPECT_EQ(w.exists("j2"), fault == Fault::crash_after);
    EXPECT_FALSE(w.exists("j3"));
  }
}

AE_TEST("faulty/the same seed injects the same faults") {
  class SeededSource final : public async::RandomSource {
   public:
    explicit SeededSource(std::uint64_t seed) : dice_(seed) {}
    std::uint64_t next() override { return dice_.below(UINT64_MAX); }

   private:
    testing::SeededRandom dice_;
  };
  const auto run = [](std::uint64_t seed) {
    SeededSource random(seed);
    FaultyFixture w(random_faults(random, {.fail_before = 200, .fail_after = 200, .delay = 200}));
    for (int i = 0; i < 50; ++i) w.create(fmt::format("j{}", i).c_str());
    w.loop.advance(std::chrono::seconds(1));
    return w.answers;
  };
  EXPECT_EQ(run(1), run(1));
  EXPECT_NE(run(1), run(2));
  EXPECT_TRUE(run(1).contains("unavailable"));
  EXPECT_TRUE(run(1).contains("unknown_outcome"));
}

AE_TEST("faulty/a delayed call is dropped with its store") {
  testing::TestLoop loop;
  MemoryStore inner(loop, loop);
  bool answered = false;
  {
    FaultyStore store(loop, inner, {.script = inject_at(1, Fault::delay)});
    store.list_due(1, [&](Result<std::vector<JobId>>) { answered = true; });
  }
  loop.advance(std::chrono::seconds(1));
  EXPECT_FALSE(answered);
}

}  // namespace
}  // namespace ae::store
