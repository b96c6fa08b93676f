// Names of the tools that no agents file defines and that concern other jobs: agent:NAME and
// agent:NAME:detached create child jobs of an agent, job:send sends messages and signals.
//
// Tools of an agents file cannot have such names. Threads: pure functions.
#pragma once

#include <string>
#include <string_view>

namespace ae::engine {

inline constexpr std::string_view kChildToolPrefix = "agent:", kDetachedSuffix = ":detached";
std::string child_tool_name(std::string_view agent, bool detached);
inline constexpr std::string_view kSendTool = "job:send";

}  // namespace ae::engine
