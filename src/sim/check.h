// Checkers: the rules of the simulated world, one function each, checked when the simulation is
// over.
//
// They read four sources only: the job's log, its row, the journal of the external world, and the
// record of the users' requests and answers. To add a rule, add a function and a line in the table
// of rules of its file: check.cc (the log, fencing, effects, waits), check_users.cc (approvals,
// messages, pauses), check_side.cc (probes, compensations), check_model.cc (answers of models),
// check_budget.cc (budgets), check_confirm.cc (verification of changes), check_plan.cc (forks and
// re-plans), check_children.cc (child jobs). Rules that must be checked at the moment of the violation are in observer.cc,
// sim_store.h and external_world.cc. Threads: pure functions.
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

// All evidence about a job at the end.
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
  // Each plan of the job, with the event that introduced it.
  struct PlanChange {
    std::uint64_t seq = 0;
    std::shared_ptr<const engine::Plan> plan;
  };
  std::vector<PlanChange> planned;
  std::vector<const VerifierCheck*> verifier_checks;  // checks of what this job changed
  const std::map<JobId, std::vector<Event>>& logs;    // of all jobs
  const std::map<JobId, RequestedFork>& forks;        // requested ones
};

// Reads every job from the disk and checks it. REQUIRES (both): the world is frozen.
void check_all(SimWorld& world, Users& users, const engine::PlanSource& plans);

// Every job has ended, or shows what it waits for and the command that answers it. Valid at any
// moment after the faults have ended.
void check_visible(SimWorld& world, const engine::PlanSource& plans);

// The names of all checkers.
std::vector<std::string_view> rule_names();

}  // namespace ae::sim
