#include "net/websocket_parser.h"

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "base/error.h"
#include "base/utf8.h"

namespace ae::net {
namespace {

constexpr unsigned kFinal = 0x80, kReserved = 0x70, kOpcode = 0x0f, kMasked = 0x80, kLength = 0x7f;
constexpr unsigned kControl = 0x08;  // of an opcode

// May a client send this code?
bool is_close_code(std::uint16_t code) {
  return (code >= 1000 && code <= 1003) || (code >= 1007 && code <= 1014) ||
         (code >= 3000 && code <= 4999);
}

}  // namespace

void WebSocketParser::fail(std::uint16_t code, std::string_view reason) {
  state_ = State::failed;
  failure_ = {code, reason};
  frame_ = {};
}

std::size_t WebSocketParser::head_size() const {
  if (head_read_ < 2) return 2;
  const unsigned length = head_[1] & kLength;
  return (length == 127 ? 10U : length == 126 ? 4U : 2U) + 4U;
}

std::size_t WebSocketParser::feed(std::string_view bytes) {
  std::size_t used = 0;
  while (state_ == State::reading && used < bytes.size()) {
    if (!in_payload_) {
      head_[head_read_++] = static_cast<unsigned char>(bytes[used++]);
      // Each rule is checked as soon as its byte is here.
      if (head_read_ <= 2 || head_read_ == head_size()) read_head();
      continue;
    }
    const std::size_t size =
        static_cast<std::size_t>(std::min<std::uint64_t>(payload_left_, bytes.size() - used));
    std::string& payload = frame_.payload;
    const std::size_t at = payload.size();
    payload.append(bytes.substr(used, size));
    for (std::size_t i = at; i < payload.size(); ++i) {
      payload[i] = static_cast<char>(static_cast<unsigned char>(payload[i]) ^ mask_[i % 4]);
    }
    used += size;
    payload_left_ -= size;
    if (payload_left_ == 0) end_frame();
  }
  return used;
}

void WebSocketParser::read_head() {
  using namespace websocket_code;
  const unsigned opcode = head_[0] & kOpcode;
  if (head_read_ == 1) {
    if ((head_[0] & kReserved) != 0) return fail(kProtocolError, "a reserved bit is set");
    if (opcode == 2) return fail(kUnsupported, "messages are texts");
    if (opcode == 0) return fail(kProtocolError, "a continuation: messages are not fragmented");
    if (opcode != 1 && (opcode < 8 || opcode > 10)) {
      return fail(kProtocolError, "an unknown opcode");
    }
    if ((head_[0] & kFinal) == 0) return fail(kProtocolError, "messages are not fragmented");
    return;
  }
  const unsigned length = head_[1] & kLength;
  if (head_read_ == 2) {
    if ((head_[1] & kMasked) == 0) return fail(kProtocolError, "a frame without a mask");
    if ((opcode & kControl) != 0 && length > kWebSocketControlMax) {
      return fail(kProtocolError, "a control frame of more than 125 bytes");
    }
    return;
  }
  std::uint64_t size = length;
  const char* const head = reinterpret_cast<const char*>(head_.data());
  if (length == 126) {
    size = (std::uint64_t{head_[2]} << 8) | head_[3];
    if (size < 126) return fail(kProtocolError, "a length that is not written in its short form");
  } else if (length == 127) {
    size = read_big_endian64(head + 2);
    if (size <= 0xffff || size >> 63 != 0) {
      return fail(kProtocolError, "a length that is not written in its short form");
    }
  }
  if (size > message_max_ && (opcode & kControl) == 0) {
    return fail(kTooLarge, "the message is too large");
  }
  std::copy_n(head_.begin() + static_cast<std::ptrdiff_t>(head_read_) - 4, 4, mask_.begin());
  frame_.opcode = static_cast<WebSocketOpcode>(opcode);
  payload_left_ = size;
  in_payload_ = true;
  if (size == 0) end_frame();
}

void WebSocketParser::end_frame() {
  using namespace websocket_code;
  in_payload_ = false;
  head_read_ = 0;
  std::string& payload = frame_.payload;
  if (frame_.opcode == WebSocketOpcode::close) {
    frame_.code = kNoCode;
    if (payload.size() == 1) return fail(kProtocolError, "half of a close code");
    if (payload.size() >= 2) {
      frame_.code = static_cast<std::uint16_t>((static_cast<unsigned char>(payload[0]) << 8) |
                                               static_cast<unsigned char>(payload[1]));
      if (!is_close_code(frame_.code)) return fail(kProtocolError, "a close code of no meaning");
      payload.erase(0, 2);
    }
  }
  const bool is_text =
      frame_.opcode == WebSocketOpcode::text || frame_.opcode == WebSocketOpcode::close;
  if (is_text && !is_utf8(payload)) return fail(kInvalidText, "a text that is not UTF-8");
  state_ = State::frame;
}

WebSocketFrame WebSocketParser::take() {
  AE_CHECK(state_ == State::frame, "no frame is complete");
  state_ = State::reading;
  return std::exchange(frame_, {});
}

std::string websocket_frame(WebSocketOpcode opcode, std::string_view payload) {
  AE_CHECK(opcode == WebSocketOpcode::text || payload.size() <= kWebSocketControlMax, "too long");
  std::string frame;
  frame.reserve(payload.size() + 10);
  frame += static_cast<char>(kFinal | static_cast<unsigned>(opcode));
  if (payload.size() < 126) {
    frame += static_cast<char>(payload.size());
  } else if (payload.size() <= 0xffff) {
    frame += static_cast<char>(126);
    frame += static_cast<char>(payload.size() >> 8);
    frame += static_cast<char>(payload.size() & 0xff);
  } else {
    frame += static_cast<char>(127);
    put_big_endian64(payload.size(), frame);
  }
  frame += payload;
  return frame;
}

std::string websocket_close_frame(std::uint16_t code, std::string_view reason) {
  std::string payload{static_cast<char>(code >> 8), static_cast<char>(code & 0xff)};
  payload += truncate_utf8(reason, kWebSocketControlMax - 2);
  return websocket_frame(WebSocketOpcode::close, payload);
}

}  // namespace ae::net
