// Outbound rules: which addresses a request may reach if data chose its host: an
// answer, a recorded change.
//
// Such a request must not reach this machine or its networks (loopback, private and link-local
// addresses, a cloud's metadata service), unless the agents file allows the host. The check applies
// to the address that is connected to, so no spelling (127.1, 2130706433, [::ffff:127.0.0.1]) and
// no name that resolves there bypasses it.
// Threads: pure functions.
#pragma once

#include <sys/socket.h>

#include <string>
#include <string_view>
#include <vector>

namespace ae::net {

// True for addresses of the public Internet. For IPv6 that embeds an IPv4 address (mapped, NAT64,
// 6to4) the latter decides.
bool is_public(const sockaddr& address);
// For messages: "127.0.0.1", "[::1]".
std::string address_text(const sockaddr& address);

// True if the URL's host is in `allowed`: HOST (any port) or HOST:PORT.
// Compared as text, ignoring case.
bool matches_host(const std::vector<std::string>& allowed, std::string_view url);
// True if `text` is a valid entry of `allowed`.
bool is_valid_host(std::string_view text);

}  // namespace ae::net
