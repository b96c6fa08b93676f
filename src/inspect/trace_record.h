// What a log says of each step of a job, gathered in one walk: the stuff that a trace is made of (inspect/trace.h).
//
// It knows neither plan nor state: a step that a later plan let go is in it like any other. Threads: short-lived, one owner.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/time.h"
#include "json/value.h"
#include "log/event.h"

namespace ae::engine {

struct AttemptSpan {
  std::string id, worker;
  Value epoch;
  std::uint64_t from = 0, to = 0;
  Instant started_at;
  std::optional<Instant> ended_at;
  std::string ended;
  std::string lost;  // why it was lost: "process_died" or "lease_expired"
  std::string
      opened_at;  // when its process opened the store; empty = many processes share the store
};

struct TrySpan {
  Value number;
  std::string attempt;
  std::uint64_t seq = 0;
  Instant started_at;
  std::optional<Instant> finished_at;
  std::string outcome;
  bool definite = false, caught_up = false;
  Value error, duration, source;
  Value progress;          // its last report: {at, report}
  std::string resolution;  // what a person said of it
  Value tool_version, request_schema, response_schema;
};

struct WaitSpan {
  Value opened;  // payload
  Instant opened_at;
  Value completed;
  std::optional<Instant> completed_at;
};

struct StepSpan {
  std::string node_id;
  std::optional<Instant> started_at, finished_at;
  std::uint64_t finished_seq = 0;
  std::string finished_by;
  Value started;  // payload of its first tool_invocation_started
  Value external_id, result, finished, committed;
  std::vector<TrySpan> tries;
  std::vector<WaitSpan> waits;
  std::vector<Value> decisions;
  std::vector<Value> changes;  // payloads of state_changed
  std::vector<Value> checks;   // of confirmation_checked
};

class TraceRecord {
 public:
  // REQUIRES: all events of the log before it have been taken.
  void take(const Event& event);

  std::vector<AttemptSpan> attempts;
  std::vector<Value> budget;                        // when it was used up, and when raised
  std::unordered_map<std::string, StepSpan> steps;  // by step id
  std::unordered_map<std::string, Value>
      choices;  // payloads of tool_choice, by the invocation of their answer

 private:
  void take_attempt(const Event& event);
  void end_attempt(const Event& event, std::string_view how);
  void take_try(const Event& event, StepSpan& span);
  void take_decision(const Event& event, StepSpan& span);
  void take_imported(const Event& event);
  void take_of_step(const Event& event, StepSpan& span);
};

}  // namespace ae::engine
