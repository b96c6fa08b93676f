// The list of all commands.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "cli/command.h"

namespace ae::cli {

// In the order of the help.
std::span<const Command* const> commands();
// nullptr: there is no such command.
const Command* find_command(std::string_view name);
std::string_view group_title(Group group);
// Options that every command accepts, before or after its name.
std::vector<Option> declare_common(CommonOptions& options);

}  // namespace ae::cli
