// Conversation: the messages between a step and its model, page by page.
//
//  {step_id, node_id, position, steps: [{node_id, step_id}…], messages: [message…], next, live}
//    position: of a request of code. steps: the nodes that have a conversation. live: it can grow
//    next: `n` of the last message of the page, or null if it is the last page
//  message: {n, role, origin, content, tool_calls, call_id, error, seq, at, turn, turn_call, step_id,
//    invocation_id, model, usage, cost_micros, finish_reason, arguments_hash, redacted}
//    n: 1, 2, 3, …; a message keeps its number. Members that do not apply are null
//    role: system user assistant tool, or as the prompt has it
//    origin: prompt, summary (of what the request leaves out), budget (a notice), answer, call (the
//    result of a requested call), repair
//    error: {code, message} of an answer or a call that failed, or of a call that was refused
//    seq, at: of the event that recorded it; null if it was imported from the origin of a fork
//    arguments_hash: of the request, with its answer. redacted: the content was erased from the log
//
// The page ends before the first message that does not exist yet: the answer or the result of a
// call in progress. Threads: short-lived, one owner; borrows the tree and its state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "engine/state/state.h"
#include "inspect/step_list.h"
#include "inspect/step_tree.h"
#include "inspect/trace_record.h"
#include "json/value.h"

namespace ae::engine {

// Where a message of a conversation comes from.
enum class MessageOrigin : std::uint8_t { prompt, summary, budget, answer, call, repair };
std::string_view to_text(MessageOrigin origin);

class Conversation {
 public:
  // `step`: the step of a node with a model, an item of a map or a request of code that calls one, or
  // a turn of a loop; "" = the first node with a model. Fails with not_found: no such step; input_invalid: it calls
  // no model.
  static Result<Conversation> of(const StepTree& tree, std::string_view step);

  // The events of these messages: for the record of `page`.
  std::vector<std::uint64_t> seqs(const StepIndex& index, std::uint64_t after,
                                  std::size_t limit) const;
  // REQUIRES: the record has the events with these seqs.
  Value page(const TraceRecord& record, const StepIndex& index, std::uint64_t after,
             std::size_t limit) const;
  // The step of the n-th turn. Fails with not_found.
  Result<const Step*> turn(std::uint64_t number) const;

 private:
  using Origin = MessageOrigin;
  struct Slot {
    Origin origin;
    std::size_t turn = 0;  // index into turns_
    std::size_t nth = 0;   // of a prompt's message, or of a call
  };
  Conversation(const StepTree& tree, const Step* step);
  void add_slots(std::size_t turn);
  bool begins_with_message(const Step& turn) const;
  static std::span<const Slot> part_of(std::span<const Slot> all, std::uint64_t after,
                                       std::size_t limit);
  // Its one call has ended, and the state has dropped it: the log has its messages.
  bool is_only_in_log() const;
  std::vector<Slot> logged_slots(const TraceRecord& record) const;
  const Step* call_step(const Slot& slot) const;
  Value message(const Slot& slot, std::uint64_t n, const TraceRecord& record,
                const StepIndex& index) const;
  void add_answer(const Step& turn, const TraceRecord& record, std::vector<Member>& members) const;
  void add_call(const Slot& slot, const TraceRecord& record, std::vector<Member>& members) const;

  const StepTree* tree_;
  const State* s_;
  const Step* step_;                // nullptr: the job has no model
  std::vector<const Step*> turns_;  // a step that makes one call is its only turn
  std::vector<Slot> slots_;
};

// The exact request of a turn, or of another call of a model.
//  {step_id, turn, request, arguments, arguments_hash}
//    arguments: as recorded; those of a turn name the earlier messages by a hash (engine/loop/loop.h)
// `then`: the state after the event that declared its first try. Fails with input_invalid: it was
// imported, or a value of it was erased from the log; log_corrupt.
Result<Value> sent_request_view(const State& then, std::string_view step);

}  // namespace ae::engine
