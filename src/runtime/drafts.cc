#include "runtime/drafts.h"

#include <initializer_list>

#include "async/failpoint.h"

namespace ae::runtime {
namespace {

constexpr std::size_t kEventsOfStep = 8;  // one more than the events of a tool step

// The names reach the store only if something handles them.
void set_failpoints(PendingCommit& commit, std::initializer_list<std::string_view> names) {
  if (async::failpoint_handler != nullptr) commit.failpoints = names;
}

}  // namespace

void Drafts::add_event(EventBody&& event, std::optional<TrySlot> undecided,
                       std::optional<DraftedRow> row) {
  const EventType type = type_of(event);
  const bool alone =
      split_ && (type == EventType::node_finished || type == EventType::step_committed);
  if (alone) end_commit();
  if (undecided) open_.effects_absent.push_back(*std::move(undecided));
  if (open_.events.empty()) open_.events.reserve(kEventsOfStep);
  open_.events.emplace_back().body = std::move(event);
  open_.row = std::move(row);
  ++event_count_;
  if (alone) end_commit();
}

void Drafts::add_effect(store::EffectRow effect) {
  end_commit();
  open_.effects.push_back(std::move(effect));
  set_failpoints(open_, {"effect.after_put"});
  end_commit();
}

void Drafts::add_declared(store::LedgerRow row) { open_.ledger_put.push_back(std::move(row)); }

void Drafts::add_finished(store::LedgerRow row) {
  end_commit();
  open_.ledger_put.push_back(std::move(row));
  set_failpoints(open_, {"ledger.after_commit"});
  end_commit();
}

void Drafts::end_commit() {
  if (open_.events.empty() && open_.effects.empty() && open_.ledger_put.empty()) return;
  complete_.push_back(std::exchange(open_, {}));
}

std::vector<PendingCommit> Drafts::take(bool release) {
  for (store::LedgerRow& row : ledger_put) open_.ledger_put.push_back(std::move(row));
  open_.ledger_erase = std::exchange(ledger_erase, {});
  open_.inbox_applied = std::exchange(inbox_applied, {});
  if (!split_ && has_outcomes) set_failpoints(open_, {"effect.after_put", "ledger.after_commit"});
  const bool has_changes = !open_.events.empty() || !open_.ledger_put.empty() ||
                           !open_.ledger_erase.empty() || !open_.inbox_applied.empty();
  if (has_changes) complete_.push_back(std::move(open_));
  if (!complete_.empty()) complete_.back().release = release;
  open_ = {};
  ledger_put.clear();
  has_outcomes = false;
  event_count_ = 0;
  return std::exchange(complete_, {});
}

}  // namespace ae::runtime
