// The conformance suite: one test for each guarantee of store.h, run against every driver.
//
//   static const bool registered = register_conformance(
//       "store_memory", [](testing::TestLoop& loop) { return std::make_unique<MyDriver>(loop); });
//
// A driver must provide an empty store and a restart. The suite is a header because the tests of
// each driver are a separate program.
#pragma once

#include <fmt/core.h>

#include <string>

#include "store/conformance_call_failures_test.h"
#include "store/conformance_checkpoint_test.h"
#include "store/conformance_claim_order_test.h"
#include "store/conformance_claim_test.h"
#include "store/conformance_commit_test.h"
#include "store/conformance_create_test.h"
#include "store/conformance_ended_test.h"
#include "store/conformance_failpoint_test.h"
#include "store/conformance_fixture_test.h"
#include "store/conformance_inbox_put_test.h"
#include "store/conformance_inbox_test.h"
#include "store/conformance_lease_test.h"
#include "store/conformance_prune_test.h"
#include "store/conformance_query_test.h"
#include "store/conformance_queue_test.h"
#include "store/conformance_random_test.h"
#include "store/conformance_redact_test.h"
#include "store/conformance_side_rows_test.h"
#include "store/conformance_summary_test.h"
#include "store/conformance_timer_test.h"
#include "store/conformance_window_test.h"

namespace ae::store::conformance {

inline bool register_conformance(const std::string& suite, Factory factory) {
  const auto add = [&](const std::string& sentence, std::function<void()> body,
                       testing::TestSpeed speed = testing::TestSpeed::quick) {
    testing::register_test(fmt::format("{}/{}", suite, sentence), __FILE__, __LINE__, speed,
                           std::move(body));
  };
  const auto add_all = [&](const std::vector<Case>& cases) {
    for (const Case& c : cases) {
      add(c.sentence, [factory, body = c.body] {
        ConformanceFixture fixture(factory);
        body(fixture);
      });
    }
  };
  const auto add_many = [&](const char* sentence,
                            void (*body)(ConformanceFixture&, const Factory&)) {
    add(sentence, [factory, body] {
      ConformanceFixture fixture(factory);
      body(fixture, factory);
    });
  };
  add_all(create_cases());
  add_all(commit_cases());
  add_all(inbox_cases());
  add_all(inbox_put_cases());
  add_all(side_row_cases());
  add_all(failpoint_cases());
  add_all(redact_cases());
  add_all(checkpoint_cases());
  add_all(lease_cases());
  add_all(claim_cases());
  add_all(claim_order_cases());
  add_all(queue_cases());
  add_all(timer_cases());
  add_all(query_cases());
  add_all(summary_cases());
  add_all(prune_cases());
  add_all(ended_cases());
  add_all(window_cases());
  add(
      "pruning a thousand jobs keeps the waiting jobs between them",
      [factory] {
        ConformanceFixture fixture(factory);
        prunes_many(fixture);
      },
      testing::TestSpeed::slow);
  add_many("a random history gives the same results and logs as the memory store",
           random_histories);
  add_many("a job in which each call fails once ends as if none had failed", every_call_fails_once);
  add_many("after a crash at any call every commit can be sent again", every_call_is_the_last);
  return true;
}

}  // namespace ae::store::conformance
