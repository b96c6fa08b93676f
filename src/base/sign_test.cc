// Ed25519: the vectors of the RFC, the forms of keys, and invalid input.
#include "base/sign.h"

#include <algorithm>

#include "base/hash.h"
#include "testing/test.h"

namespace ae {
namespace {

std::array<std::uint8_t, 32> seed(std::string_view hex) {
  std::array<std::uint8_t, 32> bytes{};
  std::ranges::copy(*from_hex(hex), bytes.begin());
  return bytes;
}

constexpr std::string_view kPrivatePem =
    "-----BEGIN PRIVATE KEY-----\n"
    "MC4CAQAwBQYDK2VwBCIEINTuctv5E1hK1bbY8fdp+K06/nwoy/HU++CXqI9EdVhC\n"
    "-----END PRIVATE KEY-----\n";
constexpr std::string_view kPublicHex =
    "19bf44096984cdfe8541bac167dc3b96c85086aa30b6b6cb0c5c38ad703166e1";

// RFC 8032, 7.1, tests 1 and 2.
AE_TEST("sign/Ed25519 matches the test vectors of RFC 8032") {
  const SigningKey one = SigningKey::from_seed(
      seed("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60"));
  EXPECT_EQ(one.public_key().hex(),
            "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a");
  EXPECT_EQ(
      to_hex(one.sign("")),
      "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701"
      "cf9b46bd25bf5f0595bbe24655141438e7a100b");
  const SigningKey two = SigningKey::from_seed(
      seed("4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb"));
  EXPECT_EQ(
      to_hex(two.sign("\x72")),
      "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d"
      "0f11d8c387b2eaeb4302aeeb00d291612bb0c00");
}

// RFC 8410, 10.3: the same key as PEM.
AE_TEST("sign/a private key is read from PEM, a public key from PEM or hex") {
  auto key = SigningKey::from_pem(kPrivatePem);
  ASSERT_TRUE(key);
  EXPECT_EQ(key->public_key().hex(), kPublicHex);
  for (const std::string& text :
       {std::string(kPrivatePem), std::string(kPublicHex) + "\n",
        std::string("-----BEGIN PUBLIC KEY-----\n"
                    "MCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXA"
                    "xZuE=\n-----END PUBLIC KEY-----\n")}) {
    auto open = public_key_from_text(text);
    ASSERT_TRUE(open) << text;
    EXPECT_EQ(*open, key->public_key());
  }
  EXPECT_EQ(key->public_key().id().size(), 16u);
}

AE_TEST("sign/an invalid key is rejected") {
  for (const char* text : {"", "hello", "19bf44096984", "-----BEGIN PRIVATE KEY-----\nAAAA\n"}) {
    EXPECT_EQ(public_key_from_text(text).error().code, Code::input_invalid) << text;
    EXPECT_EQ(SigningKey::from_pem(text).error().code, Code::input_invalid) << text;
  }
}

AE_TEST("sign/a signature is valid for one key and one message only") {
  const SigningKey key = SigningKey::from_seed({1});
  const SigningKey other = SigningKey::from_seed({2});
  const std::string signature = key.sign("message");
  EXPECT_TRUE(verify_signature(key.public_key(), "message", signature));
  EXPECT_FALSE(verify_signature(key.public_key(), "messagf", signature));
  EXPECT_FALSE(verify_signature(other.public_key(), "message", signature));
  EXPECT_FALSE(verify_signature(key.public_key(), "message", signature.substr(1)));
  for (std::size_t i = 0; i < signature.size(); ++i) {
    std::string changed = signature;
    changed[i] = static_cast<char>(changed[i] ^ 1);
    EXPECT_FALSE(verify_signature(key.public_key(), "message", changed)) << i;
  }
}

}  // namespace
}  // namespace ae
