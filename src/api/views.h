// Views: response bodies of the routes about one job. They combine engine's views with the store's
// rows and with facts of the process.
//
// Threads: pure functions and values. Views of whole logs are made on reader threads; they end
// early if they are interrupted.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "api/stuck.h"
#include "async/executor.h"
#include "base/error.h"
#include "base/ids.h"
#include "base/sign.h"
#include "base/time.h"
#include "inspect/transcript.h"
#include "json/value.h"
#include "runtime/service/job_reader.h"
#include "store/registry.h"
#include "store/store.h"

namespace ae::api {

// What a process knows about a job besides the store's rows. Copied for a reader thread.
struct JobFacts {
  Instant now;  // by the store's clock
  std::shared_ptr<const store::Registry> registry;
  bool has_no_owner = false;  // the store has a single owner, and it is not running
  // This process is the owner and claims jobs: what it offers. nullopt: another process may claim.
  std::optional<WorkerOffer> only_offer;
  // Why this process does not run the job; "" = it does, or another process may.
  std::string refusal;
  bool runs = false;                 // this process runs the jobs it creates
  std::vector<std::string> offered;  // capabilities of this process

  // The facts as text, without the time and the registry.
  std::string text() const;
};

// `now`, by the store's clock: a wait for a user whose time has passed is shown as `expired`, even
// if that is not recorded yet. It cannot be answered any more.
Value job_body(const runtime::JobSnapshot& read, Instant now);
// The same with `agent_version` and `no_worker`.
Value job_body(const runtime::JobSnapshot& read, const JobFacts& facts);
// Adds `needs_version` if this process cannot run the job.
Value add_needs_version(Value body, const store::JobRow& row, const JobFacts& facts);
Value trace_body(const runtime::JobSnapshot& read);

// A page of a job's transcript. Holds the events of one commit at a time. Fails with log_corrupt,
// needs_version, plan_invalid, unavailable (interrupted).
Result<Value> transcript_body(const JobId& job, const store::LoadedJob& loaded,
                              const engine::TranscriptPage& page,
                              const async::Interrupt& interrupt);

// The verification of a job's log; problems are in the body. `keys`: trusted signing keys. Fails
// with unavailable (interrupted).
Result<Value> verify_body(const JobId& job, const store::LoadedJob& loaded,
                          std::vector<PublicKey> keys, const async::Interrupt& interrupt);

}  // namespace ae::api
