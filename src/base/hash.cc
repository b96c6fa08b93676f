// SHA-256 by OpenSSL. The algorithm is fetched once per process, because fetching is slow in
// OpenSSL 3, and each thread keeps one context for one-shot hashes.
#include "base/hash.h"

#include <openssl/evp.h>

#include <memory>

#include "base/error.h"

namespace ae {
namespace {

struct FreeContext {
  void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
};
using Context = std::unique_ptr<EVP_MD_CTX, FreeContext>;

const EVP_MD* algorithm() {
  static const EVP_MD* const fetched = EVP_MD_fetch(nullptr, "SHA256", nullptr);
  AE_CHECK(fetched != nullptr, "OpenSSL has no SHA-256");
  return fetched;
}

Context new_context() {
  Context context(EVP_MD_CTX_new());
  AE_CHECK(context != nullptr, "out of memory");
  return context;
}

void start(EVP_MD_CTX* context) {
  AE_CHECK(EVP_DigestInit_ex2(context, algorithm(), nullptr) == 1);
}

// Starts the next hash with a context that has its algorithm: cheaper than `start`.
void restart(EVP_MD_CTX* context) { AE_CHECK(EVP_DigestInit_ex2(context, nullptr, nullptr) == 1); }

Hash end(EVP_MD_CTX* context) {
  Hash hash;
  unsigned size = 0;
  AE_CHECK(EVP_DigestFinal_ex(context, hash.bytes.data(), &size) == 1);
  AE_CHECK(size == hash.bytes.size());
  return hash;
}

// The digit's value, or −1.
constexpr auto kDigitOf = [] {
  std::array<signed char, 256> table{};
  table.fill(-1);
  for (signed char i = 0; i < 10; ++i) table[static_cast<std::size_t>('0' + i)] = i;
  for (signed char i = 10; i < 16; ++i) table[static_cast<std::size_t>('a' + i - 10)] = i;
  return table;
}();

int digit(char c) { return kDigitOf[static_cast<unsigned char>(c)]; }

// False if a character is not a lower-case hex digit. REQUIRES: `out` has room for hex.size() / 2.
bool read_hex(std::string_view hex, char* out) {
  for (std::size_t i = 0; i < hex.size(); i += 2) {
    const int high = digit(hex[i]);
    const int low = digit(hex[i + 1]);
    if (high < 0 || low < 0) return false;
    *out++ = static_cast<char>(high << 4 | low);
  }
  return true;
}

}  // namespace

Hash sha256(std::string_view bytes) {
  thread_local const Context context = [] {
    Context made = new_context();
    start(made.get());
    return made;
  }();
  restart(context.get());
  AE_CHECK(EVP_DigestUpdate(context.get(), bytes.data(), bytes.size()) == 1);
  return end(context.get());
}

Sha256::Sha256() {
  Context context = new_context();
  start(context.get());
  context_ = context.release();
}

Sha256::~Sha256() { EVP_MD_CTX_free(static_cast<EVP_MD_CTX*>(context_)); }

void Sha256::add(std::string_view bytes) {
  AE_CHECK(EVP_DigestUpdate(static_cast<EVP_MD_CTX*>(context_), bytes.data(), bytes.size()) == 1);
}

Hash Sha256::finish() { return end(static_cast<EVP_MD_CTX*>(context_)); }

void append_hex(std::string_view bytes, std::string& out) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  const std::size_t start = out.size();
  out.resize(start + bytes.size() * 2);
  char* at = out.data() + start;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    *at++ = kDigits[byte >> 4];
    *at++ = kDigits[byte & 15];
  }
}

std::string to_hex(std::string_view bytes) {
  std::string hex;
  append_hex(bytes, hex);
  return hex;
}

std::string to_hex(const Hash& hash) {
  return to_hex({reinterpret_cast<const char*>(hash.bytes.data()), hash.bytes.size()});
}

bool append_bytes_of_hex(std::string_view hex, std::string& out) {
  if (hex.size() % 2 != 0) return false;
  const std::size_t start = out.size();
  out.resize(start + hex.size() / 2);
  return read_hex(hex, out.data() + start);
}

std::optional<std::string> from_hex(std::string_view hex) {
  std::string bytes;
  if (!append_bytes_of_hex(hex, bytes)) return std::nullopt;
  return bytes;
}

std::optional<Hash> hash_from_hex(std::string_view hex) {
  Hash hash;
  if (hex.size() != 2 * hash.bytes.size()) return std::nullopt;
  if (!read_hex(hex, reinterpret_cast<char*>(hash.bytes.data()))) return std::nullopt;
  return hash;
}

}  // namespace ae
