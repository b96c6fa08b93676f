#include "store/postgres/session.h"

#include <algorithm>

namespace ae::store::postgres {
Result<Connection> Session::open(const Options& options) {
  auto opened = Connection::open(options.connection);
  if (!opened) return std::unexpected(unavailable_error(opened.error()));
  AE_TRY(prepare_session(*opened, options.params));
  if (!options.store_id.empty()) {
    AE_ASSIGN(const std::string id, store_id(*opened));
    if (id != options.store_id) {
      return fail(Code::unavailable,
                  "another store is at this address now: this process uses {}, and found {}",
                  options.store_id, id);
    }
  }
  if (options.rollback_guard) AE_TRY(options.rollback_guard->check(*opened));
  return *std::move(opened);
}

Result<Connection> Session::open_first(const Options& options) {
  AE_ASSIGN(Connection first, open(options));
  AE_ASSIGN(Connection other, open(options));
  AE_TRY(check_pooler(first, other));
  return first;
}

Result<Connection*> Session::connection() {
  const auto now = std::chrono::steady_clock::now();
  if (is_open() && !connection_->is_closed_by_server()) {
    if (now - planned_at_ < options_.plan_max_age) return &*connection_;
    planned_at_ = now;
    connection_->add_unprepared("DISCARD PLANS");
    if (connection_->run()) {
      const Status check =
          options_.rollback_guard ? options_.rollback_guard->check(*connection_) : Status();
      if (check) return &*connection_;
      planned_at_ = {};  // check again before it is used
      if (!connection_->lost()) return std::unexpected(check.error());
    }
  }
  connection_.reset();
  if (open_error_ && now < not_before_) return std::unexpected(*open_error_);
  auto opened = open(options_);
  if (opened) {
    connection_ = *std::move(opened);
    pause_ = {};
    open_error_.reset();
    ++reconnects_;
    return &*connection_;
  }
  open_error_ = std::move(opened).error();
  // Nothing has changed, whatever the error, and it may be temporary.
  if (open_error_->code != Code::store_stopped) open_error_->code = Code::unavailable;
  pause_ = std::clamp(pause_ * 2, options_.pause_min, options_.pause_max);
  const auto failed_at = std::chrono::steady_clock::now();
  const auto jitter = failed_at.time_since_epoch().count() / 1000 % 512;  // of 1,024ths
  not_before_ = failed_at + pause_ - pause_ * jitter / 1024;
  return std::unexpected(*open_error_);
}

}  // namespace ae::store::postgres
