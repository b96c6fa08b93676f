#include "store/postgres/session.h"

#include <algorithm>

namespace ae::store::postgres {

Result<Connection> Session::open(const Options& options) {
  auto opened = Connection::open(options.connection);
  if (!opened) return std::unexpected(cannot(opened.error()));
  AE_TRY(prepare_session(*opened, options.wish));
  if (!options.store_id.empty()) {
    AE_ASSIGN(const std::string id, store_id(*opened));
    if (id != options.store_id) {
      return fail(Code::unavailable,
                  "another store stands at this address now: this process works on " +
                      options.store_id + ", and found " + id);
    }
  }
  return *std::move(opened);
}

Result<Connection*> Session::connection() {
  if (is_open() && !connection_->hung_up()) return &*connection_;
  connection_.reset();
  const auto now = std::chrono::steady_clock::now();
  if (why_ && now < not_before_) return std::unexpected(*why_);
  auto opened = open(options_);
  if (opened) {
    connection_ = *std::move(opened);
    pause_ = {};
    why_.reset();
    ++reopened_;
    return &*connection_;
  }
  why_ = std::move(opened).error();
  why_->code = Code::unavailable;  // whatever it is, nothing has changed, and it may pass
  pause_ = std::clamp(pause_ * 2, options_.pause_min, options_.pause_max);
  not_before_ = std::chrono::steady_clock::now() + pause_;
  return std::unexpected(*why_);
}

}  // namespace ae::store::postgres
