// Migration: which layout a store has, and which one this program writes.
//
// Threads: a value.
#pragma once

#include <chrono>
#include <cstdint>

namespace ae::store {

struct Migration {
  std::int64_t from = 0;  // 0 = there is no store yet
  std::int64_t to = 0;    // never below `from`
  bool is_pending() const { return from != to; }
};

struct MigrationOptions {
  bool check_only = false;                    // changes nothing; `due` says what would be done
  std::chrono::milliseconds patience{30000};  // how long whoever holds the store is waited for
};

}  // namespace ae::store
