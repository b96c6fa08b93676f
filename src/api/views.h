// Views: response bodies of the routes about one job. They combine engine's views with the store's
// rows.
//
// Threads: pure functions and values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/hash.h"
#include "base/sign.h"
#include "engine/state/state.h"
#include "inspect/transcript.h"
#include "inspect/verify.h"
#include "json/value.h"
#include "runtime/log_opener.h"
#include "runtime/runtime.h"
#include "store/store.h"

namespace ae::api {

// `now`, by the store's clock: a wait for a user whose time has passed is shown as `expired`, even
// if that is not recorded yet. It cannot be answered any more.
Value job_body(const runtime::Runtime::JobSnapshot& read, Instant now);
Value trace_body(const runtime::Runtime::JobSnapshot& read);

// Bodies that evaluate the expressions of a log again are computed in slices (async/time_slices.h):
// call `next` until it returns false, then `take`.

// A page of a job's transcript. Holds the stored bytes of the log, and the events of one commit.
class TranscriptBody {
 public:
  TranscriptBody(const JobId& job, store::LoadedJob&& loaded, const engine::TranscriptPage& page);
  TranscriptBody(const TranscriptBody&) = delete;
  TranscriptBody& operator=(const TranscriptBody&) = delete;

  bool next();
  Result<Value> take();  // fails with log_corrupt, needs_version, plan_invalid

 private:
  const store::LoadedJob loaded_;
  runtime::LogOpener opening_;
  std::vector<Event> events_;  // of one commit
  std::size_t added_ = 0;      // number of them already added
  engine::TranscriptBuilder transcribing_;
  Status status_;
};

// The verification of a job's log. Problems are in the body; it does not fail. `keys`: trusted
// signing keys.
class VerifyBody {
 public:
  VerifyBody(const JobId& job, store::LoadedJob&& loaded, std::vector<PublicKey> keys);
  VerifyBody(const VerifyBody&) = delete;
  VerifyBody& operator=(const VerifyBody&) = delete;

  bool next();
  Value take();

 private:
  void open_commit(const std::string& bytes);
  void complete();

  const store::LoadedJob loaded_;
  const engine::PlanSource plans_ = engine::uncached_plan_source();
  engine::VerifyInput input_;
  std::map<Hash, const std::string*> blobs_;  // of `loaded_`
  std::size_t opened_ = 0;                    // number of commits
  Hash head_;
  std::optional<engine::IncrementalVerifier> verifying_;
};

}  // namespace ae::api
