// The rules about code: what it returned follows from the outcomes in the log and their order.
#include <algorithm>
#include <utility>
#include <vector>

#include "engine/code/code.h"
#include "json/json.h"
#include "sim/checker.h"
#include "sim/code_run.h"

namespace ae::sim {
namespace {

// The log before the end of its code, and that end.
void check_end(const JobEvidence& e, std::size_t index, const NodeFinished& finished,
               Checker& checker) {
  const std::vector<Event> before(e.events.begin(),
                                  e.events.begin() + static_cast<std::ptrdiff_t>(index));
  const auto state = engine::fold(e.job, before, e.plans);
  if (!state) return checker.fail("event {}: {}", e.events[index].seq, state.error().message);
  const engine::Step* const code = state->find_step(finished.step_id);
  if (code == nullptr || !code->code || state->ending) return;
  engine::CodeRecord record = engine::record_of(*state, *code);
  // No scope fails in these programs: this one was open when the code ended.
  const bool ended_inside = std::ranges::any_of(
      record.deliveries, [](const auto& one) { return is_scope(one.kind) && one.failure; });
  if (ended_inside) return;
  CodeRun run({.plan = state->plan,
               .node = code->node,
               .input = state->input,
               .blind = state->blind,
               .is_blind_erased = state->blind_erased,
               .now = {}},
              std::move(record));
  if (!run.replay()) {
    return checker.fail("event {}: its code does not make the recorded request {}",
                        e.events[index].seq, run.divergence()->position);
  }
  while (run.end_scope()) {
  }
  if (!run.end) return checker.fail("event {}: its code has not ended", e.events[index].seq);
  checker.mark(run.end->failure ? "code.failed" : "code.completed");
  const std::string expected =
      run.end->failure ? run.end->failure->code : canonical(run.end->result);
  const std::string found =
      finished.error ? finished.error->code : canonical(finished.result.value);
  checker.fail_if(expected != found, "event {}: its code returned {}, and the log has {}",
                  e.events[index].seq, expected, found);
}

void code_follows_from_its_record(const JobEvidence& e, Checker& checker) {
  for (std::size_t index = 0; index < e.events.size(); ++index) {
    const auto* finished = as<NodeFinished>(e.events[index]);
    if (finished == nullptr || !node_of(e, e.events[index]).code) continue;
    check_end(e, index, *finished, checker);
  }
}

constexpr Rule kCodeRules[] = {
    {"K2 the end of code follows from the recorded outcomes", code_follows_from_its_record},
};

}  // namespace

std::span<const Rule> code_rules() { return kCodeRules; }

}  // namespace ae::sim
