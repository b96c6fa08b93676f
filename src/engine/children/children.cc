#include "engine/children/children.h"

#include <fmt/core.h>

#include <utility>
#include <vector>

namespace ae::engine {
namespace {

constexpr std::string_view kKeyBegin = "job/";

}  // namespace

std::int64_t tree_depth(const State& state) { return state.parent ? state.parent->tree_depth : 0; }

JobId child_of(const State& state, const Step& step) { return child_job_id(state.job, step.id); }

std::string child_wait_key(const State& state, const Step& step) {
  const std::string key = fmt::format("{}{}", kKeyBegin, child_of(state, step).text);
  const std::uint32_t opened = step.call && step.call->questions ? step.call->questions->number : 0;
  return opened == 0 ? key : fmt::format("{}#{}", key, opened + 1);
}

bool is_child_wait_key(std::string_view key) {
  return key.starts_with(kKeyBegin) && key.size() >= kKeyBegin.size() + kUuidTextSize &&
         uuid_from_text(key.substr(kKeyBegin.size(), kUuidTextSize)).has_value();
}

std::vector<ChildInDoubt> in_doubt_of_tree(const State& state) {
  std::vector<ChildInDoubt> all;
  if (auto keys = state.unknown_call_keys(); !keys.empty()) {
    all.push_back({.idempotency_keys = std::move(keys), .job_id = state.job.text.string()});
  }
  all.insert(all.end(), state.children_in_doubt.begin(), state.children_in_doubt.end());
  return all;
}

ChildEnd end_of_child(const State& child) {
  ChildEnd end{.status = std::string(to_text(child.status))};
  if (child.status == JobStatus::completed) {
    end.result = child.result;
  } else if (child.status == JobStatus::cancelled) {
    const std::string why = child.ending ? child.ending->message : std::string();
    end.failure = ChildFailure{
        .code = "cancelled",
        .message = why.empty() ? "it was cancelled" : fmt::format("it was cancelled: {}", why)};
  } else {
    const Failure& error = child.error ? *child.error : kNoFailure;
    end.failure = ChildFailure{.code = error.code, .message = error.message};
  }
  if (auto in_doubt = in_doubt_of_tree(child); !in_doubt.empty())
    end.in_doubt = std::move(in_doubt);
  if (child.budget.is_tracked()) end.child_use = to_record(child.budget.spent);
  return end;
}

}  // namespace ae::engine
