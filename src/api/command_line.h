// Command lines: the actions of views and errors as commands of the command line, for people, and
// as requests of the API, for its clients.
//
// Threads: pure functions.
#pragma once

#include <string>
#include <vector>

#include "base/error.h"
#include "json/value.h"

namespace ae::act {
inline constexpr const char* kWorkers = "workers";  // of errors of the API only; no arguments
}  // namespace ae::act

namespace ae::api {

// One command for each choice of an action (engine/state/action.h), with all its words; the user
// replaces words in capitals and placeholders. Empty for null and for an unknown act.
std::vector<std::string> command_lines(const Value& action);
// The first of them; "" for null.
std::string command_line(const Value& action);

// The request of an action: "GET /api/jobs/j". "" if there is none, and for an unknown act.
std::string request_line(const Value& action);

// The message of an error, and the command that helps: "there is no job x in this store; `aetheris
// jobs` lists the jobs".
std::string message_with_command(const Error& error);
// A problem (api/problem.h) with `command` in the place of `action`.
Value problem_with_command(const Value& problem);

// An entry of a view with `commands`, those of its `actions`, in their place.
Value with_commands(const Value& entry);
// The view of a state (inspect/view.h) with commands in the place of the actions of its waits.
Value with_wait_commands(const Value& view);
// A job's view with commands in the place of all actions. A wait also has `command`, the first of
// its commands.
Value with_all_commands(const Value& view);

}  // namespace ae::api
