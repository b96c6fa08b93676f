// Declaration: a try of a call that a decision may declare now.
//
// Only Decider uses it. Threads: a value that borrows its node and steps; one owner.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/hash.h"
#include "base/ids.h"
#include "engine/state/state.h"
#include "json/value.h"
#include "plan/call_options.h"
#include "plan/plan.h"

namespace ae::engine {

struct Declaration {
  StepId step;
  const Node& node;
  std::uint32_t tool;  // index into Plan::tools
  Value args;          // of the first try; later tries send the recorded ones
  std::uint32_t item = kNoItem;
  const Step* known = nullptr;           // the step; nullptr: it is about to start
  const Step* of = nullptr;              // of a probe or compensation: the step of the call
  bool emitted = false;                  // its command_emitted is in the log
  std::string path = {};                 // of a part of a loop that is about to start
  bool chosen = false;                   // a call of a loop that is about to start
  const CallOptions* options = nullptr;  // of a request of code that is about to be called
  std::uint32_t turn = kNoTurn;          // of a loop: the turn of this model call
  std::optional<Hash> hash = {};         // of the arguments, set on demand (`digest`)
  IdempotencyKey key = {};               // of a first try, set with it
};

}  // namespace ae::engine
