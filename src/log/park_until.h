// park_until: what ends a park: the values of `until` of job_parked.
//
// Stored: the texts. Threads: constants.
#pragma once

#include <string_view>

namespace ae::park_until {

inline constexpr std::string_view kResolve = "resolve";
inline constexpr std::string_view kBudget = "budget";
inline constexpr std::string_view kConfirmation = "confirmation";
inline constexpr std::string_view kResume = "resume";
// A process that offers the job's execution version.
inline constexpr std::string_view kVersion = "version";

}  // namespace ae::park_until
