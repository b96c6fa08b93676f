// Runtime: claims jobs, renews leases, fires timers; the drivers run the jobs.
#include "runtime/scheduler/runtime.h"

#include <fmt/core.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "async/failpoint.h"
#include "engine/heart/ingest.h"
#include "json/json.h"
#include "log/field_names.h"
#include "runtime/driver/output_hub.h"
#include "runtime/scheduler/process_death.h"

namespace ae::runtime {
namespace {

constexpr std::size_t kOutagesMax = 4096;  // jobs lost to outages that are remembered
// Interval between two sweeps for jobs whose versions this process offers: a job may park while a
// sweep is running.
constexpr Duration kSweepEvery = std::chrono::minutes(1);
constexpr Duration kCoveredMin = std::chrono::seconds(15);  // if a report does not state it

}  // namespace

Runtime::Runtime(World world, RuntimeOptions options, RuntimeObserver* observer)
    : world_(world),
      options_(std::move(options)),
      observer_(observer),
      plans_(world.plans != nullptr ? *world.plans : own_plans_),
      job_reader_(world_, plans_, job_cache_),
      request_submitter_(world_, *this, job_reader_, plans_),
      job_creator_(world_, options_, *this, job_reader_),
      child_jobs_(world_, *this, job_reader_),
      job_messages_(world_.loop, *this, request_submitter_),
      late_results_(
          world_,
          [this](const JobId& job, async::Done<Result<Value>> done) {
            request_submitter_.submit_late_result(job, std::move(done));
          },
          [this](const JobId& job, const std::string& what) { warn(job, what); }),
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
    if (options_.code_agents.contains(agent)) continue;  // workers offer their versions
    offered_.push_back(version_capability(agent, version));
  }
  if (world_.routines == nullptr) return;
  for (const auto& [agent, version] : world_.routines->agent_versions()) {
    std::string capability = version_capability(agent, version);
    if (std::ranges::find(offered_, capability) == offered_.end()) {
      offered_.push_back(std::move(capability));
    }
  }
}

void Runtime::on_routines_changed() {
  const std::vector<std::string> before = std::exchange(offered_, {});
  update_offered();
  retry_refused();
  const bool has_new = std::ranges::any_of(offered_, [&](const std::string& one) {
    return std::ranges::find(before, one) == before.end();
  });
  if (!has_new || !started_) return;
  version_sweeper_.on_offer_changed();
  sweep_versions();
}

void Runtime::read(const JobId& job, async::Done<Result<JobSnapshot>> done) {
  job_reader_.read<JobSnapshot>(
      job, {}, [](JobSnapshot& read) -> Result<JobSnapshot> { return std::move(read); },
      std::move(done));
}

void Runtime::read_state(const JobId& job, async::Done<Result<JobSnapshot>> done) {
  job_reader_.read_state<JobSnapshot>(
      job, [](JobSnapshot& read) -> Result<JobSnapshot> { return std::move(read); },
      std::move(done));
}

void Runtime::on_worker_left(const engine::WorkerName& worker, const routines::LeftCalls& left) {
  const Instant now = world_.store.now();
  const WorkerReport* const kept =
      worker_reports_.add(worker, {.received = {left.received.begin(), left.received.end()},
                                   .at = now,
                                   .covers_from = now - left.covers.value_or(kCoveredMin)});
  if (kept == nullptr) return;
  const auto drivers = drivers_;
  for (const auto& [job, driver] : drivers) driver->on_worker_report(worker, *kept);
}

// Only of an open call that the log says was given to this worker. A job is read for it only if the
// worker's report lists the call, and once.
void Runtime::on_worker_late(const engine::WorkerName& worker, const routines::CallName& call,
                             const Outcome& outcome) {
  if (!worker_reports_.add_end(worker, call)) return;
  using Sent = std::optional<engine::SentTry>;
  job_reader_.read_state<Sent>(
      call.job,
      [worker, call](JobSnapshot& read) -> Result<Sent> {
        for (const engine::Step& step : read.state.steps) {
          if (!step.call || step.call->id != call.invocation) continue;
          if (step.call->worker != worker || step.call->try_no != call.try_no) continue;
          return engine::sent_try_of(read.state, step);
        }
        return std::nullopt;
      },
      [this, alive = alive_.watch(), job = call.job, outcome](Result<Sent> sent) {
        if (!alive || !sent || !*sent || store_stopped_) return;
        // What this process performs ends with its answer.
        const auto driver = drivers_.find(job);
        if (driver != drivers_.end() && driver->second->performs((*sent)->step)) return;
        late_results_.add(job, **sent, outcome);
      });
}

// One timer: what is refused for a longer time waits again.
void Runtime::on_version_wait(Duration wait) {
  const Instant due = world_.store.now() + wait;
  if (version_wait_timer_ && version_wait_due_ <= due) return;
  if (version_wait_timer_) world_.loop.cancel(*version_wait_timer_);
  version_wait_due_ = due;
  version_wait_timer_ = world_.loop.after(wait + std::chrono::milliseconds(1), [this] {
    version_wait_timer_.reset();
    retry_refused();
  });
}

void Runtime::offer(std::vector<std::string> agents,
                    std::map<std::string, std::string, std::less<>> agent_versions,
                    std::set<std::string, std::less<>> code_agents) {
  options_.agents = std::move(agents);
  options_.code_agents = std::move(code_agents);
  options_.has_agents = !options_.agents.empty();
  options_.agent_versions = std::move(agent_versions);
  update_offered();
  version_sweeper_.on_offer_changed();
  retry_refused();
  if (started_) sweep_versions();
}

void Runtime::retry_refused() {
  std::erase_if(refused_, [](const auto& one) { return one.second.code == Code::needs_version; });
  claimable_ = true;
  claim_more();
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
  submit_request(job, {.by = options_.worker, .body = engine::VersionRequest{}},
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
  if (!options_.has_agents) return false;
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
    return fail(Code::needs_version,
                "the process that owns this store does not run agent \"{}\"; serve this file too",
                agent);
  }
  for (const engine::ToolPolicy& tool : plan.tools) {
    if (!tool.makes_call() || tool.needs_no_transport()) continue;
    const ToolRegistry::Entry* const entry = world_.tool_registry.find(tool.name, tool.version);
    if (entry == nullptr ? !owned : entry->version == tool.version) continue;
    return fail(Code::needs_version,
                "the process that runs agent \"{}\" has {} tool \"{}\"; restart it with this file",
                agent, entry ? "another version of" : "no", tool.name);
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
  if (version_wait_timer_) world_.loop.cancel(*version_wait_timer_);
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
  record_process_death(
      world_, plans_, *world_.slot->interrupted(), alive_.watch(),
      [this, job](const Result<std::vector<Event>>& recorded) {
        world_.slot->clear_interrupted();
        if (!recorded) {
          warn(job, fmt::format("a process died while it ran the job, which cannot be recorded: {}",
                                recorded.error().message));
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
  on_inbox_written(*hint.inbox_of);
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

void Runtime::heartbeat() {
  heartbeat_timer_ = world_.loop.after(options_.lease / 3, [this] {
    heartbeat_timer_.reset();
    heartbeat();
  });
  if (options_.may_claim && options_.has_agents && !stopping_) announce(options_.lease);
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
                                                 {field::version, options_.execution_version}})),
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

bool Runtime::can_start(const store::NewJob& row) const {
  store::JobRow needs;
  needs.capabilities = row.capabilities;
  // The limit of a queue is enforced only by a claim.
  const bool limited = std::ranges::find(options_.queues, row.queue, &store::QueueLimit::queue) !=
                       options_.queues.end();
  return !stopping_ && !limited && drivers_.size() < options_.leased_max &&
         missing_capabilities(needs).empty();
}

void Runtime::start_created(CreatedJob&& created, store::Lease lease) {
  plans_.insert(created.plan);
  const std::shared_ptr<JobDriver> driver = acquire(std::move(lease));
  created.done(CreateResult{created.job, false});
  if (!driver) return;
  driver->adopt(std::move(*created.state), created.head, created.bytes);
  if (stopping_) driver->drain(grace_);
}

void Runtime::claim_more() {
  if (!started_ || !options_.may_claim || !options_.has_agents || stopping_ || claiming_ ||
      !claimable_ || drivers_.size() >= options_.leased_max) {
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
  for (std::size_t i = 0; i < request.limit; ++i)
    request.attempts.push_back(AttemptId(new_uuid(world_)));
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
  request.attempts.push_back(AttemptId(new_uuid(world_)));
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

// ---------------------------------------------------------------- drivers

std::string Runtime::agent_of(const JobId& job) const {
  const auto found = drivers_.find(job);
  return found == drivers_.end() ? "" : found->second->agent();
}

const engine::State* Runtime::state_of(const JobId& job) const {
  const auto found = drivers_.find(job);
  return found == drivers_.end() ? nullptr : &found->second->state();
}

// Read by on_committed_events itself, or by the observer.
bool Runtime::is_observed(EventType type) const {
  switch (type) {
    case EventType::timer_fired:
    case EventType::confirmation_checked:
      return true;
    case EventType::tool_invocation_finished:
      if (world_.output_hub != nullptr) return true;
      break;
    default:
      break;
  }
  return observer_ != nullptr && observer_->reads(type);
}

std::vector<Event> Runtime::observed_events(std::vector<Event> events) const {
  const auto is_read = [this](const Event& event) { return is_observed(event.type); };
  const auto count = static_cast<std::size_t>(std::ranges::count_if(events, is_read));
  if (count == events.size()) return events;
  std::vector<Event> observed;
  observed.reserve(count);
  for (Event& event : events) {
    if (is_read(event)) observed.push_back(std::move(event));
  }
  return observed;
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
  if (event.verdict != "mismatch" || event.detail.read_leniently().mode != "warn") return;
  counters_.aetheris_confirmation_replay_warn_total++;
  // The warning omits what was found: that belongs to the job's log.
  warn(job, fmt::format("{} \"{}\" is not as the job left it; the job continues (`verify: warn`), "
                        "and its trace shows what was found",
                        or_empty(event.resource_type), or_empty(event.resource_id)));
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
      warn(job, fmt::format("this process cannot run the job: {}", problem->message));
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

void Runtime::on_late_result(const JobId& job, const engine::SentTry& sent,
                             const Outcome& outcome) {
  if (!store_stopped_) late_results_.add(job, sent, outcome);
}

// ---------------------------------------------------------------- requests

void Runtime::create(NewJobRequest request, async::Done<Result<CreateResult>> done) {
  job_creator_.create(std::move(request), std::move(done));
}

void Runtime::fork(ForkRequest request, async::Done<Result<ForkResult>> done) {
  job_creator_.fork(std::move(request), std::move(done));
}

void Runtime::submit_request(JobId job, engine::ControlRequest request,
                             async::Done<Result<Value>> done) {
  request_submitter_.submit(std::move(job), std::move(request), std::move(done));
}

void Runtime::on_inbox_written(const JobId& job) {
  if (auto it = drivers_.find(job); it != drivers_.end()) it->second->on_inbox_notify();
}

// Those that no worker holds are due. The hint of the store reaches lease holders in other
// processes.
void Runtime::on_inbox_puts(const std::vector<JobId>& jobs) {
  bool others = false;
  for (const JobId& job : jobs) {
    others = others || !drivers_.contains(job);
    on_inbox_written(job);
  }
  if (!others) return;
  fire_again_ = firing_;
  fire_due_timers();
}

void Runtime::on_inbox_reply(const JobId& job, const std::string& id, const std::string& reply) {
  request_submitter_.on_reply(job, id, reply);
}

void Runtime::on_claimable() {
  claimable_ = true;
  claim_more();
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
