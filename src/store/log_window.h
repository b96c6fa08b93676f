// Log windows: which commits of a job a window contains. Shared by the drivers.
//
// Threads: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "store/store.h"

namespace ae::store {

// A commit without its bytes.
struct CommitSpan {
  std::uint64_t first_seq = 0, last_seq = 0;
  std::size_t bytes = 0;
};

// The requested events of a log that ends at event `last_seq`.
struct SeqRange {
  std::uint64_t first = 1, last = 0;
  bool empty() const { return first > last; }
  bool overlaps(const CommitSpan& commit) const {
    return commit.first_seq <= last && commit.last_seq >= first;
  }
};
SeqRange range_of(const WindowRequest& window, std::uint64_t last_seq);

// The commits that the window contains, of all that overlap its range, in order.
std::span<const CommitSpan> fit_window(const WindowRequest& window,
                                       std::span<const CommitSpan> commits);

}  // namespace ae::store
