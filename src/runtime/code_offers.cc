#include "runtime/code_offers.h"

#include <fmt/core.h>

#include "routines/routine.h"

namespace ae::runtime {

engine::OfferedCode offered_code(const World& world, const engine::State& state,
                                 std::uint32_t node) {
  if (world.routines == nullptr) return {};
  return world.routines->offered(*state.plan, node, engine::version_of_code(state, node));
}

engine::CodeOffers code_offers(const World& world, const engine::State& state) {
  engine::CodeOffers offers{.nodes = {}, .policy = world.code_versions};
  for (const std::uint32_t node : state.routines) {
    offers.nodes.emplace(node, offered_code(world, state, node));
  }
  return offers;
}

std::string offered_version(const World& world, const engine::State& state,
                            const std::string& of_agent) {
  if (!state.plan) return of_agent;
  bool has_code = false;
  for (const engine::Node& node : state.plan->nodes) {
    if (!node.code || node.code->version.empty()) continue;
    has_code = true;
    const engine::OfferedCode offered = offered_code(world, state, node.index);
    const bool has_other =
        !offered.versions.empty() && !offered.has(engine::version_of_code(state, node.index));
    if (has_other) return offered.versions.back();
  }
  return has_code ? state.execution_version : of_agent;
}

std::optional<std::string> other_code(const World& world, const engine::State& state) {
  if (!state.plan) return std::nullopt;
  if (world.code_versions.value_or(state.plan->versions) == engine::VersionPolicy::warn) {
    return std::nullopt;
  }
  for (const engine::Node& node : state.plan->nodes) {
    if (!node.code) continue;
    const std::string& own = engine::version_of_code(state, node.index);
    const engine::OfferedCode offered = offered_code(world, state, node.index);
    if (!offered.has(own) && !offered.versions.empty()) return own;
  }
  return std::nullopt;
}

Result<std::string> choose_code_version(const World& world, const engine::State& state,
                                        std::uint32_t node, std::optional<Duration>& again_in) {
  const engine::OfferedCode offered = offered_code(world, state, node);
  engine::CodeChoice choice = engine::choose_version(state, node, offered, world.code_versions);
  if (choice.version) return *std::move(choice.version);
  again_in = choice.again_in;
  const std::string& own = engine::version_of_code(state, node);
  std::string why;
  if (const auto missing = world.routines == nullptr
                               ? std::nullopt
                               : world.routines->missing_function(*state.plan, node)) {
    why = fmt::format(": the worker{} does not offer its tool \"{}\"",
                      missing->version == own ? "" : " of version " + missing->version,
                      missing->name);
  }
  return fail(Code::needs_version, "no worker here runs the code of the agent \"{}\"{}{}{}",
              state.plan->nodes[node].code->agent, own.empty() ? "" : ", version " + own, why,
              again_in ? fmt::format("; version {} is tried in {}", offered.versions.back(),
                                     to_text(std::chrono::ceil<std::chrono::seconds>(*again_in)))
                       : "");
}

}  // namespace ae::runtime
