// Shared by the tests of budgets: jobs with a budget, and answers that use it.
#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "engine/fixtures/job_fixture_test.h"

namespace ae::engine::testing {

// `Hello` is estimated as 11 tokens, and its answer may have 50.
inline constexpr std::uint64_t kOne = 61;

inline std::string model_call_node(std::string_view id, std::string_view needs = "[]") {
  return "{'id': '" + std::string(id) +
         "', 'kind': 'llm', 'tool': 'model:main', 'needs': " + std::string(needs) +
         ", 'args': {'model': 'small', 'max_tokens': 50,"
         " 'messages': [{'role': 'user', 'content': 'Hello'}]}}";
}
inline std::string calls(std::string_view id, std::string_view needs = "[]") {
  return fmt::format("{{'id': '{}', 'kind': 'tool', 'tool': 'put', 'needs': {}}}", id, needs);
}
inline std::string budget(std::string_view limits) {
  return "{'budget': " + std::string(limits) +
         ", 'tools': {'model:main': {'effect': 'read', 'provider': 'openai',"
         " 'price': {'input': 1000000, 'output': 2000000},"
         " 'retry': {'max_attempts': 3, 'retry_on': ['timeout', '5xx']}}}}";
}
// `nodes` without brackets.
inline JobFixture job_with_budget(const std::string& nodes, std::string_view limits) {
  return JobFixture(fmt::format("[{}]", nodes), {.more = budget(limits)});
}
inline std::string used(int input, int output) {
  return "{'text': 'ok', 'usage': {'input_tokens': " + std::to_string(input) +
         ", 'output_tokens': " + std::to_string(output) + "}}";
}
inline const Budget& budget_of(const JobFixture& job) { return job.state.budget; }

}  // namespace ae::engine::testing
