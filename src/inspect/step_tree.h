// StepTree: the steps of a job as a tree, the status of each step, and the external effect of its
// tries. The input of traces (inspect/trace.h) and of lists of steps (inspect/step_list.h).
//
// Threads: one owner; borrows the state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/state/state.h"
#include "log/outcome.h"

namespace ae::engine {

// The status of a step, for display.
enum class StepStatus : std::uint8_t {
  pending,
  running,
  backoff,
  waiting,
  in_doubt,
  done,
  skipped,
  failed,
  not_run
};
inline constexpr std::size_t kStepStatuses = 9;
std::string_view to_text(StepStatus status);

// The external effect of a call.
enum class ExternalEffect : std::uint8_t { unchanged, changed, unknown, rolled_back };
std::string_view to_text(ExternalEffect effect);

class StepTree {
 public:
  using Steps = std::vector<const Step*>;
  // `is_dropped`: the state is that of a plan which a re-plan has dropped since.
  explicit StepTree(const State& state, bool is_dropped = false);
  // Takes in the events that were applied to the state since.
  void update();

  const State& state() const { return s_; }
  // The items of a map, the turns of a loop, the calls of a turn, or the requests of code, in their
  // order. A request is a part of the innermost recorded scope around it, else of its code.
  const Steps& parts_of(const Step& step) const;
  // The step whose part, probe or compensation it is; nullptr: it is a node.
  const Step* parent_of(const Step& step) const;
  // The probes and the compensation of its call.
  const Steps& sides_of(const Step& step) const;
  StepStatus status_of(const Step& step) const;

 private:
  void add(const Step& step, std::uint32_t index);
  // The index of the innermost scope around a request of code; kNoStep: none.
  std::uint32_t scope_of(const Step& request, std::uint32_t index) const;
  // Has one of its parts, or of their parts, an unknown outcome?
  bool has_unknown_part(const Step& step) const;

  const State& s_;
  std::size_t steps_ = 0;          // of the state that are in the tree
  std::uint32_t plan_number_ = 0;  // that they belong to
  const bool is_dropped_;
  std::map<std::uint32_t, Steps> parts_;                            // by map, loop, code or scope
  std::map<std::pair<std::uint32_t, std::uint32_t>, Steps> calls_;  // by loop and turn
  // By their code and position.
  std::map<std::pair<std::uint32_t, std::string_view>, std::uint32_t> scopes_;
  std::unordered_map<std::uint32_t, Steps> sides_;  // by the step that they probe or compensate
};

// The end of a try, and an operator's or probe's answer about it.
struct TryOutcome {
  enum class Resolution : std::uint8_t { none, happened, not_happened, other };
  std::uint32_t try_no = 0;
  std::optional<OutcomeKind> outcome;  // nullopt: it is open
  bool definite = false;
  Resolution resolution = Resolution::none;
};
TryOutcome::Resolution resolution_from_text(std::string_view text);
OutcomeKind outcome_from_text(std::string_view text);  // unknown: no outcome has this name

// The external effect of one of the tries of a call.
ExternalEffect external_effect_of(EffectClass effect, std::span<const TryOutcome> tries,
                                  const TryOutcome& one);
// That of a step: the sum of the effects of its tries and of its parts.
class EffectSum {
 public:
  void add(ExternalEffect effect);
  void add(EffectClass effect, std::span<const TryOutcome> tries);
  ExternalEffect total() const;

 private:
  bool changed_ = false, unknown_ = false, rolled_back_ = false;
};

}  // namespace ae::engine
