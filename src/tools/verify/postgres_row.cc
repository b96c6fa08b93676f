// A row of a PostgreSQL database: the first column of the first row that a query gives.
//
// A connection of its own and a transaction that only reads for each look; the server stops a query that takes too
// long, and a network that says nothing is given up.
#include <libpq-fe.h>

#include <memory>
#include <vector>

#include "json/json.h"
#include "tools/verify/local_verifiers.h"

namespace ae::tools {
namespace {

struct Finish {
  void operator()(PGconn* connection) const { PQfinish(connection); }
};
struct Clear {
  void operator()(PGresult* result) const { PQclear(result); }
};
struct FreeOptions {
  void operator()(PQconninfoOption* options) const { PQconninfoFree(options); }
};

// The server's message, without the line's end.
Observation query_failure(PGconn* connection) {
  std::string_view why = PQerrorMessage(connection);
  while (!why.empty() && (why.back() == '\n' || why.back() == ' ')) why.remove_suffix(1);
  return failed_observation(why);
}

}  // namespace

bool is_postgres_address(std::string_view store) {
  return store.starts_with("postgres://") || store.starts_with("postgresql://");
}

Observation read_postgres_row(const std::string& address, const std::string& query,
                              const Value& params) {
  // What libpq says of an address that it cannot read repeats parts of it.
  const std::unique_ptr<PQconninfoOption, FreeOptions> readable(
      PQconninfoParse(address.c_str(), nullptr));
  if (!readable) return failed_observation("`store` is not the address of a PostgreSQL database");
  // Those that come later count more; `dbname` is the address.
  constexpr const char* kNames[] = {"dbname", "connect_timeout", "tcp_user_timeout",
                                    "client_encoding", nullptr};
  const char* const values[] = {address.c_str(), "5", "15000", "UTF8", nullptr};
  const std::unique_ptr<PGconn, Finish> connection(PQconnectdbParams(kNames, values, 1));
  if (PQstatus(connection.get()) != CONNECTION_OK) {
    return query_failure(connection.get());
  }
  for (const char* first : {"SET statement_timeout = '10s'", "BEGIN READ ONLY"}) {
    const std::unique_ptr<PGresult, Clear> done(PQexec(connection.get(), first));
    if (PQresultStatus(done.get()) != PGRES_COMMAND_OK) {
      return query_failure(connection.get());
    }
  }
  std::vector<std::string> texts;
  texts.reserve(params.size());
  for (const Value& value : params.items()) {
    texts.push_back(value.is_string() ? value.as_string() : canonical(value));
    if (texts.back().find('\0') != std::string::npos)
      return failed_observation("a parameter holds a NUL");
  }
  std::vector<const char*> given;
  given.reserve(texts.size());
  for (std::size_t i = 0; i < texts.size(); ++i) {
    given.push_back(params.items()[i].is_null() ? nullptr : texts[i].c_str());
  }
  // One statement: this protocol takes no second one.
  const std::unique_ptr<PGresult, Clear> rows(PQexecParams(connection.get(), query.c_str(),
                                                           static_cast<int>(given.size()), nullptr,
                                                           given.data(), nullptr, nullptr, 0));
  if (PQresultStatus(rows.get()) != PGRES_TUPLES_OK) {
    if (PQresultStatus(rows.get()) == PGRES_COMMAND_OK)
      return failed_observation("the query gives no rows");
    return query_failure(connection.get());
  }
  if (PQntuples(rows.get()) == 0) return {.unreachable = {}, .absent = true, .value = {}};
  if (PQnfields(rows.get()) == 0) return failed_observation("the query gives no columns");
  if (PQgetisnull(rows.get(), 0, 0)) return {.unreachable = {}, .value = "null"};
  return {.unreachable = {},
          .value = std::string(PQgetvalue(rows.get(), 0, 0),
                               static_cast<std::size_t>(PQgetlength(rows.get(), 0, 0)))};
}

}  // namespace ae::tools
