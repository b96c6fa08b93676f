// The tables of a store file, and what is checked before one is used.
//
// Stored: application_id says whose file it is, user_version which layout; a newer layout is refused, an older one
// is brought up to date by its owner. See docs/decisions/0006-sqlite-layout.md.
// Threads: the opening thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/time.h"
#include "store/sqlite/database.h"

namespace ae::store::sqlite {

inline constexpr int kApplicationId = 0x41455448;  // "AETH"
inline constexpr int kLayout = 6;

// 0 = an empty file. Fails as prepare_schema.
Result<std::int64_t> layout_of(Database& db, const std::string& path);
// Makes the tables in an empty file, or brings an older layout up to date in one transaction. Fails with needs_version (made by a newer program) · unavailable (not one of our
// files, damaged, not writable). The message names the file and says what to do.
Status prepare_schema(Database& db, const std::string& path);
// Why a store could not be opened, and what to do: `unavailable`.
Error cannot_open(const std::string& path, const SqlError& error);
// The same checks without writing; needs_version also for an older layout, which only a writer brings up to date.
Status check_schema(Database& db, const std::string& path);

// Several texts in one column: one a line, none with a line break.
std::string joined(const std::vector<std::string>& texts);
std::vector<std::string> lines(std::string_view text);

}  // namespace ae::store::sqlite
