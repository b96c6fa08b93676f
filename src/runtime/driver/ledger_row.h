// The stored form of a try in the ledger.
//
// Threads: pure functions.
#pragma once

#include <string_view>

#include "base/error.h"
#include "base/ids.h"
#include "engine/state/state.h"
#include "json/value.h"
#include "log/outcome.h"
#include "store/store.h"

namespace ae::runtime {

// The state of an entry after the outcome of its try.
std::string_view ledger_state(const Outcome& outcome);
// `note`: data that a tool leaves for a later process, may be null.
store::LedgerRow ledger_row(const JobId& job, const engine::Invocation& call,
                            std::string_view state, const Value& note = {});
// Fails with log_corrupt.
Result<Value> read_ledger(const JobId& job, const store::LedgerRow& row);

}  // namespace ae::runtime
