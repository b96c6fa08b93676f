// Values that a routine records instead of reading a clock or chance: times, random numbers, UUIDs.
//
// Stored: the form of each value, and the numbers that follow from a seed. Threads: values; one
// owner.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/hash.h"
#include "base/time.h"
#include "json/value.h"

namespace ae::routines {

// {"ms", "time"}, as the tool `time` records it (engine/values/recorded_value.h).
Value time_value(Instant at);
std::optional<Instant> time_of(const Value& value);

// The random numbers of one scope of a job: of each block, SHA256("aetheris.random.v1" || seed ||
// length of the scope as 8 bytes || scope || number of the block as 8 bytes), the four groups of 8
// bytes, of each the upper 53 bits.
class RandomNumbers {
 public:
  RandomNumbers(const Hash& seed, std::string_view scope);
  double next();  // in [0, 1)

 private:
  std::string prefix_;
  std::uint64_t drawn_ = 0;
  Hash block_;
};

// Random bytes of a routine, from 256 bits of the random source.
class Entropy {
 public:
  explicit Entropy(const std::array<std::uint64_t, 4>& words);
  Hash next();

 private:
  std::string seed_;
  std::uint64_t drawn_ = 0;
};

// Version 4, lower case.
std::string uuid_v4(const Hash& random);

// Can the value be recorded, in at most `bytes`? Fails with payload_too_large, input_invalid (a
// text that is no UTF-8, or too much nesting).
Status check_recordable(const Value& value, std::size_t bytes, std::string_view what);

}  // namespace ae::routines
