// Command lines: the actions of views as commands of the command line, for people.
//
// Threads: pure functions.
#pragma once

#include <string>
#include <vector>

#include "json/value.h"

namespace ae::api {

// One command for each choice of an action (engine/state/action.h), with all its words; the user
// replaces words in capitals and placeholders. Empty for null.
std::vector<std::string> command_lines(const Value& action);
// The first of them; "" for null.
std::string command_line(const Value& action);

// An entry of a view with `commands`, those of its `actions`, in their place.
Value with_commands(const Value& entry);
// The view of a state (inspect/view.h) with commands in the place of the actions of its waits.
Value with_wait_commands(const Value& view);
// A job's view with commands in the place of all actions. A wait also has `command`, the first of
// its commands.
Value with_all_commands(const Value& view);

}  // namespace ae::api
