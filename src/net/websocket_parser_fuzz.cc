// WebSocketParser fuzzer: for any bytes in any pieces, the parser ends in a valid state, within its
// limits.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "base/utf8.h"
#include "net/websocket_parser.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using ae::net::WebSocketOpcode;
  using ae::net::WebSocketParser;
  std::string_view bytes(reinterpret_cast<const char*>(data), size);
  if (bytes.empty()) return 0;
  const std::size_t step = static_cast<unsigned char>(bytes[0]) + 1u;
  bytes.remove_prefix(1);
  constexpr std::size_t kMax = 1000;
  WebSocketParser parser(kMax);
  while (!bytes.empty()) {
    const std::size_t used = parser.feed(bytes.substr(0, step));
    AE_CHECK(used > 0 && parser.buffered_bytes() <= kMax);
    bytes.remove_prefix(used);
    if (parser.state() == WebSocketParser::State::failed) {
      AE_CHECK(parser.failure().code >= 1002);
      return 0;
    }
    if (parser.state() != WebSocketParser::State::frame) continue;
    const auto frame = parser.take();
    AE_CHECK(frame.payload.size() <= kMax);
    if (frame.opcode == WebSocketOpcode::text) AE_CHECK(ae::is_utf8(frame.payload));
  }
  return 0;
}
