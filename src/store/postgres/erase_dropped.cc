#include "store/postgres/erase_dropped.h"

#include <fmt/core.h>

#include <chrono>
#include <thread>

#include "store/postgres/schema.h"

namespace ae::store::postgres {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr const char* kCopiesOfValues = "copies of values";
// The tables that contain values or hashes of values.
constexpr const char* kTablesWithValues[] = {"commits",     "blobs", "value_uses",   "effects",
                                             "checkpoints", "inbox", "inbox_replies"};
// For one table: its writers wait meanwhile, and give up after kLockTimeout.
constexpr const char* kVacuumTimeout = "1s";
constexpr const char* kVacuumLockTimeout = "200ms";  // writers also queue behind a waiting lock
constexpr auto kOlderTransactionsTimeout = 2s;       // for transactions that began earlier
constexpr auto kPollInterval = 50ms;

// The size of the tables, and whether this role may vacuum all of them.
constexpr const char* kTableSizes =
    "SELECT coalesce(sum(pg_total_relation_size(oid)), 0)::bigint, "
    "coalesce(bool_and(pg_has_role(relowner, 'USAGE')), true) OR "
    "(SELECT pg_has_role(datdba, 'USAGE') FROM pg_database WHERE datname = current_database()) "
    "FROM pg_class WHERE relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = "
    "current_schema()) AND relname = ANY($1::text[])";
// Transactions that began before this one and may still see the old rows.
constexpr const char* kOlderTransactions =
    "SELECT 'process ' || pid FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
    "AND (datname = current_database() OR datname IS NULL) "
    "AND age(backend_xmin) >= age($1::text::xid) "
    "UNION ALL SELECT 'a session of the role ' || coalesce(usename, '?') || ', which this role may "
    "not examine' FROM pg_stat_activity WHERE datname = current_database() "
    "AND backend_type IS NULL "
    "UNION ALL SELECT 'prepared transaction ' || gid FROM pg_prepared_xacts "
    "WHERE database = current_database() AND age(transaction) >= age($1::text::xid) "
    "UNION ALL SELECT 'replication slot ' || slot_name FROM pg_replication_slots "
    "WHERE age(xmin) >= age($1::text::xid)";

std::string comma_separated(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

// One statement: VACUUM must not run in a transaction, not even the implicit one of a round trip.
Pg<void> run_statement(Connection& connection, const std::string& sql) {
  connection.add_unprepared(sql);
  AE_TRY(connection.run());
  return {};
}

class Eraser {
 public:
  Eraser(Connection& connection, const std::string& schema, std::size_t rewrite_bytes)
      : connection_(connection), schema_(schema), rewrite_bytes_(rewrite_bytes) {}

  Pg<std::vector<ResidualCopy>> all() {
    residual_copies_.push_back(
        {kCopiesOfValues, "the server's write-ahead log, replicas, backups and logs",
         "the store cannot remove them: they end when the server recycles its log and "
         "when you delete backups"});
    AE_TRY(check_tables());
    if (!may_vacuum_) {
      add_residual(table_names(), "this role does not own them");
      return std::move(residual_copies_);
    }
    AE_TRY(wait_for_older_transactions());
    AE_TRY(vacuum());
    return std::move(residual_copies_);
  }

 private:
  std::string qualified(const std::string& table) const {
    return fmt::format("{}.{}", quoted_name(schema_), table);
  }
  std::vector<std::string> table_names() const {
    std::vector<std::string> table_names;
    for (const char* table : kTablesWithValues) table_names.push_back(qualified(table));
    return table_names;
  }
  void add_residual(const std::vector<std::string>& tables, const std::string& why) {
    if (tables.empty()) return;
    residual_copies_.push_back(
        {kCopiesOfValues, fmt::format("old rows in the pages of {}", comma_separated(tables)),
         fmt::format("{}: run `VACUUM FULL {}` as their owner; it locks them meanwhile", why,
                     comma_separated(tables))});
  }

  Pg<void> check_tables() {
    Column tables(Column::Type::text);
    for (const char* table : kTablesWithValues) tables.add(std::string_view(table));
    connection_.add_unprepared(kTableSizes, Params().add(tables));
    AE_ASSIGN(const auto answers, connection_.run());
    rewrites_ = static_cast<std::size_t>(answers[0].integer(0, 0)) <= rewrite_bytes_;
    may_vacuum_ = answers[0].boolean(0, 1);
    return {};
  }

  // VACUUM keeps rows that an older transaction can see.
  Pg<void> wait_for_older_transactions() {
    connection_.add_unprepared("SELECT pg_current_xact_id()::xid::text");
    AE_ASSIGN(const auto now, connection_.run());
    const std::string xid = now[0].text(0, 0);
    const auto until = Clock::now() + kOlderTransactionsTimeout;
    for (;;) {
      connection_.add_unprepared(kOlderTransactions, Params().add(xid));
      AE_ASSIGN(const auto answers, connection_.run());
      if (answers[0].empty()) return {};
      if (Clock::now() >= until) {
        std::vector<std::string> older;
        older.reserve(static_cast<std::size_t>(answers[0].size()));
        for (int i = 0; i < answers[0].size(); ++i) older.push_back(answers[0].text(i, 0));
        residual_copies_.push_back({kCopiesOfValues, "old rows of the tables",
                                    fmt::format("they may still be visible to older transactions "
                                                "({}): when it has ended, redact the job again",
                                                comma_separated(older))});
        return {};
      }
      std::this_thread::sleep_for(kPollInterval);
    }
  }

  Pg<void> limit(const std::string& lock, const std::string& statement) {
    AE_TRY(run_statement(connection_, fmt::format("SET lock_timeout = '{}'", lock)));
    return run_statement(connection_, fmt::format("SET statement_timeout = '{}'", statement));
  }

  Pg<void> vacuum() {
    std::vector<std::string> failed, large;
    std::string why;
    AE_TRY(limit(kVacuumLockTimeout, kVacuumTimeout));
    for (const std::string& table : table_names()) {
      const auto done =
          run_statement(connection_, (rewrites_ ? "VACUUM (FULL) " : "VACUUM ") + table);
      if (!done && done.error().connection_lost) return std::unexpected(done.error());
      if (!done) {
        failed.push_back(table);
        why = done.error().text();
      } else if (!rewrites_) {
        large.push_back(table);
      }
    }
    AE_TRY(limit(kLockTimeout, kStatementTimeout));
    add_residual(large, "they are too large to be rewritten while they are in use");
    add_residual(failed, fmt::format("they were not rewritten ({})", why));
    return {};
  }

  Connection& connection_;
  const std::string& schema_;
  const std::size_t rewrite_bytes_;
  bool may_vacuum_ = false, rewrites_ = false;
  std::vector<ResidualCopy> residual_copies_;
};

}  // namespace

Pg<std::vector<ResidualCopy>> erase_dropped_values(Connection& connection,
                                                   const std::string& schema,
                                                   std::size_t rewrite_bytes) {
  return Eraser(connection, schema, rewrite_bytes).all();
}

}  // namespace ae::store::postgres
