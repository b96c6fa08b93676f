// Checkers: the rules of the world, each a function with the rule as its name, evaluated when all has come to rest.
//
// They judge by four things only: the job's log, its row, the outside's own journal, and the ledger of what people said and
// were told. To add one is to add a function and a line in `kRules` of its file: check.cc (the log, fencing, effects,
// waits), check_people.cc (approvals, messages, pauses), check_side.cc (probes, compensations), check_model.cc (answers of
// models), check_budget.cc (what a job may use), check_confirm.cc (what was changed and looked at), check_plan.cc (forks and other plans). Rules that can only be
// seen at the moment they are broken stand in witness.cc, sim_store.h and outside.cc. Threads: pure functions.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/state/state.h"
#include "sim/external_world.h"
#include "sim/report.h"
#include "sim/users.h"
#include "store/store.h"

namespace ae::sim {

// Everything that is known about a job in the end.
struct JobEvidence {
  JobId job;
  const store::LoadedJob& loaded;
  const std::vector<Event>& events;
  const engine::State& state;
  const std::map<std::string, KeyRecord>& journal;  // of all jobs, by idempotency key
  std::vector<const KeyRecord*> touched;            // of this job
  std::vector<const Ack*> acks;                     // of this job
  const Users::SentRequests& requested;             // of this job
  bool clock_jumped = false;
  const engine::PlanSource& plans;
  // Each plan that the job has had, from the event on that brought it.
  struct PlanChange {
    std::uint64_t seq = 0;
    std::shared_ptr<const engine::Plan> plan;
  };
  std::vector<PlanChange> planned;
  std::vector<const VerifierCheck*> verifier_checks;  // of verifiers, at what this job changed
  const std::map<JobId, std::vector<Event>>& logs;    // of all jobs
  const std::map<JobId, RequestedFork>& forks;        // that were asked for
};

// Reads every job from the disk and judges it. REQUIRES (both): the world is frozen.
void check_all(SimWorld& world, Users& users, const engine::PlanSource& plans);

// Every job has ended, or says what it waits for and which command answers it. For any moment after the healing.
void check_visible(SimWorld& world, const engine::PlanSource& plans);

// The names of all checkers.
std::vector<std::string_view> rule_names();

}  // namespace ae::sim
