#include "store/postgres/pg_error.h"

#include <fmt/core.h>

namespace ae::store::postgres {

bool PgError::is_transient() const {
  return sqlstate == "40001" || sqlstate == "40P01" || sqlstate == "23505";
}

std::string PgError::text() const {
  if (sqlstate == "53100") return "PostgreSQL's disk is full: free some space there";
  if (sqlstate == "25006") {
    return "PostgreSQL takes no writes (it is read-only): use the primary server";
  }
  if (sqlstate == "55P03") {
    return fmt::format("another session held a lock in PostgreSQL longer than the timeout: {}",
                       message);
  }
  if (sqlstate.empty()) return fmt::format("PostgreSQL: {}", message);
  return fmt::format("PostgreSQL: {} ({})", message, sqlstate);
}

}  // namespace ae::store::postgres
