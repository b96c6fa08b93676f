// SmallJob: the jobs of the sweep, each for one feature, with what happens to them besides crashes.
//
// Together they cover every kind of node, every outcome of a call and every policy.
// Threads: constants.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "base/time.h"
#include "engine/heart/ingest.h"
#include "json/value.h"

namespace ae::sim {

// An action on a job of the sweep: runs `after` the previous one was answered, once the job has the
// status `when`.
struct Action {
  Duration after;
  engine::ControlRequest request = {};
  std::string_view when = {};  // the job's status; "" = any
  enum class Kind : std::uint8_t {
    request,
    fork,
    mutate,
    verifiers_unreachable,
    verifiers_reachable
  } kind = Kind::request;
  bool of_fork = false;           // the action is on the fork
  std::string_view at_node = {};  // of a fork: at the end of this node; "" = where the job failed
  std::optional<Value> input = {};
};

// A job of the sweep, and what happens to it besides crashes.
struct SmallJob {
  std::string_view name;
  std::string_view nodes;  // JSON of the task graph, without its tools
  std::vector<Action> actions = {};
  std::string_view answer = {};         // to approvals: approve or reject; "" = no answer
  std::string_view confirm = "accept";  // to verification mismatches: accept or fail
  // Other possible ends after a crash: each is "status" or "status:code".
  std::vector<std::string_view> may_end = {};
  bool races = false;  // the end depends on timing: only the rules are checked
  bool forked() const {
    return std::ranges::any_of(
        actions, [](const Action& action) { return action.kind == Action::Kind::fork; });
  }
  bool cancelled() const {
    return std::ranges::any_of(
        actions, [](const Action& action) { return action.request.is<engine::CancelRequest>(); });
  }
};
const std::vector<SmallJob>& small_jobs();
// The plans of their child jobs, by name.
const std::vector<SmallJob>& small_children();

}  // namespace ae::sim
