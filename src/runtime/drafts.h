// Drafts: events and side records that are decided and not committed yet, and their division into
// commits.
//
// Threads: values.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "inspect/summary.h"
#include "log/event.h"
#include "runtime/runtime_options.h"
#include "store/store.h"

namespace ae::runtime {

// Split: what the commit that ends with an event writes beside its events.
struct DraftedRow {
  store::RowState row;
  engine::SummaryKey summary_key;
  store::Summary summary;
};

struct DraftedEvent {
  EventBody event;
  // The event decides a call with an unknown outcome: a result that arrives meanwhile makes the
  // commit fail.
  std::optional<std::pair<InvocationId, std::uint32_t>> slot;
  std::optional<store::EffectRow> effect;  // split: committed before this event
  // split: with a declaration, or after a recorded outcome
  std::optional<store::LedgerRow> ledger;
  std::optional<DraftedRow> row;  // split: the row as of this event
};

// An entry of the inbox that was applied or rejected, and the reply to its sender; "" = none.
struct AppliedEntry {
  std::uint64_t number = 0;
  std::string id;
  std::string reply;  // canonical JSON (runtime/reply.h)
};

struct PendingCommit {
  std::vector<EventBody> events;
  std::vector<store::EffectRow> effects;
  std::vector<store::LedgerRow> ledger_put;
  std::vector<std::pair<InvocationId, std::uint32_t>> effects_absent, ledger_erase;
  std::vector<AppliedEntry> inbox_applied;
  std::vector<std::string_view> failpoints;
  std::optional<DraftedRow> row;  // nullopt: computed from the state
  bool release = false;
};

struct Drafts {
  std::vector<DraftedEvent> events;
  std::vector<store::LedgerRow> ledger_put;  // in-flight notes and repairs
  std::vector<std::pair<InvocationId, std::uint32_t>> ledger_erase;
  std::vector<AppliedEntry> inbox_applied;
  bool has_outcomes = false;

  // Takes all drafts, as one commit (fused), or with each phase in its own transaction, in the order
  // of SPEC §5 (split). `release`: the last commit releases the job.
  std::deque<PendingCommit> divide(Durability durability, bool release);
};

}  // namespace ae::runtime
