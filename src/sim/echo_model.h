// The model of the simulated world.
//
// Its text is determined by the request; the number is not, it identifies the answer. In a loop the
// first message is a script, [[{name, arguments}…]…]: the requested calls, turn by turn; the last
// text is a digest of the conversation. The model "plain" reports no usage, and is brief.
// Threads: pure functions.
#pragma once

#include <cstdint>

#include "json/value.h"

namespace ae::sim {

Value echo_answer(const Value& request, std::uint64_t number);
// Does the request ask for another answer with the script's texts?
bool is_repair(const Value& request);

}  // namespace ae::sim
