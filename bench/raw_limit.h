// The limit that the durable step is compared with: the same rows and fsyncs on raw SQLite, nothing
// else. For PostgreSQL see postgres_cost.h.
#pragma once

#include <cstddef>
#include <string>

namespace ae::bench {

struct RawResult {
  double steps_per_second = 0, cpu_ms_per_step = 0;
  double server_cpu_ms_per_step = 0;  // of a database server
};

// `group` steps share one transaction: each updates its job's row and appends one row of
// `row_bytes`. WAL, synchronous=FULL, one connection, on a fresh file at `path`.
RawResult raw_sqlite(const std::string& path, std::size_t group, std::size_t steps,
                     std::size_t row_bytes);

// CPU time of this process so far, user and system, in milliseconds.
double cpu_ms();

}  // namespace ae::bench
