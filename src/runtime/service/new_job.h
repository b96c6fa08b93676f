// What a client gives to create or fork a job, and what it gets.
//
// Threads: values.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "async/loop.h"
#include "base/error.h"
#include "base/ids.h"
#include "base/time.h"
#include "engine/fork/fork.h"
#include "json/value.h"
#include "plan/plan.h"
#include "store/audit.h"

namespace ae::runtime {

// A plan that replaces the initial plan of a fork (engine/replan/replan.h).
struct PlanReplacement {
  std::shared_ptr<const engine::Plan> plan;
  std::vector<std::string> drop;  // nodes whose committed effects may be abandoned
  std::string by;                 // who submitted it
};

struct NewJobRequest {
  JobId job;  // empty = a new UUIDv7
  std::string agent;
  std::shared_ptr<const engine::Plan> plan;
  Value input;
  std::vector<std::pair<std::string, std::string>> labels;
  std::string idempotency_key;
  std::int64_t priority = 0;
  std::string queue;                               // "" = the default queue
  std::vector<std::string> required_capabilities;  // sorted, without duplicates
  // The job fails with `deadline_exceeded` at this time or at its agent's deadline, whichever is
  // earlier. If it has already passed, the job ends before anything is done.
  std::optional<Instant> deadline = {};
  engine::Limits budget = {};  // of the job; none = its agent's
  // The options above that the request set itself and that are not the agent's: they are part of
  // what the idempotency key identifies. null = none.
  Value explicit_options;
  std::optional<JobParent> parent = {};  // of a child job
  // The claim of the parent: nothing is created if it has ended (Batch::Create)
  std::optional<store::HeldJob> creator = {};
  // Create the job with a lease and run it here at once, if there is capacity; false: leave it
  // queued.
  bool start_here = true;
  std::shared_ptr<const engine::Fork> fork;  // the fork's initial contents; nullptr = not a fork
  // Of a fork: replaces `plan` before anything is done
  std::optional<PlanReplacement> plan_replacement = {};
  std::optional<store::AuditEntry> audit;  // written with the job
  std::string traceparent,
      tracestate;  // of the caller (base/trace_context.h); not compared for idempotency
};

// A child job, before its agent is known.
struct ChildJobSpec {
  JobId id;
  std::string agent;
  Value input, labels;
  std::int64_t priority = 0;
  std::optional<std::string> queue;  // nullopt = that of the agent
};

// Makes requests for jobs of the agents that this process offers.
class NewJobSource {
 public:
  virtual ~NewJobSource() = default;
  // Fails as POST /api/jobs.
  virtual void make_child_request(ChildJobSpec spec, async::Done<Result<NewJobRequest>> done) = 0;
};

struct ForkRequest {
  JobId origin;
  std::uint64_t at = 0;        // an event of the origin's log; 0 = where a failed job is retried
  JobId job;                   // id of the new job; empty = a new UUIDv7
  std::optional<Value> input;  // nullopt = the origin's
  std::string idempotency_key;
  std::string by;                       // who requested it
  Value task_graph;                     // a replacement plan; null = the origin's
  std::vector<std::string> drop;        // as in PlanReplacement; with `task_graph`
  std::string traceparent, tracestate;  // as in NewJobRequest
  // Effects of the origin that may be repeated: all, or those with these idempotency keys, step ids
  // or node ids.
  bool repeat_all = false;
  std::vector<std::string> repeat;
  bool dry_run = false;  // create nothing; only `preview`
};

struct CreateResult {
  JobId job;
  bool existing = false;  // an earlier request with this idempotency key created it
  // Of an existing job: its input was erased, so only the rest of the request was compared.
  bool input_erased = false;
};

struct ForkResult {
  CreateResult created;
  // Not empty: no job was created, because these effects were not allowed to repeat
  // (engine::Fork::effects)
  std::vector<Value> repeated;
  Value changes;  // engine::plan_changes of the replacement plan
  Value preview;  // of a dry run: engine::fork_preview; else null
};

}  // namespace ae::runtime
