// Rows of the ledger: one for each try in flight (store/store.h).
//
// Threads: pure functions.
#pragma once

#include <string_view>

#include "engine/state/state.h"
#include "json/value.h"
#include "log/outcome.h"
#include "store/store.h"

namespace ae::runtime {

// The state of a try with this outcome: COMMITTED, FAILED or UNKNOWN.
std::string_view ledger_state(const Outcome& outcome);
// `note`: data that a tool leaves for a later process, may be null.
store::LedgerRow ledger_row(const JobId& job, const engine::Invocation& call,
                            std::string_view state, const Value& note = {});
// Fails with log_corrupt.
Result<Value> read_ledger(const JobId& job, const store::LedgerRow& row);

}  // namespace ae::runtime
