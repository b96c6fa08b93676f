// Row: what a job's row says, made of what its log says. Written with each commit; made anew by a rebuild.
//
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "engine/state/state.h"
#include "json/value.h"
#include "log/event.h"
#include "plan/plan.h"
#include "store/store.h"

namespace ae::runtime {

store::RowState row_of(const engine::State& state);

using Labels = std::vector<std::pair<std::string, std::string>>;
Value labels_value(const Labels& labels);
Labels labels_of(const Value& object);  // in canonical order

// Of the request that made a job: the same idempotency key with another hash is a conflict.
struct JobRequest {
  std::string agent;
  Value input;
  Value labels;       // an object
  Value forked_from;  // null: it is no fork
  Value asked;        // NewJobRequest::asked
};
// `blind`: of that job (base/ids.h); "" = it has none.
Hash request_hash(std::string_view blind, const JobRequest& request);
// The birth of a job: its first event; an empty one if that is another event.
const JobCreated& birth_of(const Event& first);
JobRequest request_of(const JobCreated& created);

// Did this request make the job that begins with this event? `known`: the request_hash of its row.
enum class SameRequest : std::uint8_t {
  no,
  yes,
  as_far_as_known,  // the input was erased, and with it the blind: all else is the same
};
SameRequest same_request(const Event& first, const Hash& known, const JobRequest& request);

// The same from the first event; nullopt: its input was redacted.
std::optional<Hash> request_hash_of(const Event& first);
// Has, or had, the job a blind? And which; nullopt: it has none, or it is erased.
bool is_blinded(const JobCreated& created);
std::optional<std::string> blind_of(const JobCreated& created);

// A job that only processes of its own version claim (`route`) needs it like any other capability. No name that a user may give has
// a colon.
std::string version_capability(std::string_view agent, std::string_view version);
// What a worker must offer: what the request named, and perhaps the version.
std::vector<std::string> needed_capabilities(std::vector<std::string> required,
                                             std::string_view agent, std::string_view version,
                                             engine::VersionPolicy versions);

}  // namespace ae::runtime
