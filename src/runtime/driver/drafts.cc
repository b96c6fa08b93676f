#include "runtime/driver/drafts.h"

#include <algorithm>
#include <initializer_list>
#include <iterator>

#include "async/failpoint.h"

namespace ae::runtime {
namespace {

constexpr std::size_t kEventsOfStep = 8;  // one more than the events of a tool step

// The names reach the store only if something handles them.
void set_failpoints(PendingCommit& commit, std::initializer_list<std::string_view> names) {
  if (async::failpoint_handler != nullptr) commit.failpoints = names;
}

}  // namespace

PendingCommit& Drafts::open() {
  if (!std::exchange(is_open_, true)) commits_.emplace_back();
  return commits_.back();
}

void Drafts::add_event(EventBody&& event, std::optional<TrySlot> undecided,
                       std::optional<DraftedRow> row) {
  const EventType type = type_of(event);
  const bool alone =
      split_ && (type == EventType::node_finished || type == EventType::step_committed);
  if (alone) end_commit();
  PendingCommit& commit = open();
  if (undecided) commit.effects_absent.push_back(*std::move(undecided));
  if (commit.events.empty()) commit.events.reserve(kEventsOfStep);
  commit.events.emplace_back(std::move(event));
  commit.row = std::move(row);
  ++event_count_;
  if (alone) end_commit();
}

void Drafts::add_effect(store::EffectRow effect) {
  end_commit();
  open().effects.push_back(std::move(effect));
  set_failpoints(open(), {"effect.after_put"});
  end_commit();
}

void Drafts::add_declared(store::LedgerRow row) { open().ledger_put.push_back(std::move(row)); }

void Drafts::add_finished(store::LedgerRow row) {
  end_commit();
  open().ledger_put.push_back(std::move(row));
  set_failpoints(open(), {"ledger.after_commit"});
  end_commit();
}

std::vector<PendingCommit> Drafts::take(bool release) {
  if (!ledger_put.empty() || !ledger_erase.empty() || !inbox_applied.empty()) {
    PendingCommit& last = open();
    std::ranges::move(ledger_put, std::back_inserter(last.ledger_put));
    last.ledger_erase = std::move(ledger_erase);
    last.inbox_applied = std::move(inbox_applied);
  }
  if (!split_ && has_outcomes && is_open_)
    set_failpoints(commits_.back(), {"effect.after_put", "ledger.after_commit"});
  if (!commits_.empty()) commits_.back().release = release;
  std::vector<PendingCommit> commits = std::move(commits_);
  clear();
  return commits;
}

void Drafts::clear() {
  commits_.clear();
  ledger_put.clear();
  ledger_erase.clear();
  inbox_applied.clear();
  event_count_ = 0;
  has_outcomes = is_open_ = false;
}

}  // namespace ae::runtime
