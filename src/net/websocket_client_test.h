// The client side of a WebSocket, for tests: requests, masked frames, frames of a server.
#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace ae::net::http_server_test {

inline constexpr std::string_view kSubprotocol = "aetheris.worker.1";

// The upgrade request of RFC 6455 §1.3, without `but`, with `more`.
inline std::string upgrade_request(std::string_view but = "", std::string_view more = "") {
  std::string request = "GET /api/worker HTTP/1.1\r\nHost: localhost\r\n";
  for (const std::string_view header :
       {"Upgrade: websocket", "Connection: keep-alive, Upgrade",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Protocol: other, aetheris.worker.1"}) {
    if (!but.empty() && header.starts_with(but)) continue;
    request.append(header).append("\r\n");
  }
  return request.append(more).append("\r\n");
}

// A frame of a client. `first`: FIN, reserved bits and opcode.
inline std::string client_frame(std::string_view payload, unsigned first = 0x81) {
  constexpr unsigned char kMask[4] = {0x11, 0x22, 0xa3, 0xf4};
  std::string frame(1, static_cast<char>(first));
  const std::size_t size = payload.size();
  if (size < 126) {
    frame += static_cast<char>(0x80 | size);
  } else if (size <= 0xffff) {
    frame += static_cast<char>(0x80 | 126);
    frame += static_cast<char>(size >> 8);
    frame += static_cast<char>(size & 0xff);
  } else {
    frame += static_cast<char>(0x80 | 127);
    for (int shift = 56; shift >= 0; shift -= 8) {
      frame += static_cast<char>((static_cast<std::uint64_t>(size) >> shift) & 0xff);
    }
  }
  for (const unsigned char byte : kMask) frame += static_cast<char>(byte);
  for (std::size_t i = 0; i < size; ++i) {
    frame += static_cast<char>(static_cast<unsigned char>(payload[i]) ^ kMask[i % 4]);
  }
  return frame;
}

// A close frame of a server or, with `client_frame(…, 0x88)`, its payload.
inline std::string close_payload(std::uint16_t code, std::string_view reason = "") {
  std::string payload{static_cast<char>(code >> 8), static_cast<char>(code & 0xff)};
  return payload.append(reason);
}

// The code of the close frame at the end of these bytes of a server; 0: there is none.
inline unsigned close_code_in(std::string_view bytes) {
  const std::size_t at = bytes.rfind('\x88');
  if (at == bytes.npos || bytes.size() < at + 4) return 0;
  return static_cast<unsigned char>(bytes[at + 2]) * 256U +
         static_cast<unsigned char>(bytes[at + 3]);
}

}  // namespace ae::net::http_server_test
