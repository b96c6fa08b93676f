// Runtime: claims, creates, applies control requests, fires timers; the drivers run the jobs.
#include "runtime/runtime.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "async/failpoint.h"
#include "async/time_slices.h"
#include "base/bytes.h"
#include "engine/heart/ingest.h"
#include "engine/heart/side_record.h"
#include "json/json.h"
#include "log/redacted.h"
#include "log/seal.h"
#include "runtime/log_opener.h"
#include "runtime/log_writer.h"
#include "runtime/output_hub.h"
#include "runtime/process_death.h"
#include "runtime/row.h"

namespace ae::runtime {
namespace {

// A late result that cannot be stored for about ten minutes is dropped; its call has an unknown
// outcome, and a warning is logged.
constexpr int kLateTries = 30;
constexpr std::size_t kDuePage = 256;      // jobs that are listed and fired at once
constexpr std::size_t kOutagesMax = 4096;  // jobs lost to outages that are remembered
// A plan in the inbox is checked for about ten seconds, with growing intervals, until the lease
// holder has applied or rejected it.
constexpr int kPlanChecks = 20;
// Interval between two sweeps for jobs whose versions this process offers: a job may park while a
// sweep is running.
constexpr Duration kSweepEvery = std::chrono::minutes(1);
// A request that loses this many races in a row fails with unavailable
constexpr int kRequestTries = 64;

// A request has one inbox entry, however often it is sent; requests about different subjects may
// use the same id.
std::string inbox_id(const engine::ControlRequest& request) {
  return to_hex(
      sha256(canonical(Value::object({{"about", request.correlation_key + request.approval},
                                      {"channel", request.channel},
                                      {"id", request.id},
                                      {"kind", static_cast<int>(request.kind)}}))));
}

// May these two requests concern the same wait or the same call? A request names its wait by its
// correlation key or by its approval id.
bool concern_same_wait(const engine::ControlRequest& before,
                       const engine::ControlRequest& request) {
  using Kind = engine::ControlRequest::Kind;
  const auto answers = [](const engine::ControlRequest& a) {
    return a.kind == Kind::signal || a.kind == Kind::resolve;
  };
  if (!answers(before) || !answers(request)) return false;
  const bool keys = !before.correlation_key.empty() && !request.correlation_key.empty();
  return !keys || before.correlation_key == request.correlation_key;
}

// Applies the requests that precede `new_request` in the inbox and that the lease holder has not applied
// yet: a pause, so that `resume` withdraws it; an answer to the same wait or a resolution of the
// same call, so that a second one is rejected. Returns true if the state is now ahead of the log.
bool apply_earlier_requests(engine::State& state, const std::vector<store::InboxEntry>& inbox,
                            const engine::ControlRequest& new_request,
                            const engine::DecisionContext& context,
                            const engine::PlanSource& plans) {
  using Kind = engine::ControlRequest::Kind;
  if (inbox.empty()) return false;
  bool ahead = false;
  const std::string own_id = inbox_id(new_request);
  for (const store::InboxEntry& entry : inbox) {
    auto json = parse_json(entry.request);
    auto request = json ? engine::ControlRequest::from_json(*json) : std::unexpected(json.error());
    if (!request) continue;
    // The same request, sent again, and everything after it. With another payload it is another
    // answer with the same id.
    if (entry.id == own_id && request->payload == new_request.payload &&
        request->arguments == new_request.arguments) {
      break;
    }
    const bool is_pause_or_resume = request->kind == Kind::pause || request->kind == Kind::resume;
    if (is_pause_or_resume || concern_same_wait(*request, new_request)) {
      auto applied = engine::apply_request(state, *request, context);
      for (const EventBody& draft : applied ? applied->events : std::vector<EventBody>()) {
        ahead = true;
        if (!engine::apply(state, draft, context.now, plans)) return true;
      }
    }
    if (entry.id == own_id) break;
  }
  return ahead;
}

// Messages of a channel, and answers to a wait or a call, apply in the order in which they were
// accepted. If a job was parked with its inbox, its earlier entries are applied before `new_request`.
// Appends their events to `events` and returns the numbers of their inbox entries.
Result<std::vector<std::uint64_t>> collect_earlier_requests(
    engine::State& state, const std::vector<store::InboxEntry>& inbox,
    const engine::ControlRequest& new_request, const engine::DecisionContext& context,
    const engine::PlanSource& plans, std::vector<EventBody>& events) {
  std::vector<std::uint64_t> numbers;
  const std::string own_id = inbox_id(new_request);
  for (const store::InboxEntry& entry : inbox) {
    const auto json =
        engine::read_side_record(engine::inbox_location(state.job, entry.id), entry.request);
    const auto request =
        json ? engine::ControlRequest::from_json(*json) : std::unexpected(json.error());
    const bool same_channel = request && request->kind == engine::ControlRequest::Kind::message &&
                              new_request.kind == request->kind &&
                              request->channel == new_request.channel;
    if (!same_channel && !(request && concern_same_wait(*request, new_request))) continue;
    auto applied = engine::apply_request(state, *request, context);
    if (!applied) continue;  // the job is ending: `apply_remaining_requests` handles this entry
    for (EventBody& draft : applied->events) {
      AE_TRY(engine::apply(state, draft, context.now, plans));
      events.push_back(std::move(draft));
    }
    numbers.push_back(entry.number);
    if (entry.id == own_id) break;  // the same request, sent again
  }
  return numbers;
}

// Applies the rest of the inbox that the job was parked with, as a lease holder does; ending the
// job in this commit would lose it. `numbers`: entries that are already in the log; the others are
// added.
Status apply_remaining_requests(const engine::State& state,
                                const std::vector<store::InboxEntry>& inbox,
                                const engine::DecisionContext& context,
                                std::vector<std::uint64_t>& numbers,
                                const std::function<Status(EventBody)>& follow) {
  for (const store::InboxEntry& entry : inbox) {
    if (std::ranges::find(numbers, entry.number) != numbers.end()) continue;
    AE_ASSIGN(const Value json,
              engine::read_side_record(engine::inbox_location(state.job, entry.id), entry.request));
    AE_ASSIGN(const engine::ControlRequest request, engine::ControlRequest::from_json(json));
    numbers.push_back(entry.number);
    if (request.kind == engine::ControlRequest::Kind::timers) continue;
    auto applied = engine::apply_request(state, request, context);
    auto drafts = applied ? std::move(applied->events) : std::vector<EventBody>();
    if (drafts.empty()) drafts = engine::expire_request(state, request);
    for (EventBody& draft : drafts) AE_TRY(follow(std::move(draft)));
  }
  return {};
}

engine::ControlRequest plan_request(const PlanReplacement& replacement) {
  std::vector<Value> drop(replacement.drop.begin(), replacement.drop.end());
  return {.kind = engine::ControlRequest::Kind::plan,
          .by = replacement.by,
          .payload = Value::object({{"drop", Value::array(std::move(drop))},
                                    {"task_graph", replacement.plan->task_graph}})};
}

// Importing a late result may be what kills the process: for a worn-out job, its next attempt does
// that. These requests do not depend on the outcome of a call.
bool skips_late_results(const engine::State& state, const engine::ControlRequest& request) {
  using Kind = engine::ControlRequest::Kind;
  switch (request.kind) {
    case Kind::pause:
    case Kind::resume:
    case Kind::cancel:
    case Kind::timers:
    case Kind::version:
      // After the job ended, a late result is only noted.
      return state.is_worn_out() && !engine::is_terminal(state.status);
    default:
      return false;
  }
}

}  // namespace

Runtime::Runtime(World world, RuntimeOptions options, RuntimeObserver* observer)
    : world_(world),
      options_(std::move(options)),
      observer_(observer),
      plans_(world.plans != nullptr ? *world.plans : own_plans_),
      version_sweeper_(world.store,
                       [this](const store::JobRow& row, async::Done<Result<bool>> resumed) {
                         // A job that this process resumes but cannot claim would park again.
                         if (!missing_capabilities(row).empty()) return resumed(false);
                         offer_versions(row.id, std::move(resumed));
                       }) {
  update_offered();
}

void Runtime::update_offered() {
  offered_ = options_.capabilities;
  for (const auto& [agent, version] : options_.agent_versions) {
    offered_.push_back(version_capability(agent, version));
  }
}

void Runtime::offer(std::vector<std::string> agents,
                    std::map<std::string, std::string, std::less<>> agent_versions) {
  options_.agents = std::move(agents);
  options_.agent_versions = std::move(agent_versions);
  update_offered();
  version_sweeper_.on_offer_changed();
  claimable_ = true;
  claim_more();
  if (started_) sweep_versions();
}

// Resumes parked jobs of this process's agents that wait for a version that it offers.
void Runtime::sweep_versions() {
  if (!options_.may_claim || stopping_) return;
  last_sweep_ = world_.steady.since_start();
  std::vector<std::string> agents;
  agents.reserve(options_.agent_versions.size());
  for (const auto& [agent, version] : options_.agent_versions) agents.push_back(agent);
  version_sweeper_.sweep(std::move(agents));
}

// Submits the versions that this process offers to a job.
void Runtime::offer_versions(const JobId& job, async::Done<Result<bool>> resumed) {
  submit_request(job, {.kind = engine::ControlRequest::Kind::version, .by = options_.worker},
                 [resumed = std::move(resumed)](Result<Value> answer) mutable {
                   if (!answer) return resumed(std::unexpected(answer.error()));
                   resumed((*answer)["resumed"] == Value(true));
                 });
}

void Runtime::check_offered_elsewhere(const store::JobRow& row, const std::string& version,
                                      async::Done<Result<bool>> done) {
  version_sweeper_.check_elsewhere(row, version, std::move(done));
}

bool Runtime::may_claim(const std::string& agent,
                        const std::vector<std::string>& capabilities) const {
  const std::vector<std::string>& agents = options_.agents;
  const bool may_claim_here = agents.empty() || std::ranges::find(agents, agent) != agents.end();
  return may_claim_here && std::ranges::all_of(capabilities, [&](const std::string& needed) {
           return std::ranges::find(offered_, needed) != offered_.end();
         });
}

Status Runtime::check_can_run(const std::string& agent, const engine::Plan& plan) const {
  const bool owned = world_.store.owned();
  if (!may_claim(agent, {})) {
    if (!owned) return {};
    return fail(Code::needs_version, "the process that owns this store does not run agent \"" +
                                         agent + "\"; serve this file too");
  }
  for (const engine::ToolPolicy& tool : plan.tools) {
    if (!tool.makes_call()) continue;
    const ToolRegistry::Entry* const entry = world_.tool_registry.find(tool.name, tool.version);
    if (entry == nullptr ? !owned : entry->version == tool.version) continue;
    std::string problem = "the process that runs agent \"" + agent + "\" has ";
    problem.append(entry ? "another version of" : "no").append(" tool \"").append(tool.name);
    return fail(Code::needs_version, problem.append("\"; restart it with this file"));
  }
  return {};
}

std::vector<std::string> Runtime::missing_capabilities(const store::JobRow& row) const {
  std::vector<std::string> missing_capabilities;
  for (const std::string& needed : row.capabilities) {
    if (std::ranges::find(offered_, needed) == offered_.end())
      missing_capabilities.push_back(needed);
  }
  return missing_capabilities;
}

Runtime::~Runtime() {
  world_.store.on_hint(nullptr);
  if (tick_timer_) world_.loop.cancel(*tick_timer_);
  if (heartbeat_timer_) world_.loop.cancel(*heartbeat_timer_);
  if (due_timer_) world_.loop.cancel(*due_timer_);
}

AttemptId Runtime::new_attempt_id() {
  return AttemptId(to_text(uuid_v7(static_cast<std::uint64_t>(world_.store.now().us / 1000),
                                   world_.random.next(), world_.random.next())));
}

void Runtime::start() {
  run_after_death_recorded([this] {
    started_ = true;
    world_.store.on_hint([this](const store::Hint& hint) { on_hint(hint); });
    tick();
    heartbeat();
    sweep_versions();
  });
}

// The job that was running when an earlier process died is not claimed before the death is
// recorded.
void Runtime::run_after_death_recorded(async::Task next) {
  if (world_.slot == nullptr || !world_.slot->interrupted()) return next();
  after_death_.push_back(std::move(next));
  if (after_death_.size() > 1) return;
  const JobId job = world_.slot->interrupted()->job;
  record_process_death(world_, plans_, *world_.slot->interrupted(), handle(),
                       [this, job](const Result<std::vector<Event>>& recorded) {
                         world_.slot->clear_interrupted();
                         if (!recorded) {
                           warn(job,
                                "a process died while it ran the job, which cannot be recorded: " +
                                    recorded.error().message);
                         } else if (!recorded->empty()) {
                           warn(job, "a process died while it ran the job");
                           on_committed_events(job, *recorded);
                         }
                         for (async::Task& task : std::exchange(after_death_, {})) task();
                       });
}

// Another process has done something. Everything that a hint triggers is also found by polling.
void Runtime::on_hint(const store::Hint& hint) {
  ++counters_.aetheris_store_hint_total;
  if (!hint.idle.empty()) {
    for (const JobId& job : hint.idle) {
      if (observer_) observer_->on_idle(job);
    }
    return;
  }
  if (!hint.inbox_of) {
    if (hint.needs && !may_claim(hint.needs->agent, hint.needs->capabilities)) return;
    claimable_ = true;
    return claim_more();
  }
  if (auto it = drivers_.find(*hint.inbox_of); it != drivers_.end()) it->second->on_inbox_notify();
}

// Polling finds everything whose hint was lost.
void Runtime::tick() {
  // Jitter, so that processes that share a store do not poll it at the same time.
  const std::uint64_t share = (std::hash<std::string>{}(options_.worker) + ++ticks_) % 16;
  const Duration early =
      world_.store.owned() ? Duration(0) : options_.poll / 64 * static_cast<int>(share);
  tick_timer_ = world_.loop.after(options_.poll - early, [this] {
    tick_timer_.reset();
    claimable_ = true;
    tick();
  });
  fire_due_timers();
  claim_more();
}

// The next timer may be due before the next poll.
void Runtime::schedule_next_due() {
  if (!started_ || stopping_) return;
  world_.store.next_due([this](Result<std::optional<Instant>> next) {
    if (!next || !*next || stopping_) return;
    const Duration wait =
        std::max(Duration(0), **next - world_.store.now()) + std::chrono::milliseconds(1);
    if (wait >= options_.poll) return;
    if (due_timer_) world_.loop.cancel(*due_timer_);
    due_timer_ = world_.loop.after(wait, [this] {
      due_timer_.reset();
      claimable_ = true;
      fire_due_timers();
      claim_more();
    });
  });
}

void Runtime::heartbeat() {
  heartbeat_timer_ = world_.loop.after(options_.lease / 3, [this] {
    heartbeat_timer_.reset();
    heartbeat();
  });
  if (options_.may_claim && !stopping_) announce(options_.lease);
  if (world_.steady.since_start() - last_sweep_ >= kSweepEvery) sweep_versions();
  version_sweeper_.recheck_deferred([this](const std::vector<JobId>& jobs) {
    for (const JobId& job : jobs) refused_.erase(job);
    claimable_ = true;
    claim_more();
  });
  if (drivers_.empty()) return;
  std::vector<std::pair<JobId, store::Fence>> leases;
  leases.reserve(drivers_.size());
  const Instant at = world_.store.now();
  for (const auto& [job, driver] : drivers_) {
    leases.emplace_back(job, driver->fence());
    driver->on_heartbeat_sent(at);
  }
  auto sent = leases;
  world_.store.heartbeat(
      std::move(leases), options_.lease,
      [this, at, sent = std::move(sent)](Result<std::vector<std::optional<Instant>>> renewed) {
        update_store_health(renewed ? nullptr : &renewed.error());
        for (std::size_t i = 0; i < sent.size(); ++i) {
          auto it = drivers_.find(sent[i].first);
          if (it == drivers_.end() || it->second->fence() != sent[i].second) continue;
          const std::shared_ptr<JobDriver> driver = it->second;
          if (!renewed) driver->on_renewal_failed();
          if (renewed && (*renewed)[i]) {
            driver->on_lease_renewed(*(*renewed)[i]);
            // Another process may have written to the inbox, and its hint may have been lost.
            if (!world_.store.owned()) driver->on_inbox_notify();
          } else if (!world_.store.owned() &&
                     (renewed || driver->lease_until() <= world_.store.now())) {
            driver->on_lease_lost();
          }
          driver->on_heartbeat_answered(at);
        }
      });
}

// Announces this process and what it offers to the processes that share the store.
void Runtime::announce(Duration ttl) {
  if (world_.store.owned()) return;
  const auto texts = [](const std::vector<std::string>& from) {
    return Value::array(std::vector<Value>(from.begin(), from.end()));
  };
  world_.store.announce(options_.worker,
                        canonical(Value::object({{"agents", texts(options_.agents)},
                                                 {"capabilities", texts(options_.capabilities)},
                                                 {"jobs_max", std::uint64_t{options_.leased_max}},
                                                 {"offers", texts(offered_)},
                                                 {"version", options_.execution_version}})),
                        ttl);
}

// Every lease that this process receives passes through here, and the replies that bring leases may
// arrive out of order. An older driver is notified that it lost the job before the new driver is
// entered; nullptr: a newer driver already has the job.
std::shared_ptr<JobDriver> Runtime::acquire(store::Lease lease) {
  const JobId job = lease.job;
  if (auto it = drivers_.find(job); it != drivers_.end()) {
    if (it->second->fence().epoch >= lease.fence.epoch) return nullptr;
    const std::shared_ptr<JobDriver> older = it->second;
    older->on_lease_lost();
  }
  auto driver = std::make_shared<JobDriver>(world_, host(), job, std::move(lease), options_.worker);
  drivers_[job] = driver;
  return driver;
}

void Runtime::start_driver(store::Lease lease) {
  const std::shared_ptr<JobDriver> driver = acquire(std::move(lease));
  if (!driver) return;
  ++counters_.aetheris_lease_acquired;
  driver->begin();
  if (stopping_) driver->drain(grace_);
}

void Runtime::claim_more() {
  if (!started_ || !options_.may_claim || stopping_ || claiming_ || !claimable_ ||
      drivers_.size() >= options_.leased_max) {
    return;
  }
  claiming_ = true;
  // Reset here: a job that becomes claimable from now on may be missed by this claim
  claimable_ = false;
  store::ClaimRequest request;
  request.worker = options_.worker;
  request.limit = std::min<std::size_t>(64, options_.leased_max - drivers_.size());
  request.lease = options_.lease;
  request.agents = options_.agents;
  request.capabilities = offered_;
  request.queues = options_.queues;
  for (const auto& [job, why] : refused_) request.excluded_jobs.push_back(job);
  for (const auto& [job, driver] : drivers_) request.excluded_jobs.push_back(job);
  for (std::size_t i = 0; i < request.limit; ++i) request.attempts.push_back(new_attempt_id());
  const std::size_t limit = request.limit;
  world_.store.claim(std::move(request), [this, limit](Result<std::vector<store::Lease>> leases) {
    claiming_ = false;
    if (!leases) {
      if (leases.error().code == Code::store_stopped) return store_stopped(leases.error());
      ++counters_.aetheris_lease_acquire_failed;
      return update_store_health(&leases.error());
    }
    update_store_health(nullptr);
    if (leases->size() == limit) claimable_ = true;  // there may be more
    for (store::Lease& lease : *leases) start_driver(std::move(lease));
    claim_more();
  });
}

void Runtime::claim_job(JobId job, async::Done<Result<bool>> done) {
  run_after_death_recorded([this, job = std::move(job), done = std::move(done)]() mutable {
    claim_now(job, std::move(done));
  });
}

void Runtime::claim_now(const JobId& job, async::Done<Result<bool>> done) {
  if (drivers_.contains(job)) {
    return world_.loop.post([done = std::move(done)]() mutable { done(true); });
  }
  store::ClaimRequest request;
  request.worker = options_.worker;
  request.lease = options_.lease;
  request.capabilities = offered_;
  request.queues = options_.queues;
  request.attempts.push_back(new_attempt_id());
  world_.store.claim_job(
      job, std::move(request),
      [this, job, done = std::move(done)](Result<std::optional<store::Lease>> lease) mutable {
        if (!lease) return done(std::unexpected(lease.error()));
        if (*lease) {
          start_driver(std::move(**lease));
          return done(true);
        }
        // The job may wait only for the versions of this process.
        offer_versions(job, [this, job, done = std::move(done)](Result<bool> resumed) mutable {
          if (!resumed.value_or(false)) return done(false);
          claim_job(job, std::move(done));
        });
      });
}

// Fires the timers, expiries and deadlines of jobs without a lease holder. A full page is followed
// by the next page at once, not at the next poll, because many may be due at the same time. A page
// in which nothing fired is not: the same jobs would be listed again.
void Runtime::fire_due_timers() {
  if (stopping_ || firing_) return;
  firing_ = true;
  world_.store.list_due(kDuePage, [this](Result<std::vector<JobId>> due) {
    firing_ = false;
    if (!due && due.error().code == Code::store_stopped) return store_stopped(due.error());
    // A process that claims detects an outage there.
    if (!options_.may_claim) update_store_health(due ? nullptr : &due.error());
    if (!due) return;
    struct Page {
      std::size_t left = 0;
      bool full = false, fired = false;
    };
    auto page = std::make_shared<Page>(Page{.left = due->size(), .full = due->size() == kDuePage});
    for (const JobId& job : *due) {
      submit_request(job, {.kind = engine::ControlRequest::Kind::timers},
                     [this, alive = handle(), page](const Result<Value>& answer) {
                       page->fired = page->fired || (answer && (*answer)["fired"] != Value(0));
                       if (--page->left > 0 || !page->full || !page->fired || !alive.lock()) return;
                       fire_due_timers();
                     });
    }
  });
}

// ---------------------------------------------------------------- create

JobId Runtime::new_job_id() {
  const auto ms = static_cast<std::uint64_t>(world_.store.now().us / 1000);
  return JobId(to_text(uuid_v7(ms, world_.random.next(), world_.random.next())));
}

void Runtime::create(NewJobRequest request, async::Done<Result<CreateResult>> done) {
  const Instant now = world_.store.now();
  JobId job = request.job;
  if (job.empty()) job = new_job_id();
  const Value labels = labels_value(request.labels);
  engine::NewJobEvents fresh{.agent = request.agent,
                             .input = request.input,
                             .labels = labels,
                             .idempotency_key = request.idempotency_key,
                             .execution_version = options_.version_of(request.agent),
                             .priority = request.priority,
                             .queue = request.queue,
                             .required_capabilities = request.required_capabilities,
                             .deadline = request.deadline,
                             .asked = request.explicit_options,
                             .plan = request.plan.get()};
  if (request.fork) {
    fresh.execution_version = request.fork->execution_version;
    fresh.planner_version = request.fork->planner_version;
    fresh.forked_from = request.fork->forked_from;
    fresh.imported = request.fork->imported;
    fresh.spent = request.fork->spent;
    fresh.blind = request.fork->blind;
  }
  if (!request.fork || request.fork->blind_erased) {
    std::string blind_bytes;
    put_big_endian64(world_.random.next(), blind_bytes);
    put_big_endian64(world_.random.next(), blind_bytes);
    fresh.blind = to_hex(blind_bytes);
  }
  fresh.budget = request.budget;
  fresh.now = now;
  fresh.traceparent = request.traceparent;
  fresh.tracestate = request.tracestate;
  const std::shared_ptr<const engine::Plan> effective_plan =
      request.plan_replacement ? request.plan_replacement->plan : request.plan;
  if (effective_plan->deadline) {
    const Instant of_agent = now + *effective_plan->deadline;
    fresh.deadline = std::min(fresh.deadline.value_or(of_agent), of_agent);
  }
  std::vector<EventBody> events = engine::job_events(fresh);
  const AttemptId attempt = new_attempt_id();
  store::JobRow needs;
  needs.capabilities = needed_capabilities(request.required_capabilities, request.agent,
                                           fresh.execution_version, effective_plan->versions);
  store::NewJob row;
  if (!request.queue.empty()) row.queue = request.queue;
  // The limit of a queue is enforced only by a claim.
  const bool limited = std::ranges::find(options_.queues, row.queue, &store::QueueLimit::queue) !=
                       options_.queues.end();
  const bool start_here = request.start_here && !stopping_ && !limited &&
                          drivers_.size() < options_.leased_max &&
                          missing_capabilities(needs).empty();
  if (start_here)
    events.push_back(engine::running_event(attempt, 1, options_.worker, world_.store.opened_at()));

  const engine::PlanSource plan =
      [&](const Value& graph, std::string_view) -> Result<std::shared_ptr<const engine::Plan>> {
    return graph == request.plan->task_graph ? request.plan : effective_plan;
  };
  auto state = std::make_shared<engine::State>();
  state->job = job;
  for (const EventBody& draft : events) {
    Status applied = engine::apply(*state, draft, now, plan);
    AE_CHECK(applied, applied.error().message);
  }
  if (request.plan_replacement) {
    auto replaced = engine::apply_request(*state, plan_request(*request.plan_replacement),
                                          {.now = now, .lease_until = now});
    if (!replaced) {
      return world_.loop.post([done = std::move(done), error = replaced.error()]() mutable {
        done(std::unexpected(error));
      });
    }
    for (EventBody& draft : replaced->events) {
      Status applied = engine::apply(*state, draft, now, plan);
      AE_CHECK(applied, applied.error().message);
      events.push_back(std::move(draft));
    }
  }
  LogWriter writer(world_, job, {}, now, start_here ? std::optional(attempt) : std::nullopt);
  store::Batch batch;
  auto sealed_events = writer.append(events, row_of(*state), batch);
  if (!sealed_events) {
    return world_.loop.post([done = std::move(done), error = sealed_events.error()]() mutable {
      done(std::unexpected(error));
    });
  }
  row.agent = request.agent;
  row.idempotency_key = request.idempotency_key;
  JobRequest job_request{.agent = request.agent,
                         .input = request.input,
                         .labels = labels,
                         .forked_from = fresh.forked_from,
                         .explicit_options = request.explicit_options};
  row.request_hash = request_hash(fresh.blind, job_request);
  row.labels = labels_of(labels);
  row.priority = request.priority;
  row.capabilities = std::move(needs.capabilities);
  if (start_here) row.claim = store::InitialClaimParams{options_.worker, attempt, options_.lease};
  const Hash new_request_hash = row.request_hash;
  const bool may_claim_here = may_claim(row.agent, row.capabilities);
  batch.authority = store::Batch::Create{std::move(row)};
  batch.audit = request.audit;
  if (!start_here) sign_head(world_, writer.end(), now, batch);
  const std::size_t bytes = bytes_of(*batch.sealed);
  commit_until_known(
      world_, handle(), std::make_shared<store::Batch>(std::move(batch)),
      [this, job, state, sealed_events = *std::move(sealed_events), head = writer.end().head, bytes,
       new_request_hash, may_claim_here, plan = request.plan, job_request = std::move(job_request),
       done = std::move(done)](Result<store::CommitResult> result) mutable {
        if (!result) return done(std::unexpected(result.error()));
        if (result->existing) {
          if (result->existing_request == new_request_hash) {
            return done(CreateResult{*result->existing, true});
          }
          return compare_with_existing(*result->existing, *result->existing_request,
                                       std::move(job_request), std::move(done));
        }
        on_committed_events(job, sealed_events);
        if (result->lease) {
          plans_.insert(plan);
          const std::shared_ptr<JobDriver> driver = acquire(*result->lease);
          done(CreateResult{job, false});
          if (!driver) return;
          driver->adopt(std::move(*state), head, bytes);
          if (stopping_) driver->drain(grace_);
          return;
        }
        done(CreateResult{job, false});
        if (!may_claim_here) return;
        claimable_ = true;
        claim_more();
      });
}

// A request whose idempotency key exists. The hash of a request is blinded with the secret of its
// own job, so the hash of this request is computed with the secret in the existing job's first
// event. The rest of its log is not read.
void Runtime::compare_with_existing(JobId job, Hash known, JobRequest job_request,
                                    async::Done<Result<CreateResult>> done) {
  world_.store.load(
      job, store::kFirstCommit,
      [job, known, job_request = std::move(job_request),
       done = std::move(done)](Result<store::LoadedJob> loaded) mutable {
        if (!loaded) return done(std::unexpected(loaded.error()));
        const auto created = open_job_created(job, *loaded);
        if (!created) return done(std::unexpected(created.error()));
        switch (same_request(*created, known, job_request)) {
          case SameRequest::yes:
            return done(CreateResult{.job = job, .existing = true});
          case SameRequest::input_erased:
            return done(CreateResult{.job = job, .existing = true, .input_erased = true});
          case SameRequest::no:
            break;
        }
        done(fail(Code::idempotency_conflict,
                  "the idempotency key was used for another request (job " + job.text +
                      "); use a new key"));
      });
}

// ---------------------------------------------------------------- control requests

// One read of a whole log: opens its commits, then folds its events.
struct Runtime::LogReading {
  LogReading(const JobId& job, store::LoadedJob&& all, const engine::PlanCache& cache,
             async::Done<Result<JobSnapshot>> answer)
      : loaded(std::move(all)),
        plans(cache),
        opener(job, loaded, plans.lookup()),
        done(std::move(answer)) {}

  bool next() {
    if (folding) return folding->next();
    if (opener.next()) return true;
    opened = opener.take();
    if (opened) folding.emplace(loaded.row.id, *opened, plans.source());
    return opened.has_value();
  }
  Result<JobSnapshot> take() {
    if (!opened) return std::unexpected(opened.error());
    AE_ASSIGN(engine::State state, std::move(*folding).take());
    return JobSnapshot{std::move(loaded.row), std::move(*opened), std::move(state),
                       std::move(loaded.effects), std::move(loaded.inbox)};
  }

  store::LoadedJob loaded;
  const engine::PlanCache& plans;
  LogOpener opener;
  Result<std::vector<Event>> opened;
  std::optional<engine::IncrementalFold> folding;
  async::Done<Result<JobSnapshot>> done;
};

void Runtime::read(JobId job, async::Done<Result<JobSnapshot>> done) {
  world_.store.load(job, 1,
                    [this, alive = handle(), job,
                     done = std::move(done)](Result<store::LoadedJob> loaded) mutable {
                      if (!loaded) return done(std::unexpected(loaded.error()));
                      if (alive.expired()) return;
                      const auto log_reading = std::make_shared<LogReading>(
                          job, std::move(*loaded), plans_, std::move(done));
                      async::run_in_slices(
                          world_.loop, world_.steady,
                          [log_reading, alive] { return !alive.expired() && log_reading->next(); },
                          [log_reading, alive] {
                            if (!alive.expired()) log_reading->done(log_reading->take());
                          });
                    });
}

void Runtime::read_state(JobId job, async::Done<Result<JobSnapshot>> done) {
  read_with_cache(job, std::nullopt, std::move(done));
}

void Runtime::read_with_cache(const JobId& job, std::optional<CachedJob> cached,
                              async::Done<Result<JobSnapshot>> done) {
  load_state(world_.store, job, plans_, std::move(cached),
             [done = std::move(done)](Result<LoadedState> loaded_state) mutable {
               if (!loaded_state) return done(std::unexpected(loaded_state.error()));
               if (!loaded_state->state) return done(std::unexpected(loaded_state->state.error()));
               store::LoadedJob& loaded = loaded_state->loaded;
               done(JobSnapshot{std::move(loaded.row),
                                {},
                                std::move(*loaded_state->state),
                                std::move(loaded.effects),
                                std::move(loaded.inbox),
                                loaded_state->bytes,
                                loaded_state->checkpoint_seq,
                                loaded_state->checkpoint_bytes});
             });
}

// REQUIRES: the state is the fold of the log up to the row's last event.
void Runtime::cache_state(const JobId& job, JobSnapshot&& read) {
  if (engine::is_terminal(read.state.status)) return;
  job_cache_.insert(job, {std::move(read.state), read.row.head, read.bytes, read.checkpoint_seq,
                          read.checkpoint_bytes});
}

struct Runtime::ActiveRequest {
  JobId job;
  engine::ControlRequest request;
  async::Done<Result<Value>> done;
  bool must_notify = false;  // notify the lease holder, even if there is nothing to write
  int tries = 0;
  int checks = 0;  // checks whether it was applied
};

void Runtime::submit_request(JobId job, engine::ControlRequest request,
                             async::Done<Result<Value>> done) {
  if (canonical_exceeds(request.payload, kValueMax) ||
      (request.result && canonical_exceeds(*request.result, kValueMax))) {
    return world_.loop.post([done = std::move(done)]() mutable {
      done(fail(Code::payload_too_large,
                "a payload may have " + std::to_string(kValueMax >> 20) +
                    " MiB as canonical JSON; keep the rest elsewhere and send where it is"));
    });
  }
  if (request.id.empty()) request.id = new_attempt_id().text;
  if (request.kind == engine::ControlRequest::Kind::resolve) {
    // The decision is based on a view no later than now, however long the request waits afterwards.
    const Instant now = world_.store.now();
    request.checked_at = std::min(now, request.checked_at.value_or(now));
  }
  try_request(std::make_shared<ActiveRequest>(ActiveRequest{
      .job = std::move(job), .request = std::move(request), .done = std::move(done)}));
}

void Runtime::try_request(std::shared_ptr<ActiveRequest> active) {
  if (++active->tries > kRequestTries) {
    return active->done(fail(Code::unavailable, "the job changes too quickly; try again"));
  }
  read_with_cache(active->job, job_cache_.extract(active->job),
                  [this, active](Result<JobSnapshot> read) {
                    if (!read) return active->done(std::unexpected(read.error()));
                    apply_or_enqueue(active, std::move(*read));
                  });
}

// One transaction decides between inbox and log: each write names the state of the claim that it
// requires and fails if that has changed; then everything is read again (SPEC §10).
void Runtime::apply_or_enqueue(std::shared_ptr<ActiveRequest> active, JobSnapshot&& read) {
  const engine::DecisionContext context = request_context();
  const Instant now = context.now;
  // Late results are applied first: they are facts, whatever the request says.
  std::vector<EventBody> events;
  if (!read.row.claim && !skips_late_results(read.state, active->request)) {
    auto imported = engine::import_stored_effects(read.state, stored_effects(read.effects));
    if (!imported) return active->done(std::unexpected(imported.error()));
    events = std::move(*imported);
    for (const EventBody& draft : events) {
      Status applied = engine::apply(read.state, draft, now, plans_.source());
      if (!applied) return active->done(std::unexpected(applied.error()));
    }
  }
  std::vector<std::uint64_t> numbers;
  if (!read.row.claim) {
    auto earlier = collect_earlier_requests(read.state, read.inbox, active->request, context,
                                            plans_.source(), events);
    if (!earlier) return active->done(std::unexpected(earlier.error()));
    numbers = *std::move(earlier);
  }
  // With a lease holder, earlier inbox entries are only simulated and the state is then ahead of
  // the log. Without one, a job that was parked with its inbox applies the rest of it when it is
  // claimed.
  const bool as_logged =
      !read.row.claim ||
      !apply_earlier_requests(read.state, read.inbox, active->request, context, plans_.source());
  const std::vector<std::string> offered = tool_versions(read.state);
  // The request is applied as this process would continue the job
  engine::DecisionContext offering = context;
  offering.tool_versions = &offered;
  offering.execution_version = &options_.version_of(read.state.agent);
  auto applied = engine::apply_request(read.state, active->request, offering);
  const bool accepted_before =
      std::ranges::count(read.inbox, inbox_id(active->request), &store::InboxEntry::id) > 0;
  if (applied && !applied->events.empty() && !accepted_before) {
    if (auto in_time = engine::check_not_expired(read.state, active->request, now); !in_time) {
      applied = std::unexpected(in_time.error());
    }
  }
  const Result<Value> answer =
      applied ? Result<Value>(applied->answer) : std::unexpected(applied.error());
  const bool must_notify = active->must_notify && read.row.claim;
  if (events.empty() && (!applied || applied->events.empty()) && !must_notify) {
    if (as_logged) cache_state(active->job, std::move(read));
    return active->done(answer);
  }

  const bool counts = active->request.kind == engine::ControlRequest::Kind::signal ||
                      active->request.kind == engine::ControlRequest::Kind::message;
  const std::uint64_t accepted = read.state.signals + read.inbox.size() - numbers.size();
  if (counts && accepted >= engine::kSignalsMax) {
    return active->done(fail(Code::signals_limit, "the job has accepted " +
                                                      std::to_string(engine::kSignalsMax) +
                                                      " signals, the most that one job may have"));
  }
  if (read.row.claim) {
    // The lease holder fires its timers, after the entries of the inbox.
    if (active->request.kind == engine::ControlRequest::Kind::timers && !must_notify) {
      return active->done(Value::object({{"fired", 0}}));
    }
    if (as_logged) cache_state(active->job, std::move(read));
    return post_to_inbox(active, applied ? *applied : engine::AppliedRequest{});
  }

  std::vector<std::pair<InvocationId, std::uint32_t>> decided;
  const auto follow = [&](EventBody draft) -> Status {
    if (auto slot = engine::decided_effect_slot(read.state, draft))
      decided.push_back(*std::move(slot));
    AE_TRY(engine::apply(read.state, draft, now, plans_.source()));
    events.push_back(std::move(draft));
    return {};
  };
  if (applied) {
    for (EventBody& draft : applied->events) {
      if (auto followed = follow(std::move(draft)); !followed) {
        return active->done(std::unexpected(followed.error()));
      }
    }
  }
  if (read.state.ending) {
    if (auto followed = apply_remaining_requests(read.state, read.inbox, context, numbers, follow);
        !followed) {
      return active->done(std::unexpected(followed.error()));
    }
  }
  // If nothing is in flight, a job that is ending ends in this commit.
  while (read.state.ending && !engine::is_terminal(read.state.status)) {
    engine::Decision decision = engine::decide(read.state, context);
    if (decision.events.empty()) break;
    for (EventBody& draft : decision.events) {
      const Status followed = follow(std::move(draft));
      AE_CHECK(followed, followed.error().message);
    }
  }
  LogWriter writer(world_, active->job, {read.row.last_seq, read.row.head}, now, std::nullopt);
  store::Batch batch;
  auto sealed_events = writer.append(events, row_of(read.state), batch);
  if (!sealed_events) return active->done(std::unexpected(sealed_events.error()));
  batch.authority = store::Batch::Unleased{};
  batch.effects_absent = std::move(decided);
  batch.inbox_consumed = std::move(numbers);
  sign_head(world_, writer.end(), now, batch);
  read.row.head = writer.end().head;
  read.bytes += bytes_of(*batch.sealed);
  commit_until_known(world_, handle(), std::make_shared<store::Batch>(std::move(batch)),
                     [this, active, sealed_events = *std::move(sealed_events), answer, as_logged,
                      read = std::move(read)](Result<store::CommitResult> result) mutable {
                       if (!result) {
                         const Code code = result.error().code;
                         if (code == Code::held || code == Code::sequence_conflict)
                           return try_request(active);
                         return active->done(std::unexpected(result.error()));
                       }
                       on_committed_events(active->job, sealed_events);
                       if (read.state.ending) {
                         for (const OpenQuestion& question : open_questions_of(read.state)) {
                           abandon_question(world_.tool_registry, question);
                         }
                       }
                       const bool may_claim_here = may_claim(read.row.agent, read.row.capabilities);
                       if (as_logged) cache_state(active->job, std::move(read));
                       active->done(answer);
                       if (!may_claim_here) return;
                       claimable_ = true;
                       claim_more();
                     });
}

// Writes the request to the inbox of the lease holder.
void Runtime::post_to_inbox(std::shared_ptr<ActiveRequest> active,
                            const engine::AppliedRequest& applied) {
  // The request is applied later: it binds the resolution to the try it was checked against.
  active->request.try_no = applied.try_no;
  Value answer = Value::object({{"accepted", true}});
  if (applied.answer.find("buffered")) answer = applied.answer;
  if (const Value* why = applied.answer.find("reason")) {  // an approval that is not used
    answer = answer.with("applied", false).with("reason", *why);
  }
  store::InboxEntry entry{.number = 0, .id = inbox_id(active->request), .request = {}};
  entry.request = canonical(engine::with_checksum(engine::inbox_location(active->job, entry.id),
                                                  active->request.to_json()));
  world_.store.put_inbox(active->job, std::move(entry),
                         [this, active, answer](Result<void> put) mutable {
                           if (!put && put.error().code == Code::not_held)
                             return try_request(active);
                           if (!put) return active->done(std::unexpected(put.error()));
                           if (auto it = drivers_.find(active->job); it != drivers_.end())
                             it->second->on_inbox_notify();
                           if (active->request.kind == engine::ControlRequest::Kind::timers)
                             return active->done(std::move(answer));
                           recheck_accepted(active, std::move(answer));
                         });
}

// The lease holder may have closed the request's subject between the read and the write to the
// inbox. A commit that closes it after that reads the inbox first, so one more check is enough: the
// request can still be applied, or it has been, or the job shows what came before it.
void Runtime::recheck_accepted(std::shared_ptr<ActiveRequest> active, Value answer) {
  read_with_cache(
      active->job, job_cache_.extract(active->job),
      [this, active, answer = std::move(answer)](Result<JobSnapshot> read) mutable {
        if (!read) {
          return active->done(
              fail(Code::unknown_outcome,
                   "the request is in the job's inbox, and whether it was in time is unknown: " +
                       read.error().message));
        }
        engine::State& state = read->state;
        const bool is_applied = engine::is_handled(state, active->request);
        const bool plan = active->request.kind == engine::ControlRequest::Kind::plan;
        const bool is_pending = plan && std::ranges::count(read->inbox, inbox_id(active->request),
                                                           &store::InboxEntry::id) > 0;
        const engine::DecisionContext context = request_context();
        const bool as_logged =
            !apply_earlier_requests(state, read->inbox, active->request, context, plans_.source());
        auto applied = engine::apply_request(state, active->request, context);
        // An early answer that its wait turns out not to accept is kept and finally listed as
        // undelivered.
        const bool is_buffered = !applied && answer.find("buffered") &&
                                 !engine::expire_request(state, active->request).empty();
        if (as_logged) cache_state(active->job, std::move(*read));
        if (is_applied || is_buffered) return active->done(std::move(answer));
        if (is_pending) return wait_for_plan(active, std::move(answer));
        if (applied && plan && !applied->events.empty()) {
          applied = fail(Code::call_pending,
                         "the plan was rejected because a call was running when the lease holder "
                         "checked it; try again, or pause the job first");
        }
        if (!applied) return active->done(std::unexpected(applied.error()));
        active->done(applied->events.empty() ? std::move(applied->answer) : std::move(answer));
      });
}

// A plan is rejected while a call is in flight, which only the lease holder knows.
void Runtime::wait_for_plan(std::shared_ptr<ActiveRequest> active, Value answer) {
  if (++active->checks > kPlanChecks) {
    return active->done(fail(Code::unknown_outcome,
                             "the plan is in the job's inbox, and the lease holder has not checked "
                             "it yet; the hash of the job's plan shows whether it was replaced"));
  }
  world_.loop.after(std::chrono::milliseconds(10 << std::min(active->checks, 6)),
                    [this, alive = handle(), active, answer = std::move(answer)]() mutable {
                      if (alive.lock()) recheck_accepted(active, std::move(answer));
                    });
}

// This process's versions of the plan's tools; "" = it does not offer the tool.
std::vector<std::string> Runtime::tool_versions(const engine::State& state) {
  std::vector<std::string> versions;
  if (!state.plan) return versions;
  for (const engine::ToolPolicy& tool : state.plan->tools) {
    const ToolRegistry::Entry* entry = world_.tool_registry.find(tool.name, tool.version);
    versions.push_back(entry ? entry->version : "");
  }
  return versions;
}

engine::DecisionContext Runtime::request_context() {
  const Instant now = world_.store.now();
  return {.now = now,
          .lease_until = now,
          .owned = world_.store.owned(),
          .jitter_seed = world_.random.next()};
}

// ---------------------------------------------------------------- drivers

std::string Runtime::agent_of(const JobId& job) const {
  const auto found = drivers_.find(job);
  return found == drivers_.end() ? "" : found->second->agent();
}

const engine::State* Runtime::state_of(const JobId& job) const {
  const auto found = drivers_.find(job);
  return found == drivers_.end() ? nullptr : &found->second->state();
}

void Runtime::on_committed_events(const JobId& job, const std::vector<Event>& events) {
  const bool fired = std::ranges::any_of(
      events, [](const Event& event) { return event.type == EventType::timer_fired; });
  if (fired) static_cast<void>(AE_FAILPOINT("timer.after_fire"));
  for (const Event& event : events) {
    if (const auto* checked = std::get_if<ConfirmationChecked>(&event.body)) {
      on_verification(job, *checked);
    }
    const auto* finished = std::get_if<ToolInvocationFinished>(&event.body);
    if (world_.output_hub != nullptr && finished != nullptr) {
      world_.output_hub->end(job, finished->invocation_id,
                             static_cast<std::uint32_t>(finished->try_no));
    }
  }
  if (observer_) observer_->on_events(job, events);
}

// Counts and logs a mismatch after which the job continues.
void Runtime::on_verification(const JobId& job, const ConfirmationChecked& event) {
  if (event.verdict != "mismatch" || event.detail.text("mode") != "warn") return;
  counters_.aetheris_confirmation_replay_warn_total++;
  // The warning omits what was found: that belongs to the job's log.
  warn(job, or_empty(event.resource_type) + " \"" + or_empty(event.resource_id) +
                "\" is not as the job left it; the job continues (`verify: warn`), and its trace "
                "shows what was found");
}

void Runtime::on_driver_exit(const JobDriver& driver, std::optional<Error> problem,
                             ExitState exit_state) {
  const JobId& job = driver.job();
  if (world_.output_hub != nullptr) world_.output_hub->end_all(job);
  if (problem && problem->code == Code::stale_attempt) ++counters_.aetheris_lease_conflict_total;
  if (exit_state == ExitState::finished) jobs_with_unknown_call_.erase(job);
  if (exit_state == ExitState::unknown_call) jobs_with_unknown_call_.insert(job);
  if (problem && problem->code == Code::stale_attempt && driver.is_store_unavailable()) {
    // If the attempt is forgotten, it counts as a lost claim.
    if (lost_to_outage_.size() >= kOutagesMax) lost_to_outage_.erase(lost_to_outage_.begin());
    lost_to_outage_[job].insert(driver.fence().attempt);
  } else {
    lost_to_outage_.erase(job);
  }
  // Temporary problems; any other problem persists as long as this process lives.
  const bool is_transient =
      problem && (problem->code == Code::stale_attempt || problem->code == Code::unavailable ||
                  problem->code == Code::unknown_outcome);
  if (problem && !is_transient) {
    refused_.insert_or_assign(job, *problem);
    // It is no error that another process has the job's version.
    if (problem->code != Code::execution_version_mismatch) {
      warn(job, "this process cannot run the job: " + problem->message);
    }
  }
  if (auto it = drivers_.find(job); it != drivers_.end() && it->second.get() == &driver) {
    // The driver is still on the stack: destroy it in a later task.
    world_.loop.post([exited = std::move(it->second)] {});
    drivers_.erase(it);
  }
  if (observer_) observer_->on_released(job, problem);
  if (stopping_ && drivers_.empty() && stopped_) {
    world_.loop.post([stopped = std::exchange(stopped_, nullptr)] { stopped(); });
    return;
  }
  if (exit_state != ExitState::finished) {  // it may be claimed or woken again
    claimable_ = true;
    schedule_next_due();
  }
  if (!options_.queues.empty())
    claimable_ = true;  // there may be room for another job of its queue
  claim_more();
}

// ---------------------------------------------------------------- late results

void Runtime::on_late_result(const JobId& job, const engine::SentTry& sent,
                             const Outcome& outcome) {
  if (!engine::is_certain(outcome) || store_stopped_) return;
  auto batch = std::make_shared<store::Batch>();
  batch->job = job;
  batch->authority = store::Batch::LateResult{};
  batch->effects.push_back({sent.invocation, sent.try_no,
                            canonical(engine::effect_record(job, sent, outcome, world_.store.now(),
                                                            engine::Arrival::late))});
  store_late_result(std::move(batch), 0);
}

// A job whose values were erased must not get a new value: then only the fact and the outcome of
// the call are stored, without its result.
void Runtime::store_late_result(std::shared_ptr<store::Batch> batch, int tries) {
  world_.store.load(
      batch->job, store::kFirstCommit, [this, batch, tries](Result<store::LoadedJob> loaded) {
        const auto created =
            loaded ? open_job_created(batch->job, *loaded) : std::unexpected(loaded.error());
        if (!created) return on_late_result_stored(batch, tries, std::unexpected(created.error()));
        if (!erased_fields(*created).empty()) {
          store::EffectRow& effect = batch->effects.front();
          auto erased = engine::erased_effect(
              engine::effect_location(batch->job, effect.invocation, effect.try_no), effect.record);
          AE_CHECK(erased.has_value(), batch->job.text);  // this process wrote the record
          effect.record = *std::move(erased);
        }
        batch->authority =
            store::Batch::LateResult{.first_commit = sha256(loaded->commits.front())};
        world_.store.commit(*batch, [this, batch, tries](Result<store::CommitResult> result) {
          on_late_result_stored(batch, tries, std::move(result));
        });
      });
}

// The lease holder gets the result through the job's inbox, so that the job cannot become idle
// without it. Without a lease holder the result is applied here, because no process reads an ended
// job again.
void Runtime::on_late_result_stored(std::shared_ptr<store::Batch> batch, int tries,
                                    Result<store::CommitResult> result) {
  if (!result) return retry_late_result(batch, tries, "cannot be stored", result.error());
  if (tries == 0) warn(batch->job, "a late result is stored");
  try_request(std::make_shared<ActiveRequest>(ActiveRequest{
      .job = batch->job,
      .request = {.kind = engine::ControlRequest::Kind::timers, .id = new_attempt_id().text},
      .done =
          [this, batch, tries](Result<Value> applied) {
            if (applied) return;
            retry_late_result(batch, tries, "is stored but not in the log", applied.error());
          },
      .must_notify = true}));
}

void Runtime::retry_late_result(const std::shared_ptr<store::Batch>& batch, int tries,
                                const std::string& what, const Error& error) {
  const bool is_transient =
      error.code == Code::unavailable || error.code == Code::unknown_outcome ||
      error.code == Code::sequence_conflict;  // the job's values were erased meanwhile
  if (!is_transient || tries >= kLateTries) {
    return warn(batch->job,
                "a late result " + what + ", its call has an unknown outcome: " + error.message);
  }
  world_.loop.after(std::chrono::milliseconds(50 << std::min(tries, 9)),
                    [this, alive = handle(), batch, tries] {
                      if (alive.lock()) store_late_result(batch, tries + 1);
                    });
}

// ---------------------------------------------------------------- shutdown

void Runtime::store_stopped(const Error& error) {
  if (std::exchange(store_stopped_, true)) return;
  stopping_ = true;
  const auto drivers = drivers_;
  for (const auto& [job, driver] : drivers) driver->give_up();
  if (observer_) observer_->on_store_stopped(error);
}

// An outage is reported when it begins and when it ends.
void Runtime::update_store_health(const Error* error) {
  if (std::exchange(store_unavailable_, error != nullptr) == (error != nullptr) || !observer_)
    return;
  observer_->on_store_health(error ? std::optional(*error) : std::nullopt);
}

void Runtime::warn(const JobId& job, const std::string& what) {
  if (observer_) observer_->on_warning(job, what);
}

void Runtime::stop(Duration grace, std::function<void()> stopped) {
  stopping_ = true;
  grace_ = grace;
  stopped_ = std::move(stopped);
  if (started_ && options_.may_claim) announce(Duration(0));
  if (drivers_.empty()) {
    world_.loop.post([done = std::exchange(stopped_, nullptr)] { done(); });
    return;
  }
  const auto drivers = drivers_;
  for (const auto& [job, driver] : drivers) driver->drain(grace);
}

}  // namespace ae::runtime
