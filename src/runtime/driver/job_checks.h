// Checks of a loaded job that decide whether this process may run it.
//
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/error.h"
#include "base/ids.h"
#include "engine/state/state.h"
#include "store/store.h"

namespace ae::runtime {

// A row is derived from the log and can be damaged independently of it. Fails with log_corrupt.
Status check_row(const engine::State& state, const store::JobRow& row);

// Returns an error if the inbox holds a control request after the entry `inbox_read` that only a
// newer version can read. That request and all others stay in the inbox: only a process that can
// read all of them knows their order.
std::optional<Error> find_newer_request(const JobId& job,
                                        const std::vector<store::InboxEntry>& inbox,
                                        std::uint64_t inbox_read);

}  // namespace ae::runtime
