#include "engine/loop/thread.h"

#include <fmt/core.h>

#include <algorithm>

#include "json/json.h"

namespace ae::engine {

const Step* thread_of(const State& state) {
  if (!state.plan) return nullptr;
  const auto found = std::ranges::find_if(
      state.plan->nodes, [](const Node& node) { return node.loop && node.loop->thread; });
  return found == state.plan->nodes.end() ? nullptr : &state.steps[found->index];
}

bool is_exchange_over(const Step& loop) {
  const LoopProgress& progress = *loop.loop;
  if (progress.failure || progress.active > 0 || progress.turns.empty()) return false;
  const LoopTurn& newest = progress.turns.back();
  if (!newest.chosen || newest.message) return false;
  if (progress.interrupted) return progress.next == newest.calls.size();
  return newest.calls.empty() && !newest.repair;
}

bool may_await_message(const State& state, const Step& loop) {
  return state.node_of(loop).loop->thread && !loop.loop->waiting && !loop.loop->ended &&
         is_exchange_over(loop);
}

std::string thread_wait_key(const Step& loop) {
  return fmt::format("{}#{}", loop.id.text, loop.loop->exchanges);
}

std::string message_text_of(const Value& payload) {
  if (payload.is_null()) return {};
  if (payload.is_string()) return payload.as_string();
  const Value& message = payload["message"];
  return message.is_string() ? message.as_string() : canonical(payload);
}

// Stored, by its hash: the end of the conversation's chain.
Value thread_message(const Value& payload) {
  return Value::object({{"content", message_text_of(payload)}, {"role", "user"}});
}

bool may_interrupt(const State& state) {
  const Step* const thread = thread_of(state);
  return thread != nullptr && thread->loop && !thread->loop->waiting && !thread->loop->ended &&
         !thread->loop->interrupted && !thread->loop->failure;
}

bool is_thread_ending(const State& state) {
  const Step* const thread = thread_of(state);
  if (thread == nullptr) return false;
  if (thread->phase == StepPhase::done || (thread->loop && thread->loop->ended)) return true;
  const auto pending = state.pending_messages.find(std::string(kThreadChannel));
  return pending != state.pending_messages.end() &&
         std::ranges::any_of(pending->second, &BufferedMessage::ends_thread);
}

}  // namespace ae::engine
