// Following, with a clock that moves only while it waits, and with each request.
#include "cli/following.h"

#include <string>
#include <vector>

#include "testing/test.h"

namespace ae::cli {
namespace {

using namespace std::chrono_literals;

const Error kGone{Code::unavailable, "no server responds"};

struct Given {
  Duration now = 1s;
  std::vector<std::string> warnings;
  Following following{{.now = [this] { return now; },
                       .sleep = [this](Duration span) { now += span; },
                       .warn = [this](const std::string& text) { warnings.push_back(text); }}};
};

AE_TEST("following/a request is sent at least 500 ms after the answer to the previous one") {
  Given given;
  given.following.pace();
  EXPECT_EQ(given.now, 1s) << "the first one is sent at once";
  given.now += 20ms;
  given.following.answered();
  given.following.pace();
  EXPECT_EQ(given.now, 1520ms);
  given.following.answered();
  given.now += 10s;
  given.following.pace();
  EXPECT_EQ(given.now, 11520ms);
}

AE_TEST("following/one lost request is sent again at once, without a warning") {
  Given given;
  given.following.answered();
  given.following.pace();
  EXPECT_TRUE(given.following.failed(kGone));
  given.following.pace();
  given.following.answered();
  EXPECT_EQ(given.now, 1500ms);
  EXPECT_TRUE(given.warnings.empty());
}

AE_TEST("following/an outage is reported once, and so is its end; the next one is reported again") {
  Given given;
  given.following.answered();
  for (int outage = 1; outage <= 2; ++outage) {
    for (int i = 0; i < 8; ++i) EXPECT_TRUE(given.following.failed(kGone));
    given.following.answered();
    given.following.answered();
    ASSERT_EQ(given.warnings.size(), 2u * static_cast<std::size_t>(outage));
    EXPECT_EQ(given.warnings.back(), "the connection is available again");
  }
  EXPECT_EQ(given.warnings[0], "the connection is lost; retrying for 1m: no server responds");
}

AE_TEST(
    "following/an outage of a minute is an error: unavailable, whatever the last request gave") {
  Given given;
  given.following.answered();
  Status failed;
  int requests = 0;
  for (; failed && requests < 1000; ++requests) {
    failed = given.following.failed({Code::unknown_outcome, "it closed the connection"});
  }
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code, Code::unavailable);
  EXPECT_EQ(failed.error().message, "no connection for 1m: it closed the connection");
  EXPECT_EQ(given.now, 61s);
  EXPECT_LT(requests, 50);
}

AE_TEST("following/a first stream that breaks is retried: there was a connection") {
  Given given;
  EXPECT_TRUE(given.following.failed({Code::unknown_outcome, "it closed the connection"}));
  EXPECT_TRUE(given.following.failed(kGone));
}

AE_TEST("following/the first request and other errors are not retried") {
  Given given;
  Status failed = given.following.failed(kGone);
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().message, "no server responds");
  given.following.answered();
  failed = given.following.failed({Code::not_found, "no such job"});
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code, Code::not_found);
}

}  // namespace
}  // namespace ae::cli
