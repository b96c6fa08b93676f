// Which addresses a request may reach whose host was chosen by data: an answer, a recorded change.
//
// Such a host must not lead into this machine or its networks (loopback, private and link-local addresses, the metadata
// service of a cloud), unless the agents file names it. Judged is the address that is connected to, so that no spelling
// (127.1, 2130706433, [::ffff:127.0.0.1]) and no name that resolves there gets around it.
// Threads: pure functions.
#pragma once

#include <sys/socket.h>

#include <string>
#include <string_view>
#include <vector>

namespace ae::net {

// Is it an address of the public Internet? Of IPv6 that carries an IPv4 address (mapped, NAT64, 6to4) that one counts.
bool is_public(const sockaddr& address);
// "127.0.0.1", "[::1]": for messages.
std::string address_text(const sockaddr& address);

// Does a url lead to one of these, HOST or HOST:PORT? Without a port: to any. Compared as they are written, names in any case.
bool matches_host(const std::vector<std::string>& allowed, std::string_view url);
// May this stand in `allowed`?
bool is_valid_host(std::string_view text);

}  // namespace ae::net
