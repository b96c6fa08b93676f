#include "inspect/indexed_state.h"

namespace ae::engine {
namespace {

constexpr std::uint64_t kMeasureShare = 4;  // of the log, after which a size is computed again
// Of a value, with its place in a list or an object; of an entry of a map; of a step's places in
// the tables of the state and the tree; of an allocation.
constexpr std::size_t kValueBytes = 48, kEntryBytes = 256, kPlaceBytes = 32, kBlockBytes = 16;

std::size_t bytes_of(const Value& value) {
  if (value.kind() < Value::Kind::string) return 0;
  const Value::Extent extent = value.extent();
  return std::size_t{extent.values} * kValueBytes + extent.bytes;
}

template <class T>
std::size_t bytes_of(const std::unique_ptr<T>& part) {
  return part ? sizeof(T) + kBlockBytes : 0;
}

std::size_t bytes_of(const Step& step) {
  std::size_t bytes = sizeof(Step) + kPlaceBytes + bytes_of(step.result) + bytes_of(step.call) +
                      bytes_of(step.approval) + bytes_of(step.map) + bytes_of(step.loop) +
                      bytes_of(step.code) + bytes_of(step.request) + bytes_of(step.imported);
  if (step.request) bytes += step.request->position.capacity();
  if (step.code) {
    bytes += kEntryBytes * (step.code->loops.size() + step.code->emitted.size()) +
             step.code->outcomes.bytes();
    for (const auto& [position, loop] : step.code->loops) bytes += bytes_of(loop.result);
    for (const auto& [name, value] : step.code->values) bytes += kEntryBytes + bytes_of(value);
  }
  if (step.call) {
    bytes += bytes_of(step.call->arguments) + step.call->tool.capacity() +
             step.call->error().message.capacity() + bytes_of(step.call->questions);
  }
  if (step.approval) bytes += bytes_of(step.approval->arguments) + kEntryBytes;
  if (step.map) {
    bytes += bytes_of(step.map->over);
    for (const Value& result : step.map->results) bytes += sizeof(Value) + bytes_of(result);
  }
  if (step.loop) {
    for (const LoopTurn& turn : step.loop->turns) {
      bytes += sizeof(LoopTurn) + turn.calls.size() * sizeof(LoopCall);
    }
  }
  if (step.imported) bytes += bytes_of(step.imported->arguments) + kEntryBytes;
  return bytes;
}

template <class Messages>
std::size_t bytes_of_messages(const Messages& by_key) {
  std::size_t bytes = 0;
  for (const auto& [key, messages] : by_key) {
    bytes += kEntryBytes;
    for (const BufferedMessage& message : messages) {
      bytes += sizeof(BufferedMessage) + bytes_of(message.payload);
    }
  }
  return bytes;
}

}  // namespace

std::size_t approximate_bytes(const State& state) {
  std::size_t bytes = sizeof(State) + bytes_of(state.input) + bytes_of(state.result);
  for (const Step& step : state.steps) bytes += bytes_of(step);
  bytes += kEntryBytes * (state.waits.size() + state.closed_waits.size() +
                          state.message_keys.size() + state.noted.size() + state.changes.size() +
                          state.earlier_unknown.size() + state.undelivered.size());
  return bytes + bytes_of_messages(state.pending_messages) + bytes_of_messages(state.early_signals);
}

Status IndexedState::add(std::span<const Event> events, const PlanSource& plans) {
  for (const Event& event : events) {
    AE_TRY(apply(state_, event, plans));
    index_.add(event);
    head_ = event.hash;
  }
  tree_.update();
  if (state_.seq >= measured_seq_ + measured_seq_ / kMeasureShare) {
    state_bytes_ = approximate_bytes(state_);
    measured_seq_ = state_.seq;
  }
  return {};
}

}  // namespace ae::engine
