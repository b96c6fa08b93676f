#include "engine/loop/summaries.h"

#include <algorithm>
#include <map>
#include <vector>

#include "engine/loop/context.h"
#include "engine/state/event_values.h"
#include "log/decisions.h"

namespace ae::engine {
namespace {

struct RecordedSummary {
  StepId step;
  std::uint32_t loop = 0;  // its step
  std::uint32_t turn = 0;  // that uses it
  std::uint32_t from = 0;  // the first turn that it does not cover
};

const Step* loop_part(const State& all, const Event& event) {
  const Step* const step = all.find_step(StepId(std::string(step_of(event))));
  return step && step->turn != kNoTurn && step->role == Role::node ? step : nullptr;
}

// Finds in which turn of which loop the value of an event is first used.
class Conversations {
 public:
  Conversations(const State& all, std::span<const Event> events) : all_(all) {
    for (const Event& event : events) {
      if (const auto* started = as<ToolInvocationStarted>(event)) {
        add_call(event, *started);
      } else if (const auto* ended = as<WaitCompleted>(event)) {
        add_message(*ended);
      }
    }
  }

  // Adds the values of an event to those that were used.
  void use(const Event& event) {
    if (as<ForkImported>(event) != nullptr) {
      for (const RecordedSummary& summary : summaries_) use(summary.loop, 0);
    } else if (const auto* message = as<AgentMessage>(event)) {
      const auto taken = messages_.find(message->message_id);
      if (taken != messages_.end()) use(taken->second.first, taken->second.second);
    } else if (const auto* decision = as<DecisionRecorded>(event)) {
      use_decision(event, *decision);
    } else if (const Step* const part = loop_part(all_, event)) {
      use_part(*part, as<ToolInvocationStarted>(event) != nullptr);
    }
  }

  // The summaries that were made of used values.
  std::vector<RecordedSummary> made_of_used() const {
    std::vector<RecordedSummary> made;
    for (const RecordedSummary& summary : summaries_) {
      const auto first = first_used_.find(summary.loop);
      if (first != first_used_.end() && summary.from > first->second) made.push_back(summary);
    }
    return made;
  }

 private:
  void add_call(const Event& event, const ToolInvocationStarted& started) {
    const Step* const part = loop_part(all_, event);
    if (part == nullptr || started.try_no != 1) return;
    if (part->is_turn()) begun_[part->node] = part->turn + 1;
    if (!part->is_summary()) return;
    const auto from = maybe_int(started.arguments.value, "summarizes");
    summaries_.push_back({.step = part->id,
                          .loop = part->node,
                          .turn = part->turn,
                          .from = from ? turn_at(*from) : part->turn});
  }

  // It begins the next turn.
  void add_message(const WaitCompleted& ended) {
    const Step* const loop = all_.find_step(ended.step_id);
    if (loop == nullptr || !loop->loop || !ended.signal_id) return;
    messages_[*ended.signal_id] = {all_.index_of(*loop), begun_[all_.index_of(*loop)]};
  }

  void use_decision(const Event& event, const DecisionRecorded& decision) {
    if (const Step* const part = loop_part(all_, event)) return use_part(*part, false);
    const Step* const loop = all_.find_step(StepId(std::string(step_of(event))));
    const auto chosen = decision_as<ToolChosen>(decision);
    if (loop && loop->loop && chosen) {
      use(all_.index_of(*loop), static_cast<std::uint32_t>(chosen->choice.turn));
    }
  }

  // A summary, and the arguments of the turn that has its text, repeat what it was made of.
  void use_part(const Step& part, bool is_declaration) {
    std::uint32_t turn = part.turn;
    for (const RecordedSummary& summary : summaries_) {
      const bool has_it = part.is_summary() || (part.is_turn() && is_declaration);
      if (summary.loop == part.node && summary.turn == part.turn && has_it && summary.from > 0) {
        turn = std::min(turn, summary.from - 1);
      }
    }
    use(part.node, turn);
  }

  void use(std::uint32_t loop, std::uint32_t turn) {
    const auto [first, is_new] = first_used_.emplace(loop, turn);
    if (!is_new) first->second = std::min(first->second, turn);
  }

  const State& all_;
  std::vector<RecordedSummary> summaries_;
  std::map<std::uint32_t, std::uint32_t> begun_;  // turns, by loop
  // Of a thread: the loop and the turn that begins with it, by id.
  std::map<std::string, std::pair<std::uint32_t, std::uint32_t>, std::less<>> messages_;
  std::map<std::uint32_t, std::uint32_t> first_used_;  // turn, by loop
};

}  // namespace

bool has_summaries(std::span<const Event> events) {
  return std::ranges::any_of(events, [](const Event& event) {
    const auto* started = as<ToolInvocationStarted>(event);
    return started != nullptr && started->arguments.value.find("summarizes") != nullptr;
  });
}

std::set<std::pair<std::uint64_t, std::string>> summaries_of(const State& all,
                                                             std::span<const Event> events,
                                                             const std::set<std::uint64_t>& seqs) {
  Conversations conversations(all, events);
  for (const std::uint64_t seq : seqs) conversations.use(events[seq - 1]);
  const std::vector<RecordedSummary> made = conversations.made_of_used();
  std::set<std::pair<std::uint64_t, std::string>> values;
  for (const Event& event : events) {
    const Step* const part = loop_part(all, event);
    if (part == nullptr) continue;
    const auto* call = as<ToolInvocationStarted>(event);
    const bool has_summary = call && !extras_of(call->arguments.value).summary.empty();
    for (const RecordedSummary& summary : made) {
      const bool is_answer = summary.step == part->id && call == nullptr;
      const bool has_text = has_summary && part->is_turn() && summary.loop == part->node &&
                            summary.turn == part->turn;
      if (!is_answer && !has_text) continue;
      for (const Salt& salt : event.salts) values.emplace(event.seq, salt.field);
    }
  }
  return values;
}

}  // namespace ae::engine
