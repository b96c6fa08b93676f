#include "runtime/driver/progress_reports.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace ae::runtime {
namespace {

// Minimum interval between two recorded progress reports of a call. It grows to 1/64 of the time
// that the call has run, so the number of reports grows with the logarithm of that time: about 130
// in the first three minutes, 600 in a day.
constexpr Duration kReportInterval = std::chrono::seconds(1);
constexpr int kReportIntervalShare = 64;

}  // namespace

Instant ProgressReports::Call::may_record_at() const {
  if (!last_recorded) return sent;
  return *last_recorded + std::max(kReportInterval, (*last_recorded - sent) / kReportIntervalShare);
}

bool ProgressReports::add(Report report, Instant sent) {
  Call& call =
      calls_.try_emplace(report.step, Call{.try_no = report.try_no, .sent = sent}).first->second;
  const bool is_first = !call.pending;
  call.pending = std::move(report.value);
  return is_first;
}

void ProgressReports::drop_pending() {
  for (auto& [step, call] : calls_) call.pending.reset();
}

std::vector<ProgressReports::Report> ProgressReports::take_due(
    Instant now, const std::function<bool(const StepId&)>& is_finished) {
  std::vector<Report> due;
  for (auto& [step, call] : calls_) {
    if (!call.pending) continue;
    if (call.may_record_at() > now && !is_finished(step)) continue;
    due.push_back({step, call.try_no, *std::exchange(call.pending, std::nullopt)});
    call.last_recorded = now;
  }
  return due;
}

std::optional<Instant> ProgressReports::next_at() const {
  std::optional<Instant> next;
  for (const auto& [step, call] : calls_) {
    if (!call.pending) continue;
    const Instant at = call.may_record_at();
    if (!next || at < *next) next = at;
  }
  return next;
}

}  // namespace ae::runtime
