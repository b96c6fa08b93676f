// Server-sent events, cut at every place.
#include "tools/mcp/event_stream.h"

#include <vector>

#include "testing/test.h"

namespace ae::tools::mcp {
namespace {

std::vector<std::string> read(std::string_view text, std::size_t step, EventStream& stream) {
  std::vector<std::string> events;
  for (std::size_t at = 0; at < text.size(); at += step) {
    EXPECT_TRUE(stream.add(text.substr(at, step),
                           [&](std::string data) { events.push_back(std::move(data)); }));
  }
  return events;
}

AE_TEST("mcp/event stream/events are the same wherever the bytes are cut") {
  constexpr std::string_view kText =
      ": hello\r\nid: 7\r\nevent: message\r\ndata: one\r\ndata:two\r\n\r\nretry: 250\rdata\r\rid: "
      "8\ndata: {\"a\":1}\n\nid: 9\ndata: never ended";
  for (std::size_t step = 1; step <= kText.size(); ++step) {
    EventStream stream(1000);
    const auto events = read(kText, step, stream);
    ASSERT_EQ(events.size(), 3u);
    EXPECT_EQ(events[0], "one\ntwo");
    EXPECT_EQ(events[1], "");
    EXPECT_EQ(events[2], "{\"a\":1}");
    EXPECT_EQ(stream.last_id(), "8");
    EXPECT_TRUE(stream.retry() == Duration(std::chrono::milliseconds(250)));
  }
}

AE_TEST("mcp/event stream/an event that is too long ends it") {
  EventStream stream(10);
  const auto nothing = [](const std::string&) { EXPECT_TRUE(false); };
  EXPECT_TRUE(stream.add("data: 12", nothing));
  EXPECT_FALSE(stream.add("345678", nothing));
  EXPECT_FALSE(stream.add("\n\n", nothing));
}

}  // namespace
}  // namespace ae::tools::mcp
