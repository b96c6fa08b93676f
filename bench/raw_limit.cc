#include "raw_limit.h"

#include <sqlite3.h>
#include <sys/resource.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>

namespace ae::bench {

double cpu_ms() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto ms = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) * 1e3 + static_cast<double>(t.tv_usec) / 1e3;
  };
  return ms(usage.ru_utime) + ms(usage.ru_stime);
}

namespace {

void check_sqlite(int code, sqlite3* db) {
  if (code == SQLITE_OK || code == SQLITE_DONE || code == SQLITE_ROW) return;
  std::fprintf(stderr, "sqlite: %s\n", sqlite3_errmsg(db));
  std::exit(1);
}

}  // namespace

RawResult raw_sqlite(const std::string& path, std::size_t group, std::size_t steps,
                     std::size_t row_bytes) {
  sqlite3* db = nullptr;
  check_sqlite(sqlite3_open(path.c_str(), &db), db);
  const auto exec = [&](const char* sql) {
    check_sqlite(sqlite3_exec(db, sql, nullptr, nullptr, nullptr), db);
  };
  exec("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;");
  exec(
      "CREATE TABLE jobs(id INTEGER PRIMARY KEY, last_seq INTEGER, head BLOB);"
      "CREATE TABLE commits(id INTEGER PRIMARY KEY, job INTEGER, first_seq INTEGER, body BLOB);"
      "CREATE UNIQUE INDEX by_job ON commits(job, first_seq);");
  for (std::size_t i = 0; i < group; ++i) exec("INSERT INTO jobs(last_seq) VALUES (0)");
  sqlite3_stmt *update = nullptr, *insert = nullptr;
  check_sqlite(
      sqlite3_prepare_v2(db, "UPDATE jobs SET last_seq=?2, head=?3 WHERE id=?1 AND last_seq<?2", -1,
                         &update, nullptr),
      db);
  check_sqlite(sqlite3_prepare_v2(db, "INSERT INTO commits(job, first_seq, body) VALUES (?1,?2,?3)",
                                  -1, &insert, nullptr),
               db);
  const std::string body(row_bytes, 'x'), head(32, 'h');
  const double cpu = cpu_ms();
  const auto start = std::chrono::steady_clock::now();
  std::size_t done = 0;
  for (sqlite3_int64 round = 1; done < steps; ++round) {
    exec("BEGIN IMMEDIATE");
    for (std::size_t i = 0; i < group; ++i, ++done) {
      const auto job = static_cast<sqlite3_int64>(i) + 1;
      sqlite3_bind_int64(update, 1, job);
      sqlite3_bind_int64(update, 2, round);
      sqlite3_bind_blob(update, 3, head.data(), static_cast<int>(head.size()), SQLITE_STATIC);
      check_sqlite(sqlite3_step(update), db);
      sqlite3_reset(update);
      sqlite3_bind_int64(insert, 1, job);
      sqlite3_bind_int64(insert, 2, round);
      sqlite3_bind_blob(insert, 3, body.data(), static_cast<int>(body.size()), SQLITE_STATIC);
      check_sqlite(sqlite3_step(insert), db);
      sqlite3_reset(insert);
    }
    exec("COMMIT");
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  const RawResult result{static_cast<double>(done) / took.count(),
                         (cpu_ms() - cpu) / static_cast<double>(done), 0};
  sqlite3_finalize(update);
  sqlite3_finalize(insert);
  sqlite3_close(db);
  return result;
}

}  // namespace ae::bench
