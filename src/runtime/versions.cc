#include "runtime/versions.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "json/json.h"
#include "runtime/row.h"

namespace ae::runtime {
namespace {

constexpr std::size_t kVersionsPage = 100;
constexpr Duration kLeftFor = std::chrono::minutes(1);  // so that what is over is not remembered
constexpr std::size_t kSeenMax = 100'000;  // more parked jobs than that are looked at in each sweep

// Does a worker that claims jobs of the agent offer all that is needed?
bool offers(const store::Census& census, const std::string& agent,
            const std::vector<std::string>& needed) {
  return std::ranges::any_of(census.workers, [&](const auto& entry) {
    const auto offer = worker_offer(entry.second.says);
    return offer && takes(*offer, agent) && std::ranges::all_of(needed, [&](const auto& one) {
             return std::ranges::find(offer->offers, one) != offer->offers.end();
           });
  });
}

}  // namespace

std::optional<WorkerOffer> worker_offer(std::string_view says) {
  const auto json = parse_json(says);
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

bool takes(const WorkerOffer& offer, const std::string& agent) {
  return offer.agents.empty() || std::ranges::find(offer.agents, agent) != offer.agents.end();
}

Versions::Versions(store::Store& store, Tell tell) : store_(store), tell_(std::move(tell)) {}

// ---------------------------------------------------------------- what others offer

void Versions::offered(const store::JobRow& row, const std::string& version,
                       async::Done<Result<bool>> done) {
  std::vector<std::string> needed = row.capabilities;
  needed.push_back(version_capability(row.agent, version));
  store_.census([this, alive = std::weak_ptr(alive_), job = row.id, agent = row.agent,
                 needed = std::move(needed),
                 done = std::move(done)](Result<store::Census> census) mutable {
    if (!alive.lock()) return;
    if (!census) return done(std::unexpected(census.error()));
    const bool elsewhere = offers(*census, agent, needed);
    if (elsewhere) left_.insert_or_assign(job, Left{agent, needed, store_.now()});
    done(elsewhere);
  });
}

void Versions::look_again(std::function<void(const std::vector<JobId>&)> then) {
  if (left_.empty()) return;
  store_.census(
      [this, alive = std::weak_ptr(alive_), then = std::move(then)](Result<store::Census> census) {
        if (!alive.lock() || !census) return;
        std::vector<JobId> jobs;
        const Instant now = store_.now();
        std::erase_if(left_, [&](const auto& entry) {
          const auto& [job, left] = entry;
          if (now < left.since + kLeftFor && offers(*census, left.agent, left.needed)) return false;
          jobs.push_back(job);
          return true;
        });
        if (!jobs.empty()) then(jobs);
      });
}

// ---------------------------------------------------------------- the sweep

struct Versions::Walk {
  std::vector<std::string> agents;  // still to be looked at, the last one now
  store::Filter filter;
  std::deque<store::JobRow> rows;
  bool last_page = false;
  std::map<JobId, std::uint64_t> seen;
};

void Versions::changed() {
  seen_.clear();
  changed_ = true;
}

void Versions::sweep(std::vector<std::string> agents) {
  if (agents.empty() || std::exchange(sweeping_, true)) return;
  changed_ = false;
  auto walk = std::make_shared<Walk>();
  walk->agents = std::move(agents);
  walk->filter.status = "parked";
  walk->filter.limit = kVersionsPage;
  next_page(std::move(walk));
}

void Versions::next_page(std::shared_ptr<Walk> walk) {
  if (walk->last_page) {
    walk->agents.pop_back();
    walk->filter.after.clear();
    walk->filter.after_number.reset();
    walk->last_page = false;
  }
  if (walk->agents.empty()) {
    sweeping_ = false;
    // What this walk passed by was offered the versions of before.
    if (!changed_) seen_ = std::move(walk->seen);
    return;
  }
  walk->filter.agent = walk->agents.back();
  store_.query(walk->filter, [this, alive = std::weak_ptr(alive_),
                              walk](Result<std::vector<store::JobRow>> rows) {
    if (!alive.lock()) return;
    if (!rows) {  // the next sweep begins again
      sweeping_ = false;
      return;
    }
    walk->last_page = rows->size() < kVersionsPage;
    if (!rows->empty()) {
      walk->filter.after = rows->back().id.text;
      walk->filter.after_number = rows->back().number;
    }
    walk->rows.assign(rows->begin(), rows->end());
    next_job(walk);
  });
}

void Versions::next_job(std::shared_ptr<Walk> walk) {
  while (!walk->rows.empty()) {
    const store::JobRow row = std::move(walk->rows.front());
    walk->rows.pop_front();
    const auto known = seen_.find(row.id);
    const bool looked_at = known != seen_.end() && known->second == row.last_seq;
    const auto mark = [walk, job = row.id, seq = row.last_seq] {
      if (walk->seen.size() < kSeenMax) walk->seen.insert_or_assign(job, seq);
    };
    if (looked_at) {
      mark();
      continue;
    }
    return tell_(row, [this, alive = std::weak_ptr(alive_), walk, mark](Result<bool> told) {
      if (!alive.lock()) return;
      if (told) mark();
      next_job(walk);
    });
  }
  next_page(std::move(walk));
}

}  // namespace ae::runtime
