// Ed25519 by OpenSSL.
#include "base/sign.h"

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/pem.h>

#include <utility>

#include "base/hash.h"

namespace ae {
namespace {

constexpr std::size_t kSignatureSize = 64;

struct FreeBio {
  void operator()(BIO* bio) const { BIO_free(bio); }
};
struct FreeKey {
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
};
struct FreeSigning {
  void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
};
using Bio = std::unique_ptr<BIO, FreeBio>;
using Key = std::unique_ptr<EVP_PKEY, FreeKey>;
using SigningContext = std::unique_ptr<EVP_MD_CTX, FreeSigning>;

const unsigned char* as_unsigned(std::string_view bytes) {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}

Bio open_bio(std::string_view text) {
  Bio bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
  AE_CHECK(bio != nullptr, "out of memory");
  return bio;
}

// Never prompts for a passphrase: an encrypted key is rejected.
int no_passphrase(char*, int, int, void*) { return -1; }

bool is_ed25519(const Key& key) {
  return key != nullptr && EVP_PKEY_get_base_id(key.get()) == EVP_PKEY_ED25519;
}

PublicKey public_of(const EVP_PKEY* key) {
  PublicKey out;
  std::size_t size = out.bytes.size();
  AE_CHECK(EVP_PKEY_get_raw_public_key(key, out.bytes.data(), &size) == 1);
  return out;
}

}  // namespace

std::string PublicKey::hex() const {
  return to_hex(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

std::string PublicKey::id() const {
  const std::string_view raw_bytes(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return to_hex(sha256(raw_bytes)).substr(0, 16);
}

void SigningKey::Free::operator()(void* key) const { EVP_PKEY_free(static_cast<EVP_PKEY*>(key)); }
SigningKey::SigningKey(void* key) : key_(key), public_(public_of(static_cast<EVP_PKEY*>(key))) {}
SigningKey::SigningKey(SigningKey&&) noexcept = default;
SigningKey& SigningKey::operator=(SigningKey&&) noexcept = default;
SigningKey::~SigningKey() = default;

Result<SigningKey> SigningKey::from_pem(std::string_view pem) {
  const Bio bio = open_bio(pem);
  Key key(PEM_read_bio_PrivateKey(bio.get(), nullptr, no_passphrase, nullptr));
  if (!is_ed25519(key)) {
    return fail(Code::input_invalid,
                "this is not an Ed25519 private key in PEM format without a passphrase; create one "
                "with `openssl genpkey -algorithm ed25519`");
  }
  return SigningKey(key.release());
}

SigningKey SigningKey::from_seed(const std::array<std::uint8_t, 32>& seed) {
  Key key(EVP_PKEY_new_raw_private_key(EVP_PKEY_ED25519, nullptr, seed.data(), seed.size()));
  AE_CHECK(key != nullptr, "OpenSSL has no Ed25519");
  return SigningKey(key.release());
}

std::string SigningKey::sign(std::string_view message) const {
  const SigningContext context(EVP_MD_CTX_new());
  AE_CHECK(context != nullptr, "out of memory");
  std::string signature(kSignatureSize, '\0');
  std::size_t size = signature.size();
  AE_CHECK(EVP_DigestSignInit(context.get(), nullptr, nullptr, nullptr,
                              static_cast<EVP_PKEY*>(key_.get())) == 1);
  AE_CHECK(EVP_DigestSign(context.get(), reinterpret_cast<unsigned char*>(signature.data()), &size,
                          as_unsigned(message), message.size()) == 1);
  AE_CHECK(size == kSignatureSize);
  return signature;
}

Result<PublicKey> public_key_from_text(std::string_view text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.remove_suffix(1);
  PublicKey out;
  if (const auto bytes = from_hex(text); bytes && bytes->size() == out.bytes.size()) {
    for (std::size_t i = 0; i < out.bytes.size(); ++i) {
      out.bytes[i] = static_cast<std::uint8_t>((*bytes)[i]);
    }
    return out;
  }
  const Bio bio = open_bio(text);
  if (const Key key(PEM_read_bio_PUBKEY(bio.get(), nullptr, no_passphrase, nullptr));
      is_ed25519(key)) {
    return public_of(key.get());
  }
  const Bio again = open_bio(text);
  if (const Key key(PEM_read_bio_PrivateKey(again.get(), nullptr, no_passphrase, nullptr));
      is_ed25519(key)) {
    return public_of(key.get());
  }
  return fail(Code::input_invalid,
              "this is not an Ed25519 key: give a PEM file with a public or private key, or the 64 "
              "hex digits of a public key");
}

bool verify_signature(const PublicKey& key, std::string_view message, std::string_view signature) {
  if (signature.size() != kSignatureSize) return false;
  const Key open(
      EVP_PKEY_new_raw_public_key(EVP_PKEY_ED25519, nullptr, key.bytes.data(), key.bytes.size()));
  const SigningContext context(EVP_MD_CTX_new());
  if (open == nullptr || context == nullptr) return false;
  return EVP_DigestVerifyInit(context.get(), nullptr, nullptr, nullptr, open.get()) == 1 &&
         EVP_DigestVerify(context.get(), as_unsigned(signature), signature.size(),
                          as_unsigned(message), message.size()) == 1;
}

}  // namespace ae
