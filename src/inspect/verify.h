// verify: does this log prove what it says? Reads only; nothing ever repairs a chain.
//
//   event_chain     seq 1, 2, 3, …; each event carries the hash of the one before; the head is the one the row knows
//   state_machine   every event may stand where it stands (SPEC §2 and what `apply` refuses); the job's row says what
//                   follows from them
//   ledger          per try one start and one end, unless pending; per invocation at most one success and nothing
//                   after it; keys and hashes are those of job, command, tool and arguments; what stands beside the
//                   log (effects, calls in flight, the inbox) is as it was written and agrees with it
//   replay          folding twice gives one state; every command, argument, branch, wait and output is where and what
//                   the plan's expressions ask for; the checkpoint is what the log folds to
//   execution_hash  hex SHA256 of these lines of text, each ended by one line feed (0x0a):
//                       aetheris.execution.v1
//                       <plan_hash of plan_generated, 64 hex digits>      one for each, in order
//                       <path> <result_type>        one for each node_finished and each step of a fork_imported, items
//                                                   of maps included, in the byte order of their paths
//                   Two jobs with one execution hash went the same way. Stored: this text never changes.
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

// Earlier builds wrote the store's clock into a row's times, not the times of the events. This far they may be apart.
constexpr Duration kRowTimeSkewMax = std::chrono::hours(24);
inline bool differ_too_much(Instant row, Instant log) {
  const auto one = static_cast<std::uint64_t>(row.us), other = static_cast<std::uint64_t>(log.us);
  const std::uint64_t apart = row.us > log.us ? one - other : other - one;
  return apart > static_cast<std::uint64_t>(kRowTimeSkewMax.count());
}

struct VerifyInput {
  JobId job;
  std::vector<Event> events;     // as core's `open` gave them, commit after commit
  std::optional<Error> refused;  // what `open` said of the commit behind them, when it refused one
  // What the job's row says of its last event.
  std::optional<std::uint64_t> last_seq;
  std::optional<Hash> head;
  // What it says of the job.
  struct Row {
    std::string status, agent, idempotency_key;
    std::vector<std::pair<std::string, std::string>> labels;
    std::optional<Instant> created_at;
    std::optional<Hash> request_hash;  // as the row has it, and …
    std::optional<Hash>
        computed_request_hash;  // … as it follows from the log; nullopt: the input was redacted
    std::optional<std::uint64_t> commits;  // how many there are, and …
    std::uint64_t commits_read = 0;        // … how many were read
  };
  std::optional<Row> row;
  struct Effect {
    InvocationId invocation;
    std::uint32_t try_no = 1;
    std::string record;
  };
  std::vector<Effect> effects;  // of the effect store
  struct Entry {
    InvocationId invocation;
    std::uint32_t try_no = 1;
    std::string state, record;
  };
  std::vector<Entry> ledger;  // calls in flight, and those of split durability
  std::vector<std::pair<std::string, std::string>> inbox;  // id and act
  std::optional<std::pair<std::uint64_t, std::string>>
      checkpoint;  // the event it covers, and its bytes
  std::optional<std::string> signed_head;
  std::vector<PublicKey> keys;  // whose signatures count
};

struct Proof {
  bool ok = true;
  std::string detail;
};

struct Verification {
  bool ok = false;
  // intact | altered | truncated | unsigned | unknown_key. `intact`: the last event is covered by a signature of a key
  // that was given.
  std::string head;
  Proof execution_hash, event_chain, ledger, replay, state_machine;
  std::string execution_hash_hex, root_hash_hex;
  std::vector<std::string> pending;  // idempotency keys of calls whose answer is not recorded
  Value signature;                   // {count, hash, key_id, time} of the signed head; null without

  // {ok, head, signature, proofs: {execution_hash{ok, detail, hash}, event_chain{ok, detail, hash}, ledger{ok, detail, pending},
  //  replay{ok, detail}, state_machine{ok, detail}}}
  Value to_json() const;
};

Verification verify(const VerifyInput& input, const PlanSource& plans);

// The same, one event at a time: evaluating the expressions of a log can take long. Borrows both.
class Verifier;  // verify.cc
class IncrementalVerifier {
 public:
  IncrementalVerifier(const VerifyInput& input, const PlanSource& plans);
  ~IncrementalVerifier();
  bool next();          // false: nothing is left to do
  Verification take();  // REQUIRES: `next` returned false

 private:
  std::unique_ptr<Verifier> verifier_;
};

}  // namespace ae::engine
