// SHA-256 values and how to compute them. Stored as 32 raw bytes, shown as 64 lower-case hex
// digits.
// Threads: pure functions.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ae {

struct Hash {
  std::array<std::uint8_t, 32> bytes{};
  friend auto operator<=>(const Hash&, const Hash&) = default;
  bool is_zero() const noexcept { return *this == Hash{}; }
};

Hash sha256(std::string_view bytes);

// Incremental SHA-256. `finish` may be called once.
class Sha256 {
 public:
  Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;
  void add(std::string_view bytes);
  Hash finish();

 private:
  alignas(8) std::array<std::byte, 112> context_;  // OpenSSL's
};

void append_hex(std::string_view bytes, std::string& out);
std::string to_hex(std::string_view bytes);
std::string to_hex(const Hash& hash);
// Lower-case hex only, of even length; nullopt otherwise.
std::optional<std::string> from_hex(std::string_view hex);
// Appends the bytes. False if the text is not hex: then the appended bytes are unspecified.
bool append_bytes_of_hex(std::string_view hex, std::string& out);
std::optional<Hash> hash_from_hex(std::string_view hex);

}  // namespace ae
