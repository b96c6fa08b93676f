#include "store/postgres/server_info.h"

#include <chrono>

#include "store/postgres/schema.h"
#include "store/postgres/session.h"
#include "store/postgres/statements.h"

namespace ae::store {
namespace {

constexpr const char* kFacts =
    "SELECT current_setting('synchronous_standby_names') <> '', "
    "current_setting('full_page_writes') = 'on', current_setting('autovacuum') = 'on', "
    "current_setting('max_connections')::bigint - "
    "current_setting('superuser_reserved_connections')::bigint, "
    "(SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' "
    "AND pid <> pg_backend_pid())";

Instant wall_clock() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return {std::chrono::duration_cast<std::chrono::microseconds>(now).count()};
}

}  // namespace

Result<PostgresServerInfo> read_server_info(const std::string& url) {
  AE_ASSIGN(
      postgres::Connection connection,
      postgres::Session::open({.connection = {.url = url}, .params = {.schema = "aetheris"}}));
  connection.add_unprepared(kFacts);
  const auto answers = connection.run();
  if (!answers) return std::unexpected(postgres::unavailable_error(answers.error()));
  const postgres::Rows& row = answers->at(0);
  PostgresServerInfo info{.synchronous_standby = row.boolean(0, 0),
                          .full_page_writes = row.boolean(0, 1),
                          .autovacuum = row.boolean(0, 2),
                          .connections_max = row.integer(0, 3),
                          .connections_used = row.integer(0, 4)};
  const Instant sent_at = wall_clock();
  connection.add_unprepared(postgres::kServerTime.sql);
  const auto time = connection.run();
  if (!time) return std::unexpected(postgres::unavailable_error(time.error()));
  const Instant received = wall_clock();
  info.clock_error = (received - sent_at) / 2;
  info.clock_ahead = time->at(0).instant(0, 0) - (sent_at + info.clock_error);
  return info;
}

}  // namespace ae::store
