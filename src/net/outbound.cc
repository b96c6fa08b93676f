#include "net/outbound.h"

#include <arpa/inet.h>
#include <fmt/core.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <span>

#include "net/http_header.h"

namespace ae::net {
namespace {

struct Net4 {
  std::uint32_t address;
  int bits;
};
// Networks that the special-purpose registry (RFC 6890 and updates) does not
// call global, and multicast.
constexpr Net4 kSpecialNets4[] = {
    {0x00000000, 8},  {0x0A000000, 8},  {0x64400000, 10}, {0x7F000000, 8},  {0xA9FE0000, 16},
    {0xAC100000, 12}, {0xC0000000, 24}, {0xC0000200, 24}, {0xC0586300, 24}, {0xC0A80000, 16},
    {0xC6120000, 15}, {0xC6336400, 24}, {0xCB007100, 24}, {0xE0000000, 3},
};

bool is_public_4(std::uint32_t address) {
  return std::ranges::none_of(kSpecialNets4, [&](const Net4& net) {
    return (address ^ net.address) >> (32 - net.bits) == 0;
  });
}

std::uint32_t word_at(std::span<const std::uint8_t, 16> bytes, std::size_t at) {
  return std::uint32_t{bytes[at]} << 24 | std::uint32_t{bytes[at + 1]} << 16 |
         std::uint32_t{bytes[at + 2]} << 8 | bytes[at + 3];
}

bool is_public_6(std::span<const std::uint8_t, 16> b) {
  const std::uint32_t first = word_at(b, 0), second = word_at(b, 4), third = word_at(b, 8);
  const bool zeros = first == 0 && second == 0;
  // ::a.b.c.d, ::ffff:a.b.c.d, ::ffff:0:a.b.c.d; the first also matches `::` and `::1`.
  if (zeros && (third == 0 || third == 0xFFFF || third == 0xFFFF0000)) {
    return is_public_4(word_at(b, 12));
  }
  if (first == 0x0064FF9B && second == 0 && third == 0) return is_public_4(word_at(b, 12));
  if (first >> 16 == 0x2002) return is_public_4(first << 16 | second >> 16);
  if (first >> 29 != 1) return false;     // only 2000::/3 is global
  if (first == 0x20010DB8) return false;  // documentation
  return first >> 9 != 0x20010000 >> 9;   // 2001::/23: Teredo and other protocols
}

// Host and port as written in the URL; "" = none.
struct HostPort {
  std::string_view host, port;
};

HostPort split(std::string_view authority) {
  const std::size_t bracket = authority.starts_with('[') ? authority.find(']') : 0;
  if (bracket == authority.npos) return {};
  const std::size_t colon = authority.find(':', bracket);
  if (colon == authority.npos) return {authority, {}};
  return {authority.substr(0, colon), authority.substr(colon + 1)};
}

}  // namespace

bool is_public(const sockaddr& address) {
  if (address.sa_family == AF_INET) {
    sockaddr_in v4{};
    std::memcpy(&v4, &address, sizeof v4);
    return is_public_4(ntohl(v4.sin_addr.s_addr));
  }
  if (address.sa_family != AF_INET6) return false;
  sockaddr_in6 v6{};
  std::memcpy(&v6, &address, sizeof v6);
  return is_public_6(std::span<const std::uint8_t, 16>(v6.sin6_addr.s6_addr, 16));
}

std::string address_text(const sockaddr& address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (address.sa_family == AF_INET) {
    sockaddr_in v4{};
    std::memcpy(&v4, &address, sizeof v4);
    inet_ntop(AF_INET, &v4.sin_addr, text.data(), text.size());
    return text.data();
  }
  if (address.sa_family != AF_INET6) return "another kind of address";
  sockaddr_in6 v6{};
  std::memcpy(&v6, &address, sizeof v6);
  inet_ntop(AF_INET6, &v6.sin6_addr, text.data(), text.size());
  return fmt::format("[{}]", text.data());
}

bool matches_host(const std::vector<std::string>& allowed, std::string_view url) {
  const bool tls = url.starts_with("https://");
  if (!tls && !url.starts_with("http://")) return false;
  url.remove_prefix(tls ? 8 : 7);
  const auto [host, port] = split(url.substr(0, url.find_first_of("/?#")));
  if (host.empty()) return false;
  const std::string_view url_port = port.empty() ? (tls ? "443" : "80") : port;
  return std::ranges::any_of(allowed, [&](const std::string& one) {
    const auto [name, number] = split(one);
    return equal_ignoring_case(name, host) && (number.empty() || number == url_port);
  });
}

bool is_valid_host(std::string_view text) {
  const auto [host, port] = split(text);
  const bool has_port = host.size() < text.size();
  unsigned number = 0;
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), number);
  if (has_port &&
      (error != std::errc() || end != port.data() + port.size() || number < 1 || number > 65535)) {
    return false;
  }
  if (host.starts_with('[')) {
    in6_addr address{};
    const std::string inside(host.substr(1, host.size() - 2));
    return host.ends_with(']') && inet_pton(AF_INET6, inside.c_str(), &address) == 1;
  }
  return !host.empty() && host.size() <= 253 && std::ranges::all_of(host, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '.' || c == '_';
  });
}

}  // namespace ae::net
