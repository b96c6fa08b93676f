// wire: the members of the providers' APIs that several codecs read or write.
//
// Threads: constants.
#pragma once

namespace ae::llm::wire {

inline constexpr char kArguments[] = "arguments";  // of a call, in Chat Completions
inline constexpr char kInput[] = "input";          // of a call, in Messages
inline constexpr char kError[] = "error";
inline constexpr char kUsage[] = "usage";

}  // namespace ae::llm::wire
