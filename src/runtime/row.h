// row_of: the contents of a job's row, computed from its log. Written with each commit; rewritten
// by a rebuild.
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
#include "inspect/summary.h"
#include "json/value.h"
#include "log/event.h"
#include "plan/plan.h"
#include "store/store.h"

namespace ae::runtime {

store::RowState row_of(const engine::State& state);
store::Summary summary_of(const engine::State& state);
// The summary, if its key differs from `before`, the key after the commit before; then it is
// written.
std::optional<store::Summary> changed_summary(const engine::State& state,
                                              const engine::SummaryKey& before);

using Labels = std::vector<std::pair<std::string, std::string>>;
Value labels_value(const Labels& labels);
Labels labels_of(const Value& object);  // in canonical order

// The request that created a job: the same idempotency key with another hash is a conflict.
struct JobRequest {
  std::string agent;
  Value input;
  Value labels;            // an object
  Value forked_from;       // null: not a fork
  Value explicit_options;  // as in NewJobRequest
};
// `blind`: of that job (base/ids.h); "" = none.
Hash request_hash(std::string_view blind, const JobRequest& request);
// The job_created event of the job, which is its first event; empty if `first` has another type.
const JobCreated& job_created_of(const Event& first);
JobRequest request_of(const JobCreated& created);

// Did this request create the job that begins with this event? `known`: the request_hash of its
// row.
enum class SameRequest : std::uint8_t {
  no,
  yes,
  input_erased,  // input and blind were erased; everything else is the same
};
SameRequest same_request(const Event& first, const Hash& known, const JobRequest& request);

// The hash, computed from the first event; nullopt: the input or the blind was erased.
std::optional<Hash> request_hash_of(const Event& first);
// is_blinded: the job has a blind, or had one before it was erased. blind_of: nullopt = none, or
// erased.
bool is_blinded(const JobCreated& created);
std::optional<std::string> blind_of(const JobCreated& created);

// The capability of an execution version. A job with the version policy `route` requires it, so
// only a process of that version claims it. Capability names of users cannot contain a colon.
std::string version_capability(std::string_view agent, std::string_view version);
// What a worker must offer: the capabilities of the request and, with `route`, the version. That of
// code is chosen when the job is claimed (runtime/code_offers.h).
std::vector<std::string> needed_capabilities(std::vector<std::string> required,
                                             std::string_view agent, std::string_view version,
                                             const engine::Plan* plan);

}  // namespace ae::runtime
