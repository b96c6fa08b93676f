// SHA-256 by OpenSSL. One-shot hashes use its low-level functions, which OpenSSL 3 calls deprecated
// and keeps: for the short texts of a log, a digest context costs as much as the hash. Incremental
// hashes use a context; its algorithm is fetched once per process, because fetching is slow.
#include "base/hash.h"

#define OPENSSL_SUPPRESS_DEPRECATED
#include <openssl/evp.h>
#include <openssl/sha.h>

#include <bit>
#include <cstring>
#include <memory>

#include "base/error.h"
#include "base/fixed_text.h"

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

// The four bytes of eight digits, which are handled at once in the bytes of a number.
bool read_eight_digits(const char* hex, char* out) {
  constexpr std::uint64_t kOnes = 0x0101010101010101u;
  std::uint64_t text = 0;
  std::memcpy(&text, hex, sizeof text);
  if constexpr (std::endian::native == std::endian::little) text = std::byteswap(text);
  // A letter has bit 6, and its low half is 1 to 6.
  const std::uint64_t digits = (text & kOnes * 0x0F) + (text >> 6 & kOnes) * 9;
  const std::uint64_t letters = (digits + kOnes * 6) >> 4 & kOnes;
  const bool is_hex =
      (digits & kOnes * 0xF0) == 0 && digits + kOnes * '0' + letters * ('a' - '0' - 10) == text;
  const std::uint64_t pairs = digits >> 4 | digits;  // each second byte is a byte of the result
  for (int i = 0; i < 4; ++i) out[i] = static_cast<char>(pairs >> (48 - 16 * i));
  return is_hex;
}

// The two digits of each byte.
constexpr auto kDigitsOf = [] {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::array<std::array<char, 2>, 256> table{};
  for (std::size_t byte = 0; byte < table.size(); ++byte)
    table[byte] = {kDigits[byte >> 4], kDigits[byte & 15]};
  return table;
}();

}  // namespace

void write_hex(std::string_view bytes, char* out) {
  for (const char c : bytes) {
    std::memcpy(out, kDigitsOf[static_cast<unsigned char>(c)].data(), 2);
    out += 2;
  }
}

bool read_hex(std::string_view hex, char* out) {
  for (; hex.size() >= 8; hex.remove_prefix(8), out += 4) {
    if (!read_eight_digits(hex.data(), out)) return false;
  }
  int all = 0;  // negative if a digit is
  for (std::size_t i = 0; i < hex.size(); i += 2) {
    const int high = digit(hex[i]);
    const int low = digit(hex[i + 1]);
    all |= high | low;
    *out++ = static_cast<char>(high << 4 | low);
  }
  return all >= 0;
}

Hash sha256(std::string_view bytes) {
  SHA256_CTX context;
  Hash hash;
  AE_CHECK(SHA256_Init(&context) == 1);
  AE_CHECK(SHA256_Update(&context, bytes.data(), bytes.size()) == 1);
  AE_CHECK(SHA256_Final(hash.bytes.data(), &context) == 1);
  return hash;
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
  const std::size_t start = out.size();
  out.resize(start + bytes.size() * 2);
  write_hex(bytes, out.data() + start);
}

std::string to_hex(std::string_view bytes) {
  std::string hex(2 * bytes.size(), '\0');
  write_hex(bytes, hex.data());
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
