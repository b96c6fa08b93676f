// verify: checks that a log is complete, unchanged and consistent. Read-only: it never repairs.
//
//  event_chain    seq 1, 2, 3, …; each event contains the hash of the previous one; the head is the
//                  one in the job's row
//  state_machine   every event is allowed where it occurs (SPEC §2 and what `apply` rejects); the
//                  job's row agrees with the log
//  ledger          each try has one start and one end, unless pending; each invocation has at most
//                  one success and nothing after it; keys and hashes match job, command, tool and
//                  arguments; the side records (effects, calls in flight, the inbox) are undamaged
//                  and agree with the log
//  replay          folding twice yields the same state; every command, argument, branch, wait and
//                  output is where and what the plan's expressions require; the checkpoint equals
//                  the fold of the log. Which requests code makes, and in which order it was given
//                  their outcomes, only the code can show: here a request is checked like any
//                  command, and no outcome is given before its request was made
//  execution_hash  hex SHA256 of these lines of text, each ended by one line feed (0x0a):
//                      aetheris.execution.v1
//                      <plan_hash of plan_generated, 64 hex digits>      one for each, in order
//                      <path> <result_type>        one for each node_finished and each step of a
//                                                  fork_imported, including map items and requests
//                                                  of code, in the byte order of their paths
//                  Jobs with equal execution hashes took the same path. Stored: this text never
//                  changes.
//
// Threads: a pure function.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/hash.h"
#include "base/ids.h"
#include "base/sign.h"
#include "engine/state/state.h"
#include "json/value.h"
#include "log/event.h"

namespace ae::engine {

// Earlier builds stored the store's clock in a row's times instead of the events' times. Maximum
// difference that is accepted.
constexpr Duration kRowTimeSkewMax = std::chrono::hours(24);
inline bool exceeds_time_skew(Instant row, Instant log) {
  const auto one = static_cast<std::uint64_t>(row.us), other = static_cast<std::uint64_t>(log.us);
  const std::uint64_t difference = row.us > log.us ? one - other : other - one;
  return difference > static_cast<std::uint64_t>(kRowTimeSkewMax.count());
}

struct VerifyInput {
  JobId job;
  std::vector<Event> events;        // from `open`, commit by commit
  std::optional<Error> open_error;  // the error of `open` for the next commit, if it failed
  // The last event, according to the job's row.
  std::optional<std::uint64_t> last_seq;
  std::optional<Hash> head;
  // The rest of the job's row.
  struct Row {
    std::string status, agent, idempotency_key;
    std::vector<std::pair<std::string, std::string>> labels;
    std::optional<Instant> created_at;
    std::optional<Hash> request_hash;  // stored in the row
    // Computed from the log; nullopt: the input was redacted
    std::optional<Hash> computed_request_hash;
    std::optional<std::uint64_t> commits;  // according to the row
    std::uint64_t commits_read = 0;        // commits that were read
  };
  std::optional<Row> row;
  struct Effect {
    InvocationId invocation;
    std::uint32_t try_no = 1;
    std::string record;
  };
  std::vector<Effect> effects;  // from the effect store
  struct Entry {
    InvocationId invocation;
    std::uint32_t try_no = 1;
    std::string state, record;
  };
  std::vector<Entry> ledger;  // calls in flight, and all calls with split durability
  std::vector<std::pair<std::string, std::string>> inbox;  // id and control request
  // Seq of its event, and its bytes
  std::optional<std::pair<std::uint64_t, std::string>> checkpoint;
  std::optional<std::string> signed_head;
  std::vector<PublicKey> keys;  // trusted public keys
};

struct Proof {
  bool ok = true;
  std::string detail;
};

struct Verification {
  bool ok = false;
  // intact | altered | truncated | unsigned | unknown_key. `intact`: a signature by one of
  // `VerifyInput::keys` covers the last event.
  std::string head;
  Proof execution_hash, event_chain, ledger, replay, state_machine;
  std::string execution_hash_hex, root_hash_hex;
  std::vector<std::string> pending;  // idempotency keys of calls without a recorded outcome
  Value signature;                   // {count, hash, key_id, time} of the signed head, or null

  // {ok, head, signature, proofs: {execution_hash{ok, detail, hash}, event_chain{ok, detail,
  //  hash}, ledger{ok, detail, pending}, replay{ok, detail}, state_machine{ok, detail}}}
  Value to_json() const;
};

Verification verify(const VerifyInput& input, const PlanSource& plans);

// Verifies one event at a time, because evaluating the expressions of a log can take long. Borrows
// both.
class Verifier;  // verify.cc
class IncrementalVerifier {
 public:
  IncrementalVerifier(const VerifyInput& input, const PlanSource& plans);
  ~IncrementalVerifier();
  bool next();          // false: done
  Verification take();  // REQUIRES: `next` returned false

 private:
  std::unique_ptr<Verifier> verifier_;
};

}  // namespace ae::engine
