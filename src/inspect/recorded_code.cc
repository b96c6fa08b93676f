#include "inspect/recorded_code.h"

#include <utility>

namespace ae::engine {
namespace {

// How many events precede the last one after which code ran no more.
struct LastRun {
  std::size_t events = 0;
  std::optional<std::uint32_t> node;
};

Result<LastRun> last_run(const JobId& job, std::span<const Event> events, const PlanSource& plans) {
  State state;
  state.job = job;
  LastRun last{.events = events.size()};
  for (std::size_t i = 0; i < events.size(); ++i) {
    const bool ran = !state.routines.empty();
    AE_TRY(apply(state, events[i], plans));
    if (!state.routines.empty()) {
      last = {.events = events.size(), .node = *state.routines.begin()};
    } else if (ran) {
      last.events = i;
    }
  }
  if (state.plan && !has_code(*state.plan)) {
    return fail(Code::unsupported, "the agent {} of job {} is not code", state.agent, job.text);
  }
  return last;
}

}  // namespace

Result<RecordedCode> recorded_code(const JobId& job, std::span<const Event> events,
                                   const PlanSource& plans) {
  AE_ASSIGN(const LastRun last, last_run(job, events, plans));
  RecordedCode recorded{.events = last.events, .node = last.node};
  recorded.state.job = job;
  for (const Event& event : events.first(last.events)) {
    AE_TRY(apply(recorded.state, event, plans));
  }
  if (last.node && last.events < events.size()) {
    const auto* const finished = as<NodeFinished>(events[last.events]);
    if (finished != nullptr && finished->step_id == recorded.code().id) recorded.end = *finished;
  }
  return recorded;
}

}  // namespace ae::engine
