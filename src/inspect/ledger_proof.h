// LedgerProof: recomputes the calls of a log independently of the engine's state, and compares them
// with the side records. See verify.h. Threads: none of its own.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/ids.h"
#include "inspect/verify.h"
#include "json/value.h"
#include "log/event.h"
#include "log/outcome.h"
#include "plan/plan.h"

namespace ae::engine {

// The name of an event in a proof.
std::string event_label(const Event& event);

// The calls of one log, recomputed independently of the engine's state.
class LedgerProof {
 public:
  explicit LedgerProof(const JobId& job) : job_(job) {}

  // Adds an event of the log. Empty, or the error.
  std::string add_event(const Event& event);
  std::string check_effects(const std::vector<VerifyInput::Effect>& effects) const;
  std::string check_entries(const std::vector<VerifyInput::Entry>& entries) const;
  // A side record that must exist and is missing. REQUIRES: effects and entries found no error.
  std::string check_missing(const VerifyInput& input);
  std::string check_end() const;
  std::vector<std::string> pending() const;
  std::size_t invocations() const { return calls_.size(); }
  std::size_t tries() const { return tries_; }

 private:
  struct Try {
    bool finished = false;
    bool by_own_attempt = false;  // recorded by the attempt that made the call
    std::string outcome;
    std::string attempt, deadline;
    const ToolInvocationFinished* end = nullptr;
    std::vector<const ToolInvocationFinished*> later;  // late results

    bool is_unknown() const {
      return outcome == to_text(OutcomeKind::unknown) || outcome == to_text(OutcomeKind::timeout);
    }
  };
  struct Call {
    StepId command;
    IdempotencyKey key;
    ExternalKey external_key;
    std::string arguments_hash, tool;
    std::map<std::int64_t, Try> tries;
    bool success = false, happened = false;
  };
  // The error of the event, which outlives this object.
  std::string check_event(const Event& event);
  std::string check_started(const ToolInvocationStarted& event,
                            const std::optional<AttemptId>& attempt);
  std::string check_finished(const ToolInvocationFinished& event,
                             const std::optional<AttemptId>& attempt);
  std::string check_committed(const CommandCommitted& event);
  std::string check_recorded(std::string_view effect_id, RecordedKind records);
  std::string check_hashes(const ToolInvocationStarted& event) const;
  std::string check_effect(const VerifyInput::Effect& effect) const;
  static std::string check_outcome(const Try& logged, std::string_view outcome);
  std::string check_entry(const VerifyInput::Entry& entry) const;
  void find_split_attempts(const VerifyInput& input);
  std::string check_missing_effect(const VerifyInput& input) const;
  std::string check_missing_entry(const VerifyInput& input) const;
  const Try* find(const InvocationId& invocation, std::uint32_t try_no) const;

  const JobId& job_;
  std::map<InvocationId, Call> calls_;
  std::unordered_map<StepId, InvocationId> invocation_of_;  // of a command
  std::unordered_map<StepId, bool> values_;  // of time, random numbers and ids: true = committed
  std::unordered_set<ExternalKey> external_keys_;
  // Attempts that wrote ledger entries and effect records (split)
  std::unordered_set<std::string> split_attempts_;
  std::size_t tries_ = 0;
  bool ended_ = false;
  bool redacted_ = false;
  std::string blind_;
  bool blind_erased_ = false;
};

}  // namespace ae::engine
