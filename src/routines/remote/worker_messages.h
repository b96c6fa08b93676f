// The messages of a worker, read and checked (docs/worker-protocol.md). Nothing in them is trusted:
// each function fails with input_invalid or payload_too_large if a field is missing, has another
// type or breaks a limit. Unknown fields are ignored.
//
// Threads: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/ids.h"
#include "json/value.h"
#include "log/outcome.h"
#include "log/records.h"
#include "plan/plan.h"
#include "routines/routine.h"

namespace ae::routines {

inline constexpr std::size_t kFrameMax = 32u << 20;                // bytes
inline constexpr std::size_t kAgentsMax = 256, kToolsMax = 4'096;  // of a hello
inline constexpr std::size_t kLeftMax = 100'000;
inline constexpr std::size_t kItemsMax = 10'000;  // of an advance

struct WorkerFrame {
  std::uint64_t number = 0, ack = 0;
  Value messages;  // an array
};
Result<WorkerFrame> read_frame(std::string_view text);

struct WorkerAgent {
  std::string name, version;  // version "" = none
  Value definition;
};
struct WorkerTool {
  std::string name;
  Value definition;
};

struct Hello {
  std::string sdk, worker;
  std::vector<WorkerAgent> agents;
  std::vector<WorkerTool> tools;
  std::size_t routines_max = 0, calls_max = 0;
  std::string resume;  // "" = a new session
  std::uint64_t resume_ack = 0;
  std::optional<LeftCalls> left;
  std::uint64_t connection = 0;  // of this worker process, from 1; 0 = not stated
};
Result<Hello> read_hello(const Value& message);

// The success of a function in an advance.
struct FunctionSuccess {
  std::uint64_t call = 0;
  Outcome outcome;  // with `delivered`
};
// The calls of an advance whose routine is gone.
Result<std::vector<FunctionSuccess>> read_functions(const Value& message);
struct WorkerAdvance {
  std::vector<FunctionSuccess> functions;
  Advance advance;  // without functions
};
Result<WorkerAdvance> read_advance(const Value& message, const engine::Plan& plan,
                                   std::uint32_t node);

Result<Divergence> read_diverged(const Value& message);
// `lost`, and the failures of others: {code, message}.
Result<engine::Failure> read_failure(const Value& message);
// One of `result`, `failure` and `unknown`.
Result<Outcome> read_end(const Value& message);
Result<CallName> read_call_name(const Value& message);

// A number from 0 to 2^53-1.
Result<std::uint64_t> read_number(const Value& message, std::string_view name);

}  // namespace ae::routines
