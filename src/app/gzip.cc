#include "app/gzip.h"

#include <zlib.h>

#include <algorithm>
#include <limits>

#include "net/http_header.h"

namespace ae::app {
namespace {

constexpr int kGzipWindow = 15 + 16;  // zlib: 32 KiB, with the header and trailer of gzip
constexpr int kMemoryLevel = 8;       // zlib's default
constexpr std::string_view kBlank = " \t";

std::string_view trim(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(kBlank);
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlank) - begin + 1);
}

// "gzip;q=0", "gzip; q=0.000": not acceptable.
bool is_refused(std::string_view parameters) {
  const std::string_view weight = trim(parameters);
  if (!weight.starts_with("q=") && !weight.starts_with("Q=")) return false;
  return weight.find_first_not_of("0.", 2) == weight.npos;
}

}  // namespace

std::optional<std::string> gzip(std::string_view bytes) {
  z_stream stream{};
  if (deflateInit2(&stream, Z_BEST_SPEED, Z_DEFLATED, kGzipWindow, kMemoryLevel,
                   Z_DEFAULT_STRATEGY) != Z_OK) {
    return std::nullopt;
  }
  std::string compressed(deflateBound(&stream, static_cast<uLong>(bytes.size())), '\0');
  // zlib counts in 32 bits, so long bytes are passed in parts.
  const auto part_of = [](std::size_t size) {
    return static_cast<uInt>(std::min<std::size_t>(size, std::numeric_limits<uInt>::max()));
  };
  std::size_t read = 0, written = 0;
  int status = Z_OK;
  while (status == Z_OK) {
    const uInt in = part_of(bytes.size() - read);
    const uInt out = part_of(compressed.size() - written);
    // zlib does not write to its input.
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data() + read));
    stream.avail_in = in;
    stream.next_out = reinterpret_cast<Bytef*>(compressed.data() + written);
    stream.avail_out = out;
    status = deflate(&stream, read + in == bytes.size() ? Z_FINISH : Z_NO_FLUSH);
    read += in - stream.avail_in;
    written += out - stream.avail_out;
  }
  deflateEnd(&stream);
  if (status != Z_STREAM_END) return std::nullopt;
  compressed.resize(written);
  compressed.shrink_to_fit();
  return compressed;
}

bool accepts_gzip(std::string_view accept_encoding) {
  bool any = false;
  while (!accept_encoding.empty()) {
    const std::size_t comma = accept_encoding.find(',');
    const std::string_view item = accept_encoding.substr(0, comma);
    const std::size_t semicolon = item.find(';');
    const std::string_view name = trim(item.substr(0, semicolon));
    const bool refused = semicolon != item.npos && is_refused(item.substr(semicolon + 1));
    if (net::equal_ignoring_case(name, "gzip")) return !refused;
    if (name == "*") any = !refused;
    if (comma == accept_encoding.npos) break;
    accept_encoding.remove_prefix(comma + 1);
  }
  return any;
}

}  // namespace ae::app
