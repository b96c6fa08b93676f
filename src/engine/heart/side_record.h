// Side records: records that are not part of the log: effects that are not in it yet, calls in
// flight, requests in the inbox.
//
// No hash chain covers them, so each has a checksum of itself and of its location: a changed byte
// is detected before the record is used. The checksum does not stop deliberate forgery; `verify`
// compares a record with the log's data about the same call. Stored. Threads: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/ids.h"
#include "json/value.h"

namespace ae::engine {

// The location of a record.
std::string effect_location(const JobId& job, const InvocationId& invocation, std::uint32_t try_no);
std::string ledger_location(const JobId& job, const InvocationId& invocation, std::uint32_t try_no,
                            std::string_view state);
std::string inbox_location(const JobId& job, std::string_view id);

// The record with `checksum`: 16 hex digits of SHA256("aetheris.beside.v1" ␀ location ␀ canonical
// record without it).
Value with_checksum(std::string_view location, const Value& record);
// The record as written at that location, without its checksum. Fails with log_corrupt.
Result<Value> read_side_record(std::string_view location, std::string_view record);

}  // namespace ae::engine
