// Tests of ETags.
#include "api/etag.h"

#include "testing/test.h"

namespace ae::api {
namespace {

store::JobRow row_at(std::uint64_t seq) {
  store::JobRow row;
  row.id = JobId("j1");
  row.status = "running";
  row.last_seq = seq;
  return row;
}

AE_TEST("etag/a tag changes with the view, the job, its last event and its lease holder") {
  const Instant now{};
  const std::string tag = etag_of("view", row_at(3), now);
  EXPECT_TRUE(tag.starts_with("W/\"") && tag.ends_with("\"")) << tag;
  EXPECT_EQ(etag_of("view", row_at(3), now), tag);
  EXPECT_NE(etag_of("other", row_at(3), now), tag);
  EXPECT_NE(etag_of("view", row_at(4), now), tag);
  store::JobRow recreated = row_at(3);
  recreated.head = sha256("another log");
  EXPECT_NE(etag_of("view", recreated, now), tag);
  store::JobRow claimed = row_at(3);
  claimed.claim = store::Fence{AttemptId("a"), 1};
  EXPECT_NE(etag_of("view", claimed, now), tag);
}

AE_TEST("etag/the tag of a body changes with its text") {
  EXPECT_EQ(etag_of_text("{}"), etag_of_text("{}"));
  EXPECT_NE(etag_of_text("{}"), etag_of_text("[]"));
  EXPECT_TRUE(etag_of_text("").starts_with("W/\""));
}

AE_TEST("etag/a job with a timer that is due has no tag") {
  store::JobRow row = row_at(3);
  row.wake_at = Instant{1000};
  EXPECT_FALSE(etag_of("view", row, Instant{999}).empty());
  EXPECT_TRUE(etag_of("view", row, Instant{1000}).empty());
}

AE_TEST("etag/If-None-Match is a list of weak or strong tags, or a star") {
  EXPECT_TRUE(matches_etag("W/\"a\"", "W/\"a\""));
  EXPECT_TRUE(matches_etag("\"a\"", "W/\"a\""));
  EXPECT_TRUE(matches_etag("\"b\" ,\tW/\"a\"", "W/\"a\""));
  EXPECT_TRUE(matches_etag("*", "W/\"a\""));
  EXPECT_FALSE(matches_etag("\"b\", \"c\"", "W/\"a\""));
  EXPECT_FALSE(matches_etag("a", "W/\"a\""));
  EXPECT_FALSE(matches_etag("", "W/\"a\""));
}

}  // namespace
}  // namespace ae::api
