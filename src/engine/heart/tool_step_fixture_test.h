// A plan of one tool node, for tests of its calls.
#pragma once

#include <fmt/core.h>

#include <string>
#include <string_view>
#include <vector>

#include "engine/fixtures/job_fixture_test.h"

namespace ae::engine::testing {

using Types = std::vector<std::string>;

inline std::string one(std::string_view tool) {
  return fmt::format("[{{'id':'a', 'kind':'tool', 'tool':'{}'}}]", tool);
}

}  // namespace ae::engine::testing
