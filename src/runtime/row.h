// Row: what a job's row says, made of what its log says. Written with each commit; made anew by a rebuild.
//
// Threads: pure functions.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/hash.h"
#include "core/value.h"
#include "engine/plan.h"
#include "engine/state.h"
#include "store/store.h"

namespace ae::runtime {

store::RowState row_of(const engine::State& state);

using Labels = std::vector<std::pair<std::string, std::string>>;
Value labels_value(const Labels& labels);
Labels labels_of(const Value& object);  // in canonical order

// Of the request that made a job: the same idempotency key with another hash is a conflict.
Hash request_hash(std::string_view agent, const Value& input, const Value& labels,
                  const Value& forked_from,  // null: it is no fork
                  const Value& asked);       // NewJobRequest::asked

// A job that may only run under its own version needs it like any other capability. No name that a user may give has
// a colon.
std::string version_capability(std::string_view agent, std::string_view version);
// What a worker must offer: what the request named, and perhaps the version.
std::vector<std::string> needed_capabilities(std::vector<std::string> required,
                                             std::string_view agent, std::string_view version,
                                             engine::VersionPolicy versions);

}  // namespace ae::runtime
