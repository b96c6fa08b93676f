// Phrases: the wording of times, calls, causes and parks, the same in all commands.
//
// Threads: free functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/message_text.h"
#include "json/value.h"

namespace ae::cli {

// "2025-01-02T03:04:05.123456Z" → "2025-01-02 03:04:05Z". Other texts are unchanged.
std::string short_time(std::string_view instant);
// The same with milliseconds: "2025-01-02 03:04:05.123Z".
std::string exact_time(std::string_view instant);
// The same, rounded up to a whole second: what is accepted from `instant` on is accepted then.
std::string short_time_after(std::string_view instant);
// `call of tool "buy"`
std::string call_of(std::string_view tool);
// The cause of an unknown outcome: " (timeout)". Empty if `message` explains the code: "sh was
// killed by SIGKILL".
std::string cause_of(std::string_view code, std::string_view message);
// "9 calls, 11 tries (2 retries)". `call` is the singular: "call", "tool call".
std::string calls_text(std::uint64_t tries, std::uint64_t retries, std::string_view call);
// The location of a step in a view: "pay", "labels[1]", "chat turn 2", "chat turn 2, call 1".
std::string place_text(const Value& step);
// "signal_9: sh was killed by SIGKILL" → "sh was killed by SIGKILL"; "exit_3: sh exited with code
// 3" is unchanged. May have several lines.
std::string error_shown(std::string_view code, std::string_view message);
// "the outcome of a call is unknown [invocation_in_doubt]; continues after aetheris resolve", from
// a job's `parked` and, if known, its `in_doubt`.
std::string parked_text(const Value& parked, const Value& in_doubt = {});
// The same without the code and the way to continue: "the outcome of a call is unknown".
std::string park_reason(const Value& parked, const Value& in_doubt = {});
// "job c1 · agent pay": the start of a page about a job.
std::string job_head(const Value& job);
// What an answer does: "it took effect; …". `command` is a printed `aetheris resolve` command.
// Empty if it needs no explanation.
struct AnswerTo {
  Value doubt = {};       // the call, from `in_doubt`; null = unknown
  bool ended = false;     // the job has ended: no call is sent again
  bool confirms = false;  // about an external change, not a call
};
std::string answer_note(std::string_view command, const AnswerTo& to);
// The state of a log in `verify`: "log signed, except its last events".
std::string head_text(std::string_view head, bool has_signature);
// The detail of a check of `verify`.
std::string proof_text(std::string_view detail);

}  // namespace ae::cli
