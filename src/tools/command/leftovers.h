// What a program leaves behind when everything that watched over it is gone too.
//
// Before a program starts, its process group is noted durably. Whoever recovers its job reads the note and makes sure
// that nothing of it still runs, before anything is decided about the call (SPEC §6).
// Threads: any. Blocking.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"
#include "json/value.h"

namespace ae::tools {

// The environment variable that marks everything one call starts. Not derived from the call's ids: two stores on one
// machine may hold the same job.
constexpr const char* kMarkVariable = "AETHERIS_MARK";

// Stored, with the in-flight entry: {pgid, start, boot_id, mark}. `start` is the start time of the group's first
// process, in clock ticks since that boot; `mark` the value of kMarkVariable.
Value make_in_flight_note(pid_t group, std::uint64_t start, std::string_view mark);
// A mark that nobody had before: 32 hex digits of chance.
std::string make_process_mark();

// Kills what still runs under this note and waits until it is gone, 5 s at most: the group, if its first process is
// the one that was noted, and whoever began with its mark in the environment, wherever it moved to.
// Nothing to do, and success: another boot, an id that means another process by now.
// Fails with unavailable (something still lives), or input_invalid (this is no such note).
Status kill_leftovers(const Value& note);

// One round of the same, without waiting. True when nothing was found.
bool kill_leftovers_once(const Value& note);

}  // namespace ae::tools
