#include "store/postgres/connection.h"

#include <libpq-fe.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <utility>

#include "base/error.h"

namespace ae::store::postgres {
namespace {

constexpr int kBinary = 1;

// libpq's messages end with a line break and repeat themselves in several lines.
std::string one_line(std::string_view text) {
  std::string group;
  for (const char c : text) {
    const bool gap = c == '\n' || c == '\t' || c == ' ';
    if (!gap) group += c;
    if (gap && !group.empty() && group.back() != ' ') group += ' ';
  }
  if (group.ends_with(' ')) group.pop_back();
  return group;
}

struct Raw {  // parameters in libpq's form
  std::vector<const char*> values;
  std::vector<int> lengths, formats;
};

Raw raw_of(const std::vector<std::optional<std::string>>& params) {
  Raw r;
  for (const auto& param : params) {
    r.values.push_back(param ? param->data() : nullptr);
    r.lengths.push_back(param ? static_cast<int>(param->size()) : 0);
    r.formats.push_back(kBinary);
  }
  return r;
}

std::string_view error_field(const PGresult* result, int which) {
  const char* text = PQresultErrorField(result, which);
  return text == nullptr ? std::string_view() : std::string_view(text);
}

}  // namespace

void Connection::ConnectionDeleter::operator()(pg_conn* connection) const { PQfinish(connection); }

bool is_connection_string(const std::string& url) {
  PQconninfoOption* const options = PQconninfoParse(url.c_str(), nullptr);
  PQconninfoFree(options);
  return options != nullptr;
}

Pg<Connection> Connection::open(const Options& options) {
  const std::string seconds =
      std::to_string(std::max<std::int64_t>(2, options.connect_timeout.count() / 1000));
  const std::string silence = std::to_string(options.response_timeout.count());
  // `dbname` holds the connection string: its settings override the names before it, and are
  // overridden by those after it.
  const char* const names[] = {"connect_timeout",  "keepalives_idle",  "keepalives_interval",
                               "keepalives_count", "tcp_user_timeout", "fallback_application_name",
                               "dbname",           "client_encoding",  nullptr};
  const char* const values[] = {
      seconds.c_str(),     "5",    "2",    "3", silence.c_str(), "aetheris",
      options.url.c_str(), "UTF8", nullptr};
  Connection connection(PQconnectdbParams(names, values, 1), options.response_timeout);
  pg_conn* raw_connection = connection.connection_.get();
  AE_CHECK(raw_connection != nullptr, "out of memory");
  if (PQstatus(raw_connection) != CONNECTION_OK) {
    return std::unexpected(connection.last_error(true));
  }
  PQsetNoticeReceiver(raw_connection, note, connection.last_warning_.get());
  AE_CHECK(PQsetnonblocking(raw_connection, 1) == 0);
  AE_CHECK(PQenterPipelineMode(raw_connection) == 1);
  return connection;
}

void Connection::note(void* warning, const PGresult* notice) {
  if (error_field(notice, PG_DIAG_SEVERITY_NONLOCALIZED) != "WARNING") return;
  *static_cast<std::optional<std::string>*>(warning) =
      one_line(error_field(notice, PG_DIAG_MESSAGE_PRIMARY));
}

bool Connection::lost() const {
  return connection_ == nullptr || PQstatus(connection_.get()) != CONNECTION_OK;
}
bool Connection::is_closed_by_server() const {
  pollfd state{.fd = socket(), .events = POLLRDHUP, .revents = 0};
  return ::poll(&state, 1, 0) != 0;
}
int Connection::socket() const { return PQsocket(connection_.get()); }
int Connection::server_version() const { return PQserverVersion(connection_.get()); }
int Connection::backend_pid() const { return PQbackendPID(connection_.get()); }

PgError Connection::last_error(bool connection_lost) const {
  return {.sqlstate = {},
          .message = one_line(PQerrorMessage(connection_.get())),
          .connection_lost = connection_lost};
}

void Connection::on_send_failed() {
  if (!send_error_) send_error_ = last_error(true);
}

void Connection::add(const Statement& statement, const Params& params) {
  pg_conn* const connection = connection_.get();
  if (!prepared_.contains(&statement) && preparing_.insert(&statement).second) {
    if (PQsendPrepare(connection, statement.name, statement.sql, 0, nullptr) != 1) {
      return on_send_failed();
    }
    pending_.push_back({.prepares = &statement});
  }
  const Raw r = raw_of(params.values_);
  if (PQsendQueryPrepared(connection, statement.name, static_cast<int>(r.values.size()),
                          r.values.data(), r.lengths.data(), r.formats.data(), kBinary) != 1) {
    return on_send_failed();
  }
  track_transaction(statement.sql);
}

void Connection::add_unprepared(const std::string& sql, const Params& params) {
  const Raw r = raw_of(params.values_);
  if (PQsendQueryParams(connection_.get(), sql.c_str(), static_cast<int>(r.values.size()), nullptr,
                        r.values.data(), r.lengths.data(), r.formats.data(), kBinary) != 1) {
    return on_send_failed();
  }
  track_transaction(sql);
}

void Connection::track_transaction(std::string_view sql) {
  const bool commits = sql == "COMMIT", ends = commits || sql == "ROLLBACK";
  if (sql.starts_with("BEGIN")) {
    is_in_transaction_ = true;
  } else if (ends) {
    is_in_transaction_ = false;
  } else if (!is_in_transaction_) {
    is_autocommit_ = true;
  }
  if (commits && !commit_) commit_ = pending_.size();
  pending_.push_back({});
}

// Waits until a result can be read without blocking.
std::optional<PgError> Connection::wait() {
  pg_conn* const connection = connection_.get();
  auto until = std::chrono::steady_clock::now() + response_timeout_;
  bool sending = true;
  for (;;) {
    if (sending) {
      const int left = PQflush(connection);
      if (left < 0) return last_error(true);
      sending = left > 0;
    }
    if (PQisBusy(connection) == 0) return std::nullopt;
    const auto time = std::chrono::duration_cast<std::chrono::milliseconds>(
        until - std::chrono::steady_clock::now());
    if (time.count() <= 0)
      return PgError{.sqlstate = {}, .message = "no answer came in time", .connection_lost = true};
    pollfd poll_request{.fd = socket(),
                        .events = static_cast<short>(sending ? POLLIN | POLLOUT : POLLIN),
                        .revents = 0};
    const int ready = ::poll(&poll_request, 1, static_cast<int>(time.count()) + 1);
    if (ready < 0 && errno != EINTR) {
      return PgError{.sqlstate = {}, .message = std::strerror(errno), .connection_lost = true};
    }
    if (ready > 0 && (poll_request.revents & ~POLLOUT) != 0 && PQconsumeInput(connection) != 1) {
      return last_error(true);
    }
    if (ready > 0) until = std::chrono::steady_clock::now() + response_timeout_;
  }
}

std::optional<PgError> Connection::collect(std::vector<Rows>& answers) {
  pg_conn* const connection = connection_.get();
  std::optional<PgError> first;
  std::size_t at = 0;  // in pending_
  std::size_t completed = 0;
  // Statements outside a transaction are committed at the end of the round trip, after all results.
  const bool commits = commit_ || is_autocommit_;
  const std::size_t commit = commit_.value_or(pending_.size());
  // Results arrive in order: an error before the COMMIT means that it was not executed.
  const auto lose = [&](PgError error) {
    error.connection_lost = true;
    error.failed_statement = completed;
    error.may_be_committed = commits && (error.sqlstate.empty() || at >= commit);
    return error;
  };
  for (;;) {
    if (auto failed = wait()) return first ? first : lose(*std::move(failed));
    pg_result* const result = PQgetResult(connection);
    // A warning arrives before the result of its statement.
    if (*last_warning_ && commits && at >= commit && !first) {
      PQclear(result);
      return lose({.sqlstate = {}, .message = **last_warning_});
    }
    if (result == nullptr) {  // end of one statement's results
      if (lost()) return first ? *first : lose(last_error(true));
      if (at >= pending_.size()) continue;
      if (pending_[at].prepares == nullptr) ++completed;
      ++at;
      // The warning of a commit without COMMIT may already be here.
      if (at < pending_.size()) last_warning_->reset();
      continue;
    }
    Rows rows(result);
    switch (PQresultStatus(result)) {
      case PGRES_PIPELINE_SYNC:
        return first;
      case PGRES_TUPLES_OK:
      case PGRES_COMMAND_OK:
        if (const Statement* statement = pending_[at].prepares) {
          prepared_.insert(statement);
        } else {
          answers.push_back(std::move(rows));
        }
        break;
      case PGRES_PIPELINE_ABORTED:
        break;
      default: {
        const std::string_view severity = error_field(result, PG_DIAG_SEVERITY_NONLOCALIZED);
        const std::string_view primary = error_field(result, PG_DIAG_MESSAGE_PRIMARY);
        PgError error{.sqlstate = std::string(error_field(result, PG_DIAG_SQLSTATE)),
                      .message = one_line(primary.empty() ? PQresultErrorMessage(result) : primary),
                      .failed_statement = completed};
        const bool ends = severity == "FATAL" || severity == "PANIC" || lost();
        if (ends) error = lose(std::move(error));
        if (!first) first = error;
        if (ends) return first;
      }
    }
  }
}

PgError Connection::roll_back(PgError error) {
  if (error.connection_lost) return error;
  add_unprepared("ROLLBACK");
  if (!run()) error.connection_lost = true;
  return error;
}

Pg<std::vector<Rows>> Connection::run() {
  std::vector<Rows> answers;
  last_warning_->reset();
  std::optional<PgError> error = std::exchange(send_error_, std::nullopt);
  if (!error && PQpipelineSync(connection_.get()) != 1) error = last_error(true);
  if (error) {
    error->may_be_committed = commit_.has_value();  // it may have been sent before the failure
  } else {
    error = collect(answers);
  }
  pending_.clear();
  preparing_.clear();
  is_autocommit_ = false;
  commit_.reset();
  if (!error) return answers;
  if (error->connection_lost) connection_.reset();
  return std::unexpected(*std::move(error));
}

bool Connection::drain_notifications(
    const std::function<void(std::string_view payload, int backend_pid)>& on_notification) {
  pg_conn* const connection = connection_.get();
  if (PQconsumeInput(connection) != 1) return false;
  while (PGnotify* note = PQnotifies(connection)) {
    on_notification(note->extra, note->be_pid);
    PQfreemem(note);
  }
  return !lost();
}

}  // namespace ae::store::postgres
