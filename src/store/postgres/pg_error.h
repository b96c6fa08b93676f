// PgError: an error of PostgreSQL or of the connection to it, as a value.
//
// Threads: a value.
#pragma once

#include <cstddef>
#include <expected>
#include <string>

namespace ae::store::postgres {

struct PgError {
  std::string sqlstate;  // "" if the server sent none
  std::string message;
  bool connection_lost = false;      // the connection is gone, or must not be used again
  std::size_t failed_statement = 0;  // index of the added statement that failed, from 0
  // The connection was lost during a COMMIT: its outcome is unknown.
  bool may_be_committed = false;

  // The whole transaction can be retried: a deadlock, a serialization failure, or a row that was
  // inserted meanwhile.
  bool is_transient() const;
  std::string text() const;  // a readable sentence
};

template <class T>
using Pg = std::expected<T, PgError>;

}  // namespace ae::store::postgres
