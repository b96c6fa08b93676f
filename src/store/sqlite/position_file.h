// PositionFile: a file beside the store with its last known position, to detect a rollback of the
// store.
//
// The position is a lower bound: it is written about once a second and when the store is closed, so
// no commit waits for it. A store below it has lost writes: it was replaced by an older copy, or
// the disk lost data.
// Stored: two slots of 256 bytes, written alternately, each a line of text with a checksum. The
// higher one counts, so a torn write loses at most one second. See
// docs/decisions/0025-a-store-that-went-backwards.md.
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"

namespace ae::store::sqlite {

struct StorePosition {
  std::string store;         // its id, 32 hex digits
  std::string timeline;      // 32 hex digits; changes with each accepted loss
  std::uint64_t number = 0;  // of the last transaction that changed something
  friend bool operator==(const StorePosition&, const StorePosition&) = default;
};

// The identity of a store, as its own rows record it.
struct StoreIdentity {
  StorePosition at;
  std::vector<std::string> earlier_timelines;  // earlier timelines, ended by accepted losses
  bool accepting = false;  // a loss was accepted, but not every unfinished job is parked yet
  bool backup = false;     // accepting, because it is a backup that was not restored
};

// True if the store has lost writes that `recorded` includes. A store with another id is a
// different store and is not compared.
bool is_behind(const StoreIdentity& identity, const StorePosition& recorded);

class PositionFile {
 public:
  explicit PositionFile(std::string path) : path_(std::move(path)) {}
  PositionFile(PositionFile&& other) noexcept;
  PositionFile& operator=(PositionFile&& other) noexcept;
  ~PositionFile();

  // nullopt: no position is stored, or none is readable.
  std::optional<StorePosition> read() const;
  // Durable when it returns. Fails with unavailable; then the earlier position remains.
  Status write(const StorePosition& position);

 private:
  std::string path_;
  int fd_ = -1;
  bool write_second_slot_ = false;  // the next slot to write
};

}  // namespace ae::store::sqlite
