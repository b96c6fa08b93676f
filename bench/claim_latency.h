// How soon an idle worker starts a job that another process of its store made ready.
#pragma once

namespace ae::bench {

// Uses its own PostgreSQL server; one process creates jobs and sends signals, one at a time;
// another is an idle worker until it is notified. Rows: claim (a job), signal (to a waiting job).
void claim_latency_rows(bool quick);

}  // namespace ae::bench
