// What PostgreSQL pays for our steps, and the limit they are measured against.
#pragma once

#include <string>

#include "raw_limit.h"
#include "testing/postgres_server.h"

namespace ae::bench {

// The memory and log of a server that is meant for load.
testing::PostgresServer bench_server();

struct ServerCost {
  double cpu_ms = 0;                        // of all its processes so far
  double wal_bytes = 0;                     // written so far
  double table_bytes = 0, index_bytes = 0;  // of the store's schema
  double body_bytes = 0;                    // mean length of a commit
};
ServerCost server_cost(const testing::PostgresServer& server);

// The bare writes: `group` jobs' rows updated and as many rows of `row_bytes` appended by one set-based statement, a
// transaction of its own; one connection in pipeline mode, libpq alone.
RawResult raw_postgres(const testing::PostgresServer& server, std::size_t group, std::size_t steps,
                       std::size_t row_bytes);

// Rows `workers`: queued jobs run by one and by two processes.
void worker_rows(bool quick);
// Rows `history`: what a claim costs among few and among many finished jobs.
void history_rows(bool quick);

}  // namespace ae::bench
