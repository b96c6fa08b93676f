#include "base/hash.h"

#include <array>

#include "base/fixed_text.h"
#include "testing/test.h"

namespace ae {
namespace {

AE_TEST("base/hash/SHA-256 matches published digests") {
  EXPECT_EQ(to_hex(sha256("")), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(to_hex(sha256("abc")),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(to_hex(sha256(std::string(1'000'000, 'a'))),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  std::string all;
  for (int i = 0; i < 256; ++i) all += static_cast<char>(i);
  EXPECT_EQ(to_hex(sha256(all)),
            "40aff2e9d2d8922e47afd4648e6967497158785fbd1da870e7110266bf944880");
}

AE_TEST("base/hash/an incremental hash does not depend on how the input is split") {
  const std::string text = "the quick brown fox jumps over the lazy dog";
  for (std::size_t cut = 0; cut <= text.size(); ++cut) {
    Sha256 running;
    running.add(text.substr(0, cut));
    running.add(text.substr(cut));
    EXPECT_EQ(running.finish(), sha256(text)) << cut;
  }
}

AE_TEST("base/hash/concurrent incremental hashes are independent") {
  Sha256 a;
  Sha256 b;
  a.add("a");
  b.add("b");
  const Hash other = sha256("other");
  EXPECT_EQ(a.finish(), sha256("a"));
  EXPECT_EQ(b.finish(), sha256("b"));
  EXPECT_EQ(other, sha256("other"));
}

AE_TEST("base/hash/hex round-trips, in lower case only") {
  EXPECT_EQ(to_hex(std::string_view("\x00\x7f\xff", 3)), "007fff");
  EXPECT_EQ(from_hex("007fff"), std::string("\x00\x7f\xff", 3));
  EXPECT_EQ(from_hex(""), "");
  EXPECT_EQ(from_hex("00A0"), std::nullopt);
  EXPECT_EQ(from_hex("000"), std::nullopt);
  EXPECT_EQ(from_hex("0g"), std::nullopt);
}

template <std::size_t Bytes>
void expect_hex_is_checked() {
  std::array<std::uint8_t, Bytes> bytes;
  for (std::size_t i = 0; i < Bytes; ++i) bytes[i] = static_cast<std::uint8_t>(37 * i + 9);
  std::string hex(2 * Bytes, '\0');
  write_hex<Bytes>(bytes.data(), hex.data());
  EXPECT_EQ(hex, to_hex({reinterpret_cast<const char*>(bytes.data()), Bytes}));
  std::array<std::uint8_t, Bytes> read{};
  EXPECT_TRUE(read_hex<Bytes>(hex.data(), reinterpret_cast<char*>(read.data())));
  EXPECT_EQ(read, bytes);
  constexpr std::string_view kDigits = "0123456789abcdef";
  for (std::size_t at = 0; at < hex.size(); ++at) {
    for (int c = 0; c < 256; ++c) {
      std::string changed = hex;
      changed[at] = static_cast<char>(c);
      std::string out(Bytes, '\0');
      EXPECT_EQ(read_hex<Bytes>(changed.data(), out.data()), kDigits.contains(changed[at]));
      EXPECT_EQ(from_hex(changed).has_value(), kDigits.contains(changed[at])) << at << " " << c;
    }
  }
}

AE_TEST("base/hash/another character than a hex digit is found at any position") {
  expect_hex_is_checked<8>();
  expect_hex_is_checked<16>();
  expect_hex_is_checked<32>();
  expect_hex_is_checked<37>();
}

AE_TEST("base/hash/a hash is parsed from exactly 64 hex digits") {
  const Hash hash = sha256("x");
  EXPECT_EQ(hash_from_hex(to_hex(hash)), hash);
  EXPECT_EQ(hash_from_hex(to_hex(hash).substr(2)), std::nullopt);
  EXPECT_EQ(hash_from_hex(to_hex(hash) + "00"), std::nullopt);
  EXPECT_TRUE(Hash{}.is_zero());
  EXPECT_FALSE(hash.is_zero());
}

}  // namespace
}  // namespace ae
