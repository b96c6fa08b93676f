// WebSocketParser: parses the bytes of a client into WebSocket frames, strictly (RFC 6455).
//
// It accepts what the worker protocol needs: masked frames, texts in one frame, no extensions. A
// text is valid UTF-8. After a failure the connection must be closed with its code.
// Threads: a value. Pure: no sockets, no clock.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace ae::net {

enum class WebSocketOpcode : std::uint8_t { text = 1, close = 8, ping = 9, pong = 10 };

// The codes of RFC 6455 §7.4.1 that are used here.
namespace websocket_code {
inline constexpr std::uint16_t kNormal = 1000, kGoingAway = 1001, kProtocolError = 1002,
                               kUnsupported = 1003, kNoCode = 1005, kLost = 1006,
                               kInvalidText = 1007, kPolicy = 1008, kTooLarge = 1009;
}

inline constexpr std::size_t kWebSocketControlMax = 125;  // bytes of a ping, pong or close

struct WebSocketFrame {
  WebSocketOpcode opcode = WebSocketOpcode::text;
  std::string payload;     // text; ping and pong: any bytes; close: the reason, UTF-8
  std::uint16_t code = 0;  // close; kNoCode: none was sent
};

class WebSocketParser {
 public:
  enum class State : std::uint8_t { reading, frame, failed };
  struct Failure {
    std::uint16_t code = 0;
    std::string_view reason;
  };
  // `message_max`: bytes of a text.
  explicit WebSocketParser(std::size_t message_max) : message_max_(message_max) {}

  // Consumes bytes up to the end of a frame or a failure; returns how many.
  std::size_t feed(std::string_view bytes);
  State state() const { return state_; }
  // REQUIRES: state() is frame. The parser then reads the next one.
  WebSocketFrame take();
  // REQUIRES: state() is failed.
  const Failure& failure() const { return failure_; }
  // Bytes of the frame that is being read.
  std::size_t buffered_bytes() const { return frame_.payload.size(); }

 private:
  static constexpr std::size_t kHeadMax = 14;  // 2, a length of 8, a mask of 4
  void read_head();
  std::size_t head_size() const;
  void end_frame();
  void fail(std::uint16_t code, std::string_view reason);

  std::size_t message_max_;
  State state_ = State::reading;
  std::array<unsigned char, kHeadMax> head_{};
  std::size_t head_read_ = 0;
  bool in_payload_ = false;
  std::uint64_t payload_left_ = 0;
  std::array<unsigned char, 4> mask_{};
  WebSocketFrame frame_;
  Failure failure_;
};

// The bytes of one frame of a server: unmasked. REQUIRES: the payload of a control frame is at most
// kWebSocketControlMax bytes.
std::string websocket_frame(WebSocketOpcode opcode, std::string_view payload);
// A close frame; a longer reason is cut.
std::string websocket_close_frame(std::uint16_t code, std::string_view reason);

}  // namespace ae::net
