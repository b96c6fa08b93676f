// Sweep: counts boundaries, crashes at them, and compares the ends.
#include "sim/sweep.h"

#include <fmt/core.h>

#include <algorithm>
#include <functional>

#include "json/json.h"
#include "sim/check.h"
#include "sim/users.h"
#include "store/rules.h"

namespace ae::sim {

using namespace std::chrono_literals;

namespace {

std::string text_of(const std::vector<std::uint64_t>& crashes) {
  std::string text;
  for (std::uint64_t at : crashes) text += fmt::format("{}{}", text.empty() ? "" : ",", at);
  return text.empty() ? "none" : text;
}

WorldOptions world_of(const SweepCase& c, PlanBook& plans, bool verbose) {
  WorldOptions o;
  o.seed = 7;
  o.workers = c.owned ? 1 : 2;
  o.owned = c.owned;
  o.durability = {c.durability};
  o.lease = 6s;
  o.poll = 5s;
  o.leased_max = 2;
  o.plans = &plans.cache();
  o.plan_of_child = [&plans](const Value& input) { return plans.of_child(input); };
  o.verbose = verbose;
  return o;
}

// Lets users review the open requests every 3 s until the job has ended.
void review_open_requests(SimWorld& world, Users& users, const SmallJob& job) {
  users.review_open_requests({.answer_one_in = job.answer.empty() ? 0u : 1u,
                              .decision = job.answer,
                              .confirm_one_in = 1,
                              .confirm = job.confirm});
  world.loop().after(3s, [&world, &users, &job] { review_open_requests(world, users, job); });
}

const JobId kJob("job-0"), kFork("job-0-fork");

// Have the job, its fork and all child jobs ended?
bool have_ended(SimWorld& world, const SmallJob& job) {
  const auto& jobs = world.observer().jobs();
  return jobs.contains(kJob) && (!job.forked() || jobs.contains(kFork)) &&
         std::ranges::all_of(jobs,
                             [](const auto& one) { return store::has_ended(one.second.status); });
}

void fork(SimWorld& world, Users& users, const Action& action, std::function<void()> then) {
  runtime::ForkRequest request{.origin = kJob, .job = kFork, .repeat_all = true};
  const ObservedJob& origin = world.observer().jobs().at(kJob);
  if (!action.at_node.empty()) {  // a map commits no step: its last item does
    const auto done = origin.done.find(action.at_node);
    request.at = done == origin.done.end() ? origin.events : done->second;
  }
  request.input = action.input;
  users.fork(std::move(request), 100, [then](const std::vector<Value>&) { then(); });
}

// Identifies a call across runs, by its step and arguments. The idempotency key depends on the
// job's blind, which is drawn again if a crash lost the first creation.
std::string call_of(const KeyRecord& record) {
  std::string step = *record.external_keys.begin();
  step.resize(step.rfind(':'));
  const bool undo = !record.undoes().empty();  // its arguments contain the key of the undone call
  return fmt::format("{} {} {}", record.tool, step, undo ? "" : canonical(record.result["args"]));
}

// Runs the actions in sequence.
void do_actions(SimWorld& world, Users& users, const std::vector<Action>& actions,
                std::size_t next) {
  if (next >= actions.size()) return;
  const Action& action = actions[next];
  const JobId job = action.of_fork ? kFork : kJob;
  const auto then = [&world, &users, &actions, next] {
    do_actions(world, users, actions, next + 1);
  };
  world.loop().after(action.after, [&world, &users, &actions, &action, job, next, then] {
    const auto observed = world.observer().jobs().find(job);
    const bool exists = observed != world.observer().jobs().end();
    // Two deaths of its process park a job, too; the action does not wait for that.
    const bool is_in_status =
        exists && observed->second.status == action.when && observed->second.parked != "worn_out";
    if (!action.when.empty() && !is_in_status)
      return do_actions(world, users, actions, next);  // not yet
    switch (action.kind) {
      case Action::Kind::request:
        return users.submit(job, action.request, 100, then);
      case Action::Kind::fork:
        return fork(world, users, action, then);
      case Action::Kind::mutate:
        world.external_world().mutate();
        return then();
      case Action::Kind::verifiers_unreachable:
      case Action::Kind::verifiers_reachable:
        world.external_world().set_verifiers_unreachable(action.kind ==
                                                         Action::Kind::verifiers_unreachable);
        return then();
    }
  });
}

std::string end_text(const engine::State& state) {
  std::string text(engine::to_text(state.status));
  if (state.error) text += ":" + state.error->code;
  return text;
}

void compare(const SweepCase& c, const std::vector<std::uint64_t>& crashes,
             const SmallResult& undisturbed_run, SmallResult& end, Report& report) {
  const std::string where = fmt::format("{}, crashes {}", c.name(), text_of(crashes));
  for (const Violation& v : end.report.violations) {
    report.violate(v.rule, JobId(v.job), fmt::format("{}: {}", where, v.what),
                   end.report.stuck && !end.report.wrong ? ViolationKind::liveness
                                                         : ViolationKind::correctness);
  }
  if (c.job->races) return;
  constexpr std::string_view kRule = "SW a crash does not change the end of a job";
  const bool other = end.status != undisturbed_run.status;
  if (other &&
      std::ranges::find(c.job->may_end, std::string_view(end.status)) == c.job->may_end.end()) {
    report.violate(
        kRule, {},
        fmt::format("{}: it ended {}, undisturbed {}", where, end.status, undisturbed_run.status));
  }
  if (!other && end.result != undisturbed_run.result) {
    report.violate(kRule, {},
                   fmt::format("{}: the result is {}, undisturbed {}", where, end.result,
                               undisturbed_run.result));
  }
  if (end.status == "completed" && !other && end.effects != undisturbed_run.effects) {
    report.violate(kRule, {},
                   fmt::format("{}: the effects are not those of the undisturbed run", where));
  }
  for (const auto& [key, effects] : end.effects) {
    // A cancel that a crash delays comes at a later point of the job.
    if (!undisturbed_run.effects.contains(key) && !c.job->cancelled()) {
      report.violate(kRule, {},
                     fmt::format("{}: an effect that the undisturbed run has not: {}", where, key));
    }
  }
}

}  // namespace

std::string SweepCase::name() const {
  return fmt::format("\"{}\" {}{}", job->name,
                     durability == runtime::Durability::fused ? "fused" : "split",
                     owned ? " owned" : " leased");
}

std::vector<SweepCase> sweep_cases() {
  std::vector<SweepCase> cases;
  for (const SmallJob& job : small_jobs()) {
    for (auto durability : {runtime::Durability::fused, runtime::Durability::split}) {
      for (bool owned : {true, false}) cases.push_back({&job, durability, owned});
    }
  }
  return cases;
}

SmallResult run_small_job(const SweepCase& c, const std::vector<std::uint64_t>& crashes,
                          PlanBook& plans, bool verbose) {
  SimWorld world(world_of(c, plans, verbose));
  Users users(world, {.impatient = true});
  SmallResult end;
  end.boundaries.push_back(0);
  std::size_t crashed = 0;
  // After the first crash, boundaries with nothing between them count as one.
  std::pair<std::uint64_t, std::uint64_t> counted;
  const auto counts = [&](std::string_view where) {
    if (crashed == 0) return true;
    if (where == "load.answer" || where == "due.answer" || where.starts_with("next_due"))
      return false;
    const std::pair now(world.loop().steps(), world.observer().writes());
    return std::exchange(counted, now) != now;
  };
  world.set_fault_plan({.dies =
                            [&](const SimProcess&, std::string_view where) {
                              if (!counts(where)) return false;
                              end.boundaries.back()++;
                              if (crashed >= crashes.size() ||
                                  end.boundaries.back() != crashes[crashed]) {
                                return false;
                              }
                              crashed++;
                              end.boundaries.push_back(0);
                              return true;
                            },
                        .fails = {},
                        .store = {},
                        .died =
                            [&](std::size_t worker) {
                              world.loop().after(200ms, [&world, worker] {
                                if (!world.is_alive(worker)) world.start(worker);
                              });
                            }});
  for (std::size_t i = 0; i < world.workers(); ++i) world.start(i);
  runtime::NewJobRequest request;
  request.job = kJob;
  request.agent = "sim";
  request.plan = plans.small(*c.job);
  request.input = Value::object({{"fate", Value::array({"denied"})}, {"x", 5}});
  users.create(std::move(request));
  do_actions(world, users, c.job->actions, 0);
  review_open_requests(world, users, *c.job);
  const auto over = [&] { return users.busy() == 0 && have_ended(world, *c.job); };
  world.report().jobs = 1;
  const bool ended = world.loop().run(over, world.loop().now() + 1h);
  if (world.loop().is_livelocked()) {
    world.report().violate("PR5 no worker runs without progress", kJob, "the world was stopped",
                           ViolationKind::liveness);
  } else if (!ended) {
    world.freeze();
    check_visible(world, plans.source());
    world.report().violate("PR1 all jobs end after the faults stop and users answer", kJob,
                           "not within an hour", ViolationKind::liveness);
  }
  world.freeze();
  check_all(world, users, plans.source());
  for (const auto& [job, observed] : world.observer().jobs()) {
    auto loaded = world.read_disk(job);
    if (!loaded) continue;
    if (auto events = runtime::open_log(job, *loaded)) {
      if (auto state = engine::fold(job, *events, plans.source())) {
        end.status += (end.status.empty() ? "" : " and ") + end_text(*state);
        end.result += canonical(state->result);
      }
    }
  }
  for (const auto& [key, record] : world.external_world().journal()) {
    if (record.effects > 0) end.effects[call_of(record)] += record.effects;
  }
  end.last_draw = world.random().next();
  world.set_fault_plan({});
  end.report = std::move(world.report());
  return end;
}

SweepCount sweep(const SweepCase& c, const SweepDepth& depth, PlanBook& plans, Report& report) {
  SweepCount count;
  const auto gather = [&](SmallResult& end) {
    count.runs++;
    report.jobs++;
    report.events += end.report.events;
    for (const auto& [mark, times] : end.report.marks) report.marks[mark] += times;
  };
  SmallResult undisturbed_run = run_small_job(c, {}, plans);
  gather(undisturbed_run);
  compare(c, {}, undisturbed_run, undisturbed_run, report);
  const auto run = [&](const std::vector<std::uint64_t>& crashes) {
    SmallResult end = run_small_job(c, crashes, plans);
    gather(end);
    compare(c, crashes, undisturbed_run, end, report);
    return end.boundaries.back();
  };
  for (std::uint64_t first = 1; first <= undisturbed_run.boundaries[0]; ++first) {
    if ((first + depth.first_from) % depth.first_one_in != 0) continue;
    count.points++;
    const std::uint64_t recovery = run({first});
    for (std::uint64_t second = 1; depth.recovery && second <= recovery; ++second) {
      if ((first + second + depth.second_from) % depth.second_one_in != 0) continue;
      count.recovery_points++;
      const std::uint64_t again = run({first, second});
      const bool crashes_again =
          depth.third_one_in > 0 && (first * 7 + second) % depth.third_one_in == 0;
      if (!crashes_again || again == 0) continue;
      count.third_points++;
      run({first, second, 1 + (first * 31 + second) % again});
    }
    if (!report.violations.empty()) break;
  }
  return count;
}

}  // namespace ae::sim
