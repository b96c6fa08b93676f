// Rows: the rows that a statement returned, in the server's binary format.
//
// The views that it returns are valid as long as the Rows exist. A value of another type than the
// one that is read is a bug: the process aborts.
// Threads: a value.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/hash.h"
#include "base/time.h"

struct pg_result;

namespace ae::store::postgres {

class Rows {
 public:
  explicit Rows(pg_result* result) : result_(result) {}
  Rows(Rows&& other) noexcept : result_(std::exchange(other.result_, nullptr)) {}
  Rows& operator=(Rows&& other) noexcept {
    std::swap(result_, other.result_);
    return *this;
  }
  ~Rows();

  int size() const;
  bool empty() const { return size() == 0; }
  bool is_null(int row, int column) const;
  bool boolean(int row, int column) const;
  std::int64_t integer(int row, int column) const;  // of an int8
  std::uint64_t count(int row, int column) const {
    return static_cast<std::uint64_t>(integer(row, column));
  }
  std::string_view bytes(int row, int column) const;  // of a text or bytea
  std::string text(int row, int column) const { return std::string(bytes(row, column)); }
  Hash hash(int row, int column) const;
  Instant instant(int row, int column) const { return {integer(row, column)}; }
  std::optional<Instant> maybe_instant(int row, int column) const;

 private:
  pg_result* result_;
};

}  // namespace ae::store::postgres
