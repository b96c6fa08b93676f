// Leftovers: processes of a call that survive when the runtime and the supervisor were both killed.
//
// The process group of a program is noted durably before the program starts. The worker that
// recovers the job reads the note and kills what is still running, before it decides about the call
// (SPEC §6).
// Threads: any. Blocking.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"
#include "json/value.h"

namespace ae::tools {

// The environment variable that marks all processes of a call. Not derived from the call's ids: two
// stores on one machine may hold the same job.
constexpr const char* kMarkVariable = "AETHERIS_MARK";

// Stored with the in-flight entry: {pgid, start, boot_id, mark}. `start` is the start time of the
// group leader, in clock ticks since that boot; `mark` is the value of kMarkVariable.
Value make_in_flight_note(pid_t group, std::uint64_t start, std::string_view mark);
// A unique mark: 32 random hex digits.
std::string make_process_mark();

// Kills the processes of this note and waits until they are gone, 5 s at most: the group, if its
// leader is the noted process, and every process that was started with the mark in its environment,
// whatever its group or session is now. Succeeds without action if the note is from another boot or
// its id belongs to another process now.
// Fails with unavailable (a process is still running), or input_invalid (not a note).
Status kill_leftovers(const Value& note);

// One round of kill_leftovers, without waiting. True if nothing was found.
bool kill_leftovers_once(const Value& note);

}  // namespace ae::tools
