// Records that stand beside the log: effects before they are in it, calls in flight, acts that wait in the inbox.
//
// No chain covers them, so each carries a checksum of itself and of the place where it stands: a changed byte is seen
// before anything is made of the record. Whoever writes a false record on purpose can make the checksum too; what the
// log knows of the same call is compared beside (`verify`). Stored. Threads: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/ids.h"
#include "json/value.h"

namespace ae::engine {

// Where a record stands.
std::string effect_location(const JobId& job, const InvocationId& invocation, std::uint32_t try_no);
std::string ledger_location(const JobId& job, const InvocationId& invocation, std::uint32_t try_no,
                            std::string_view state);
std::string inbox_location(const JobId& job, std::string_view id);

// The record with `checksum`: 16 hex digits of SHA256("aetheris.beside.v1" ␀ place ␀ canonical record without it).
Value with_checksum(std::string_view location, const Value& record);
// The record as it was written there, without its checksum. Fails with log_corrupt.
Result<Value> read_side_record(std::string_view location, std::string_view record);

}  // namespace ae::engine
