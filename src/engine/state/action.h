// Actions: what an operator can do about an open request, as data: {act, arguments, choices}.
//
//   act       arguments                               choices
//   approve   id; for a form also its schema          -
//   reject    id                                      -
//   message   job_id, channel                         -
//   signal    job_id, correlation_key                 -
//   resolve   job_id, call: digits of its key         happened, not_happened, fail
//   resolve   job_id, call: the step of a change      accept, fail
//   resume    job_id                                  -
//   budget    job_id, limits[{limit, total}]          -
//   run       job_id                                  -
//
// The levels above show them, for example as commands (api/command_line.h).
#pragma once

#include <initializer_list>
#include <string_view>
#include <utility>
#include <vector>

#include "json/value.h"
#include "log/field_names.h"

namespace ae::engine {

namespace act {
inline constexpr std::string_view kApprove = "approve";
inline constexpr std::string_view kReject = "reject";
inline constexpr std::string_view kMessage = "message";
inline constexpr std::string_view kSignal = "signal";
inline constexpr std::string_view kResolve = "resolve";
inline constexpr std::string_view kResume = "resume";
inline constexpr std::string_view kBudget = "budget";
inline constexpr std::string_view kRun = "run";
}  // namespace act

inline Value action(std::string_view act, std::vector<Member> arguments,
                    std::initializer_list<std::string_view> choices = {}) {
  return Value::object(
      {{"act", act},
       {field::arguments, Value::object(std::move(arguments))},
       {"choices", Value::array(std::vector<Value>(choices.begin(), choices.end()))}});
}

}  // namespace ae::engine
