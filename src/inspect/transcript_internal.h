// Transcript: applies each event to the state, then adds the event's entries to the page.
//
// Its parts: transcript.cc (the page, the job), transcript_calls.cc (calls and answers),
// transcript_decisions.cc (decisions, waits and messages) and transcript_fork.cc (what a fork
// imports). Only TranscriptBuilder uses it. Threads: one owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "engine/state/state.h"
#include "inspect/transcript.h"
#include "json/value.h"
#include "log/decisions.h"
#include "log/event.h"
#include "plan/model_calls.h"

namespace ae::engine {

class Transcript {
 public:
  Transcript(const JobId& job, const TranscriptPage& page, PlanSource plans)
      : page_(page), plans_(std::move(plans)) {
    s_.job = job;
    s_.keeps_folded = true;
  }
  Status add(const Event& event);
  Value take();

 private:
  using Members = std::vector<Member>;

  void add_event(const Event& event);
  void add(std::string_view kind, std::string_view step_id, Members members);
  // The value; null if it was erased, and then `as` is listed in the entry's `redacted`.
  Value value(const Erasable& field, std::string_view as);
  Value error(const Boxed<RecordedError>& error);
  const Step* step(std::string_view id) const;
  static bool is_model(std::string_view tool) { return tool.starts_with(kModelToolPrefix); }
  static std::string_view model_of(std::string_view tool) {
    return tool.substr(kModelToolPrefix.size());
  }
  Value call_id_of(const Step* step);
  // {agent, id, status} of the child job of the step's call; null: the tool creates none.
  Value child_of_call(const Step* step) const;
  // Has the child of this call ended? Its next try records that end.
  bool has_ended_child(const Step* step) const;

  // Each overload adds the entries of an event of its type.
  void add_entries(const JobCreated& event);
  void add_entries(const PlanGenerated& event);
  void add_entries(const ForkImported& event);
  void add_entries(const ToolInvocationStarted& event);
  void add_entries(const ToolInvocationFinished& event);
  void add_entries(const CommandCommitted& event);
  void add_entries(const DecisionRecorded& event);
  void add_entries(const NodeFinished& event);
  void add_entries(const WaitOpened& event);
  void add_entries(const WaitCompleted& event);
  void add_entries(const AgentMessage& event);
  void add_entries(const TimeRecorded& event) {
    add_recorded_value(RecordedKind::time, event.effect_id, event.value);
  }
  void add_entries(const RandomRecorded& event) {
    add_recorded_value(RecordedKind::random, event.effect_id, event.value);
  }
  void add_entries(const UuidRecorded& event) {
    add_recorded_value(RecordedKind::uuid, event.effect_id, event.value);
  }
  void add_entries(const ValueEmitted& event);
  void add_entries(const OutcomeNoted& event);
  void add_entries(const JobCompleted& event);
  void add_entries(const JobFailed& event);
  void add_entries(const JobCancelled& event);
  void add_entries(const auto&) {}

  void add_imported_turn(const ForkImported& fork, const ForkEntry& entry);
  void add_imported_call(const ForkImported& fork, const ForkEntry& entry);
  void add_imported_arguments(const ForkImported& fork, const ForkEntry& entry);
  void add_messages(std::string_view step_id, const Value& arguments);
  void add_request(std::string_view step_id, const Value* arguments, bool first);
  struct AnswerInfo {
    std::string_view model;
    const Value& answer;
    std::string_view outcome = "success";
    bool late = false;
  };
  void add_answer(std::string_view step_id, const AnswerInfo& info, Members more = {});
  void add_tool_choice(std::string_view step_id, const ToolChoice& choice);
  void add_decision(const DecisionRecorded& event, const ToolChosen& chosen);
  // A request for an approval, a denial, an answer.
  template <class Approval>
    requires(Approval::kKind == ApprovalRequested::kKind)
  void add_decision(const DecisionRecorded& event, const Approval& approval);
  void add_decision(const DecisionRecorded& event, const OutcomeDecided&) { add_outcome(event); }
  void add_decision(const DecisionRecorded& event, const ResendDecided&) { add_outcome(event); }
  void add_decision(const DecisionRecorded& event, const BudgetExceeded&) { add_budget(event); }
  void add_decision(const DecisionRecorded& event, const BudgetRaised&) { add_budget(event); }
  void add_decision(const DecisionRecorded&, const auto&) {}
  void add_outcome(const DecisionRecorded& event);
  void add_budget(const DecisionRecorded& event);
  void add_approval_end(const WaitCompleted& event, ApprovalState state);
  void add_recorded_value(RecordedKind records, std::string_view effect_id, const Erasable& value);
  void note_error(std::string_view step_id, const std::string& node_id, std::string_view code);
  void add_end(std::string_view status, Members members);

  // A call; the key in `calls_` is its invocation.
  struct Call {
    std::string step_id, node_id, tool;
  };
  // A success or a resolution whose command_committed has not been read yet.
  struct Uncommitted {
    std::size_t entry;  // its index on the page, or kNotOnPage
    Value usage;        // of an answer: as the answer reports it
  };
  static constexpr std::size_t kNotOnPage = SIZE_MAX;
  void update(std::size_t entry, Members members);
  void count(const Value& usage);

  const TranscriptPage page_;
  const PlanSource plans_;
  State s_;                       // after the current event
  const Event* event_ = nullptr;  // the current event
  std::vector<Value> redacted_;   // of the current entry
  bool imported_ = false;         // the current event imports from another job
  std::vector<Value> entries_;
  std::size_t added_ = kNotOnPage;  // the last entry
  std::size_t bytes_ = 0;           // of all entries
  std::size_t of_event_ = 0;        // entries of the current event on the page
  bool full_ = false, more_ = false;
  std::unordered_map<std::string, Call> calls_;
  std::unordered_map<std::string, Uncommitted> answered_, resolved_;  // by step
  // Answer of a turn, by its step, until the tool choice
  std::unordered_map<std::string, Value> answers_;
  // Ids of a turn's calls, by its step
  std::unordered_map<std::string, std::vector<Value>> call_ids_;
  std::map<std::pair<std::string, std::int64_t>, std::string> turns_;  // step, by node and turn
  // Last error code that an entry has, by step and by "/node"
  std::unordered_map<std::string, std::string> errors_;
  std::unordered_set<std::string> called_;             // steps whose tool was called
  std::unordered_map<std::string, Instant> children_;  // by step: when its call started
  std::uint64_t answers_count_ = 0, tool_calls_ = 0, repeated_ = 0, input_ = 0, output_ = 0,
                total_ = 0;
  std::optional<std::uint64_t> cost_;
};

}  // namespace ae::engine
