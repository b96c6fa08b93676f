// The cost of our steps in PostgreSQL, and the raw limit for comparison.
#pragma once

#include <string>

#include "raw_limit.h"
#include "testing/postgres_server.h"

namespace ae::bench {

// A server with memory and log settings for load.
testing::PostgresServer bench_server();

struct ServerCost {
  double cpu_ms = 0;                        // of all its processes so far
  double wal_bytes = 0;                     // written so far
  double table_bytes = 0, index_bytes = 0;  // of the store's schema
  double body_bytes = 0;                    // mean bytes of a commit
};
ServerCost server_cost(const testing::PostgresServer& server);

// The bare writes: one set-based statement updates the rows of `group` jobs and appends as many
// rows of `row_bytes`, in its own transaction; one connection in pipeline mode, libpq only.
RawResult raw_postgres(const testing::PostgresServer& server, std::size_t group, std::size_t steps,
                       std::size_t row_bytes);

// Rows `workers`: queued jobs run by one and by two processes.
void worker_rows(bool quick);
// Rows `history`: the cost of a claim with few and with many finished jobs.
void history_rows(bool quick);

}  // namespace ae::bench
