#include "store/postgres/place.h"

#include <sstream>

#include "store/postgres/schema.h"

namespace ae::store::postgres {
namespace {

constexpr const char* kUnknown = "-";
// None of them is prepared: the first look comes before a pooler is found out.
constexpr const char* kHere =
    "SELECT has_function_privilege('pg_catalog.pg_control_system()', 'EXECUTE')::text, "
    "(SELECT oid::text FROM pg_catalog.pg_database WHERE datname = current_database()), "
    "('meta'::regclass)::oid::text";
constexpr const char* kCluster =
    "SELECT system_identifier::text FROM pg_catalog.pg_control_system()";
constexpr const char* kRemembered = "SELECT value FROM meta WHERE key = 'place'";
constexpr const char* kRemember =
    "INSERT INTO meta(key, value) VALUES('place', $1::text) ON CONFLICT DO NOTHING";
constexpr const char* kPut =
    "INSERT INTO meta(key, value) VALUES('place', $1::text) "
    "ON CONFLICT (key) DO UPDATE SET value = excluded.value";

struct Words {
  std::string cluster, database, table;
};

Words words_of(const std::string& place) {
  std::istringstream in(place);
  Words words;
  in >> words.cluster >> words.database >> words.table;
  return words;
}

bool differ(const std::string& one, const std::string& other) {
  return one != other && one != kUnknown && other != kUnknown;
}

}  // namespace

Result<std::string> place_of(Connection& connection) {
  connection.add_once(kHere);
  auto here = connection.run();
  if (!here) return std::unexpected(cannot(here.error()));
  const Rows& row = here->back();
  std::string cluster = kUnknown;
  if (row.text(0, 0) == "true") {
    connection.add_once(kCluster);
    auto told = connection.run();
    if (!told) return std::unexpected(cannot(told.error()));
    cluster = told->back().text(0, 0);
  }
  return cluster + " " + row.text(0, 1) + " " + row.text(0, 2);
}

Result<std::optional<std::string>> moved(Connection& connection) {
  connection.add_once(kRemembered);
  auto found = connection.run();
  if (!found) return std::unexpected(cannot(found.error()));
  if (found->back().empty()) return std::nullopt;
  const Words was = words_of(found->back().text(0, 0));
  AE_ASSIGN(const std::string place, place_of(connection));
  const Words is = words_of(place);
  const char* what = differ(was.cluster, is.cluster)     ? "cluster"
                     : differ(was.database, is.database) ? "database"
                     : differ(was.table, is.table)       ? "set of tables"
                                                         : nullptr;
  if (what == nullptr) return std::nullopt;
  return "it was written in another " + std::string(what) + " than this one";
}

Error not_accepted(const std::string& how) {
  return {Code::store_rolled_back, "this store is a copy, as of a dump that was restored: " + how +
                                       ". Later work would be repeated: check its jobs, then "
                                       "`aetheris doctor --accept-rollback` parks unfinished ones "
                                       "(planned move: add --nothing-lost to continue)"};
}

Status remember_place(Connection& connection) {
  connection.add_once(kRemembered);
  auto found = connection.run();
  if (!found) return std::unexpected(cannot(found.error()));
  if (!found->back().empty()) return {};
  AE_ASSIGN(const std::string place, place_of(connection));
  connection.add_once(kRemember, Params().add(place));
  if (auto done = connection.run(); !done) return std::unexpected(cannot(done.error()));
  return {};
}

void put_place(Connection& connection, const std::string& place) {
  connection.add_once(kPut, Params().add(place));
}

}  // namespace ae::store::postgres
