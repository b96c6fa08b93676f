#include "store/log_window.h"

#include <algorithm>
#include <string>

namespace ae::store {

SeqRange range_of(const WindowRequest& window, std::uint64_t last_seq) {
  AE_CHECK(window.events_max >= 1 && window.events_max <= kWindowEventsMax,
           std::to_string(window.events_max));
  if (window.direction == WindowRequest::Direction::after) {
    if (window.seq >= last_seq) return {};
    return {window.seq + 1, window.seq + std::min(window.events_max, last_seq - window.seq)};
  }
  const std::uint64_t end = std::min(window.seq, last_seq + 1);  // the first event after the range
  if (end <= 1) return {};
  return {end - std::min(window.events_max, end - 1), end - 1};
}

std::span<const CommitSpan> fit_window(const WindowRequest& window,
                                       std::span<const CommitSpan> commits) {
  const bool forwards = window.direction == WindowRequest::Direction::after;
  std::size_t count = 0, bytes = 0;
  for (; count < commits.size(); ++count) {
    bytes += commits[forwards ? count : commits.size() - 1 - count].bytes;
    if (count > 0 && bytes > kWindowBytesMax) break;
  }
  return forwards ? commits.first(count) : commits.last(count);
}

}  // namespace ae::store
