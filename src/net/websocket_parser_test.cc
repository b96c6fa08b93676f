// WebSocketParser: frames in any pieces; what is refused, with which code.
#include "net/websocket_parser.h"

#include <string>
#include <vector>

#include "net/websocket_client_test.h"
#include "testing/test.h"

namespace ae::net::http_server_test {
namespace {

using State = WebSocketParser::State;
using Opcode = WebSocketOpcode;

// The frames of these bytes, fed `step` at a time.
std::vector<WebSocketFrame> frames_of(std::string_view bytes, std::size_t step,
                                      std::size_t message_max = 1000) {
  WebSocketParser parser(message_max);
  std::vector<WebSocketFrame> frames;
  while (!bytes.empty()) {
    bytes.remove_prefix(parser.feed(bytes.substr(0, step)));
    if (parser.state() == State::frame) frames.push_back(parser.take());
    EXPECT_NE(parser.state(), State::failed);
    if (parser.state() == State::failed) break;
  }
  return frames;
}

unsigned failure_of(std::string_view bytes, std::size_t message_max = 1000) {
  WebSocketParser parser(message_max);
  while (!bytes.empty() && parser.state() != State::failed) {
    bytes.remove_prefix(parser.feed(bytes.substr(0, 3)));
    if (parser.state() == State::frame) parser.take();
  }
  return parser.state() == State::failed ? parser.failure().code : 0;
}

AE_TEST("websocket/frames are parsed in pieces of any size") {
  const std::string bytes = client_frame("hello") + client_frame("") + client_frame("x", 0x89) +
                            client_frame(std::string(126, 'a')) +
                            client_frame(std::string(70'000, 'b')) + client_frame("", 0x8a) +
                            client_frame(close_payload(1001, "bye"), 0x88);
  for (const std::size_t step : {1u, 2u, 7u, 1000u, 100'000u}) {
    const auto frames = frames_of(bytes, step, 70'000);
    ASSERT_EQ(frames.size(), 7u) << step;
    EXPECT_EQ(frames[0].payload, "hello");
    EXPECT_EQ(frames[1].payload, "");
    EXPECT_EQ(frames[2].opcode, Opcode::ping);
    EXPECT_EQ(frames[2].payload, "x");
    EXPECT_EQ(frames[3].payload, std::string(126, 'a'));
    EXPECT_EQ(frames[4].payload, std::string(70'000, 'b'));
    EXPECT_EQ(frames[5].opcode, Opcode::pong);
    EXPECT_EQ(frames[6].opcode, Opcode::close);
    EXPECT_EQ(frames[6].code, 1001);
    EXPECT_EQ(frames[6].payload, "bye");
  }
  const auto frames = frames_of(client_frame("", 0x88), 1);
  ASSERT_EQ(frames.size(), 1u);
  EXPECT_EQ(frames[0].code, websocket_code::kNoCode);
}

AE_TEST("websocket/a frame that breaks a rule fails with its code") {
  std::string unmasked = client_frame("x");
  unmasked[1] = static_cast<char>(unmasked[1] & 0x7f);
  const struct {
    unsigned code;
    std::string bytes;
  } cases[] = {
      {1002, unmasked},
      {1002, client_frame("x", 0x01)},  // a fragment
      {1002, client_frame("x", 0x80)},  // a continuation
      {1002, client_frame("x", 0xc1)},  // compressed
      {1002, client_frame("x", 0xa1)},
      {1002, client_frame("x", 0x83)},
      {1002, client_frame("x", 0x8b)},
      {1002, client_frame("x", 0x09)},                    // a fragment of a ping
      {1002, client_frame(std::string(126, 'x'), 0x89)},  // a long ping
      {1002, client_frame("x", 0x88)},                    // half of a code
      {1002, client_frame(close_payload(999), 0x88)},
      {1002, client_frame(close_payload(1005), 0x88)},
      {1002, client_frame(close_payload(1006), 0x88)},
      {1002, client_frame(close_payload(2000), 0x88)},
      {1002, client_frame(close_payload(5000), 0x88)},
      {1002, std::string("\x81\xfe\x00\x05mask", 8)},  // a length that is too long for its value
      {1002, std::string("\x81\xff\0\0\0\0\0\0\xff\xffmask", 14)},
      {1002, std::string("\x81\xff\xff\0\0\0\0\0\0\0mask", 14)},
      {1003, client_frame("x", 0x82)},
      {1007, client_frame("\xff")},
      {1007, client_frame("\xed\xa0\x80")},
      {1007, client_frame(close_payload(1000, "\xff"), 0x88)},
      {1009, client_frame(std::string(1001, 'x'))},
      {1009, std::string("\x81\xff\x7f\xff\xff\xff\xff\xff\xff\xffmask", 14)},
      {0, client_frame(std::string(1000, 'x'))},
  };
  for (const auto& one : cases) EXPECT_EQ(failure_of(one.bytes), one.code) << one.bytes;
}

AE_TEST("websocket/a server's frames have no mask and the shortest length") {
  EXPECT_EQ(websocket_frame(Opcode::text, "hi"), "\x81\x02hi");
  EXPECT_EQ(websocket_frame(Opcode::text, std::string(126, 'x')).substr(0, 5),
            std::string("\x81\x7e\x00\x7ex", 5));
  EXPECT_EQ(websocket_frame(Opcode::text, std::string(65'536, 'x')).substr(0, 11),
            std::string("\x81\x7f\0\0\0\0\0\1\0\0x", 11));
  EXPECT_EQ(websocket_close_frame(1002, "why"), std::string("\x88\x05\x03\xeawhy", 7));
  EXPECT_EQ(websocket_close_frame(1002, std::string(200, 'x')).size(), 127u);
}

}  // namespace
}  // namespace ae::net::http_server_test
