// Session: a connection that comes back. It opens when it is first needed, and after a loss again, with a growing pause
// between tries (and chance in it, so that many do not come back at once); until then everybody hears why.
//
// Every new connection is looked at as the first one was: a primary, the settings, that it is the same store, and that it
// has not lost what this process wrote.
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
    std::string store_id;  // "" = whichever it is
    // Asked on every connection and now and then. Shared by the sessions of a store; none of who only reads.
    std::shared_ptr<RollbackGuard> rollback_guard = {};
    // Statements are planned for the tables as they are, and those of a new store grow fast: planned anew this often.
    std::chrono::milliseconds plan_max_age{5000};
    std::chrono::milliseconds pause_min{50}, pause_max{1000};
  };
  explicit Session(Options options) : options_(std::move(options)) {}
  // With a connection that is open already.
  Session(Options options, Connection connection)
      : options_(std::move(options)), connection_(std::move(connection)) {}

  // Until the next call. Fails with unavailable (nothing was sent) · store_stopped (for good).
  Result<Connection*> connection();
  bool is_open() const { return connection_ && !connection_->lost(); }
  int socket() const { return connection_->socket(); }  // REQUIRES: is_open
  void disconnect() { connection_.reset(); }
  RollbackGuard* rollback_guard() { return options_.rollback_guard.get(); }
  // How often it was opened anew.
  std::uint64_t reconnects() const { return reconnects_; }

  static Result<Connection> open(const Options& options);
  // The first one, before anything is done with it: also fails with unsupported, as check_pooler.
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
