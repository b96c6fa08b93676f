// Aliases: older names of members in JSON for users.
//
// The code writes a member under its name of the glossary. Each object that had it under another
// name before has both. Threads: pure functions. Documented: docs/api.md, docs/glossary.md.
#pragma once

#include <string_view>

#include "json/value.h"
#include "log/field_names.h"

namespace ae::engine {

struct Alias {
  std::string_view name;   // of the glossary
  std::string_view alias;  // the older name, with the same value
};

namespace plain_name {
inline constexpr char kErrorMessage[] = "error_message";    // of an unknown outcome
inline constexpr char kMessageCount[] = "message_count";    // of a loop
inline constexpr char kNoWorker[] = "no_worker";            // why no process runs the job
inline constexpr char kNoticedLimits[] = "noticed_limits";  // of a loop
inline constexpr char kRequestCount[] = "request_count";    // of an approval
// By a call, of a limit; a node, of models; a tool, of a user.
inline constexpr char kRequested[] = "requested";
inline constexpr char kShortfall[] = "shortfall";  // of a budget
inline constexpr char kStalled[] = "stalled";      // why a job is stalled
}  // namespace plain_name

// Names may share an alias if no object has both.
inline constexpr Alias kAliases[] = {
    {plain_name::kErrorMessage, "said"},       {plain_name::kMessageCount, "said"},
    {plain_name::kNoWorker, "unattended"},     {plain_name::kNoticedLimits, "told"},
    {plain_name::kRequestCount, field::asked}, {plain_name::kRequested, field::asked},
    {plain_name::kShortfall, "lacking"},       {plain_name::kStalled, "stuck"}};

// The object with the alias of each of its members that has one. Members of members are unchanged.
Value with_aliases(Value object);

}  // namespace ae::engine
