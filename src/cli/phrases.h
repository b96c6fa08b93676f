// Phrases: how output names times, calls, causes and parks. Each has one form in all commands.
//
// Threads: free functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/value.h"

namespace ae::cli {

// "2025-01-02T03:04:05.123456Z" → "2025-01-02 03:04:05Z". Other texts stay as they are.
std::string short_time(std::string_view instant);
// The same with milliseconds: "2025-01-02 03:04:05.123Z".
std::string exact_time(std::string_view instant);
// The same, rounded up to a whole second: what is not accepted before the instant is accepted then.
std::string short_time_after(std::string_view instant);
// `call of tool "buy"`
std::string call_of(std::string_view tool);
// Why the outcome of a call is unknown: " (timeout)". Empty when `message` explains the code: "sh was killed by SIGKILL".
std::string cause_of(std::string_view code, std::string_view message);
// "9 calls, 11 tries (2 retries)": a call is sent in one try or in several. `call` is its singular: "call", "tool call".
std::string calls_text(std::uint64_t tries, std::uint64_t retries, std::string_view call);
// Where a step of a view is: "pay", "labels[1]", "chat turn 2", "chat turn 2, call 1".
std::string place_text(const Value& step);
// The lines of a message without blanks at their ends, and without empty ones. Each is safe to print.
std::vector<std::string> message_lines(std::string_view message);
// The same as one text; the lines after the first begin with `indent`.
std::string message_text(std::string_view message, std::string_view indent = "  ");
// The first of them, with " …" if there are more.
std::string first_line(std::string_view message);
// "signal_9: sh was killed by SIGKILL" → "sh was killed by SIGKILL"; "exit_3: sh exited with code 3" stays. It may have
// several lines.
std::string error_shown(std::string_view code, std::string_view message);
// "the outcome of a call is unknown [invocation_in_doubt]; continues after aetheris resolve", of a job's `parked` and, if known, its `in_doubt`.
std::string parked_text(const Value& parked, const Value& in_doubt = {});
// The same without the code and what ends it: "the outcome of a call is unknown".
std::string park_reason(const Value& parked, const Value& in_doubt = {});
// "job c1 · agent pay": how a page about a job begins.
std::string job_head(const Value& job);
// What an answer does: "it took effect; …". `command` is an `aetheris resolve` command, as it is printed. Empty when it
// needs no explanation.
struct AnswerTo {
  Value doubt = {};       // the call, of a job's `in_doubt`; null = not known
  bool ended = false;     // the job has: nothing is sent again
  bool confirms = false;  // it is about a change outside, not about a call
};
std::string answer_note(std::string_view command, const AnswerTo& to);
// The state of a log, of `verify`: "log signed, except its last events".
std::string head_text(std::string_view head, bool has_signature);
// The detail of one check of `verify`.
std::string proof_text(std::string_view detail);

}  // namespace ae::cli
