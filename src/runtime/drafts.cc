#include "runtime/drafts.h"

namespace ae::runtime {

std::deque<PendingCommit> Drafts::divide(Durability durability, bool release) {
  std::deque<PendingCommit> commits;
  PendingCommit pending_commit;
  const auto flush = [&] {
    if (pending_commit.events.empty() && pending_commit.effects.empty() &&
        pending_commit.ledger_put.empty())
      return;
    commits.push_back(std::exchange(pending_commit, {}));
  };
  const bool split = durability == Durability::split;
  for (DraftedEvent& drafted : events) {
    const EventType type = type_of(drafted.event);
    if (split && drafted.effect) {
      flush();
      pending_commit.effects.push_back(std::move(*drafted.effect));
      pending_commit.failpoints = {"effect.after_put"};
      flush();
    }
    const bool alone =
        split && (type == EventType::node_finished || type == EventType::step_committed);
    if (alone) flush();
    if (drafted.slot) pending_commit.effects_absent.push_back(*std::move(drafted.slot));
    pending_commit.events.push_back(std::move(drafted.event));
    pending_commit.row = std::move(drafted.row);
    if (alone) flush();
    if (!drafted.ledger) continue;
    const bool declares = type == EventType::tool_invocation_started;
    if (!declares) flush();
    pending_commit.ledger_put.push_back(std::move(*drafted.ledger));
    if (!declares) {
      pending_commit.failpoints = {"ledger.after_commit"};
      flush();
    }
  }
  for (store::LedgerRow& row : ledger_put) pending_commit.ledger_put.push_back(std::move(row));
  pending_commit.ledger_erase = std::move(ledger_erase);
  pending_commit.inbox_applied = std::move(inbox_applied);
  pending_commit.release = release;
  if (!split && has_outcomes)
    pending_commit.failpoints = {"effect.after_put", "ledger.after_commit"};
  const bool has_changes = !pending_commit.events.empty() || !pending_commit.ledger_put.empty() ||
                           !pending_commit.ledger_erase.empty() ||
                           !pending_commit.inbox_applied.empty() || !pending_commit.effects.empty();
  if (has_changes) {
    commits.push_back(std::move(pending_commit));
  } else if (!commits.empty()) {
    commits.back().release = pending_commit.release;
  }
  *this = {};
  return commits;
}

}  // namespace ae::runtime
