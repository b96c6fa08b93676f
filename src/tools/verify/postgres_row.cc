// The first column of the first row of a query against a PostgreSQL database.
//
// Each check uses its own connection and a read-only transaction. The server cancels a query that
// takes too long; an unresponsive connection times out.
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

// The server's message without its line break.
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
  // libpq's own message for an invalid address would repeat parts of it.
  const std::unique_ptr<PQconninfoOption, FreeOptions> readable(
      PQconninfoParse(address.c_str(), nullptr));
  if (!readable) return failed_observation("`store` is not the address of a PostgreSQL database");
  // Later entries override earlier ones; `dbname` holds the address.
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
  // The extended protocol accepts a single statement only.
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
