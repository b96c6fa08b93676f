// PositionFile: what is remembered beside a store of how far it had come, so that one that went backwards is noticed.
//
// A lower bound: it is written after the fact, about once a second and when the store is closed, so that no commit waits
// for it. A store below it has certainly lost writes: an older copy was put in its place, or the disk forgot.
// Stored: two slots of 256 bytes, written in turn, each a line of text with a checksum; the higher one counts, so that
// a slot that was torn costs a second of memory and no more. See docs/decisions/0025-a-store-that-went-backwards.md.
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
  std::string store;         // its identity, 32 hex digits
  std::string timeline;      // 32 hex digits; another one after each loss that was accepted
  std::uint64_t number = 0;  // of the last transaction that changed something
  friend bool operator==(const StorePosition&, const StorePosition&) = default;
};

// Where a store stands, as it says itself.
struct StoreIdentity {
  StorePosition at;
  std::vector<std::string> before;  // earlier timelines: what was lost of them was accepted
  bool accepting = false;  // a loss was accepted, and not every job of it has been parked yet
  bool backup = false;     // accepting, because it is a backup that was not restored
};

// Has the store lost something that `remembered` knows? A store with another identity is another store, and is not
// compared.
bool is_behind(const StoreIdentity& identity, const StorePosition& remembered);

class PositionFile {
 public:
  explicit PositionFile(std::string path) : path_(std::move(path)) {}
  PositionFile(PositionFile&& other) noexcept;
  PositionFile& operator=(PositionFile&& other) noexcept;
  ~PositionFile();

  // nullopt: nothing is remembered, or nothing that can be read.
  std::optional<StorePosition> read() const;
  // Durable when it returns. Fails with unavailable; then what was remembered before still is.
  Status write(const StorePosition& position);

 private:
  std::string path_;
  int fd_ = -1;
  bool second_ = false;  // the next slot to write
};

}  // namespace ae::store::sqlite
