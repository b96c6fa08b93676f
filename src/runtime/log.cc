// Reading a job's log back from the store.
#include <algorithm>

#include "core/seal.h"
#include "runtime/runtime.h"

namespace ae::runtime {

Result<std::vector<Event>> open_log(const JobId& job, const store::Loaded& loaded) {
  const BlobSource blobs = [&](const Hash& hash) -> Result<std::string> {
    for (const Blob& blob : loaded.blobs) {
      if (blob.hash == hash) return blob.bytes;
    }
    return fail(Code::log_corrupt, "a value that stands apart is missing: " + to_hex(hash));
  };
  std::vector<Event> events;
  Hash head;
  for (const std::string& bytes : loaded.commits) {
    AE_ASSIGN(Opened opened, open(job, bytes, head, blobs));
    head = opened.head;
    const std::uint64_t expected = events.empty() ? 1 : events.back().seq + 1;
    if (opened.first_seq != expected) {
      return fail(Code::log_corrupt, "event " + std::to_string(expected) + " is missing");
    }
    for (Event& event : opened.events) events.push_back(std::move(event));
  }
  if (events.empty()) return fail(Code::log_corrupt, "the job has no events");
  if (events.back().seq != loaded.row.last_seq || head != loaded.row.head) {
    return fail(Code::log_corrupt, "the log ends at event " + std::to_string(events.back().seq) +
                                       ", the job's row says " +
                                       std::to_string(loaded.row.last_seq));
  }
  return events;
}

std::vector<engine::StoredEffect> stored_effects(const std::vector<store::EffectRow>& effects) {
  std::vector<engine::StoredEffect> stored;
  stored.reserve(effects.size());
  for (const store::EffectRow& row : effects) {
    stored.push_back({row.invocation, row.try_no, row.record});
  }
  return stored;
}

bool doubts_own_call(const engine::State& state, const AttemptId& attempt) {
  for (const auto& [key, wait] : state.waits) {
    const auto& call = state.steps[wait.step].call;
    if (wait.resolve && call && call->attempt == attempt) return true;
  }
  return std::ranges::any_of(state.todo, [&](std::uint32_t index) {  // yet to be asked about
    const engine::Step& step = state.steps[index];
    return step.call && step.call->attempt == attempt && state.may_probe(step);
  });
}

}  // namespace ae::runtime
