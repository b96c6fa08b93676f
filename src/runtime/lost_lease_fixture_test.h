// Workers that lose their lease: to another worker, or because the store is unavailable.
#pragma once

#include <string_view>

#include "runtime/plan_fixture_test.h"
#include "runtime/worker_fixture_test.h"

namespace ae::runtime::testing {

// Fails heartbeats and claims; every other operation succeeds.
inline Fault without_heartbeat(const store::Call& call) {
  const bool lost = call.method == Method::heartbeat || call.method == Method::claim;
  return lost ? Fault::fail_before : Fault::none;
}

// The first worker made a call and lost the job to the second one, whose attempt waits for the call
// to settle; the call is still in flight.
struct TwoWorkersFixture {
  explicit TwoWorkersFixture(std::string_view effect, Durability durability = Durability::fused)
      : first(env, "first", {.durability = durability, .seed = 1}),
        second(env, "second", {.durability = durability, .seed = 1'000'001}) {
    first.runtime->start();
    first.create(plan(effect, kOneCall));
    AE_CHECK(first.calls.size() == 1);
    first.script = without_heartbeat;
    env.loop.advance(20s);
    second.runtime->start();
    env.loop.advance(22s);  // its lease of 30 s has run out, and it has noticed
    AE_CHECK(second.read().state.epoch == 2, "the second never claimed");
    AE_CHECK(!first.runtime->is_leased(kJob), first.status());
  }
  TestEnvironment env;
  WorkerFixture first, second;
};

// The store is unavailable for longer than a lease, then available again.
inline void outage(TestEnvironment& env, WorkerFixture& worker) {
  worker.script = [](const store::Call&) { return Fault::fail_before; };
  env.loop.advance(45s);
  AE_CHECK(!worker.runtime->is_leased(kJob), "it still holds the job");
  worker.script = [](const store::Call&) { return Fault::none; };
}

}  // namespace ae::runtime::testing
