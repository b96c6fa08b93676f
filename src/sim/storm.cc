// Storm: draws a world and its faults from a seed, and runs it.
#include "sim/storm.h"

#include <fmt/core.h>

#include <memory>
#include <set>
#include <utility>

#include "json/json.h"
#include "log/field_names.h"
#include "sim/check.h"
#include "sim/users.h"
#include "store/rules.h"

namespace ae::sim {

using namespace std::chrono_literals;

namespace {

template <class T, std::size_t N>
T pick(SimRandom& random, const T (&all)[N]) {
  return all[random.below(N)];
}

struct FaultSettings {
  std::uint64_t dies_one_in = 0;    // at a boundary
  std::uint64_t deaths_max = 0;     // in total
  std::uint64_t again_percent = 0;  // dies again soon after its restart …
  std::uint64_t again_depth = 3;    // … at most this many times in a row
  store::FaultRates store;          // per 1,000 calls
  std::uint64_t points_one_in = 0;  // an AE_FAILPOINT fails
  std::uint64_t pauses = 0, jumps = 0, swaps = 0;
  std::uint64_t mutations = 0, verifier_outages = 0;  // resources change, verifiers fail
  std::uint64_t forks_one_in = 0, plans_one_in = 0;   // of jobs
  Duration jump_max{};
  Duration horizon = 40s;  // then all faults end
};

WorldOptions draw_world(SimRandom& random, const StormOptions& settings, PlanBook& plans) {
  using runtime::Durability;
  WorldOptions o;
  o.seed = random.next();
  o.workers = 1 + random.below(3);
  o.owned = o.workers == 1 && random.one_in(2);
  o.sqlite = random.one_in(40);
  o.durability.clear();
  for (std::size_t i = 0; i < o.workers; ++i) {
    o.durability.push_back(i == 0 || random.one_in(4)
                               ? (random.one_in(2) ? Durability::fused : Durability::split)
                               : o.durability.back());
  }
  o.lease = pick(random, {Duration(6s), Duration(12s), Duration(25s)});
  o.poll = pick(random, {Duration(3s), Duration(8s)});
  o.leased_max = pick(random, {std::size_t{2}, std::size_t{8}, std::size_t{16}});
  o.store_latency = pick(random, {Duration(100us), Duration(1ms), Duration(30ms)});
  o.store_delay = pick(random, {Duration(20ms), Duration(700ms), Duration(8s)});
  switch (random.below(3)) {
    case 0:
      break;
    case 1:
      o.odds = {.refused = 12,
                .denied = 40,
                .down = 20,
                .down_after = 30,
                .lost = 40,
                .silent = 40,
                .late = 40,
                .slow = 6,
                .fault = 40,
                .broken = 60,
                .busy = 6,
                .unreachable = 20,
                .cut = 30};
      break;
    default:
      o.odds = {.refused = 5,
                .denied = 12,
                .down = 7,
                .down_after = 7,
                .lost = 8,
                .silent = 8,
                .late = 8,
                .slow = 4,
                .fault = 12,
                .broken = 20,
                .busy = 4,
                .unreachable = 4,
                .cut = 12};
      break;
  }
  for (std::size_t i = 0; i < o.workers; ++i) {
    if (random.one_in(2)) o.capable.insert(i);
  }
  o.plans = &plans.cache();
  o.plan_of_child = [&plans](const Value& input) { return plans.of_child(input); };
  o.canary = settings.canary;
  o.verbose = settings.verbose;
  return o;
}

FaultSettings draw_faults(SimRandom& random, const WorldOptions& world) {
  FaultSettings t;
  t.dies_one_in =
      pick(random, {std::uint64_t{0}, std::uint64_t{40}, std::uint64_t{150}, std::uint64_t{600}});
  t.deaths_max = random.below(10);
  t.again_percent = pick(random, {std::uint64_t{0}, std::uint64_t{40}, std::uint64_t{90}});
  const auto rate = [&] {
    return pick(random, {std::uint32_t{0}, std::uint32_t{0}, std::uint32_t{15}, std::uint32_t{80}});
  };
  t.store = {.fail_before = rate(), .fail_after = rate(), .delay = rate(), .delay_answer = rate()};
  t.points_one_in = pick(random, {std::uint64_t{0}, std::uint64_t{30}});
  if (!world.owned) t.pauses = random.below(4);
  if (random.one_in(4)) {
    t.jumps = 1 + random.below(2);
    t.jump_max = random.one_in(2) ? Duration(3s) : Duration(1h);
  }
  if (world.workers > 1 && random.one_in(6)) t.swaps = 1;
  t.mutations = pick(random, {std::uint64_t{0}, std::uint64_t{3}, std::uint64_t{12}});
  if (random.one_in(4)) t.verifier_outages = 1 + random.below(2);
  t.forks_one_in = pick(random, {std::uint64_t{0}, std::uint64_t{0}, std::uint64_t{3}});
  t.plans_one_in = pick(random, {std::uint64_t{0}, std::uint64_t{0}, std::uint64_t{2}});
  t.horizon = random.between(15s, 60s);
  return t;
}

// One storm in one world.
class Storm {
 public:
  Storm(SimRandom random, const StormOptions& options, PlanBook& plans)
      : plans_(plans),
        random_(random),
        world_(draw_world(random_, options, plans)),
        faults_(draw_faults(random_, world_.options())),
        users_(world_, {.impatient = faults_.jumps == 0 && random_.one_in(2),
                        .resolve_fail_one_in = random_.one_in(4) ? 4u : 0u,
                        .resolves_by_hand = random_.one_in(2)}) {
    // The grace period may be over by the store's clock though it is not by the loop's.
    if (faults_.jumps > 0) world_.external_world().set_grace_binds(false);
  }

  StormResult run();

 private:
  void schedule_jobs();
  void schedule_user_requests(const JobId& job, const SimPlan& plan);
  void send_requests_to_children();
  void pause_and_resume(const JobId& job, std::uint64_t times);
  void schedule_worker_faults();
  void schedule_external_faults();
  void schedule_forks(const JobId& origin, const SimPlan& plan, int depth);
  void fork(const runtime::ForkRequest& request, const SimPlan& plan, int depth);
  void schedule_plans(const JobId& job, Value task_graph, std::uint64_t times);
  void review_open_requests();
  bool all_ended() const;
  bool dies(const SimProcess& process, std::string_view where);
  void died(std::size_t worker);
  store::Fault fault();

  PlanBook& plans_;
  SimRandom random_;  // the storm's; the world has its own
  SimWorld world_;
  FaultSettings faults_;
  Users users_;
  bool healed_ = false;
  std::set<JobId> known_children_;
  std::uint64_t until_next_death_ = 0,
                deaths_left_ = 0;  // boundaries to the next death; deaths left
};

bool Storm::dies(const SimProcess&, std::string_view where) {
  if (world_.deaths() >= faults_.deaths_max) return false;
  bool now = random_.one_in(faults_.dies_one_in);
  if (until_next_death_ > 0 && --until_next_death_ == 0) {
    now = true;
    world_.report().mark("death.in_recovery");
  }
  if (now) world_.report().mark(fmt::format("death.{}", where));
  return now;
}

void Storm::died(std::size_t worker) {
  if (healed_) return;
  const Duration away = random_.one_in(3) ? random_.between(0s, 30s) : random_.between(0s, 500ms);
  world_.loop().after(away, [this, worker] {
    if (world_.is_alive(worker)) return;
    world_.start(worker);
    if (healed_) return;
    if (deaths_left_ == 0 && random_.below(100) < faults_.again_percent) {
      deaths_left_ = faults_.again_depth;
    }
    if (deaths_left_ > 0) {
      deaths_left_--;
      until_next_death_ = 1 + random_.below(25);
    }
  });
}

store::Fault Storm::fault() {
  using store::Fault;
  std::uint64_t draw = random_.below(1000);
  const store::FaultRates& rates = faults_.store;
  const std::pair<std::uint32_t, Fault> faults[] = {{rates.fail_before, Fault::fail_before},
                                                    {rates.fail_after, Fault::fail_after},
                                                    {rates.delay, Fault::delay},
                                                    {rates.delay_answer, Fault::delay_answer}};
  for (const auto& [of_1000, fault] : faults) {
    if (draw < of_1000) return fault;
    draw -= of_1000;
  }
  return Fault::none;
}

void Storm::schedule_jobs() {
  const std::uint64_t count = 4 + random_.below(9);
  for (std::uint64_t i = 0; i < count; ++i) {
    const SimPlan& plan = plans_.plan_by_number(random_.below(PlanBook::kPlans));
    runtime::NewJobRequest request;
    request.job = JobId(fmt::format("job-{}", i));
    request.agent = "sim";
    request.plan = plan.plan;
    request.input = random_input(random_);
    if (random_.one_in(2)) request.idempotency_key = fmt::format("create-{}", i);
    request.start_here = !random_.one_in(3);
    request.priority = static_cast<std::int64_t>(random_.below(5)) - 2;
    if (random_.one_in(6)) request.required_capabilities = {"gpu"};
    if (random_.one_in(4)) request.queue = kNarrowQueue.queue;
    world_.loop().after(random_.between(0s, faults_.horizon / 2),
                        [this, request = std::move(request), &plan]() mutable {
                          const JobId job = request.job;
                          schedule_user_requests(job, plan);
                          users_.create(std::move(request));
                          if (plan.code) return;
                          if (random_.one_in(faults_.forks_one_in)) schedule_forks(job, plan, 0);
                          // Not for a planner: another plan would be one that no model has made.
                          if (!plan.planner && random_.one_in(faults_.plans_one_in)) {
                            schedule_plans(job, plan.plan->task_graph, 1 + random_.below(3));
                          }
                        });
  }
  world_.report().jobs = count;
}

void Storm::schedule_user_requests(const JobId& job, const SimPlan& plan) {
  const auto later = [&](const engine::ControlRequest& request) {
    world_.loop().after(random_.between(0s, faults_.horizon),
                        [this, job, request] { users_.submit(job, request, 5); });
  };
  std::uint64_t written = 0;
  for (const auto& [type, key] : plan.waits) {
    if (type == "message") {
      for (std::uint64_t left = random_.below(4); left > 0; --left) {
        const std::string id = fmt::format("mail-{}-{}", key, ++written);
        const engine::ControlRequest message{
            .id = id,
            .by = "someone",
            .body = engine::MessageRequest{.channel = key,
                                           .payload = Value::object({{"message", id}})}};
        later(message);
        if (random_.one_in(3)) later(message);  // a duplicate
      }
      continue;
    }
    const bool human = type == "human";
    const auto answer = [&](std::string_view who) {
      engine::SignalRequest signal{.correlation_key = key,
                                   .buffer = random_.one_in(3),
                                   .payload = Value::object({{"from", who}})};
      // Otherwise it is no valid answer, unless any is; an early invalid one cannot be reported
      // (docs/status.md).
      if (human && (signal.buffer || !random_.one_in(8))) {
        signal.payload = signal.payload.with("decision", random_.one_in(3) ? "reject" : "approve");
      }
      return engine::ControlRequest{
          .id = fmt::format("{}-{}", who, key), .by = "someone", .body = std::move(signal)};
    };
    const engine::ControlRequest first = answer("first");
    if (random_.one_in(3)) later(first);  // a duplicate
    const bool has_second_answer = random_.one_in(4);
    if (has_second_answer) later(answer("second"));  // another answer, perhaps too late
    if (!has_second_answer || random_.one_in(2)) later(first);
  }
  if (random_.one_in(4)) {  // without a receiver
    later({.id = "junk",
           .by = "someone",
           .body = engine::MessageRequest{.channel = "junk",
                                          .payload = Value::object({{"message", "junk"}})}});
  }
  if (random_.one_in(5)) {
    later({.id = "cancel",
           .by = "someone",
           .body = engine::CancelRequest{
               .reason = "a storm",
               .compensate = pick(
                   random_, {std::optional<bool>(), std::optional(true), std::optional(false)})}});
    if (random_.one_in(4)) {
      later(
          {.id = "leave-it", .by = "someone", .body = engine::CancelRequest{.compensate = false}});
    }
  }
  if (random_.one_in(4)) pause_and_resume(job, 1 + random_.below(3));
}

// Pauses the job for a while, `times` times.
void Storm::pause_and_resume(const JobId& job, std::uint64_t times) {
  if (times == 0) return;
  const std::string nth = std::to_string(times);
  world_.loop().after(random_.between(0s, faults_.horizon / 2), [this, job, times, nth] {
    const std::string pause = "pause-" + nth, resume = "resume-" + nth;
    const auto then = [this, job, times, resume] {
      const Duration pause_time =
          random_.one_in(2) ? random_.between(0s, 100ms) : random_.between(0s, 9s);
      world_.loop().after(pause_time, [this, job, times, resume] {
        world_.report().mark("user.resume");
        users_.submit(job, {.id = resume, .by = resume, .body = engine::ResumeRequest{}}, 5,
                      [this, job, times] { pause_and_resume(job, times - 1); });
      });
    };
    world_.report().mark("user.pause");
    users_.submit(job, {.id = pause, .by = pause, .body = engine::PauseRequest{.reason = pause}}, 5,
                  then);
  });
}

// Forks the job from one of its events or from its failure; at any time, also long after its end.
void Storm::schedule_forks(const JobId& origin, const SimPlan& plan, int depth) {
  world_.loop().after(random_.between(0s, faults_.horizon), [this, origin, &plan, depth] {
    const auto observed = world_.observer().jobs().find(origin);
    if (observed == world_.observer().jobs().end()) return;
    runtime::ForkRequest request{.origin = origin, .job = JobId(origin.text + "-f")};
    if (!random_.one_in(4)) request.at = 1 + random_.below(observed->second.events + 1);
    if (random_.one_in(4)) request.input = random_input(random_);
    if (random_.one_in(2)) request.idempotency_key = "fork-" + request.job.text;
    request.repeat_all = random_.one_in(4);
    if (request.repeat_all) world_.report().mark("fork.consent_to_all");
    fork(request, plan, depth);
  });
}

void Storm::fork(const runtime::ForkRequest& request, const SimPlan& plan, int depth) {
  users_.fork(request, 6, [this, request, &plan, depth](const std::vector<Value>& repeated) {
    if (repeated.empty()) {
      world_.report().jobs++;
      if (healed_) return;
      schedule_user_requests(request.job, plan);
      if (depth < 2 && random_.one_in(4)) schedule_forks(request.job, plan, depth + 1);
      if (!plan.planner && random_.one_in(2 * faults_.plans_one_in)) {
        schedule_plans(request.job, plan.plan->task_graph, 1);
      }
      return;
    }
    if (request.job.text.ends_with("-again") || random_.one_in(3)) return;
    runtime::ForkRequest again = request;  // a user reads what it repeats, and agrees
    again.job.text = request.job.text.string() + "-again";
    again.idempotency_key.clear();
    again.repeat_all = random_.one_in(3);
    for (const Value& effect : repeated) {
      const bool by_key = effect[field::idempotency_key].is_string() && random_.one_in(2);
      again.repeat.emplace_back(effect.text(by_key ? field::idempotency_key : field::step_id));
    }
    fork(again, plan, depth);
  });
}

// Re-plans the job, `times` times.
void Storm::schedule_plans(const JobId& job, Value task_graph, std::uint64_t times) {
  if (times == 0) return;
  world_.loop().after(random_.between(0s, faults_.horizon / 2), [this, job, task_graph, times] {
    Variation other = vary(task_graph, random_);
    const std::string id = fmt::format("plan-{}", times);
    const engine::ControlRequest request{
        .id = id,
        .by = id,
        .body = engine::PlanRequest{.task_graph = other.task_graph,
                                    .drop = Value::array(std::move(other.drop))}};
    world_.report().mark("user.plan");
    users_.submit(job, request, 4, [this, job, graph = other.task_graph, times] {
      schedule_plans(job, graph, times - 1);
    });
  });
}

// Schedules foreign changes of resources and unreachable verifiers.
void Storm::schedule_external_faults() {
  const auto sometime = [&] { return random_.between(0s, faults_.horizon); };
  for (std::uint64_t i = 0; i < faults_.mutations; ++i) {
    world_.loop().after(sometime(), [this] { world_.external_world().mutate(); });
  }
  for (std::uint64_t i = 0; i < faults_.verifier_outages; ++i) {
    const Duration span = random_.between(500ms, 12s);
    world_.loop().after(sometime(), [this, span] {
      if (healed_) return;
      world_.report().mark("verifier.outage");
      world_.external_world().set_verifiers_unreachable(true);
      world_.loop().after(span,
                          [this] { world_.external_world().set_verifiers_unreachable(false); });
    });
  }
}

void Storm::schedule_worker_faults() {
  const auto sometime = [&] { return random_.between(0s, faults_.horizon); };
  for (std::uint64_t i = 0; i < faults_.pauses; ++i) {
    const std::size_t worker = random_.below(world_.workers());
    const Duration span = random_.between(1s, 3 * world_.options().lease);
    world_.loop().after(sometime(), [this, worker, span] {
      if (healed_ || !world_.is_alive(worker) || world_.paused(worker)) return;
      world_.report().mark(span > world_.options().lease ? "pause.longer_than_lease" : "pause");
      world_.pause(worker);
      world_.loop().after(span, [this, worker] { world_.resume(worker); });
    });
  }
  for (std::uint64_t i = 0; i < faults_.jumps; ++i) {
    const Duration offset = random_.between(-faults_.jump_max, faults_.jump_max);
    world_.loop().after(sometime(), [this, offset] {
      if (healed_) return;
      world_.report().mark("clock.jump");
      world_.log_line("the store's clock is set");
      world_.clock().set(offset);
    });
  }
  for (std::uint64_t i = 0; i < faults_.swaps; ++i) {
    const std::size_t worker = random_.below(world_.workers());
    const bool drops_tool = random_.one_in(2);
    const std::string without(drops_tool ? kTools[random_.below(std::size(kTools))].name : "");
    world_.loop().after(sometime(), [this, worker, without] {
      if (healed_) return;
      world_.report().mark("tools.swapped");
      world_.swap_tools(worker, without.empty() ? "fedcba9876543210" : std::string(kToolVersion),
                        without);
      world_.kill(worker);
    });
  }
}

// The users of child jobs send requests to them, as to others.
void Storm::send_requests_to_children() {
  for (const auto& [job, observed] : world_.observer().jobs()) {
    if (!observed.parent || healed_ || !known_children_.insert(job).second) continue;
    const auto* created = as<JobCreated>(observed.log.front());
    const Value& number = created->input.value["plan"];
    if (!number.is_integer() || random_.one_in(2)) continue;
    schedule_user_requests(job, plans_.plan_by_number(static_cast<std::uint64_t>(number.as_int())));
  }
}

void Storm::review_open_requests() {
  send_requests_to_children();
  users_.review_open_requests({.waits = healed_,
                               .answer_one_in = healed_ ? 1u : 3u,
                               .confirm_one_in = healed_ ? 1u : 3u,
                               .raise_one_in = healed_ ? 1u : 2u});
  world_.loop().after(healed_ ? 3s : 7s, [this] { review_open_requests(); });
}

bool Storm::all_ended() const {
  if (users_.created().size() < users_.requested_jobs() || users_.busy() > 0) return false;
  for (const auto& [job, observed] : const_cast<SimWorld&>(world_).observer().jobs()) {
    if (!store::has_ended(observed.status)) {
      return false;
    }
  }
  return true;
}

StormResult Storm::run() {
  world_.set_fault_plan(
      {.dies = [this](const SimProcess& process,
                      std::string_view where) { return dies(process, where); },
       .fails = [this](std::string_view) { return random_.one_in(faults_.points_one_in); },
       .store = [this](const store::Call&) { return fault(); },
       .died = [this](std::size_t worker) { died(worker); }});
  for (std::size_t i = 0; i < world_.workers(); ++i) world_.start(i);
  schedule_jobs();
  schedule_worker_faults();
  schedule_external_faults();
  review_open_requests();
  SimLoop& loop = world_.loop();
  loop.run([] { return false; }, loop.now() + faults_.horizon);
  // Safety was checked throughout. From here on there are no faults, and every job must end.
  healed_ = true;
  world_.log_line("the world heals");
  world_.heal();
  // A timer set before the clock was set back fires that much later.
  const bool over =
      loop.run([this] { return all_ended(); }, loop.now() + 20min + 2 * faults_.jump_max);
  if (loop.is_livelocked()) {
    world_.report().violate("PR5 no worker runs without progress", {}, "the world was stopped",
                            ViolationKind::liveness);
  } else if (!over) {
    if (users_.created().size() < users_.requested_jobs() || users_.busy() > 0) {
      world_.report().violate("PR1 users get answers after the faults stop", {},
                              fmt::format("{} requests are pending", users_.busy()),
                              ViolationKind::liveness);
    }
    world_.freeze();
    check_visible(world_, plans_.source());
    world_.report().violate("PR1 all jobs end after the faults stop and users answer", {},
                            "not within 20 minutes plus twice the clock offset",
                            ViolationKind::liveness);
  }
  // Gives the last committing process time to get its answer.
  if (over) loop.run([] { return false; }, loop.now() + 1s);
  world_.freeze();
  check_all(world_, users_, plans_.source());
  return {std::move(world_.report()), random_.next() ^ world_.random().next()};
}

}  // namespace

StormResult run_storm(const StormOptions& options, PlanBook& plans) {
  return Storm(SimRandom(options.seed), options, plans).run();
}

}  // namespace ae::sim
