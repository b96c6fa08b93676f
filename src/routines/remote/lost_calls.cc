#include "routines/remote/lost_calls.h"

#include <algorithm>
#include <utility>

#include "tools/output.h"

namespace ae::routines {

void LostCalls::add(const CallName& name, Call call) {
  const Duration now = clock_.since_start();
  const Duration left = call.send_by - now;
  const bool is_open = static_cast<bool>(call.done);
  calls_.insert_or_assign(name, Entry{.call = std::move(call), .lost_at = now});
  if (!is_open) return;
  loop_.after(std::max(left, Duration(0)), [this, alive = alive_.watch(), name] {
    if (alive) on_expired(name);
  });
}

void LostCalls::on_expired(const CallName& name) {
  const auto found = calls_.find(name);
  if (found == calls_.end() || !found->second.call.done) return;
  auto done = std::exchange(found->second.call.done, nullptr);
  done(tools::make_outcome(OutcomeKind::unknown, false, false, "worker_lost",
                           "the worker was lost while it had this call"));
}

void LostCalls::end(std::map<CallName, Entry>::iterator entry, Outcome outcome) {
  auto node = calls_.extract(entry);
  Call& call = node.mapped().call;
  if (call.done) return call.done(std::move(outcome));
  if (call.on_late_outcome) call.on_late_outcome(std::move(outcome));
}

void LostCalls::on_left(std::string_view principal, std::string_view worker,
                        const LeftCalls& left) {
  std::vector<CallName> never_received;
  std::vector<CallName> sorted = left.received;
  std::ranges::sort(sorted);
  const Duration covered_from = left.covers ? clock_.since_start() - *left.covers : Duration::min();
  for (const auto& [name, entry] : calls_) {
    const bool is_its = entry.call.principal == principal && entry.call.worker == worker &&
                        !entry.call.was_received && entry.call.sent_at >= covered_from;
    if (is_its && !std::ranges::binary_search(sorted, name)) never_received.push_back(name);
  }
  for (const CallName& name : never_received) {
    const auto found = calls_.find(name);
    if (found == calls_.end()) continue;
    end(found, tools::make_outcome(OutcomeKind::failure, true, true, "not_sent",
                                   "the worker had not received this call"));
  }
}

bool LostCalls::on_late(std::string_view principal, std::string_view worker, const CallName& name,
                        const Outcome& outcome) {
  const auto found = calls_.find(name);
  if (found == calls_.end() || found->second.call.principal != principal ||
      found->second.call.worker != worker) {
    return false;
  }
  end(found, outcome);
  return true;
}

void LostCalls::remove_old() {
  const Duration now = clock_.since_start();
  std::erase_if(calls_, [&](const auto& one) {
    return !one.second.call.done && now - one.second.lost_at >= kKept;
  });
}

}  // namespace ae::routines
