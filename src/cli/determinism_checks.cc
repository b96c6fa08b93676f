#include "cli/determinism_checks.h"

#include <fmt/core.h>

#include <utility>
#include <vector>

#include "cli/code_end.h"
#include "cli/shared.h"
#include "engine/version/code_version.h"
#include "inspect/recorded_code.h"
#include "plan/plan.h"
#include "runtime/log.h"
#include "store/rules.h"
#include "store/store.h"

namespace ae::cli {
namespace {

constexpr std::size_t kWaitingMax = 100;      // checks; more jobs are not checked
constexpr std::size_t kCheckedMax = 10'000;   // ids
constexpr std::uint64_t kEventsMax = 20'000;  // of a job; a longer log is not replayed

}  // namespace

DeterminismChecks::DeterminismChecks(app::Instance& instance,
                                     std::function<void(const std::string& line)> print)
    : instance_(instance), print_(std::move(print)) {}

DeterminismChecks::~DeterminismChecks() = default;

void DeterminismChecks::on_released(const JobId& job) {
  if (waiting_.size() >= kWaitingMax) return;
  waiting_.push_back(job);
  start_next();
}

void DeterminismChecks::on_new_code() {
  ++code_;
  waiting_.clear();
}

void DeterminismChecks::start_next() {
  if (is_busy_ || waiting_.empty()) return;
  is_busy_ = true;
  const JobId job = std::move(waiting_.front());
  waiting_.pop_front();
  // Its row first: a log that is not checked is not read.
  instance_.store().load(job, store::kNoCommits,
                         [this, alive = alive_.watch(), job](Result<store::LoadedJob> loaded) {
                           if (!alive) return;
                           if (loaded && is_due(loaded->row)) return read_log(job);
                           is_busy_ = false;
                           start_next();
                         });
}

bool DeterminismChecks::is_due(const store::JobRow& row) {
  const bool has_ended = store::has_ended(row.status);
  if (has_ended) checked_.erase(row.id.text.string());
  if (row.last_seq > kEventsMax || (!has_ended && row.status != "waiting")) return false;
  return has_ended ||
         (checked_.size() < kCheckedMax && checked_.insert(row.id.text.string()).second);
}

void DeterminismChecks::read_log(const JobId& job) {
  instance_.store().load(
      job, 1, [this, alive = alive_.watch(), job, code = code_](Result<store::LoadedJob> loaded) {
        if (!alive) return;
        if (loaded && code == code_ && start(job, *loaded)) return;
        is_busy_ = false;
        start_next();
      });
}

// False: there is nothing to check.
bool DeterminismChecks::start(const JobId& job, const store::LoadedJob& loaded) {
  auto events = runtime::open_log(job, loaded);
  if (!events) return false;
  auto recorded = engine::recorded_code(job, *events, engine::uncached_plan_source());
  if (!recorded || !recorded->node) return false;
  const std::string version = engine::version_of_code(recorded->state, *recorded->node);
  running_ = std::make_unique<runtime::CodeCheck>(
      runtime::CodeCheck::Parts{.loop = instance_.loop(),
                                .provider = instance_.code(),
                                .recorded = *std::move(recorded),
                                .events = *std::move(events),
                                .version = version},
      [this, job, code = code_](const runtime::CodeFinding& finding) {
        const auto ended = std::move(running_);
        if (code == code_) on_finding(job, finding);
        is_busy_ = false;
        start_next();
      });
  return true;
}

void DeterminismChecks::on_finding(const JobId& job, const runtime::CodeFinding& finding) {
  const bool diverges = finding.verdict == runtime::CodeVerdict::diverges;
  if (!diverges && finding.verdict != runtime::CodeVerdict::fails) return;
  print_(fmt::format("warning: the code of job {} is not deterministic: a replay of its log {}",
                     safe(job.text), diverges ? "differs" : "fails"));
  std::vector<std::string> lines = divergence_lines(finding.divergence);
  if (lines.empty()) lines = exception_lines(finding.exception, 0);
  if (lines.empty() && !finding.reason.empty()) lines.push_back(safe(finding.reason));
  for (const std::string& line : lines) print_("  " + line);
}

}  // namespace ae::cli
