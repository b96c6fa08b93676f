#include "runtime/scheduler/versions.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "json/json.h"
#include "runtime/row.h"

namespace ae::runtime {
namespace {

constexpr std::size_t kVersionsPage = 100;
constexpr Duration kDeferredFor = std::chrono::minutes(1);  // so that entries do not accumulate
// Parked jobs beyond this number are checked in each sweep
constexpr std::size_t kCheckedMax = 100'000;

// Does a worker that claims jobs of the agent offer all needed capabilities?
bool has_offer(const store::JobStats& job_stats, const std::string& agent,
               const std::vector<std::string>& needed) {
  return std::ranges::any_of(job_stats.workers, [&](const auto& entry) {
    const auto offer = worker_offer(entry.second.announcement);
    return offer && may_claim_agent(*offer, agent) &&
           std::ranges::all_of(needed, [&](const auto& one) {
             return std::ranges::find(offer->offers, one) != offer->offers.end();
           });
  });
}

}  // namespace

std::optional<WorkerOffer> worker_offer(std::string_view announcement) {
  const auto json = parse_json(announcement);
  if (!json || !json->is_object()) return std::nullopt;
  WorkerOffer offer;
  for (auto [name, into] : {std::pair{"agents", &offer.agents}, {"offers", &offer.offers}}) {
    const Value& list = (*json)[name];
    if (!list.is_array()) return std::nullopt;
    for (const Value& one : list.items()) {
      if (one.is_string()) into->push_back(one.as_string());
    }
  }
  return offer;
}

bool may_claim_agent(const WorkerOffer& offer, const std::string& agent) {
  if (!offer.has_agents) return false;
  return offer.agents.empty() || std::ranges::find(offer.agents, agent) != offer.agents.end();
}

VersionSweeper::VersionSweeper(store::Store& store, ResumeJob resume)
    : store_(store), resume_(std::move(resume)) {}

// ---------------------------------------------------------------- offers of other processes

void VersionSweeper::check_elsewhere(const store::JobRow& row, const std::string& version,
                                     async::Done<Result<bool>> done) {
  std::vector<std::string> needed = row.capabilities;
  needed.push_back(version_capability(row.agent, version));
  store_.count_jobs([this, alive = alive_.watch(), job = row.id, agent = row.agent,
                     needed = std::move(needed),
                     done = std::move(done)](Result<store::JobStats> job_stats) mutable {
    if (!alive) return;
    if (!job_stats) return done(std::unexpected(job_stats.error()));
    const bool elsewhere = has_offer(*job_stats, agent, needed);
    if (elsewhere) deferred_.insert_or_assign(job, DeferredJob{agent, needed, store_.now()});
    done(elsewhere);
  });
}

void VersionSweeper::recheck_deferred(std::function<void(const std::vector<JobId>&)> then) {
  if (deferred_.empty()) return;
  store_.count_jobs(
      [this, alive = alive_.watch(), then = std::move(then)](Result<store::JobStats> job_stats) {
        if (!alive || !job_stats) return;
        std::vector<JobId> jobs;
        const Instant now = store_.now();
        std::erase_if(deferred_, [&](const auto& entry) {
          const auto& [job, deferred] = entry;
          if (now < deferred.since + kDeferredFor &&
              has_offer(*job_stats, deferred.agent, deferred.needed))
            return false;
          jobs.push_back(job);
          return true;
        });
        if (!jobs.empty()) then(jobs);
      });
}

// ---------------------------------------------------------------- sweep

struct VersionSweeper::Sweep {
  std::vector<std::string> agents;  // still to be swept; the last one is current
  store::Filter filter;
  std::deque<store::JobRow> rows;
  bool last_page = false;
  std::map<JobId, std::uint64_t> checked;
};

void VersionSweeper::on_offer_changed() {
  checked_.clear();
  offer_changed_ = true;
}

void VersionSweeper::sweep(std::vector<std::string> agents) {
  if (agents.empty() || std::exchange(sweeping_, true)) return;
  offer_changed_ = false;
  auto sweep_run = std::make_shared<Sweep>();
  sweep_run->agents = std::move(agents);
  sweep_run->filter.statuses = {"parked"};
  sweep_run->filter.limit = kVersionsPage;
  next_page(std::move(sweep_run));
}

void VersionSweeper::next_page(std::shared_ptr<Sweep> sweep_run) {
  if (sweep_run->last_page) {
    sweep_run->agents.pop_back();
    sweep_run->filter.after.clear();
    sweep_run->filter.after_number.reset();
    sweep_run->last_page = false;
  }
  if (sweep_run->agents.empty()) {
    sweeping_ = false;
    // Otherwise the jobs that this sweep passed were compared with the previous offer.
    if (!offer_changed_) checked_ = std::move(sweep_run->checked);
    return;
  }
  sweep_run->filter.agent = sweep_run->agents.back();
  store_.query(sweep_run->filter,
               [this, alive = alive_.watch(), sweep_run](Result<std::vector<store::JobRow>> rows) {
                 if (!alive) return;
                 if (!rows) {  // the next sweep begins again
                   sweeping_ = false;
                   return;
                 }
                 sweep_run->last_page = rows->size() < kVersionsPage;
                 if (!rows->empty()) {
                   sweep_run->filter.after = rows->back().id.text;
                   sweep_run->filter.after_number = rows->back().number;
                 }
                 sweep_run->rows.assign(rows->begin(), rows->end());
                 next_job(sweep_run);
               });
}

void VersionSweeper::next_job(std::shared_ptr<Sweep> sweep_run) {
  while (!sweep_run->rows.empty()) {
    const store::JobRow row = std::move(sweep_run->rows.front());
    sweep_run->rows.pop_front();
    const auto found = checked_.find(row.id);
    const bool was_checked = found != checked_.end() && found->second == row.last_seq;
    const auto mark_checked = [sweep_run, job = row.id, seq = row.last_seq] {
      if (sweep_run->checked.size() < kCheckedMax) sweep_run->checked.insert_or_assign(job, seq);
    };
    if (was_checked) {
      mark_checked();
      continue;
    }
    return resume_(row,
                   [this, alive = alive_.watch(), sweep_run, mark_checked](Result<bool> resumed) {
                     if (!alive) return;
                     if (resumed) mark_checked();
                     next_job(sweep_run);
                   });
  }
  next_page(std::move(sweep_run));
}

}  // namespace ae::runtime
