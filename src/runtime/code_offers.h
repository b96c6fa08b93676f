// code_offers: what workers of this process offer of a job's code (engine/version/code_version.h).
//
// Threads: the loop's.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "engine/state/state.h"
#include "engine/version/code_version.h"
#include "runtime/world.h"

namespace ae::runtime {

// REQUIRES: it is a code node of the job's plan.
engine::OfferedCode offered_code(const World& world, const engine::State& state,
                                 std::uint32_t node);
// Of all code that runs.
engine::CodeOffers code_offers(const World& world, const engine::State& state);
// The execution version that this process offers for the job: that of the job while a worker has the
// version of its code, or none has another one. `of_agent`: of the job's agent here.
std::string offered_version(const World& world, const engine::State& state,
                            const std::string& of_agent);
// The job's version of its code, if workers here offer only others. nullopt also with the policy warn.
std::optional<std::string> other_code(const World& world, const engine::State& state);
// The version to start. Fails with needs_version: none; `again_in`: another one may be tried then.
Result<std::string> choose_code_version(const World& world, const engine::State& state,
                                        std::uint32_t node, std::optional<Duration>& again_in);

}  // namespace ae::runtime
