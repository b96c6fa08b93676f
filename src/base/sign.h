// Ed25519 (RFC 8032): signing keys, public keys, signatures.
//
// Keys are PEM, as `openssl genpkey -algorithm ed25519` writes them; a public key can also be 64
// hex digits. The id of a key is the first 16 hex digits of the SHA-256 of its 32 public bytes: it
// selects a key and proves nothing.
// Threads: pure functions; a SigningKey may be used from one thread at a time.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/error.h"

namespace ae {

struct PublicKey {
  std::array<std::uint8_t, 32> bytes{};
  std::string id() const;
  std::string hex() const;
  friend bool operator==(const PublicKey&, const PublicKey&) = default;
};

class SigningKey {
 public:
  // A PEM text with an unencrypted Ed25519 private key. Fails with input_invalid.
  static Result<SigningKey> from_pem(std::string_view pem);
  // The 32 bytes of a private key as in RFC 8032.
  static SigningKey from_seed(const std::array<std::uint8_t, 32>& seed);
  SigningKey(SigningKey&&) noexcept;
  SigningKey& operator=(SigningKey&&) noexcept;
  ~SigningKey();

  const PublicKey& public_key() const { return public_; }
  std::string sign(std::string_view message) const;  // 64 bytes

 private:
  struct Free {
    void operator()(void* key) const;
  };
  explicit SigningKey(void* key);
  std::unique_ptr<void, Free> key_;  // owned by OpenSSL; never printed
  PublicKey public_;
};

// 64 hex digits, or a PEM text with a public or a private key. Fails with input_invalid.
Result<PublicKey> public_key_from_text(std::string_view text);
bool verify_signature(const PublicKey& key, std::string_view message, std::string_view signature);

}  // namespace ae
