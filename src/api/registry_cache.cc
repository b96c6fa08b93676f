// Reads new entries of the audit log, once for all callers.
#include "api/registry_cache.h"

#include <utility>

namespace ae::api {

std::optional<Duration> RegistryCache::age() const {
  if (!read_at_) return std::nullopt;
  return steady_.since_start() - *read_at_;
}

void RegistryCache::refresh_if_older(Duration age, Then then) {
  const Duration now = steady_.since_start();
  // A read that started at this instant may have started before the caller's own write.
  if (read_at_ && age.count() > 0 && now - *read_at_ <= age) return then({});
  const bool shares = reading_ && age.count() > 0 && now - *reading_ <= age;
  (shares ? waiting_ : waiting_for_next_).push_back(std::move(then));
  if (!reading_) read();
}

std::shared_ptr<const store::Registry> RegistryCache::copy() {
  if (!copy_ || copy_->seq() != registry_.seq()) {
    copy_ = std::make_shared<const store::Registry>(registry_);
  }
  return copy_;
}

void RegistryCache::read() {
  waiting_ = std::exchange(waiting_for_next_, {});
  const Duration began = steady_.since_start();
  reading_ = began;
  store_.read_audit_log(registry_.seq(),
                        [this, alive = alive_.watch(), began](Result<store::AuditLog> log) {
                          if (alive) on_log_read(began, std::move(log));
                        });
}

void RegistryCache::on_log_read(Duration began, Result<store::AuditLog> log) {
  reading_.reset();
  if (log && log->head.seq < registry_.seq()) {
    // The store was rolled back: newer entries are gone, so everything is read again.
    registry_ = {};
    read_at_.reset();
    waiting_for_next_.insert(waiting_for_next_.begin(), std::make_move_iterator(waiting_.begin()),
                             std::make_move_iterator(waiting_.end()));
    waiting_.clear();
    return read();
  }
  if (log) {
    const std::uint64_t before = registry_.seq();
    for (const store::AuditRow& row : log->rows) {
      if (auto warning = registry_.apply(row); warning && warn_) warn_(*warning);
    }
    read_at_ = began;
    if (registry_.seq() > before && changed_) changed_();
  }
  const Status status = log ? Status() : Status(std::unexpected(log.error()));
  for (Then& then : std::exchange(waiting_, {})) then(status);
  if (!waiting_for_next_.empty() && !reading_) read();
}

}  // namespace ae::api
