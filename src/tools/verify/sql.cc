// SqlVerifier: the first column of the first row of a query. This file reads SQLite databases.
//
// Each check opens its own read-only connection. The query must be a single read-only statement,
// and is interrupted if it takes too long.
#include <fmt/core.h>
#include <sqlite3.h>

#include <chrono>
#include <utility>
#include <vector>

#include "json/json.h"
#include "log/field_names.h"
#include "tools/verify/compare.h"
#include "tools/verify/definition_fields.h"
#include "tools/verify/local_verifiers.h"

namespace ae::tools {
namespace {

constexpr int kBusyMs = 2'000;
constexpr int kStepsAtOnce = 10'000;           // SQLite VM instructions per time check
constexpr std::chrono::seconds kQueryMax{10};  // then the query is interrupted
using Clock = std::chrono::steady_clock;

struct CloseDb {
  void operator()(sqlite3* db) const { sqlite3_close_v2(db); }
};
struct Finalize {
  void operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }
};

int bind(sqlite3_stmt* statement, int at, const Value& value) {
  if (value.is_null()) return sqlite3_bind_null(statement, at);
  if (value.is_bool()) return sqlite3_bind_int(statement, at, value.as_bool() ? 1 : 0);
  if (value.is_integer()) return sqlite3_bind_int64(statement, at, value.as_int());
  if (value.is_number()) return sqlite3_bind_double(statement, at, value.as_number());
  const std::string text = value.is_string() ? value.as_string() : canonical(value);
  return sqlite3_bind_text64(statement, at, text.data(), text.size(), SQLITE_TRANSIENT,
                             SQLITE_UTF8);
}

Observation read_sqlite_row(const std::string& path, const std::string& query,
                            const Value& params) {
  sqlite3* opened = nullptr;
  const int open =
      sqlite3_open_v2(path.c_str(), &opened, SQLITE_OPEN_READONLY | SQLITE_OPEN_NOMUTEX, nullptr);
  const std::unique_ptr<sqlite3, CloseDb> db(opened);
  if (open != SQLITE_OK)
    return failed_observation(opened ? sqlite3_errmsg(opened) : "out of memory");
  sqlite3_busy_timeout(db.get(), kBusyMs);
  sqlite3_db_config(db.get(), SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, nullptr);
  Clock::time_point until = Clock::now() + kQueryMax;
  sqlite3_progress_handler(
      db.get(), kStepsAtOnce,
      [](void* at) { return Clock::now() > *static_cast<Clock::time_point*>(at) ? 1 : 0; }, &until);
  sqlite3_stmt* prepared = nullptr;
  const char* tail = nullptr;
  if (sqlite3_prepare_v2(db.get(), query.data(), static_cast<int>(query.size()), &prepared,
                         &tail) != SQLITE_OK) {
    return failed_observation(sqlite3_errmsg(db.get()));
  }
  const std::unique_ptr<sqlite3_stmt, Finalize> statement(prepared);
  const std::string_view rest(tail, static_cast<std::size_t>(query.data() + query.size() - tail));
  if (!prepared || !sqlite3_stmt_readonly(prepared) ||
      rest.find_first_not_of(" \t\r\n;") != rest.npos) {
    return failed_observation("the query is not one statement that only reads");
  }
  if (sqlite3_bind_parameter_count(prepared) != static_cast<int>(params.size())) {
    return failed_observation(fmt::format("the query has {} parameters, `params` has {}",
                                          sqlite3_bind_parameter_count(prepared), params.size()));
  }
  for (std::size_t i = 0; i < params.size(); ++i) {
    if (bind(prepared, static_cast<int>(i) + 1, params.items()[i]) != SQLITE_OK) {
      return failed_observation(sqlite3_errmsg(db.get()));
    }
  }
  const int step = sqlite3_step(prepared);
  if (step == SQLITE_DONE) return {.unreachable = {}, .absent = true, .value = {}};
  if (step != SQLITE_ROW) return failed_observation(sqlite3_errmsg(db.get()));
  const auto* text = reinterpret_cast<const char*>(sqlite3_column_text(prepared, 0));
  const int size = sqlite3_column_bytes(prepared, 0);
  return {.unreachable = {},
          .value = text ? std::string(text, static_cast<std::size_t>(size)) : std::string("null")};
}

class SqlVerifier final : public Verifier {
 public:
  SqlVerifier(VerifierDependencies deps, std::string store, std::string query, Template params)
      : deps_(std::move(deps)),
        store_(std::move(store)),
        query_(std::move(query)),
        params_(std::move(params)) {}

  void check(Value change, async::Done<CheckResult> done) override {
    auto params = params_.eval(SingleRootScope("change", change));
    std::string why;
    if (!params) why = params.error().message;
    if (params && !params->is_array()) why = "`params` gives no list";
    std::vector<UsedSecret> used;
    auto store = replace_secrets(store_, deps_.secrets, used);
    if (!store) why = store.error().message;
    deps_.reader.read(
        [change = std::move(change), store = store ? *std::move(store) : Secret(), query = query_,
         folder = deps_.folder, why, used = std::move(used),
         given = params ? std::move(*params) : Value()]() {
          Observation observation = failed_observation(why);
          if (why.empty()) {
            observation = read_row(std::string(store.reveal()), folder, query, given);
            observation.unreachable = scrub(observation.unreachable, used);
          }
          return compare(change, field::version, observation, same_text);
        },
        std::move(done));
  }

 private:
  static Observation read_row(std::string store, const std::string& folder,
                              const std::string& query, const Value& params) {
    if (is_postgres_address(store)) return read_postgres_row(store, query, params);
    if (store.starts_with("sqlite:")) store.erase(0, 7);
    return read_sqlite_row(store.starts_with('/') ? store : fmt::format("{}/{}", folder, store),
                           query, params);
  }

  VerifierDependencies deps_;
  std::string store_, query_;
  Template params_;
};

}  // namespace

Result<std::unique_ptr<Verifier>> make_sql_verifier(const Value& definition,
                                                    VerifierDependencies deps) {
  AE_TRY(check_known_keys(definition, {"store", "query", "params"}));
  AE_ASSIGN(std::string store, text_of(definition, "store"));
  AE_ASSIGN(std::string query, text_of(definition, "query"));
  const Value with =
      definition.find("params") ? definition : definition.with("params", Value::array({}));
  AE_ASSIGN(Template params, template_of(with, "params", "change"));
  return std::make_unique<SqlVerifier>(std::move(deps), std::move(store), std::move(query),
                                       std::move(params));
}

}  // namespace ae::tools
