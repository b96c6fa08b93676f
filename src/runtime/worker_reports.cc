#include "runtime/worker_reports.h"

#include <iterator>
#include <utility>

namespace ae::runtime {
namespace {

// With the nodes of its sets: a call may be in both.
constexpr std::size_t kBytesOfReport = 512, kBytesOfCall = 256;

std::size_t bytes_of(const engine::WorkerName& worker, const WorkerReport& report) {
  std::size_t bytes = kBytesOfReport + worker.key.size() + worker.name.size();
  for (const routines::CallName& call : report.received) {
    bytes += kBytesOfCall + 2 * (call.job.text.size() + call.invocation.text.size());
  }
  return bytes;
}

}  // namespace

const WorkerReport* WorkerReports::add(const engine::WorkerName& worker, WorkerReport report) {
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    const bool is_over = report.at - entry->second.report.at >= kKept || entry->first == worker;
    entry = is_over ? remove(entry) : std::next(entry);
  }
  const std::size_t bytes = bytes_of(worker, report);
  if (bytes > bytes_max_) return nullptr;
  bytes_ += bytes;
  const auto added =
      entries_.emplace(worker, Entry{.report = std::move(report), .ended = {}, .bytes = bytes})
          .first;
  while (bytes_ > bytes_max_) {
    const auto displaced = oldest_of_largest_key();
    if (displaced == added) {
      remove(added);
      return nullptr;
    }
    remove(displaced);
  }
  return &added->second.report;
}

bool WorkerReports::add_end(const engine::WorkerName& worker, const routines::CallName& call) {
  const auto found = entries_.find(worker);
  return found != entries_.end() && found->second.report.received.contains(call) &&
         found->second.ended.insert(call).second;
}

WorkerReports::Entries::iterator WorkerReports::remove(Entries::iterator entry) {
  bytes_ -= entry->second.bytes;
  return entries_.erase(entry);
}

// REQUIRES: there are entries. They are in the order of their keys.
WorkerReports::Entries::iterator WorkerReports::oldest_of_largest_key() {
  std::size_t most = 0;
  auto oldest = entries_.end();
  for (auto begin = entries_.begin(); begin != entries_.end();) {
    std::size_t bytes = 0;
    auto its_oldest = begin;
    auto one = begin;
    for (; one != entries_.end() && one->first.key == begin->first.key; ++one) {
      bytes += one->second.bytes;
      if (one->second.report.at < its_oldest->second.report.at) its_oldest = one;
    }
    if (bytes > most) {
      most = bytes;
      oldest = its_oldest;
    }
    begin = one;
  }
  return oldest;
}

}  // namespace ae::runtime
