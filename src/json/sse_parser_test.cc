// Server-sent events, split at every position.
#include "json/sse_parser.h"

#include <fmt/core.h>

#include <vector>

#include "testing/test.h"

namespace ae {
namespace {

std::vector<SseEvent> read(std::string_view text, std::size_t step, SseParser& stream) {
  std::vector<SseEvent> events;
  for (std::size_t at = 0; at < text.size(); at += step) {
    EXPECT_TRUE(stream.feed(text.substr(at, step), events));
  }
  return events;
}

AE_TEST("event stream/events do not depend on how the bytes are split") {
  constexpr std::string_view kText =
      ": hello\r\nid: 7\r\nevent: message\r\ndata: one\r\ndata:two\r\n\r\nretry: 250\rdata\r\rid: "
      "8\ndata: {\"a\":1}\n\nid: 9\ndata: never ended";
  for (std::size_t step = 1; step <= kText.size(); ++step) {
    SseParser stream;
    const auto events = read(kText, step, stream);
    ASSERT_EQ(events.size(), 3u);
    EXPECT_EQ(events[0].name, "message");
    EXPECT_EQ(events[0].data, "one\ntwo");
    EXPECT_EQ(events[1].name, "");
    EXPECT_EQ(events[1].data, "");
    EXPECT_EQ(events[2].data, "{\"a\":1}");
    EXPECT_EQ(stream.last_id(), "8");
    EXPECT_TRUE(stream.retry() == Duration(std::chrono::milliseconds(250)));
  }
}

AE_TEST("event stream/an event over the size limit ends the stream") {
  SseParser stream({.line_max = 10, .event_max = 10});
  std::vector<SseEvent> events;
  EXPECT_TRUE(stream.feed("data: 12", events));
  EXPECT_FALSE(stream.feed("345678", events));
  EXPECT_FALSE(stream.feed("\n\n", events));
  EXPECT_TRUE(events.empty());
}

AE_TEST("event stream/the id of the last complete event and the last valid retry delay are kept") {
  SseParser stream;
  std::vector<SseEvent> events;
  const auto at = [&](std::string_view bytes) {
    EXPECT_TRUE(stream.feed(bytes, events));
    return stream.last_id();
  };
  EXPECT_EQ(at("id: 1\n"), "");
  EXPECT_EQ(at("\n"), "1") << "an event without data counts";
  EXPECT_EQ(at("id: 2\ndata: x\n\ndata: y\n\n"), "2");
  EXPECT_EQ(at(std::string_view("id: 3\0\n\n", 8)), "2");
  EXPECT_EQ(at("id\n\n"), "") << "an empty id resets it";
  EXPECT_FALSE(stream.retry());
  for (const char* none : {"-1", "x", "1x", "", "86400000", "99999999999999999999"}) {
    at(fmt::format("retry: {}\n", none));
    EXPECT_FALSE(stream.retry()) << none;
  }
  at("retry: 7\nretry: no\n");
  EXPECT_TRUE(stream.retry() == Duration(std::chrono::milliseconds(7)));
}

}  // namespace
}  // namespace ae
