// code_version: under which version of its code a job runs (docs/versions.md).
//
// A job is bound to one version of its code: that of its plan, then the last one that a decision
// `route` names. The routine of another version is a *trial*: it replays the record of the job. If
// it makes all recorded requests again, its first advance moves the job to its version, in the same
// commit. If it does not, nothing has changed. A version that did not fit is not started again by
// itself before the job has gone on (CodeProgress::tried), unless no worker has offered the job's own
// version for the wait of its policy.
//
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/time.h"
#include "engine/state/state.h"
#include "log/event.h"
#include "plan/plan.h"

namespace ae::engine {

// The versions of the code of one node that workers of this process can run for this job.
struct OfferedCode {
  std::vector<std::string> versions;  // the newest last
  // For how long no worker has offered the job's version; of no use while one does.
  Duration own_missing_for{};
  // Of `versions`: those whose workers have lost their connections, and may be back at once.
  std::vector<std::string> away = {};

  bool has(std::string_view version) const;
};

// What this process offers for a job's code, by the index of the node.
struct CodeOffers {
  std::map<std::uint32_t, OfferedCode> nodes;
  std::optional<VersionPolicy> policy;  // of this process, instead of the plan's
};

struct CodeChoice {
  std::optional<std::string> version;  // to start; another one than the job's own is a trial
  // Nothing can be started yet: another version may be tried after this time.
  std::optional<Duration> again_in;
};

// The version that the code of this node runs under. REQUIRES: it is a code node.
const std::string& version_of_code(const State& state, std::uint32_t node);
CodeChoice choose_version(const State& state, std::uint32_t node, const OfferedCode& offered,
                          std::optional<VersionPolicy> instead);
// May code that was not tried yet end the park of this job? REQUIRES: state.awaits_code().
bool may_fit(const State& state, const CodeOffers& offers);
// May another version still be started after the divergence of `diverged`?
bool has_fallback(const State& state, std::uint32_t node, std::string_view diverged,
                  const OfferedCode& offered, std::optional<VersionPolicy> instead);

// The first events of a routine with its first advance: the decision that moves the job, if it was
// a trial, and its start.
struct StartedRoutine {
  std::string version;
  std::size_t requests = 0;          // recorded ones that it made again
  std::optional<WorkerName> worker;  // nullopt: this process
};
std::vector<EventBody> routine_started_events(const State& state, const Step& code,
                                              const StartedRoutine& routine);

}  // namespace ae::engine
