// Metrics: Prometheus metrics of a process, counted from the events that it committed.
//
// Counters start at 0 with the process and count what this process committed; sum them over all
// workers. Names and labels are part of the contract (docs/api.md): they can be added, never
// renamed.
// Threads: the loop's.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "log/event.h"
#include "store/measured_store.h"

namespace ae::api {

// NAME{LABEL="VALUE"}, escaped for the text format.
std::string labelled(std::string_view name, std::string_view label, std::string_view value);
// Store latencies and failures, by operation.
std::string storage_text(const std::map<std::string_view, store::OperationLatency>& times);

class Metrics {
 public:
  Metrics();
  void on_events(const JobId& job, const std::vector<Event>& events);
  // Does on_events read events of this type? Not those that only mark the stages of a step.
  static bool reads(EventType type) {
    return type != EventType::node_started && type != EventType::command_emitted &&
           type != EventType::step_committed;
  }
  // `type`: requests, failed_keys, streams or waits.
  void count_rejection(std::string_view type);
  // The text format, version 0.0.4. `gauges`: current values, by full name with labels.
  std::string text(const std::vector<std::pair<std::string, std::uint64_t>>& gauges) const;

 private:
  // Upper bounds in seconds: for calls; for jobs and parks, which can take days.
  static constexpr std::array<double, 12> kCallBounds{0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
                                                      0.5,   1,    2.5,   5,    10,  60};
  static constexpr std::array<double, 12> kJobBounds{0.1, 0.5,  1,    5,        15,     60,
                                                     300, 1800, 3600, 6 * 3600, 86'400, 7 * 86'400};
  static constexpr std::size_t kJobsMax = 100'000;  // with a remembered start
  struct Histogram {
    std::array<std::uint64_t, kCallBounds.size() + 1> buckets{};
    double sum = 0;
    void add(const std::array<double, 12>& bounds, double seconds);
    void append_to(std::string& out, const std::string& name, const std::string& label,
                   const std::array<double, 12>& bounds) const;
  };
  // A job that this process committed to: its agent, when it was created, if that commit was seen,
  // and since when it is parked.
  struct TrackedJob {
    std::string agent;
    std::optional<Instant> created_at, parked_at;
  };
  void count(std::string name, std::uint64_t by = 1) { counters_[std::move(name)] += by; }
  void count_finished(const JobId& job, const ToolInvocationFinished& event);
  void count_committed(const CommandCommitted& event);
  void count_decision(const DecisionRecorded& event);
  void count_ended(const JobId& job, const Event& event);
  void count_unparked(const JobId& job, const Event& event);
  TrackedJob* track_job(const JobId& job);  // nullptr: too many jobs

  std::map<std::string, std::uint64_t> counters_;  // by name with labels
  std::map<std::string, Histogram> tools_;         // by tool
  std::map<std::string, Histogram> jobs_;          // by agent
  Histogram parks_;
  std::map<std::pair<JobId, std::string>, std::string>
      calls_;  // in flight: the tool, by invocation
  std::map<JobId, TrackedJob> tracked_jobs_;
};

}  // namespace ae::api
