// Session: a connection that reopens itself. It opens at first use, and again after a loss, with a
// growing delay between tries (and jitter, so that many processes do not reconnect at once). Until
// then every call fails with the last error.
//
// Every new connection is checked like the first one: a primary, the settings, the same store, and
// no lost writes of this process.
// Threads: one at a time.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "base/error.h"
#include "store/postgres/connection.h"
#include "store/postgres/rollback_guard.h"
#include "store/postgres/schema.h"

namespace ae::store::postgres {

class Session {
 public:
  struct Options {
    Connection::Options connection;
    SessionParams params;
    std::string store_id;  // "" = any
    // Checked on every new connection and periodically. Shared by the sessions of a store; none for
    // readers.
    std::shared_ptr<RollbackGuard> rollback_guard = {};
    // Query plans depend on table sizes, and new stores grow fast: statements are planned again at
    // this interval.
    std::chrono::milliseconds plan_max_age{5000};
    std::chrono::milliseconds pause_min{50}, pause_max{1000};
  };
  explicit Session(Options options) : options_(std::move(options)) {}
  // With a connection that is already open.
  Session(Options options, Connection connection)
      : options_(std::move(options)), connection_(std::move(connection)) {}

  // Valid until the next call. Fails with unavailable (nothing was sent) · store_stopped
  // (permanently).
  Result<Connection*> connection();
  bool is_open() const { return connection_ && !connection_->lost(); }
  int socket() const { return connection_->socket(); }  // REQUIRES: is_open
  void disconnect() { connection_.reset(); }
  RollbackGuard* rollback_guard() { return options_.rollback_guard.get(); }
  // How often it was opened.
  std::uint64_t reconnects() const { return reconnects_; }

  static Result<Connection> open(const Options& options);
  // The first connection of a store; also fails as check_pooler.
  static Result<Connection> open_first(const Options& options);

 private:
  Options options_;
  std::optional<Connection> connection_;
  std::chrono::steady_clock::time_point not_before_{}, planned_at_{};
  std::chrono::milliseconds pause_{};
  std::optional<Error> open_error_;
  std::uint64_t reconnects_ = 0;
};

}  // namespace ae::store::postgres
