// Drafts: events and side records that are decided and not committed yet, divided into commits: all
// in one (fused), or each phase in its own transaction, in the order of SPEC §5 (split).
//
// Threads: values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "inspect/summary.h"
#include "log/event.h"
#include "runtime/reply.h"
#include "runtime/runtime_options.h"
#include "store/store.h"

namespace ae::runtime {

// Split: what the commit that ends with an event writes beside its events.
struct DraftedRow {
  store::RowState row;
  engine::SummaryKey summary_key;
  store::Summary summary;
};

// A try of a call.
using TrySlot = std::pair<InvocationId, std::uint32_t>;

struct PendingCommit {
  std::vector<Event> events;  // only their bodies
  std::vector<store::EffectRow> effects;
  std::vector<store::LedgerRow> ledger_put;
  std::vector<TrySlot> effects_absent, ledger_erase;
  std::vector<AppliedEntry> inbox_applied;
  std::vector<std::string_view> failpoints;
  std::optional<DraftedRow> row;  // nullopt: computed from the state
  bool release = false;
};

class Drafts {
 public:
  explicit Drafts(Durability durability) : split_(durability == Durability::split) {}

  // `undecided`: the event decides this try, whose outcome is unknown; a result that arrives
  // meanwhile makes the commit fail. `row`: split, the row as of this event.
  void add_event(EventBody&& event, std::optional<TrySlot> undecided,
                 std::optional<DraftedRow> row);
  std::size_t event_count() const { return event_count_; }

  // Split: the effect is committed before the events that follow.
  void add_effect(store::EffectRow effect);
  // Split: the row of a call that the last event declared, committed with it.
  void add_declared(store::LedgerRow row);
  // Split: the row of a call whose outcome the last events record, committed after them.
  void add_finished(store::LedgerRow row);

  // Committed with the last events:
  std::vector<store::LedgerRow> ledger_put;  // in-flight notes and repairs
  std::vector<TrySlot> ledger_erase;
  std::vector<AppliedEntry> inbox_applied;
  bool has_outcomes = false;

  // Takes all drafts. `release`: the last commit releases the job.
  std::vector<PendingCommit> take(bool release);
  void clear();

 private:
  PendingCommit& open();  // the last commit; begins one if it has ended
  void end_commit() { is_open_ = false; }

  const bool split_;
  bool is_open_ = false;
  std::size_t event_count_ = 0;
  std::vector<PendingCommit> commits_;
};

}  // namespace ae::runtime
