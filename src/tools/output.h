// What a program or a server said, made fit for a record: bounded, valid UTF-8, harmless on a terminal.
//
// A call whose output broke a rule has still happened (SPEC §7): its record keeps a reason, a hash, a size and the
// first bytes, never the output itself. Threads: pure functions.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "base/hash.h"
#include "json/value.h"

namespace ae::tools {

constexpr std::size_t kOutputMax =
    1u << 20;                          // bytes of output that a tool keeps unless it says otherwise
constexpr std::size_t kHeadMax = 256;  // bytes of a refused output that its record shows

// {invalid: true, reason, sha256, size, head}. `bytes` is what was kept, `total` how much came; the hash is over
// `bytes`, so a caller that kept less than it read uses the second form, with the hash of everything it read.
Value invalid_output(std::string_view reason, std::string_view bytes, std::size_t total);
Value invalid_output(std::string_view reason, std::string_view head, const Hash& sha256,
                     std::size_t total);

enum class LineBreaks { keep, escape };  // what becomes of \n and \t

// The same text as valid UTF-8 without control characters: bytes of no character and controls become \xNN.
std::string printable(std::string_view bytes, LineBreaks lines);

}  // namespace ae::tools
