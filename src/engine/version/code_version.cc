#include "engine/version/code_version.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "log/decisions.h"

namespace ae::engine {

bool OfferedCode::has(std::string_view version) const {
  return std::ranges::find(versions, version) != versions.end();
}

const std::string& version_of_code(const State& state, std::uint32_t node) {
  const Step& step = state.steps[node];
  return step.code ? step.code->version : state.plan->nodes[node].code->version;
}

CodeChoice choose_version(const State& state, std::uint32_t node, const OfferedCode& offered,
                          std::optional<VersionPolicy> instead) {
  const std::string& own = version_of_code(state, node);
  const CodeProgress* const code = state.steps[node].code.get();
  const auto was_tried = [&](std::string_view one) {
    return code != nullptr && code->was_tried(one);
  };
  const bool has_own = offered.has(own);
  const VersionPolicy policy = instead.value_or(state.plan->versions);
  if (policy == VersionPolicy::strict) {
    return {.version = has_own ? std::optional(own) : std::nullopt, .again_in = {}};
  }
  const bool keeps_own = policy == VersionPolicy::route;
  if (keeps_own && has_own && !was_tried(own)) return {.version = own, .again_in = {}};
  // After a version did not fit, another one is tried at once.
  const bool has_failed = code != nullptr && !code->tried.empty();
  const Duration wait = state.plan->version_wait - offered.own_missing_for;
  if (keeps_own && !has_own && !has_failed && wait > Duration(0)) {
    return {.version = {},
            .again_in = offered.versions.empty() ? std::nullopt : std::optional(wait)};
  }
  for (auto newest = offered.versions.rbegin(); newest != offered.versions.rend(); ++newest) {
    if (!was_tried(*newest)) return {.version = *newest, .again_in = {}};
  }
  // All were tried.
  if (has_own) return {.version = own, .again_in = {}};
  if (offered.versions.empty()) return {};
  if (!code->may_repeat && wait > Duration(0)) return {.version = {}, .again_in = wait};
  return {.version = offered.versions.back(), .again_in = {}};
}

bool may_fit(const State& state, const CodeOffers& offers) {
  return std::ranges::any_of(state.routines, [&](std::uint32_t node) {
    const CodeProgress& code = *state.steps[node].code;
    const auto offered = offers.nodes.find(node);
    if (code.tried.empty() || offered == offers.nodes.end()) return false;
    const CodeChoice choice = choose_version(state, node, offered->second, offers.policy);
    return choice.version && !code.was_tried(*choice.version);
  });
}

bool has_fallback(const State& state, std::uint32_t node, std::string_view diverged,
                  const OfferedCode& offered, std::optional<VersionPolicy> instead) {
  const std::string& own = version_of_code(state, node);
  return instead.value_or(state.plan->versions) == VersionPolicy::warn && own != diverged &&
         offered.has(own) && !state.steps[node].code->was_tried(own);
}

std::vector<EventBody> routine_started_events(const State& state, const Step& code,
                                              const StartedRoutine& routine) {
  std::vector<EventBody> events;
  const std::string& node_id = state.node_of(code).id;
  const std::string& own = code.code->version;
  if (routine.version != own) {
    const std::string path =
        fmt::format("{}#version/{}/{}", state.path_of(code), state.seq, routine.version);
    events.emplace_back(decision_event(
        VersionMoved{.from = own,
                     .requests = static_cast<std::int64_t>(routine.requests),
                     .to = routine.version},
        {.decision_id = decision_at(state, path), .node_id = node_id, .step_id = code.id}));
  }
  RoutineStarted started{.attempt_id = state.attempt.text,
                         .node_id = node_id,
                         .step_id = code.id,
                         .version = none_if_empty(routine.version)};
  if (routine.worker) {
    started.code_worker = routine.worker->name;
    started.code_worker_key = none_if_empty(routine.worker->key);
  }
  events.emplace_back(std::move(started));
  return events;
}

}  // namespace ae::engine
