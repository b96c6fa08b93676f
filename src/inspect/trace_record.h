// TraceRecord: the events of each step of a job, collected in one pass over the log; the input of a
// trace (inspect/trace.h).
//
// It uses neither plan nor state: a step that a later plan dropped is included like any other. It
// points to the events, which must outlive it. Threads: short-lived, one owner.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/time.h"
#include "json/value.h"
#include "log/decisions.h"
#include "log/event.h"

namespace ae::engine {

struct AttemptSpan {
  std::string id, worker;
  std::int64_t epoch = 0;
  std::uint64_t from = 0, to = 0;
  Instant started_at;
  std::optional<Instant> ended_at;
  std::string ended;
  // Why it was lost: "process_died", "code_worker_lost" or "lease_expired".
  std::string lost;
  // When the process of the attempt opened the store; absent: several processes share the store.
  std::optional<Instant> opened_at;
};

struct TrySpan {
  const ToolInvocationStarted* started = nullptr;
  const ToolInvocationFinished* finished = nullptr;  // null: the try is open
  std::string attempt;
  std::uint64_t seq = 0;
  Instant started_at;
  std::optional<Instant> finished_at;
  Value progress;          // its last report: {at, report}
  std::string resolution;  // of its unknown outcome, by an operator or a probe

  std::string_view outcome() const {
    return finished ? finished->outcome.view() : std::string_view();
  }
  bool definite() const { return finished && finished->definite == true; }
};

struct WaitSpan {
  const WaitOpened* opened = nullptr;
  Instant opened_at;
  const WaitCompleted* completed = nullptr;
  std::optional<Instant> completed_at;
};

struct StepSpan {
  std::string node_id;
  std::optional<Instant> started_at, finished_at;
  std::uint64_t finished_seq = 0;
  std::string finished_by;
  const ToolInvocationStarted* started = nullptr;  // of the first try
  const CommandCommitted* committed = nullptr;
  const NodeFinished* finished = nullptr;
  std::optional<std::string> external_id;
  Value result;
  std::vector<TrySpan> tries;
  std::vector<WaitSpan> waits;
  std::vector<Value> decisions;
  std::vector<const StateChanged*> changes;
  std::vector<const ConfirmationChecked*> checks;
  // Of code: the last ones.
  const RoutineDiverged* diverged = nullptr;
  const RoutineFailed* exception = nullptr;
};

class TraceRecord {
 public:
  // REQUIRES: all earlier events of the log have been taken; the event outlives this object.
  void add(const Event& event);

  std::vector<AttemptSpan> attempts;
  std::vector<Value> budget;                        // when it was exceeded or raised
  std::unordered_map<std::string, StepSpan> steps;  // by step id
  // By the invocation of the answer.
  std::unordered_map<std::string, ToolChoice> choices;

 private:
  void add_attempt(const Event& event);
  void begin_attempt(const Event& event, const JobRunning& running);
  void end_attempt(const Event& event, std::string_view how);
  static void add_narrative(const Event& event, StepSpan& span);
  void add_value(const Event& event);
  void add_imported(const ForkImported& fork);
  void add_to_step(const Event& event, StepSpan& span);
  void add_started(const Event& event, const ToolInvocationStarted& started, StepSpan& span);
  static void add_finished(const Event& event, const ToolInvocationFinished& finished,
                           StepSpan& span);
  void add_decision(const Event& event, const DecisionRecorded& decision, StepSpan& span);
  static void add_completed(const Event& event, const WaitCompleted& completed, StepSpan& span);
  // The attempt that wrote the event.
  std::string attempt_of(const Event& event) const;

  bool has_code_worker_ = false;  // a worker has run code
};

}  // namespace ae::engine
