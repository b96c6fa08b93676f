// HttpParser fuzzer: for any bytes in any pieces, the parser ends in a valid
// state, within its limits.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "net/http_parser.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using ae::net::HttpParser;
  std::string_view bytes(reinterpret_cast<const char*>(data), size);
  if (bytes.empty()) return 0;
  const std::size_t step = static_cast<unsigned char>(bytes[0]) + 1u;
  bytes.remove_prefix(1);
  const ae::net::HttpLimits limits{.body_max = 1000};
  HttpParser parser(limits);
  while (!bytes.empty()) {
    const std::size_t used = parser.feed(bytes.substr(0, step));
    bytes.remove_prefix(used);
    static_cast<void>(parser.take_expects_continue());
    if (parser.state() == HttpParser::State::refused) return 0;
    if (parser.state() == HttpParser::State::request) {
      const ae::net::HttpRequest request = parser.take();
      AE_CHECK(request.body.size() <= limits.body_max);
      AE_CHECK(request.headers.size() <= limits.headers_max);
    } else {
      AE_CHECK(used > 0);
    }
  }
  return 0;
}
