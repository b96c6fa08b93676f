// Duplicate answers: who answered before what somebody answers again, when, and what was said.
//
// A job's state keeps what was answered; by whom and when stands in its log alone. Threads: pure functions.
#pragma once

#include <vector>

#include "base/error.h"
#include "engine/heart/ingest.h"
#include "json/value.h"
#include "log/event.h"

namespace ae::api {

// What `act` was answered, being a duplicate, with {answered: {at, by}}; `by` is null when no person or program did it. As it
// is when the log does not say.
Value add_previous_answerer(Value answer, const engine::ControlRequest& control,
                            const std::vector<Event>& events);

// Is this what somebody is told who answers what is not asked any more?
bool may_be_duplicate_answer(const engine::ControlRequest& control, Code refused);

// What somebody is told then who answers again: what was recorded, when they say the same; otherwise `refusal` with who
// answered what, and when: not_in_doubt, approval_edited. `refusal` as it is, when nobody has answered this.
Result<Value> find_previous_answer(const engine::ControlRequest& control,
                                   const std::vector<Event>& events, Error refusal);

}  // namespace ae::api
