// Tests of FollowRetry, with a clock that advances only by waits and requests.
#include "cli/follow_retry.h"

#include <string>
#include <vector>

#include "testing/test.h"

namespace ae::cli {
namespace {

using namespace std::chrono_literals;

const Error kGone{Code::unavailable, "no server responds"};

struct FollowFixture {
  Duration now = 1s;
  std::vector<std::string> warnings;
  FollowRetry follow_retry{{.now = [this] { return now; },
                            .sleep = [this](Duration span) { now += span; },
                            .warn = [this](const std::string& text) { warnings.push_back(text); }}};
};

AE_TEST("following/a request is sent at least 500 ms after the answer to the previous one") {
  FollowFixture fixture;
  fixture.follow_retry.wait_for_turn();
  EXPECT_EQ(fixture.now, 1s) << "the first one is sent at once";
  fixture.now += 20ms;
  fixture.follow_retry.on_success();
  fixture.follow_retry.wait_for_turn();
  EXPECT_EQ(fixture.now, 1520ms);
  fixture.follow_retry.on_success();
  fixture.now += 10s;
  fixture.follow_retry.wait_for_turn();
  EXPECT_EQ(fixture.now, 11520ms);
}

AE_TEST("following/one lost request is repeated at once, without a warning") {
  FollowFixture fixture;
  fixture.follow_retry.on_success();
  fixture.follow_retry.wait_for_turn();
  EXPECT_TRUE(fixture.follow_retry.on_failure(kGone));
  fixture.follow_retry.wait_for_turn();
  fixture.follow_retry.on_success();
  EXPECT_EQ(fixture.now, 1500ms);
  EXPECT_TRUE(fixture.warnings.empty());
}

AE_TEST("following/an outage is reported once, and so is its end; the next one is reported again") {
  FollowFixture fixture;
  fixture.follow_retry.on_success();
  for (int outage = 1; outage <= 2; ++outage) {
    for (int i = 0; i < 8; ++i) EXPECT_TRUE(fixture.follow_retry.on_failure(kGone));
    fixture.follow_retry.on_success();
    fixture.follow_retry.on_success();
    ASSERT_EQ(fixture.warnings.size(), 2u * static_cast<std::size_t>(outage));
    EXPECT_EQ(fixture.warnings.back(), "the connection is available again");
  }
  EXPECT_EQ(fixture.warnings[0], "the connection is lost; retrying for 1m: no server responds");
}

AE_TEST("following/an outage of a minute fails with unavailable, whatever the last error was") {
  FollowFixture fixture;
  fixture.follow_retry.on_success();
  Status failed;
  int requests = 0;
  for (; failed && requests < 1000; ++requests) {
    failed = fixture.follow_retry.on_failure({Code::unknown_outcome, "it closed the connection"});
  }
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code, Code::unavailable);
  EXPECT_EQ(failed.error().message, "no connection for 1m: it closed the connection");
  EXPECT_EQ(fixture.now, 61s);
  EXPECT_LT(requests, 50);
}

AE_TEST("following/a first stream that breaks is retried: there was a connection") {
  FollowFixture fixture;
  EXPECT_TRUE(fixture.follow_retry.on_failure({Code::unknown_outcome, "it closed the connection"}));
  EXPECT_TRUE(fixture.follow_retry.on_failure(kGone));
}

AE_TEST("following/the first request and other errors are not retried") {
  FollowFixture fixture;
  Status failed = fixture.follow_retry.on_failure(kGone);
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().message, "no server responds");
  fixture.follow_retry.on_success();
  failed = fixture.follow_retry.on_failure({Code::not_found, "no such job"});
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code, Code::not_found);
}

}  // namespace
}  // namespace ae::cli
