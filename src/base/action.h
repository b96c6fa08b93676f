// Action: what a user can do next, as data: the name of an act, its job and its arguments.
//
// An error has one beside its message (base/error.h); views have them for open requests
// (engine/state/action.h). The layers above show both as commands and as requests of the API
// (api/command_line.h).
//
//   act              arguments                               choices in a view
//   accept_rollback  -                                       -
//   accept_tools     file: of agents                         -
//   approvals        -                                       -
//   approve          id; for a form also its schema          -
//   backup           -                                       -
//   budget           job_id, limits[{limit, total}]          -
//   create_key       -                                       -
//   events           job_id                                  -
//   fork             job_id                                  -
//   job              job_id                                  -
//   jobs             -                                       -
//   keys             -                                       -
//   message          job_id, channel                         -
//   migrate          -                                       -
//   pause            job_id                                  -
//   pin_tools        file: of agents                         -
//   reject           id                                      -
//   resolve          job_id, call: digits of its key         happened, not_happened, fail
//   resolve          job_id, call: the step of a change      accept, fail
//   resume           job_id                                  -
//   run              job_id                                  -
//   sandbox          -                                       -
//   signal           job_id, correlation_key                 -
//   trace            job_id                                  -
//   verify           job_id                                  -
//
// Threads: values.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace ae {

namespace act {
inline constexpr const char* kAcceptRollback = "accept_rollback";
inline constexpr const char* kAcceptTools = "accept_tools";
inline constexpr const char* kApprovals = "approvals";
inline constexpr const char* kApprove = "approve";
inline constexpr const char* kBackup = "backup";
inline constexpr const char* kBudget = "budget";
inline constexpr const char* kCreateKey = "create_key";
inline constexpr const char* kEvents = "events";
inline constexpr const char* kFork = "fork";
inline constexpr const char* kJob = "job";
inline constexpr const char* kJobs = "jobs";
inline constexpr const char* kKeys = "keys";
inline constexpr const char* kMessage = "message";
inline constexpr const char* kMigrate = "migrate";
inline constexpr const char* kPause = "pause";
inline constexpr const char* kPinTools = "pin_tools";
inline constexpr const char* kReject = "reject";
inline constexpr const char* kResolve = "resolve";
inline constexpr const char* kResume = "resume";
inline constexpr const char* kRun = "run";
inline constexpr const char* kSandbox = "sandbox";
inline constexpr const char* kSignal = "signal";
inline constexpr const char* kTrace = "trace";
inline constexpr const char* kVerify = "verify";
}  // namespace act

struct Action {
  std::string act;       // of the list above
  std::string job = {};  // its argument job_id; "" = none
  std::vector<std::pair<std::string, std::string>> arguments = {};  // the others

  friend bool operator==(const Action&, const Action&) = default;
};

}  // namespace ae
