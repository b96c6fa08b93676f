#include "base/time.h"

#include "testing/test.h"

namespace ae {
namespace {

using namespace std::chrono_literals;

AE_TEST("base/time/an instant is formatted in 27 characters") {
  EXPECT_EQ(to_text(Instant{0}), "1970-01-01T00:00:00.000000Z");
  EXPECT_EQ(to_text(Instant{1}), "1970-01-01T00:00:00.000001Z");
  EXPECT_EQ(to_text(Instant{-1}), "1969-12-31T23:59:59.999999Z");
  EXPECT_EQ(to_text(Instant{951'782'400'000'000}), "2000-02-29T00:00:00.000000Z");
  EXPECT_EQ(to_text(kInstantMin), "0000-01-01T00:00:00.000000Z");
  EXPECT_EQ(to_text(kInstantMax), "9999-12-31T23:59:59.999999Z");
}

AE_TEST("base/time/an instant out of range is formatted as the nearest representable one") {
  EXPECT_EQ(to_text(Instant{INT64_MAX}), to_text(kInstantMax));
  EXPECT_EQ(to_text(Instant{INT64_MIN}), to_text(kInstantMin));
  EXPECT_TRUE(is_representable(kInstantMin) && is_representable(kInstantMax));
  EXPECT_FALSE(is_representable(kInstantMin - 1us) || is_representable(kInstantMax + 1us));
}

AE_TEST("base/time/arithmetic on instants saturates") {
  const Instant first{INT64_MIN};
  const Instant last{INT64_MAX};
  EXPECT_EQ(last + 1us, last);
  EXPECT_EQ(first - 1us, first);
  EXPECT_EQ(first + Duration(-1), first);
  EXPECT_EQ(last - Duration(-1), last);
  EXPECT_GT(last - first, std::chrono::hours(24 * 365 * 1'000));
  EXPECT_GT(last - first + 1ms, last - first);
  EXPECT_LT(first - last, -std::chrono::hours(24 * 365 * 1'000));
  EXPECT_EQ(Instant{5} - Instant{3}, 2us);
}

AE_TEST("base/time/instants round-trip through text") {
  for (std::int64_t us = kInstantMin.us; us < kInstantMax.us - 11'111'111'111'111;
       us += 11'111'111'111'111) {
    const Instant t{us};
    ASSERT_EQ(instant_from_text(to_text(t)), t) << us;
  }
}

AE_TEST("base/time/RFC 3339 in UTC is parsed, with up to six fractional digits") {
  const Instant second{1'706'693'400'000'000};
  EXPECT_EQ(instant_from_text("2024-01-31T09:30:00Z"), second);
  EXPECT_EQ(instant_from_text("2024-01-31T09:30:00+00:00"), second);
  EXPECT_EQ(instant_from_text("2024-01-31t09:30:00z"), second);
  EXPECT_EQ(instant_from_text("2024-01-31T09:30:00.5Z"), second + 500ms);
  EXPECT_EQ(instant_from_text("2024-01-31T09:30:00.000001Z"), second + 1us);
}

AE_TEST("base/time/an invalid time, or one not in UTC, is rejected") {
  for (const std::string_view invalid : {"",
                                         "2024-01-31",
                                         "2024-01-31T09:30Z",
                                         "2024-01-31T09:30:00",
                                         "2024-01-31 09:30:00Z",
                                         "2024-01-31T09:30:00+01:00",
                                         "2024-01-31T09:30:00-00:00",
                                         "2024-02-30T00:00:00Z",
                                         "2023-02-29T00:00:00Z",
                                         "2024-13-01T00:00:00Z",
                                         "2024-00-01T00:00:00Z",
                                         "2024-01-00T00:00:00Z",
                                         "2024-01-31T24:00:00Z",
                                         "2024-01-31T09:60:00Z",
                                         "2024-01-31T09:30:60Z",
                                         "2024-01-31T09:30:00.Z",
                                         "2024-01-31T09:30:00.1234567Z",
                                         "2024-01-31T09:30:00ZZ",
                                         "12024-01-31T09:30:00Z",
                                         "-024-01-31T09:30:00Z",
                                         "2024-1-31T09:30:00Z",
                                         "2024-01-31T09:30:0 Z"}) {
    ASSERT_FALSE(instant_from_text(invalid)) << invalid;
    EXPECT_EQ(instant_from_text(invalid).error().code, Code::input_invalid);
  }
}

AE_TEST("base/time/a duration is a whole number and a unit") {
  EXPECT_EQ(duration_from_text("0s"), 0us);
  EXPECT_EQ(duration_from_text("1500ms"), 1500ms);
  EXPECT_EQ(duration_from_text("30s"), 30s);
  EXPECT_EQ(duration_from_text("5m"), 5min);
  EXPECT_EQ(duration_from_text("24h"), 24h);
  EXPECT_EQ(duration_from_text("007d"), 7 * 24h);
  EXPECT_EQ(duration_from_text("36500d"), 36500 * 24h);
}

AE_TEST("base/time/an invalid or too long duration is rejected") {
  for (const std::string_view invalid :
       {"", "s", "1", "1 s", " 1s", "1s ", "-1s", "+1s", "1.5s", "1w", "1S", "1us", "36501d",
        "876001h", "99999999999999999999d", "9223372036854775807ms"}) {
    ASSERT_FALSE(duration_from_text(invalid)) << invalid;
    EXPECT_EQ(duration_from_text(invalid).error().code, Code::input_invalid);
  }
}

AE_TEST("base/time/a duration is formatted with the largest exact unit") {
  EXPECT_EQ(to_text(Duration(0)), "0s");
  EXPECT_EQ(to_text(Duration(-5)), "0s");
  EXPECT_EQ(to_text(Duration(999)), "0s");
  EXPECT_EQ(to_text(Duration(1500ms)), "1500ms");
  EXPECT_EQ(to_text(Duration(90s)), "90s");
  EXPECT_EQ(to_text(Duration(60min)), "1h");
  EXPECT_EQ(to_text(Duration(36h)), "36h");
  EXPECT_EQ(to_text(Duration(48h)), "2d");
  for (const Duration d : {Duration(1ms), Duration(61s), Duration(25h), Duration(36500 * 24h)}) {
    EXPECT_EQ(duration_from_text(to_text(d)), d);
  }
}

}  // namespace
}  // namespace ae
