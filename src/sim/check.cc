// Loads every job of a world and checks it by all rules.
#include "sim/check.h"

#include <fmt/core.h>

#include <array>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "inspect/view.h"
#include "json/json.h"
#include "log/field_names.h"
#include "runtime/scheduler/runtime.h"
#include "sim/checker.h"
#include "store/rules.h"

namespace ae::sim {
namespace {

std::array<std::span<const Rule>, 11> all_rules() {
  return {log_rules(),  effect_rules(), request_rules(), user_rules(),
          side_rules(), model_rules(),  budget_rules(),  confirm_rules(),
          plan_rules(), child_rules(),  code_rules()};
}

// The loaded data of one job.
struct PendingLoad {
  store::LoadedJob loaded;
  engine::State state;
  std::vector<JobEvidence::PlanChange> planned;
};

Result<PendingLoad> load(SimWorld& world, const JobId& job, const engine::PlanSource& plans,
                         std::vector<Event>& events) {
  PendingLoad all;
  AE_ASSIGN(all.loaded, world.read_disk(job));
  const auto observed = world.observer().jobs().find(job);
  if (observed != world.observer().jobs().end() && observed->second.commits == all.loaded.commits) {
    events = observed->second.log;  // byte for byte what was decoded when it was written
  } else {
    AE_ASSIGN(events, runtime::open_log(job, all.loaded));
  }
  std::uint64_t seq = 0;
  const engine::PlanSource note = [&](const Value& graph, std::string_view hash) {
    auto plan = plans(graph, hash);
    if (plan) all.planned.push_back({seq, *plan});
    return plan;
  };
  all.state.job = job;
  for (const Event& event : events) {
    seq = event.seq;
    AE_TRY(engine::apply(all.state, event, note));
  }
  return all;
}

// Rules that need the evidence of all jobs.
void check_together(SimWorld& world, const std::map<JobId, std::vector<Event>>& logs) {
  Report& report = world.report();
  for (const auto& [name, resource] : world.external_world().resources()) {
    if (resource.version != resource.applied_changes.size() + resource.foreign_changes) {
      report.violate("V5 a verifier only reads", {},
                     fmt::format("{} was changed by neither a call nor the test", name));
    }
  }
  std::uint64_t warnings = 0;
  for (const auto& [job, events] : logs) {
    for (const Event& event : events) {
      const auto* checked = as<ConfirmationChecked>(event);
      warnings += checked && checked->verdict == "mismatch" &&
                  checked->detail.read_leniently().mode == "warn";
    }
  }
  const std::uint64_t counted = world.warning_count();
  // A process that dies between a commit and its answer does not count the warning.
  if (counted > warnings || (counted < warnings && !world.was_disturbed())) {
    report.violate("V6 a mismatch in warn mode is counted", {},
                   fmt::format("{} were counted, the logs have {}", counted, warnings));
  }
  if (warnings > 0) report.mark("confirm.warned");
}

}  // namespace

std::vector<std::string_view> rule_names() {
  std::vector<std::string_view> names;
  for (const auto& rules : all_rules()) {
    for (const Rule& rule : rules) names.push_back(rule.name);
  }
  return names;
}

void check_all(SimWorld& world, Users& users, const engine::PlanSource& plans) {
  Report& report = world.report();
  std::map<JobId, std::vector<const KeyRecord*>> touched;
  for (const auto& [key, record] : world.external_world().journal())
    touched[record.job].push_back(&record);
  std::map<JobId, std::vector<const Ack*>> acks;
  for (const Ack& ack : users.acks()) acks[ack.job].push_back(&ack);
  for (const auto* acknowledged : {&users.created(), &users.forked()}) {
    for (const JobId& job : *acknowledged) {
      if (world.observer().jobs().contains(job)) continue;
      report.violate("D1 an acknowledged job exists", job, "it was never written to the disk");
    }
  }
  std::map<JobId, std::vector<Event>> logs;
  std::map<JobId, PendingLoad> loadings;
  for (const auto& [job, observed] : world.observer().jobs()) {
    auto all = load(world, job, plans, logs[job]);
    if (!all) {
      report.violate("L1 a log has no gap", job, all.error().message);
      continue;
    }
    loadings.emplace(job, *std::move(all));
  }
  std::map<std::string_view, std::vector<const VerifierCheck*>> verifier_checks;
  for (const VerifierCheck& check : world.external_world().verifier_checks())
    verifier_checks[check.job.text].push_back(&check);
  for (const auto& [job, all] : loadings) {
    const std::vector<Event>& events = logs.at(job);
    report.events += events.size();
    for (const Event& event : world.options().verbose ? events : std::vector<Event>()) {
      world.log_line(fmt::format("{} {} {} {} {}", job.text, event.seq, to_text(event.created_at),
                                 event_name(event),
                                 canonical(payload_json(event.body)).substr(0, 200)));
    }
    const JobEvidence evidence{.job = job,
                               .loaded = all.loaded,
                               .events = events,
                               .state = all.state,
                               .journal = world.external_world().journal(),
                               .touched = touched[job],
                               .acks = acks[job],
                               .requested = users.requested(job),
                               .clock_jumped = world.clock().jumped(),
                               .plans = plans,
                               .planned = all.planned,
                               .verifier_checks = verifier_checks[job.text],
                               .logs = logs,
                               .forks = users.forks()};
    for (const auto& rules : all_rules()) {
      for (const Rule& rule : rules) {
        Checker checker(report, job, rule.name);
        rule.check(evidence, checker);
      }
    }
    report.mark(fmt::format("ended.{}", engine::to_text(all.state.status)));
  }
  check_together(world, logs);
  for (const auto& [job, records] : touched) {
    if (!world.observer().jobs().contains(job)) {
      report.violate("D2 no effect without a declaration", job, "the job is not on the disk");
    }
  }
}

void check_visible(SimWorld& world, const engine::PlanSource& plans) {
  constexpr std::string_view kRule =
      "PR1 every job has ended or shows what it waits for and which command answers it";
  for (const auto& [job, observed] : world.observer().jobs()) {
    if (store::has_ended(observed.status)) {
      continue;
    }
    std::vector<Event> events;
    auto all = load(world, job, plans, events);
    if (!all) continue;  // check_all reports it
    const Value view = engine::job_view(all->state);
    bool visible = false;
    for (const Value& wait : view[field::waits].items()) {
      // A child that has not ended is checked, too.
      visible = visible || wait["actions"].size() > 0 || wait[field::due_at].is_string() ||
                is_of_child(wait.text("type"));
    }
    const Value& parked = view["parked"];
    visible = visible || (!parked.text(field::reason).empty() && parked["action"].is_object());
    const bool blocked = engine::is_blocked(all->state.status);
    if (!blocked || !visible) {
      world.report().violate(kRule, job,
                             fmt::format("it is {}: {}", observed.status, canonical(view)),
                             ViolationKind::liveness);
    }
  }
}

}  // namespace ae::sim
