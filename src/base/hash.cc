// SHA-256 by the low-level functions of OpenSSL, which OpenSSL 3 calls deprecated and keeps: for
// the short texts of a log, its digest contexts cost as much as the hash.
#include "base/hash.h"

#define OPENSSL_SUPPRESS_DEPRECATED
#include <openssl/sha.h>

#include <cstring>

#include "base/error.h"
#include "base/fixed_text.h"

namespace ae {
namespace {

SHA256_CTX* openssl(std::array<std::byte, 112>& context) {
  static_assert(sizeof(SHA256_CTX) <= sizeof context && alignof(SHA256_CTX) <= 8);
  return reinterpret_cast<SHA256_CTX*>(context.data());
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
  for (; bytes.size() >= kHexBlock; bytes.remove_prefix(kHexBlock), out += 2 * kHexBlock) {
    write_hex<kHexBlock>(reinterpret_cast<const std::uint8_t*>(bytes.data()), out);
  }
  for (const char c : bytes) {
    std::memcpy(out, kDigitsOf[static_cast<unsigned char>(c)].data(), 2);
    out += 2;
  }
}

bool read_hex(std::string_view hex, char* out) {
  for (; hex.size() >= 2 * kHexBlock; hex.remove_prefix(2 * kHexBlock), out += kHexBlock) {
    if (!read_hex<kHexBlock>(hex.data(), out)) return false;  // NOLINT: the size is checked
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
  const bool good = SHA256_Init(&context) == 1 &&
                    SHA256_Update(&context, bytes.data(), bytes.size()) == 1 &&
                    SHA256_Final(hash.bytes.data(), &context) == 1;
  AE_CHECK(good);
  return hash;
}

Sha256::Sha256() { AE_CHECK(SHA256_Init(openssl(context_)) == 1); }

void Sha256::add(std::string_view bytes) {
  AE_CHECK(SHA256_Update(openssl(context_), bytes.data(), bytes.size()) == 1);
}

Hash Sha256::finish() {
  Hash hash;
  AE_CHECK(SHA256_Final(hash.bytes.data(), openssl(context_)) == 1);
  return hash;
}

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
  std::string hex(2 * hash.bytes.size(), '\0');
  write_hex<sizeof hash.bytes>(hash.bytes.data(), hex.data());
  return hex;
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
  auto* const bytes = reinterpret_cast<char*>(hash.bytes.data());
  const char* const digits = hex.data();  // NOLINT: the size is checked
  if (!read_hex<sizeof hash.bytes>(digits, bytes)) return std::nullopt;
  return hash;
}

}  // namespace ae
