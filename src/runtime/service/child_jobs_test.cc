// Children are created in the name of their parent: by the worker that holds it. Their ends do not
// make it read its log again.
#include <fmt/core.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "runtime/worker_fixture_test.h"

namespace ae::runtime::testing {
namespace {

std::shared_ptr<const engine::Plan> parent_plan() {
  auto compiled = engine::Plan::compile(
      json("{'schema':1, 'nodes': [{'id':'a', 'kind':'tool', 'tool':'research'}],"
           " 'tools': {'research': {'effect':'idempotent', 'child':{'name':'research'},"
           " 'on_in_doubt':'resend', 'timeout':'10s', 'grace':'1s', 'dedupe_window':'unlimited',"
           " 'version':'0123456789abcdef', 'retry':{'max_attempts':3, 'initial_backoff':'1s',"
           " 'max_backoff':'10s', 'multiplier':2, 'retry_on':['unknown_outcome']}}}}"));
  AE_CHECK(compiled.has_value(), compiled ? "" : compiled.error().message);
  return *compiled;
}

// Children that wait for a signal.
struct Children final : NewJobSource {
  void make_child_request(ChildJobSpec spec, async::Done<Result<NewJobRequest>> done) override {
    NewJobRequest request;
    request.job = spec.id;
    request.agent = spec.agent;
    request.plan = plan("read", kTwoWaits);
    request.start_here = false;
    std::exchange(before, [] {})();
    done(std::move(request));
  }
  std::function<void()> before = [] {};  // of the first request
};

struct Fixture {
  Fixture()
      : first(env, "first", {.seed = 1, .delay = 300s, .new_jobs = &children}),
        second(env, "second", {.seed = 1'000'001, .new_jobs = &children}) {
    first.runtime->start();
  }
  bool has_child() {
    const JobId child = child_job_id(kJob, second.read().state.steps[0].id);
    return env.loop
        .await<Result<Runtime::JobSnapshot>>(
            [&](auto done) { second.runtime->read(child, std::move(done)); })
        .has_value();
  }
  TestEnvironment env;
  Children children;
  WorkerFixture first, second;
};

AE_TEST("child jobs/a child is created by the worker that holds its parent") {
  Fixture fixture;
  fixture.first.create(parent_plan());
  fixture.env.loop.advance(1s);
  EXPECT_TRUE(fixture.has_child());
  EXPECT_EQ(fixture.second.status(), "waiting");
}

AE_TEST("child jobs/a worker that is suspended before its commit creates no child afterwards") {
  Fixture fixture;
  fixture.children.before = [&] {
    fixture.first.script = [](const store::Call& call) {
      const bool lost = call.method == Method::heartbeat || call.method == Method::claim;
      if (lost) return Fault::fail_before;
      return call.method == Method::commit ? Fault::delay : Fault::none;
    };
  };
  fixture.first.create(parent_plan());
  fixture.env.loop.advance(5s);
  ASSERT_TRUE(fixture.second.submit({.id = "c", .body = engine::CancelRequest{}}));
  fixture.second.runtime->start();
  for (int i = 0; i < 100 && fixture.second.status() != "cancelled"; ++i) {
    fixture.env.loop.advance(1s);
  }
  ASSERT_EQ(fixture.second.status(), "cancelled");
  ASSERT_FALSE(fixture.has_child());
  fixture.env.loop.advance(300s);  // the commit reaches the store
  EXPECT_FALSE(fixture.has_child()) << "of a parent that has ended";
}

// Children whose only node is a timer of this duration.
struct ShortChildren final : NewJobSource {
  void make_child_request(ChildJobSpec spec, async::Done<Result<NewJobRequest>> done) override {
    NewJobRequest request;
    request.job = spec.id;
    request.agent = spec.agent;
    request.plan =
        engine::Plan::compile(json("{'schema':1, 'nodes': [{'id':'t', 'kind':'wait', 'wait':"
                                   " {'type':'timer', 'for':'5ms'}}]}"))
            .value();
    done(std::move(request));
  }
};

std::shared_ptr<const engine::Plan> map_of_children(int children) {
  auto compiled = engine::Plan::compile(
      json(fmt::format("{{'schema':1, 'nodes': [{{'id':'a', 'kind':'map', 'over':"
                       " '${{ [range({})] }}', 'max_parallel':16, 'do':{{'tool':'research'}}}}],"
                       " 'tools': {{'research': {{'effect':'idempotent', 'child':"
                       " {{'name':'research'}}, 'on_in_doubt':'resend', 'timeout':'10s',"
                       " 'grace':'1s', 'dedupe_window':'unlimited',"
                       " 'version':'0123456789abcdef', 'retry':{{'max_attempts':3,"
                       " 'initial_backoff':'1s', 'max_backoff':'10s', 'multiplier':2,"
                       " 'retry_on':['unknown_outcome']}}}}}}}}",
                       children)));
  AE_CHECK(compiled.has_value(), compiled ? "" : compiled.error().message);
  return *compiled;
}

AE_TEST("child jobs/the state of a parent is restored rarely, however many children end") {
  constexpr int kChildren = 200;
  TestEnvironment env;
  ShortChildren children;
  WorkerFixture worker(env, "w", {.owned = true, .delay = 7ms, .new_jobs = &children});
  std::uint64_t restored = 0, commits = 0;
  worker.script = [&](const store::Call& call) {
    restored += call.method == Method::load && call.from_seq == store::kFromCheckpoint ? 1 : 0;
    return call.method == Method::commit && ++commits % 2 == 0 ? Fault::delay : Fault::none;
  };
  worker.runtime->start();
  worker.create(map_of_children(kChildren));
  for (int i = 0; i < 5000 && worker.status() != "completed"; ++i) env.loop.advance(10ms);
  EXPECT_EQ(worker.status(), "completed");
  EXPECT_LE(restored, 2u) << "of " << commits << " commits";
}

}  // namespace
}  // namespace ae::runtime::testing
