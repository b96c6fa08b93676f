#include "net/outbound.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <cstring>
#include <string>

#include "testing/test.h"

namespace ae::net {
namespace {

sockaddr_storage address(const std::string& text) {
  sockaddr_storage out{};
  if (text.find(':') != text.npos) {
    sockaddr_in6 v6{};
    v6.sin6_family = AF_INET6;
    EXPECT_EQ(inet_pton(AF_INET6, text.c_str(), &v6.sin6_addr), 1) << text;
    std::memcpy(&out, &v6, sizeof v6);
  } else {
    sockaddr_in v4{};
    v4.sin_family = AF_INET;
    EXPECT_EQ(inet_pton(AF_INET, text.c_str(), &v4.sin_addr), 1) << text;
    std::memcpy(&out, &v4, sizeof v4);
  }
  return out;
}

bool is_public(const std::string& text) {
  const sockaddr_storage storage = address(text);
  return net::is_public(reinterpret_cast<const sockaddr&>(storage));
}

AE_TEST("outbound/loopback, private and reserved addresses are not public, also embedded in IPv6") {
  for (const char* text : {"127.0.0.1",
                           "127.255.0.9",
                           "0.0.0.0",
                           "0.1.2.3",
                           "10.0.0.1",
                           "100.64.0.1",
                           "100.127.255.255",
                           "169.254.169.254",
                           "172.16.0.1",
                           "172.31.255.255",
                           "192.0.0.8",
                           "192.168.1.1",
                           "198.18.0.1",
                           "198.19.255.255",
                           "224.0.0.1",
                           "239.1.1.1",
                           "240.0.0.1",
                           "255.255.255.255",
                           "192.0.2.1",
                           "::",
                           "::1",
                           "::ffff:127.0.0.1",
                           "::ffff:10.1.2.3",
                           "::127.0.0.1",
                           "64:ff9b::7f00:1",
                           "64:ff9b::a9fe:a9fe",
                           "2002:7f00:1::",
                           "2002:c0a8:101::1",
                           "fe80::1",
                           "fec0::1",
                           "fc00::1",
                           "fd12:3456::1",
                           "ff02::1",
                           "2001::1",
                           "2001:db8::1",
                           "100::1"}) {
    EXPECT_FALSE(is_public(text)) << text;
  }
  for (const char* text :
       {"8.8.8.8", "1.1.1.1", "100.63.255.255", "100.128.0.1", "172.15.0.1", "172.32.0.1",
        "192.169.0.1", "223.255.255.255", "2606:4700::1111", "2001:4860:4860::8888",
        "::ffff:8.8.8.8", "64:ff9b::808:808", "2002:808:808::1"}) {
    EXPECT_TRUE(is_public(text)) << text;
  }
}

AE_TEST("outbound/a host is matched by name, and by port if the rule has one") {
  const std::vector<std::string> allowed{"things.example", "127.0.0.1:8080", "[::1]:80"};
  for (const char* url : {"http://things.example/x", "https://THINGS.example:99?x",
                          "http://127.0.0.1:8080/", "http://[::1]/", "http://[::1]:80/x"}) {
    EXPECT_TRUE(matches_host(allowed, url)) << url;
  }
  for (const char* url :
       {"http://127.0.0.1/", "http://127.0.0.1:80801/", "https://[::1]/",
        "http://things.example.evil/", "http://x.things.example/", "ftp://things.example/",
        "http:///x", "http://[::1", "", "http://evil/things.example", "http://evil?things.example",
        "http://127.1:8080/"}) {
    EXPECT_FALSE(matches_host(allowed, url)) << url;
  }
  for (const char* text : {"a", "a.b:1", "[::1]", "[::1]:65535", "10.0.0.1:80"})
    EXPECT_TRUE(is_valid_host(text)) << text;
  for (const char* text :
       {"", "a:", "a:0", "a:65536", "a/b", "http://a", "a b", "[::1", "[x]", "::1", "*"}) {
    EXPECT_FALSE(is_valid_host(text)) << text;
  }
}

}  // namespace
}  // namespace ae::net
