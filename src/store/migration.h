// Migration: the layout version of a store, and the one that this program writes.
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
  bool check_only = false;  // change nothing, only report what would be done
  std::chrono::milliseconds lock_timeout{
      30000};  // how long to wait for the process that uses the store
};

}  // namespace ae::store
