#include "store/memory/memory_store.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "store/memory/memory_disk.h"

namespace ae::store {

MemoryStore::MemoryStore(async::Loop& loop, async::Clock& clock, MemoryDisk& disk, Options options)
    : loop_(loop),
      clock_(clock),
      data_(*disk.data_),
      options_(std::move(options)),
      opened_at_(options_.owned ? std::optional(clock.now()) : std::nullopt) {
  if (options_.fair_by) data_.set_fairness_label(*options_.fair_by);
  if (!options_.owned) return;
  for (auto& [number, job] : data_.jobs) {
    if (!job.row.claim) continue;
    data_.remove_from_indexes(job);
    job.row.lease_until = Instant{0};
    data_.add_to_indexes(job);
  }
}
MemoryStore::MemoryStore(async::Loop& loop, async::Clock& clock, MemoryDisk& disk)
    : MemoryStore(loop, clock, disk, Options{}) {}
MemoryStore::MemoryStore(async::Loop& loop, async::Clock& clock)
    : loop_(loop),
      clock_(clock),
      own_disk_(std::make_unique<MemoryDisk>()),
      data_(*own_disk_->data_),
      options_{},
      opened_at_(clock.now()) {}
MemoryStore::~MemoryStore() = default;

void MemoryStore::announce(std::string worker, std::string announcement, Duration ttl) {
  if (options_.owned) return;
  data_.announcements.insert_or_assign(
      std::move(worker), Data::Announcement{std::move(announcement), clock_.now() + ttl});
}

Instant MemoryStore::now() { return clock_.now(); }
bool MemoryStore::owned() const { return options_.owned; }

}  // namespace ae::store
