// The reply to a control request in an inbox: {answer} or {error{code, message}}, canonical JSON.
// An error with an action (engine/state/action.h) also has `action`.
//
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "json/value.h"
#include "store/store.h"

namespace ae::runtime {

// An entry of the inbox that was applied or rejected, and the reply to its sender; "" = none.
struct AppliedEntry {
  std::uint64_t number = 0;
  std::string id;
  std::string reply;  // as reply_text
};

std::string reply_text(const Result<Value>& answer);
// Fails with the error of the reply; with log_corrupt if the text is damaged.
Result<Value> read_reply(std::string_view text);

// Adds the entries, sorted by number, and their replies to the batch.
void consume(std::vector<AppliedEntry> entries, store::Batch& batch);

}  // namespace ae::runtime
