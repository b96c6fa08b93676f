// Timeline: the events of a job that a client marks on a scale of its log: where attempts began,
// calls and nodes failed, control requests took effect, and the job waited, got another plan or
// ended.
//
//  {entries: [{seq, at, type, kind, node_id, step_id}…], next, seq}
//    kind: attempt failure control wait plan end
//    node_id, step_id: null if the event has none. next: seq of the last entry, or null if it is the
//    last page. seq: the last event that the page takes into account
//
//  attempt   job_running
//  failure   tool_invocation_finished without success, unless it is late; node_finished with an error;
//            routine_diverged, routine_failed
//  control   a wait that an answer ended; a message; a decision about a changed resource or the
//            budget; a note about an outcome; a requested pause, resume or cancel
//  wait      wait_opened; wait_completed by time or without an answer; job_parked
//  plan      each plan after the first
//  end       job_completed, job_failed, job_cancelled
//
// It holds no value of the log that can be erased. Threads: a value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/ids.h"
#include "base/time.h"
#include "json/value.h"
#include "log/event.h"

namespace ae::engine {

enum class TimelineKind : std::uint8_t { attempt, failure, control, wait, plan, end };
std::string_view to_text(TimelineKind kind);

class Timeline {
 public:
  // REQUIRES: called for all earlier events of the log, in order.
  void add(const Event& event);
  std::size_t size() const { return entries_.size(); }
  // The entries with a higher seq than `after`.
  Value page(std::uint64_t after, std::size_t limit) const;

  static constexpr std::size_t kEntryBytes = 56;  // of an entry in memory

 private:
  struct Entry {
    std::uint64_t seq = 0;
    Instant at;
    StepId step;
    std::uint32_t node = 0;  // index into nodes_
    EventType type{};
    TimelineKind kind{};
  };
  std::optional<TimelineKind> kind_of(const Event& event);
  std::uint32_t number_of(std::string_view node);

  std::vector<Entry> entries_;
  std::vector<std::string> nodes_;  // node ids; "" = none
  std::unordered_map<std::string, std::uint32_t> numbers_;
  std::uint64_t seq_ = 0;
  bool has_plan_ = false;
};

}  // namespace ae::engine
