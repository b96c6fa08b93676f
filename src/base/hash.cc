// SHA-256 by the low-level functions of OpenSSL, which OpenSSL 3 calls deprecated and keeps: for the
// short texts of a log, its digest contexts cost as much as the hash.
#include "base/hash.h"

#define OPENSSL_SUPPRESS_DEPRECATED
#include <openssl/sha.h>

#include <bit>
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

// The four bytes of the first eight digits, which are handled at once in the bytes of a number.
bool read_eight_digits(std::string_view hex, char* out) {
  constexpr std::uint64_t kOnes = 0x0101010101010101u;
  std::uint64_t text = 0;
  std::memcpy(&text, hex.data(), sizeof text);
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
    if (!read_eight_digits(hex, out)) return false;
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
  Sha256 hash;
  hash.add(bytes);
  return hash.finish();
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
