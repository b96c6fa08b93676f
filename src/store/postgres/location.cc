#include "store/postgres/location.h"

#include <fmt/core.h>

#include <sstream>

#include "store/postgres/schema.h"

namespace ae::store::postgres {
namespace {

constexpr const char* kUnknownId = "-";
// Not prepared: the first query runs before a pooler is detected.
constexpr const char* kReadLocation =
    "SELECT has_function_privilege('pg_catalog.pg_control_system()', 'EXECUTE')::text, "
    "(SELECT oid::text FROM pg_catalog.pg_database WHERE datname = current_database()), "
    "('meta'::regclass)::oid::text";
constexpr const char* kReadCluster =
    "SELECT system_identifier::text FROM pg_catalog.pg_control_system()";
constexpr const char* kReadSavedLocation = "SELECT value FROM meta WHERE key = 'place'";
constexpr const char* kSaveLocation =
    "INSERT INTO meta(key, value) VALUES('place', $1::text) ON CONFLICT DO NOTHING";
constexpr const char* kPutLocation =
    "INSERT INTO meta(key, value) VALUES('place', $1::text) "
    "ON CONFLICT (key) DO UPDATE SET value = excluded.value";

struct LocationIds {
  std::string cluster, database, table;
};

LocationIds parse_location(const std::string& location) {
  std::istringstream in(location);
  LocationIds ids;
  in >> ids.cluster >> ids.database >> ids.table;
  return ids;
}

bool differ(const std::string& one, const std::string& other) {
  return one != other && one != kUnknownId && other != kUnknownId;
}

}  // namespace

Result<std::string> read_location(Connection& connection) {
  connection.add_unprepared(kReadLocation);
  auto done = connection.run();
  if (!done) return std::unexpected(unavailable_error(done.error()));
  const Rows& row = done->back();
  std::string cluster = kUnknownId;
  if (row.text(0, 0) == "true") {
    connection.add_unprepared(kReadCluster);
    auto cluster_row = connection.run();
    if (!cluster_row) return std::unexpected(unavailable_error(cluster_row.error()));
    cluster = cluster_row->back().text(0, 0);
  }
  return fmt::format("{} {} {}", cluster, row.text(0, 1), row.text(0, 2));
}

Result<std::optional<std::string>> find_move(Connection& connection) {
  connection.add_unprepared(kReadSavedLocation);
  auto found = connection.run();
  if (!found) return std::unexpected(unavailable_error(found.error()));
  if (found->back().empty()) return std::nullopt;
  const LocationIds was = parse_location(found->back().text(0, 0));
  AE_ASSIGN(const std::string location, read_location(connection));
  const LocationIds is = parse_location(location);
  const char* what = differ(was.cluster, is.cluster)     ? "cluster"
                     : differ(was.database, is.database) ? "database"
                     : differ(was.table, is.table)       ? "set of tables"
                                                         : nullptr;
  if (what == nullptr) return std::nullopt;
  return fmt::format("it was written in another {} than this one", what);
}

Error move_not_accepted(const std::string& how) {
  return {Code::store_rolled_back,
          fmt::format("this store is a copy, as of a dump that was restored: {}. Later work would "
                      "be repeated: check its jobs (after a planned move, --nothing-lost lets them "
                      "continue)",
                      how),
          Action{.act = act::kAcceptRollback}};
}

Status save_location(Connection& connection) {
  connection.add_unprepared(kReadSavedLocation);
  auto found = connection.run();
  if (!found) return std::unexpected(unavailable_error(found.error()));
  if (!found->back().empty()) return {};
  AE_ASSIGN(const std::string location, read_location(connection));
  connection.add_unprepared(kSaveLocation, Params().add(location));
  if (auto done = connection.run(); !done) return std::unexpected(unavailable_error(done.error()));
  return {};
}

void add_put_location(Connection& connection, const std::string& location) {
  connection.add_unprepared(kPutLocation, Params().add(location));
}

}  // namespace ae::store::postgres
