// Replay: the rule by which a routine is run from its record (formal/routine.pml).
//
//   R1  Position p is delivered only when every recorded request with `delivered` <= p was made
//       again. A scope that has ended is one request; what is inside of it is counted and passed
//       over. A loop begins with its last turn that ended.
//   R2  The frontier: all recorded requests were made and all recorded outcomes delivered. Nothing
//       new is admitted before.
//   R3  A recorded value is matched by its name. An emitted value is matched by its number.
//
// One Replay belongs to one routine, also after the frontier: it counts what is delivered.
// Threads: a value; one owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/hash.h"
#include "engine/code/code.h"
#include "json/value.h"
#include "log/records.h"

namespace ae::engine {

// A request as the code makes it.
struct MadeRequest {
  std::string_view position;
  NodeKind kind = NodeKind::tool;
  std::string_view tool;               // of a call
  std::optional<Hash> arguments_hash;  // of a call: H of the arguments (State::hash_of)
  WaitType wait = WaitType::signal;    // of a wait
};

class Replay {
 public:
  explicit Replay(CodeRecord record);
  Replay(Replay&&) = default;
  Replay& operator=(Replay&&) = default;

  enum class Match : std::uint8_t { is_new, recorded, diverged };
  // A request of the routine. diverged: `divergence` says how it differs from its record. REQUIRES:
  // each position is requested once.
  Match match(const MadeRequest& request);
  // The recorded turn of this loop with the lowest number: the last one that ended, or an open one.
  // nullopt: none is recorded.
  std::optional<std::uint64_t> first_turn(std::string_view loop) const;
  // The recorded value with this name; nullptr: it is new.
  const Value* value(const std::string& name) const;
  // The routine emits a value in this scope. Is it recorded?
  bool was_emitted(const std::string& scope);

  // May the next recorded outcome be delivered? REQUIRES: the routine has settled.
  bool may_deliver() const { return next_ < record_.deliveries.size() && due_ == 0; }
  // REQUIRES: may_deliver.
  const Delivery& deliver();
  bool is_at_frontier() const { return next_ >= record_.deliveries.size() && unmatched_ == 0; }
  // An outcome that is not in the record was delivered. REQUIRES: is_at_frontier.
  void count_delivery() { ++delivered_; }
  // How many outcomes were delivered or passed over.
  std::uint64_t delivered() const { return delivered_; }

  // The first recorded request that the routine should have made by now, and has not; nullopt:
  // none. REQUIRES: the routine has settled, or has ended (`ended`).
  std::optional<Divergence> find_missing(bool ended) const;
  // After Match::diverged.
  const std::optional<Divergence>& divergence() const { return divergence_; }

 private:
  CodeRecord record_;
  std::unordered_map<std::string_view, std::size_t> by_position_;  // of record_.requests
  std::vector<bool> matched_;                                      // by request
  std::map<std::uint64_t, std::uint32_t> unmatched_at_;            // by `delivered`
  std::size_t unmatched_ = 0;
  std::size_t due_ = 0;   // unmatched ones with delivered <= delivered_
  std::size_t next_ = 0;  // of record_.deliveries
  std::uint64_t delivered_ = 0;
  std::map<std::string, std::uint64_t> emitted_;
  std::optional<Divergence> divergence_;
};

}  // namespace ae::engine
