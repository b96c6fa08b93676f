// Routine: what the routine of a code node wants, beside what the log holds. It is lost with the
// routine; the next one requests it again (engine/code/code.h).
//
// The runtime keeps it, `decide` reads it. Threads: values; one owner.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/time.h"
#include "engine/state/invocation.h"
#include "json/value.h"
#include "log/records.h"
#include "plan/call_options.h"
#include "plan/plan_node.h"

namespace ae::engine {

// A wait that code requests.
struct NewWait {
  WaitType type = WaitType::signal;
  std::string key;                  // "" = the step's id
  std::string channel;              // of a message wait
  std::optional<Duration> lasts;    // of a timer, from its opening
  std::optional<Instant> due_at;    // or at this instant
  std::optional<Duration> expires;  // of any other wait
  bool accepts_data = false;        // of a human wait
  std::string question;             // of a human wait, at most kQuestionMessageMax; "" = none
  Value data;                       // of a human wait: what it is about, at most kQuestionMax
};

// A request that is not in the log, or has no call there yet.
struct NewRequest {
  std::string position;
  NodeKind kind = NodeKind::tool;  // tool, llm, wait
  std::uint64_t delivered = 0;     // outcomes that the routine had been given
  std::uint32_t tool = 0;    // of a call: index into Plan::tools, of one that the code may call
  Value arguments;           // of a call
  CallOptions options = {};  // of a call: not compared on replay, those of the record hold
  NewWait wait;              // of a wait
};

// How the code ended: with a result, or with a failure, or with an exception.
struct RoutineEnd {
  Value result;
  Boxed<Failure> failure;
  std::optional<Value> exception;  // {name, message, stack?}
};

struct Routine {
  std::string version;  // of the code that it runs
  // At the frontier: it has made all recorded requests again and was given all recorded outcomes.
  // Nothing of it is admitted before.
  bool is_live = false;
  bool has_settled = false;          // it has no code to run: it waits for an outcome
  std::vector<NewRequest> requests;  // in the order in which they were made
  // Positions of requests whose outcomes it does not need any more: waits are closed, calls that may
  // not have had an effect are not sent again.
  std::vector<std::string> cancelled;
  std::optional<RoutineEnd> end;
  // The code does not make what the log holds: the job parks until code comes that does.
  std::optional<Divergence> divergence;
  bool falls_back = false;  // after a divergence another version is started instead

  bool has_cancelled(std::string_view position) const {
    return std::ranges::find(cancelled, position) != cancelled.end();
  }
};

// By the index of the node.
using Routines = std::map<std::uint32_t, Routine>;

}  // namespace ae::engine
