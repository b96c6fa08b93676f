// The tables of a store file, and the checks before one is used.
//
// Stored: application_id identifies the program, user_version the layout. A newer layout is
// refused; the owner migrates an older one. See docs/decisions/0006-sqlite-layout.md.
// Threads: the opening thread.
#pragma once

#include <cstdint>
#include <string>

#include "base/error.h"
#include "base/time.h"
#include "store/sqlite/database.h"

namespace ae::store::sqlite {

inline constexpr int kApplicationId = 0x41455448;  // "AETH"
inline constexpr int kLayout = 8;

// 0 = an empty file. Fails as prepare_schema.
Result<std::int64_t> layout_of(Database& db, const std::string& path);
// Creates the tables in an empty file, or migrates an older layout in one transaction. Fails with
// needs_version (made by a newer program) · unavailable (not an Aetheris file, damaged, not
// writable). The message names the file and the remedy.
Status prepare_schema(Database& db, const std::string& path);
// Error `unavailable`: why a store could not be opened, and what to do.
Error cannot_open(const std::string& path, const SqlError& error);
// The same checks without writing. An older layout also fails with needs_version, because only a
// writer migrates.
Status check_schema(Database& db, const std::string& path);

}  // namespace ae::store::sqlite
