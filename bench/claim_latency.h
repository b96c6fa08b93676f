// How soon an idle worker begins what another process of its store made ready for it.
#pragma once

namespace ae::bench {

// A PostgreSQL server of its own; one process makes jobs and sends signals, one at a time, another is idle until it is told.
// Rows: claim (a job), signal (of a job that waits).
void claim_latency_rows(bool quick);

}  // namespace ae::bench
