// Duplicate answers: the first answer to a question that is answered again: by whom, when, and with
// what value.
//
// A job's state keeps the answer; its author and time are only in the log. Threads: pure functions.
#pragma once

#include <vector>

#include "base/error.h"
#include "engine/heart/ingest.h"
#include "json/value.h"
#include "log/event.h"

namespace ae::api {

// The response to the duplicate `control`, with {answered: {at, by}}; `by` is null when the answer
// has no author. Unchanged if the log does not contain it.
Value add_previous_answerer(Value answer, const engine::ControlRequest& control,
                            const std::vector<Event>& events);

// Can this refusal mean that the question was answered before?
bool may_be_duplicate_answer(const engine::ControlRequest& control, Code refused);

// The response to a repeated answer: the recorded one if both are equal; else `refusal` with the
// author and time of the first answer (not_in_doubt, approval_edited). `refusal` unchanged if there
// was no answer.
Result<Value> find_previous_answer(const engine::ControlRequest& control,
                                   const std::vector<Event>& events, Error refusal);

}  // namespace ae::api
