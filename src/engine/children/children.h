// children: a call that creates a child job and awaits its end.
//
//   try 1 creates the child, and ends input_required ─▶ a wait of type job, `job/<child id>` ─▶ the
//   commit that ends the child puts a request into the inbox of the parent, which completes the
//   wait ─▶ try 2 records the outcome of the child as that of the call
//
// A child whose parent does not need it any more is cancelled (child_cancel_requested) and still
// awaited: its outcome is recorded, and can be compensated. Threads: pure functions. See
// docs/decisions/0105-child-jobs.md.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "engine/state/state.h"
#include "log/records.h"

namespace ae::engine {

// A job without a parent has depth 0.
inline constexpr std::int64_t kTreeDepthMax = 16;
std::int64_t tree_depth(const State& state);

JobId child_of(const State& state, const Step& step);
// The key of the wait for the end of the step's child: `job/<child id>`, from the second wait for
// it on with `#<n>`. REQUIRES: State::awaits_child, and its newest try ended input_required.
std::string child_wait_key(const State& state, const Step& step);
bool is_child_wait_key(std::string_view key);

// What a child's request to its parent holds about its end. REQUIRES: the job has ended.
ChildEnd end_of_child(const State& child);
// Those of a job that ends: its own calls whose outcome is unknown, and those of its children.
std::vector<ChildInDoubt> in_doubt_of_tree(const State& state);

}  // namespace ae::engine
