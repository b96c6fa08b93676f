// Output: the outcome of a call as it is recorded. Turns bytes from a program or server into text
// that is safe to record: bounded, valid UTF-8, no terminal controls.
//
// A call whose output broke a rule has still happened (SPEC §7). Its record keeps a reason, a hash,
// a size and the first bytes, never the output itself. Threads: pure functions.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "base/hash.h"
#include "json/value.h"
#include "log/outcome.h"

namespace ae::tools {

constexpr std::size_t kOutputMax = 1u << 20;  // bytes of output that a tool keeps by default
constexpr std::size_t kHeadMax = 256;         // bytes of a rejected output in its record

// {invalid: true, reason, sha256, size, head}. `bytes` is what was kept, `total` the size of the
// whole output. The hash covers `bytes`; a caller that kept less than it read passes the hash of
// the whole output to the second form.
Value invalid_output(std::string_view reason, std::string_view bytes, std::size_t total);
Value invalid_output(std::string_view reason, std::string_view head, const Hash& sha256,
                     std::size_t total);

enum class LineBreaks { keep, escape };  // of \n and \t

// The text as valid UTF-8 without control characters. Malformed bytes and controls become \xNN.
std::string printable(std::string_view bytes, LineBreaks lines);

// An outcome without a result.
Outcome make_outcome(OutcomeKind kind, bool definite, bool retryable, std::string code,
                     std::string message);

}  // namespace ae::tools
