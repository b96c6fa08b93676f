// Request: what a routine has requested, and its outcome once that was delivered. ClosedScope: a
// closed scope whose body runs.
//
// Threads: guarded by the mutex of their execution (execution.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/boxed.h"
#include "engine/code/code.h"
#include "json/value.h"
#include "routines/native/function.h"

namespace ae::routines {

struct ClosedScope;
struct RoutineThread;

// A map or race that runs, or one of its branches: `outer` is the map or race.
struct Branch {
  std::shared_ptr<const Branch> outer;
};

struct Request {
  std::string position;
  engine::NodeKind kind = engine::NodeKind::tool;
  std::shared_ptr<const Function> function;  // of a run
  std::uint32_t tool = 0;                    // of a call
  std::shared_ptr<ClosedScope> closed;       // the innermost one around it
  std::shared_ptr<const Branch> branch;      // that made it; nullptr: none
  bool is_cancelled = false;
  std::vector<RoutineThread*> waiting;
  std::optional<std::uint64_t> delivered;  // its place in the order of deliveries
  engine::Delivery outcome;
};

// A closed scope whose body runs, or has returned while requests of it have no outcome.
struct ClosedScope {
  std::string position;
  const ClosedScope* outer = nullptr;  // around it
  std::size_t open = 0;                // requests directly inside of it
  bool has_returned = false;
  Value result;
  Boxed<engine::Failure> failure;
};

}  // namespace ae::routines
