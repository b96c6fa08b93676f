// Claiming, creating, acting, timing; the holders do the rest.
#include "runtime/runtime.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "async/point.h"
#include "async/portions.h"
#include "core/bytes.h"
#include "core/json.h"
#include "core/redacted.h"
#include "core/seal.h"
#include "engine/absorb.h"
#include "engine/beside.h"
#include "engine/head.h"
#include "runtime/death.h"
#include "runtime/log_opening.h"
#include "runtime/row.h"
#include "runtime/sayings.h"

namespace ae::runtime {
namespace {

constexpr int kUnknownTries = 8;
// A late result that cannot be kept for about ten minutes is given up; its call is in doubt, and is said to be.
constexpr int kLateTries = 30;
constexpr std::size_t kDuePage = 256;      // jobs that are looked up and fired at once
constexpr std::size_t kOutagesMax = 4096;  // jobs lost to outages that are remembered
// A plan in the inbox is looked after for about ten seconds, ever more slowly, until its holder has taken it or not.
constexpr int kPlanLooks = 20;
// Between two sweeps for jobs whose versions this process offers: one may have parked while the earlier one went by.
constexpr Duration kSweepEvery = std::chrono::minutes(1);
constexpr int kActTries = 64;  // an act that loses this many races in a row answers unavailable

// One act is one entry, however often it is sent; acts that are about different things may use the same id.
std::string inbox_id(const engine::Act& act) {
  return to_hex(sha256(canonical(Value::object({{"about", act.correlation_key + act.approval},
                                                {"channel", act.channel},
                                                {"id", act.id},
                                                {"kind", static_cast<int>(act.kind)}}))));
}

// May these two be about one wait, or one call? An answer names its wait by its key or by its id among the approvals.
bool may_meet(const engine::Act& before, const engine::Act& act) {
  using Kind = engine::Act::Kind;
  const auto answers = [](const engine::Act& a) {
    return a.kind == Kind::signal || a.kind == Kind::resolve;
  };
  if (!answers(before) || !answers(act)) return false;
  const bool keys = !before.correlation_key.empty() && !act.correlation_key.empty();
  return !keys || before.correlation_key == act.correlation_key;
}

// What stands in the inbox before the act comes first; whoever holds the job has not taken it in yet. A pause is asked for,
// so that `resume` takes it back; a wait has its answer, a call its resolution, so that a second one is told so. True: the
// state is ahead of the log.
bool taken_ahead(engine::State& state, const std::vector<store::InboxEntry>& inbox,
                 const engine::Act& wanted, const engine::Stamp& stamp,
                 const engine::PlanSource& plans) {
  using Kind = engine::Act::Kind;
  if (inbox.empty()) return false;
  bool ahead = false;
  const std::string own = inbox_id(wanted);
  for (const store::InboxEntry& entry : inbox) {
    auto json = parse_json(entry.act);
    auto act = json ? engine::Act::from_json(*json) : std::unexpected(json.error());
    if (!act) continue;
    // Itself, sent again, and what is behind it. With another payload it is another answer under one id.
    if (entry.id == own && act->payload == wanted.payload && act->arguments == wanted.arguments) {
      break;
    }
    const bool rests = act->kind == Kind::pause || act->kind == Kind::resume;
    if (rests || may_meet(*act, wanted)) {
      auto taken = engine::take_in(state, *act, stamp);
      for (const EventDraft& draft : taken ? taken->events : std::vector<EventDraft>()) {
        ahead = true;
        if (!engine::apply(state, draft, stamp.now, plans)) return true;
      }
    }
    if (entry.id == own) break;
  }
  return ahead;
}

// The messages of a channel, and the answers to a wait or a call, count in the order in which they were accepted,
// also where a job was parked with its inbox: those that it holds come before a later one. The inbox's numbers of
// what `events` got.
Result<std::vector<std::uint64_t>> accepted_ahead(
    engine::State& state, const std::vector<store::InboxEntry>& inbox, const engine::Act& wanted,
    const engine::Stamp& stamp, const engine::PlanSource& plans, std::vector<EventDraft>& events) {
  std::vector<std::uint64_t> numbers;
  const std::string own = inbox_id(wanted);
  for (const store::InboxEntry& entry : inbox) {
    const auto json = engine::read_beside(engine::inbox_place(state.job, entry.id), entry.act);
    const auto act = json ? engine::Act::from_json(*json) : std::unexpected(json.error());
    const bool same_channel = act && act->kind == engine::Act::Kind::message &&
                              wanted.kind == act->kind && act->channel == wanted.channel;
    if (!same_channel && !(act && may_meet(*act, wanted))) continue;
    auto taken = engine::take_in(state, *act, stamp);
    if (!taken) continue;  // the job is ending: its holder says what becomes of it
    for (EventDraft& draft : taken->events) {
      AE_TRY(engine::apply(state, draft, stamp.now, plans));
      events.push_back(std::move(draft));
    }
    numbers.push_back(entry.number);
    if (entry.id == own) break;  // itself, sent again
  }
  return numbers;
}

// What an end in this commit would lose: the acts that the job was parked with. They are taken in as a holder does it.
// `numbers`: of the acts that are in the log already; those of the others are added.
Status acts_before_end(const engine::State& state, const std::vector<store::InboxEntry>& inbox,
                       const engine::Stamp& stamp, std::vector<std::uint64_t>& numbers,
                       const std::function<Status(EventDraft)>& follow) {
  for (const store::InboxEntry& entry : inbox) {
    if (std::ranges::find(numbers, entry.number) != numbers.end()) continue;
    AE_ASSIGN(const Value json,
              engine::read_beside(engine::inbox_place(state.job, entry.id), entry.act));
    AE_ASSIGN(const engine::Act act, engine::Act::from_json(json));
    numbers.push_back(entry.number);
    if (act.kind == engine::Act::Kind::timers) continue;
    auto taken = engine::take_in(state, act, stamp);
    auto drafts = taken ? std::move(taken->events) : std::vector<EventDraft>();
    if (drafts.empty()) drafts = engine::overtake(state, act);
    for (EventDraft& draft : drafts) AE_TRY(follow(std::move(draft)));
  }
  return {};
}

engine::Act act_of(const AnotherPlan& another) {
  std::vector<Value> drop(another.drop.begin(), another.drop.end());
  return {.kind = engine::Act::Kind::plan,
          .by = another.by,
          .payload = Value::object(
              {{"drop", Value::array(std::move(drop))}, {"task_graph", another.plan->task_graph}})};
}

// Taking in what came late may be what kills the process: of a worn-out job its next attempt does it. These acts stand on no
// outcome of a call.
bool leaves_late(const engine::State& state, const engine::Act& act) {
  using Kind = engine::Act::Kind;
  switch (act.kind) {
    case Kind::pause:
    case Kind::resume:
    case Kind::cancel:
    case Kind::timers:
    case Kind::version:
      // Of a job that has ended a late result is only noted.
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
      versions_(world.store, [this](const store::JobRow& row, async::Done<Result<bool>> resumed) {
        // A job that this process resumed and cannot claim would park again.
        if (!missing(row).empty()) return resumed(false);
        offer_versions(row.id, std::move(resumed));
      }) {
  note_offered();
}

void Runtime::note_offered() {
  offered_ = options_.capabilities;
  for (const auto& [agent, version] : options_.agent_versions) {
    offered_.push_back(version_capability(agent, version));
  }
}

void Runtime::offer(std::vector<std::string> agents,
                    std::map<std::string, std::string, std::less<>> agent_versions) {
  options_.agents = std::move(agents);
  options_.agent_versions = std::move(agent_versions);
  note_offered();
  versions_.changed();
  claimable_ = true;
  claim_more();
  if (started_) sweep_versions();
}

// Parked jobs of our agents: those that wait for a version of ours go on.
void Runtime::sweep_versions() {
  if (!options_.claims || stopping_) return;
  swept_at_ = world_.steady.since_start();
  std::vector<std::string> agents;
  agents.reserve(options_.agent_versions.size());
  for (const auto& [agent, version] : options_.agent_versions) agents.push_back(agent);
  versions_.sweep(std::move(agents));
}

// Tells a job which versions this process offers.
void Runtime::offer_versions(const JobId& job, async::Done<Result<bool>> resumed) {
  act(job, {.kind = engine::Act::Kind::version, .by = options_.worker},
      [resumed = std::move(resumed)](Result<Value> answer) mutable {
        if (!answer) return resumed(std::unexpected(answer.error()));
        resumed((*answer)["resumed"] == Value(true));
      });
}

void Runtime::offered_elsewhere(const store::JobRow& row, const std::string& version,
                                async::Done<Result<bool>> done) {
  versions_.offered(row, version, std::move(done));
}

bool Runtime::claims(const std::string& agent, const std::vector<std::string>& capabilities) const {
  const std::vector<std::string>& agents = options_.agents;
  const bool ours = agents.empty() || std::ranges::find(agents, agent) != agents.end();
  return ours && std::ranges::all_of(capabilities, [&](const std::string& needed) {
           return std::ranges::find(offered_, needed) != offered_.end();
         });
}

Status Runtime::offers(const std::string& agent, const engine::Plan& plan) const {
  const bool alone = world_.store.owned();
  if (!claims(agent, {})) {
    if (!alone) return {};
    return fail(Code::needs_version, "the process that owns this store does not run agent \"" +
                                         agent + "\"; serve this file too");
  }
  for (const engine::ToolPolicy& tool : plan.tools) {
    if (!tool.makes_call()) continue;
    const Performers::Entry* const entry = world_.performers.find(tool.name, tool.version);
    if (entry == nullptr ? !alone : entry->version == tool.version) continue;
    std::string problem = "the process that runs agent \"" + agent + "\" has ";
    problem.append(entry ? "another version of" : "no").append(" tool \"").append(tool.name);
    return fail(Code::needs_version, problem.append("\"; restart it with this file"));
  }
  return {};
}

std::vector<std::string> Runtime::missing(const store::JobRow& row) const {
  std::vector<std::string> missing;
  for (const std::string& needed : row.capabilities) {
    if (std::ranges::find(offered_, needed) == offered_.end()) missing.push_back(needed);
  }
  return missing;
}

Runtime::~Runtime() {
  world_.store.on_hint(nullptr);
  if (tick_timer_) world_.loop.forget(*tick_timer_);
  if (beat_timer_) world_.loop.forget(*beat_timer_);
  if (look_timer_) world_.loop.forget(*look_timer_);
}

AttemptId Runtime::fresh_attempt() {
  return AttemptId(to_text(uuid_v7(static_cast<std::uint64_t>(world_.store.now().us / 1000),
                                   world_.chance.next(), world_.chance.next())));
}

void Runtime::start() {
  when_death_is_recorded([this] {
    started_ = true;
    world_.store.on_hint([this](const store::Hint& hint) { hinted(hint); });
    tick();
    heartbeat();
    sweep_versions();
  });
}

// A job that was on the processor when an earlier process died is not claimed before its log says so.
void Runtime::when_death_is_recorded(async::Task next) {
  if (world_.slot == nullptr || !world_.slot->died()) return next();
  after_death_.push_back(std::move(next));
  if (after_death_.size() > 1) return;
  const JobId job = world_.slot->died()->job;
  record_death(world_, plans_, *world_.slot->died(), handle(),
               [this, job](const Result<std::vector<Event>>& recorded) {
                 world_.slot->forget_died();
                 if (!recorded) {
                   warn(job, "a process died while it ran the job, which cannot be recorded: " +
                                 recorded.error().message);
                 } else if (!recorded->empty()) {
                   warn(job, "a process died while it ran the job");
                   committed(job, *recorded);
                 }
                 for (async::Task& task : std::exchange(after_death_, {})) task();
               });
}

// Another process has done something. What is looked at now would be looked at by the poll as well.
void Runtime::hinted(const store::Hint& hint) {
  ++counters_.aetheris_store_hint_total;
  if (!hint.rested.empty()) {
    for (const JobId& job : hint.rested) {
      if (observer_) observer_->on_rested(job);
    }
    return;
  }
  if (!hint.inbox_of) {
    if (hint.needs && !claims(hint.needs->agent, hint.needs->capabilities)) return;
    claimable_ = true;
    return claim_more();
  }
  if (auto it = holders_.find(*hint.inbox_of); it != holders_.end()) it->second->told();
}

// The poll floor: every hint may be lost, this comes back.
void Runtime::tick() {
  // Processes that share a store do not ask it all at once.
  const std::uint64_t share = (std::hash<std::string>{}(options_.worker) + ++ticks_) % 16;
  const Duration early =
      world_.store.owned() ? Duration(0) : options_.poll / 64 * static_cast<int>(share);
  tick_timer_ = world_.loop.after(options_.poll - early, [this] {
    tick_timer_.reset();
    claimable_ = true;
    tick();
  });
  fire_due();
  claim_more();
}

// The next timer may be nearer than the poll floor.
void Runtime::look_ahead() {
  if (!started_ || stopping_) return;
  world_.store.next_due([this](Result<std::optional<Instant>> next) {
    if (!next || !*next || stopping_) return;
    const Duration wait =
        std::max(Duration(0), **next - world_.store.now()) + std::chrono::milliseconds(1);
    if (wait >= options_.poll) return;
    if (look_timer_) world_.loop.forget(*look_timer_);
    look_timer_ = world_.loop.after(wait, [this] {
      look_timer_.reset();
      claimable_ = true;
      fire_due();
      claim_more();
    });
  });
}

void Runtime::heartbeat() {
  beat_timer_ = world_.loop.after(options_.lease / 3, [this] {
    beat_timer_.reset();
    heartbeat();
  });
  if (options_.claims && !stopping_) announce(options_.lease);
  if (world_.steady.since_start() - swept_at_ >= kSweepEvery) sweep_versions();
  versions_.look_again([this](const std::vector<JobId>& jobs) {
    for (const JobId& job : jobs) refused_.erase(job);
    claimable_ = true;
    claim_more();
  });
  if (holders_.empty()) return;
  std::vector<std::pair<JobId, store::Fence>> held;
  held.reserve(holders_.size());
  const Instant at = world_.store.now();
  for (const auto& [job, holder] : holders_) {
    held.emplace_back(job, holder->fence());
    holder->asks(at);
  }
  auto asked = held;
  world_.store.heartbeat(
      std::move(held), options_.lease,
      [this, at, asked = std::move(asked)](Result<std::vector<std::optional<Instant>>> renewed) {
        store_answered(renewed ? nullptr : &renewed.error());
        for (std::size_t i = 0; i < asked.size(); ++i) {
          auto it = holders_.find(asked[i].first);
          if (it == holders_.end() || it->second->fence() != asked[i].second) continue;
          const std::shared_ptr<Holder> holder = it->second;
          if (!renewed) holder->not_renewed();
          if (renewed && (*renewed)[i]) {
            holder->renewed(*(*renewed)[i]);
            // Others may have posted, and their hint may have been lost.
            if (!world_.store.owned()) holder->told();
          } else if (!world_.store.owned() &&
                     (renewed || holder->lease_until() <= world_.store.now())) {
            holder->lost();
          }
          holder->answered(at);
        }
      });
}

// Those who share the store are told who works on it, and what we offer.
void Runtime::announce(Duration lasts) {
  if (world_.store.owned()) return;
  const auto texts = [](const std::vector<std::string>& from) {
    return Value::array(std::vector<Value>(from.begin(), from.end()));
  };
  world_.store.announce(options_.worker,
                        canonical(Value::object({{"agents", texts(options_.agents)},
                                                 {"capabilities", texts(options_.capabilities)},
                                                 {"jobs_max", std::uint64_t{options_.held_max}},
                                                 {"offers", texts(offered_)},
                                                 {"version", options_.execution_version}})),
                        lasts);
}

// Every lease that is given to this process comes in here, and the answers that bring them may overtake each other. An
// older holder is told that it has lost the job before the new one is entered; nullptr: a newer one holds it already.
std::shared_ptr<Holder> Runtime::take_on(store::Lease lease) {
  const JobId job = lease.job;
  if (auto it = holders_.find(job); it != holders_.end()) {
    if (it->second->fence().epoch >= lease.fence.epoch) return nullptr;
    const std::shared_ptr<Holder> older = it->second;
    older->lost();
  }
  auto holder = std::make_shared<Holder>(world_, host(), job, std::move(lease), options_.worker);
  holders_[job] = holder;
  return holder;
}

void Runtime::hold(store::Lease lease) {
  const std::shared_ptr<Holder> holder = take_on(std::move(lease));
  if (!holder) return;
  ++counters_.aetheris_lease_acquired;
  holder->begin();
  if (stopping_) holder->drain(grace_);
}

void Runtime::claim_more() {
  if (!started_ || !options_.claims || stopping_ || claiming_ || !claimable_ ||
      holders_.size() >= options_.held_max) {
    return;
  }
  claiming_ = true;
  claimable_ =
      false;  // what becomes so from here on may not have been seen: then it is looked again
  store::ClaimRequest request;
  request.worker = options_.worker;
  request.limit = std::min<std::size_t>(64, options_.held_max - holders_.size());
  request.lease = options_.lease;
  request.agents = options_.agents;
  request.capabilities = offered_;
  request.queues = options_.queues;
  for (const auto& [job, why] : refused_) request.except.push_back(job);
  for (const auto& [job, holder] : holders_) request.except.push_back(job);
  for (std::size_t i = 0; i < request.limit; ++i) request.attempts.push_back(fresh_attempt());
  const std::size_t limit = request.limit;
  world_.store.claim(std::move(request), [this, limit](Result<std::vector<store::Lease>> leases) {
    claiming_ = false;
    if (!leases) {
      if (leases.error().code == Code::store_stopped) return store_stopped(leases.error());
      ++counters_.aetheris_lease_acquire_failed;
      return store_answered(&leases.error());
    }
    store_answered(nullptr);
    if (leases->size() == limit) claimable_ = true;  // there may be more
    for (store::Lease& lease : *leases) hold(std::move(lease));
    claim_more();
  });
}

void Runtime::claim_job(JobId job, async::Done<Result<bool>> done) {
  when_death_is_recorded([this, job = std::move(job), done = std::move(done)]() mutable {
    claim_now(job, std::move(done));
  });
}

void Runtime::claim_now(const JobId& job, async::Done<Result<bool>> done) {
  if (holders_.contains(job)) {
    return world_.loop.post([done = std::move(done)]() mutable { done(true); });
  }
  store::ClaimRequest request;
  request.worker = options_.worker;
  request.lease = options_.lease;
  request.capabilities = offered_;
  request.queues = options_.queues;
  request.attempts.push_back(fresh_attempt());
  world_.store.claim_job(
      job, std::move(request),
      [this, job, done = std::move(done)](Result<std::optional<store::Lease>> lease) mutable {
        if (!lease) return done(std::unexpected(lease.error()));
        if (*lease) {
          hold(std::move(**lease));
          return done(true);
        }
        // It may wait for nothing but the versions of this process.
        offer_versions(job, [this, job, done = std::move(done)](Result<bool> resumed) mutable {
          if (!resumed.value_or(false)) return done(false);
          claim_job(job, std::move(done));
        });
      });
}

// Jobs that nobody holds and for which a timer, an expiry or the deadline has come. A full page is followed by the next
// one as soon as it is done, and not with the next poll: many may be due at one instant. One of which nothing fired is
// not: the same would be found again.
void Runtime::fire_due() {
  if (stopping_ || firing_) return;
  firing_ = true;
  world_.store.due(kDuePage, [this](Result<std::vector<JobId>> due) {
    firing_ = false;
    if (!due && due.error().code == Code::store_stopped) return store_stopped(due.error());
    // Who claims hears of an outage there.
    if (!options_.claims) store_answered(due ? nullptr : &due.error());
    if (!due) return;
    struct Page {
      std::size_t left = 0;
      bool full = false, fired = false;
    };
    auto page = std::make_shared<Page>(Page{.left = due->size(), .full = due->size() == kDuePage});
    for (const JobId& job : *due) {
      act(job, {.kind = engine::Act::Kind::timers},
          [this, alive = handle(), page](const Result<Value>& answer) {
            page->fired = page->fired || (answer && (*answer)["fired"] != Value(0));
            if (--page->left > 0 || !page->full || !page->fired || !alive.lock()) return;
            fire_due();
          });
    }
  });
}

// ---------------------------------------------------------------- creating

JobId Runtime::fresh_job_id() {
  const auto ms = static_cast<std::uint64_t>(world_.store.now().us / 1000);
  return JobId(to_text(uuid_v7(ms, world_.chance.next(), world_.chance.next())));
}

void Runtime::create(NewJobRequest request, async::Done<Result<Created>> done) {
  const Instant now = world_.store.now();
  JobId job = request.job;
  if (job.empty()) job = fresh_job_id();
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
                             .asked = request.asked,
                             .plan = request.plan.get()};
  if (request.fork) {
    fresh.execution_version = request.fork->execution_version;
    fresh.planner_version = request.fork->planner_version;
    fresh.forked_from = request.fork->forked_from;
    fresh.imported = request.fork->imported;
    fresh.spent = request.fork->spent;
    fresh.blind = request.fork->blind;
  }
  if (!request.fork || request.fork->blind_gone) {
    std::string chance;
    put_big_endian64(world_.chance.next(), chance);
    put_big_endian64(world_.chance.next(), chance);
    fresh.blind = to_hex(chance);
  }
  fresh.budget = request.budget;
  fresh.now = now;
  fresh.traceparent = request.traceparent;
  fresh.tracestate = request.tracestate;
  const std::shared_ptr<const engine::Plan> runs =
      request.another_plan ? request.another_plan->plan : request.plan;
  if (runs->deadline) {
    const Instant of_agent = now + *runs->deadline;
    fresh.deadline = std::min(fresh.deadline.value_or(of_agent), of_agent);
  }
  std::vector<EventDraft> events = engine::job_events(fresh);
  const AttemptId attempt = fresh_attempt();
  store::JobRow needs;
  needs.capabilities = needed_capabilities(request.required_capabilities, request.agent,
                                           fresh.execution_version, runs->versions);
  store::NewJob row;
  if (!request.queue.empty()) row.queue = request.queue;
  // Only a claim counts how many of its queue are held.
  const bool limited = std::ranges::find(options_.queues, row.queue, &store::QueueLimit::queue) !=
                       options_.queues.end();
  const bool hold = request.hold && !stopping_ && !limited && holders_.size() < options_.held_max &&
                    missing(needs).empty();
  if (hold)
    events.push_back(engine::running_event(attempt, 1, options_.worker, world_.store.opened_at()));

  const engine::PlanSource plan =
      [&](const Value& graph, std::string_view) -> Result<std::shared_ptr<const engine::Plan>> {
    return graph == request.plan->task_graph ? request.plan : runs;
  };
  auto state = std::make_shared<engine::State>();
  state->job = job;
  for (const EventDraft& draft : events) {
    Status applied = engine::apply(*state, draft, now, plan);
    AE_CHECK(applied, applied.error().message);
  }
  if (request.another_plan) {
    auto taken =
        engine::take_in(*state, act_of(*request.another_plan), {.now = now, .lease_until = now});
    if (!taken) {
      return world_.loop.post([done = std::move(done), error = taken.error()]() mutable {
        done(std::unexpected(error));
      });
    }
    for (EventDraft& draft : taken->events) {
      Status applied = engine::apply(*state, draft, now, plan);
      AE_CHECK(applied, applied.error().message);
      events.push_back(std::move(draft));
    }
  }
  auto sealed = seal({.job = job,
                      .first_seq = 1,
                      .prev_hash = Hash{},
                      .first_id = uuid_v7(static_cast<std::uint64_t>(now.us / 1000),
                                          world_.chance.next(), world_.chance.next()),
                      .created_at = now,
                      .attempt_id = hold ? std::optional(attempt) : std::nullopt,
                      .salt_seed_a = world_.chance.next(),
                      .salt_seed_b = world_.chance.next()},
                     events);
  if (!sealed) {
    return world_.loop.post([done = std::move(done), error = sealed.error()]() mutable {
      done(std::unexpected(error));
    });
  }
  store::Batch batch;
  batch.job = job;
  row.agent = request.agent;
  row.idempotency_key = request.idempotency_key;
  JobRequest wish{.agent = request.agent,
                  .input = request.input,
                  .labels = labels,
                  .forked_from = fresh.forked_from,
                  .asked = request.asked};
  row.request_hash = request_hash(fresh.blind, wish);
  row.labels = labels_of(labels);
  row.priority = request.priority;
  row.capabilities = std::move(needs.capabilities);
  if (hold) row.claim = store::ClaimWish{options_.worker, attempt, options_.lease};
  const Hash asked = row.request_hash;
  const bool ours = claims(row.agent, row.capabilities);
  batch.authority = store::Batch::Create{std::move(row)};
  batch.audit = request.audit;
  batch.row = row_of(*state);
  const std::vector<Event> shown = std::move(sealed->events);
  const Hash head = sealed->head;
  if (world_.signer != nullptr && !hold) {
    batch.signed_head =
        engine::signed_head(*world_.signer, job, sealed->last_seq, sealed->head, now);
  }
  const std::size_t bytes = bytes_of(*sealed);
  batch.sealed = std::move(*sealed);
  commit_surely(
      std::make_shared<store::Batch>(std::move(batch)),
      [this, job, state, shown, head, bytes, asked, ours, plan = request.plan,
       wish = std::move(wish), done = std::move(done)](Result<store::Committed> result) mutable {
        if (!result) return done(std::unexpected(result.error()));
        if (result->existing) {
          if (result->existing_request == asked) {
            return done(Created{*result->existing, true});
          }
          return created_before(*result->existing, *result->existing_request, std::move(wish),
                                std::move(done));
        }
        committed(job, shown);
        if (result->lease) {
          plans_.keep(plan);
          const std::shared_ptr<Holder> holder = take_on(*result->lease);
          done(Created{job, false});
          if (!holder) return;
          holder->adopt(std::move(*state), head, bytes);
          if (stopping_) holder->drain(grace_);
          return;
        }
        done(Created{job, false});
        if (!ours) return;
        claimable_ = true;
        claim_more();
      });
}

// A request with an idempotency key that has made a job. The hash of a request is blinded with the secret of its own job, so
// that of the earlier one is computed again from what that job's first event says. The rest of its log is not read.
void Runtime::created_before(JobId job, Hash known, JobRequest wish,
                             async::Done<Result<Created>> done) {
  world_.store.load(job, store::kFirstCommit,
                    [job, known, wish = std::move(wish),
                     done = std::move(done)](Result<store::Loaded> loaded) mutable {
                      if (!loaded) return done(std::unexpected(loaded.error()));
                      const auto created = open_created(job, *loaded);
                      if (!created) return done(std::unexpected(created.error()));
                      switch (same_request(*created, known, wish)) {
                        case SameRequest::yes:
                          return done(Created{.job = job, .existing = true});
                        case SameRequest::as_far_as_known:
                          return done(Created{.job = job, .existing = true, .input_erased = true});
                        case SameRequest::no:
                          break;
                      }
                      done(fail(Code::idempotency_conflict,
                                "the idempotency key was used for another request (job " +
                                    job.text + "); use a new key"));
                    });
}

// An unknown outcome is looked at before anything else: the same bytes sent again change nothing when they are there.
void Runtime::commit_surely(std::shared_ptr<store::Batch> batch,
                            async::Done<Result<store::Committed>> done, int tries) {
  world_.store.commit(*batch, [this, batch, tries,
                               done = std::move(done)](Result<store::Committed> result) mutable {
    const Code code = result ? Code{} : result.error().code;
    const bool nothing_new = code == Code::unavailable || code == Code::store_stopped;
    // It may have happened the first time: nobody must take it for "nothing changed".
    if (!result && tries > 0 && nothing_new) result.error().code = Code::unknown_outcome;
    if (result || code != Code::unknown_outcome || tries >= kUnknownTries) {
      return done(std::move(result));
    }
    world_.loop.after(std::chrono::milliseconds(20 << tries),
                      [this, alive = handle(), batch, tries, done = std::move(done)]() mutable {
                        if (alive.lock()) commit_surely(batch, std::move(done), tries + 1);
                      });
  });
}

// ---------------------------------------------------------------- acting

// One reading of a whole log: opens its commits, then folds its events.
struct Runtime::Reading {
  Reading(const JobId& job, store::Loaded&& all, const engine::PlanCache& cache,
          async::Done<Result<Read>> answer)
      : loaded(std::move(all)),
        plans(cache),
        opening(job, loaded, plans.known()),
        done(std::move(answer)) {}

  bool next() {
    if (folding) return folding->next();
    if (opening.next()) return true;
    opened = opening.take();
    if (opened) folding.emplace(loaded.row.id, *opened, plans.source());
    return opened.has_value();
  }
  Result<Read> take() {
    if (!opened) return std::unexpected(opened.error());
    AE_ASSIGN(engine::State state, std::move(*folding).take());
    return Read{std::move(loaded.row), std::move(*opened), std::move(state),
                std::move(loaded.effects), std::move(loaded.inbox)};
  }

  store::Loaded loaded;
  const engine::PlanCache& plans;
  LogOpening opening;
  Result<std::vector<Event>> opened;
  std::optional<engine::Folding> folding;
  async::Done<Result<Read>> done;
};

void Runtime::read(JobId job, async::Done<Result<Read>> done) {
  world_.store.load(
      job, 1,
      [this, alive = handle(), job, done = std::move(done)](Result<store::Loaded> loaded) mutable {
        if (!loaded) return done(std::unexpected(loaded.error()));
        if (alive.expired()) return;
        const auto reading =
            std::make_shared<Reading>(job, std::move(*loaded), plans_, std::move(done));
        async::in_portions(
            world_.loop, world_.steady,
            [reading, alive] { return !alive.expired() && reading->next(); },
            [reading, alive] {
              if (!alive.expired()) reading->done(reading->take());
            });
      });
}

void Runtime::read_state(JobId job, async::Done<Result<Read>> done) {
  look(job, std::nullopt, std::move(done));
}

void Runtime::look(const JobId& job, std::optional<Rested> rested, async::Done<Result<Read>> done) {
  load_state(world_.store, job, plans_, std::move(rested),
             [done = std::move(done)](Result<Stood> stood) mutable {
               if (!stood) return done(std::unexpected(stood.error()));
               if (!stood->state) return done(std::unexpected(stood->state.error()));
               store::Loaded& loaded = stood->loaded;
               done(Read{std::move(loaded.row),
                         {},
                         std::move(*stood->state),
                         std::move(loaded.effects),
                         std::move(loaded.inbox),
                         stood->bytes,
                         stood->checkpoint_seq,
                         stood->checkpoint_bytes});
             });
}

// REQUIRES: the state is the log's, as far as the row says that it goes.
void Runtime::keep_resting(const JobId& job, Read&& read) {
  if (engine::is_terminal(read.state.status)) return;
  resting_.keep(job, {std::move(read.state), read.row.head, read.bytes, read.checkpoint_seq,
                      read.checkpoint_bytes});
}

struct Runtime::Acting {
  JobId job;
  engine::Act act;
  async::Done<Result<Value>> done;
  bool tells = false;  // whoever holds the job is told, also when there is nothing to write
  int tries = 0;
  int looks = 0;  // whether it has been taken in
};

void Runtime::act(JobId job, engine::Act act, async::Done<Result<Value>> done) {
  if (canonical_exceeds(act.payload, kValueMax) ||
      (act.result && canonical_exceeds(*act.result, kValueMax))) {
    return world_.loop.post([done = std::move(done)]() mutable {
      done(fail(Code::payload_too_large,
                "a payload may have " + std::to_string(kValueMax >> 20) +
                    " MiB as canonical JSON; keep the rest elsewhere and send where it is"));
    });
  }
  if (act.id.empty()) act.id = fresh_attempt().text;
  if (act.kind == engine::Act::Kind::resolve) {
    // Nobody has looked later than now, however long the act waits from here on.
    const Instant now = world_.store.now();
    act.looked_at = std::min(now, act.looked_at.value_or(now));
  }
  try_act(std::make_shared<Acting>(
      Acting{.job = std::move(job), .act = std::move(act), .done = std::move(done)}));
}

void Runtime::try_act(std::shared_ptr<Acting> acting) {
  if (++acting->tries > kActTries) {
    return acting->done(fail(Code::unavailable, "the job changes too quickly; try again"));
  }
  look(acting->job, resting_.take(acting->job), [this, acting](Result<Read> read) {
    if (!read) return acting->done(std::unexpected(read.error()));
    act_on(acting, std::move(*read));
  });
}

// One transaction chooses between inbox and log: each write names the state of the claim that it wants to see, and is
// refused when that has changed; then everything is read again (SPEC §10).
void Runtime::act_on(std::shared_ptr<Acting> acting, Read&& read) {
  const engine::Stamp stamp = act_stamp();
  const Instant now = stamp.now;
  // Results that came late are taken in first: what they say is true, whatever the act says.
  std::vector<EventDraft> events;
  if (!read.row.claim && !leaves_late(read.state, acting->act)) {
    auto caught = engine::catch_up(read.state, stored_effects(read.effects));
    if (!caught) return acting->done(std::unexpected(caught.error()));
    events = std::move(*caught);
    for (const EventDraft& draft : events) {
      Status applied = engine::apply(read.state, draft, now, plans_.source());
      if (!applied) return acting->done(std::unexpected(applied.error()));
    }
  }
  std::vector<std::uint64_t> numbers;
  if (!read.row.claim) {
    auto ahead =
        accepted_ahead(read.state, read.inbox, acting->act, stamp, plans_.source(), events);
    if (!ahead) return acting->done(std::unexpected(ahead.error()));
    numbers = *std::move(ahead);
  }
  // A job that was parked with its inbox takes in the rest of it when it is claimed.
  const bool as_logged =
      !read.row.claim || !taken_ahead(read.state, read.inbox, acting->act, stamp, plans_.source());
  const std::vector<std::string> offered = tool_versions(read.state);
  engine::Stamp offering = stamp;  // the act is taken in as this process would go on with it
  offering.tool_versions = &offered;
  offering.execution_version = &options_.version_of(read.state.agent);
  auto taken = engine::take_in(read.state, acting->act, offering);
  const bool accepted_before =
      std::ranges::count(read.inbox, inbox_id(acting->act), &store::InboxEntry::id) > 0;
  if (taken && !taken->events.empty() && !accepted_before) {
    if (auto timely = engine::in_time(read.state, acting->act, now); !timely) {
      taken = std::unexpected(timely.error());
    }
  }
  const Result<Value> answer =
      taken ? Result<Value>(taken->answer) : std::unexpected(taken.error());
  const bool tells = acting->tells && read.row.claim;
  if (events.empty() && (!taken || taken->events.empty()) && !tells) {
    if (as_logged) keep_resting(acting->job, std::move(read));
    return acting->done(answer);
  }

  const bool counts = acting->act.kind == engine::Act::Kind::signal ||
                      acting->act.kind == engine::Act::Kind::message;
  const std::uint64_t accepted = read.state.signals + read.inbox.size() - numbers.size();
  if (counts && accepted >= engine::kSignalsMax) {
    return acting->done(fail(Code::signals_limit, "the job has accepted " +
                                                      std::to_string(engine::kSignalsMax) +
                                                      " signals, the most that one job may have"));
  }
  if (read.row.claim) {
    // Whoever holds it fires its timers, after what the inbox holds.
    if (acting->act.kind == engine::Act::Kind::timers && !tells) {
      return acting->done(Value::object({{"fired", 0}}));
    }
    if (as_logged) keep_resting(acting->job, std::move(read));
    return put(acting, taken ? *taken : engine::Taken{});
  }

  std::vector<std::pair<InvocationId, std::uint32_t>> decided;
  const auto follow = [&](EventDraft draft) -> Status {
    if (auto slot = engine::slot_decided(read.state, draft)) decided.push_back(*std::move(slot));
    AE_TRY(engine::apply(read.state, draft, now, plans_.source()));
    events.push_back(std::move(draft));
    return {};
  };
  if (taken) {
    for (EventDraft& draft : taken->events) {
      if (auto followed = follow(std::move(draft)); !followed) {
        return acting->done(std::unexpected(followed.error()));
      }
    }
  }
  if (read.state.ending) {
    if (auto followed = acts_before_end(read.state, read.inbox, stamp, numbers, follow);
        !followed) {
      return acting->done(std::unexpected(followed.error()));
    }
  }
  // With nothing under way, a job that is to end ends in this commit.
  while (read.state.ending && !engine::is_terminal(read.state.status)) {
    engine::Decision decision = engine::decide(read.state, stamp);
    if (decision.events.empty()) break;
    for (EventDraft& draft : decision.events) {
      const Status followed = follow(std::move(draft));
      AE_CHECK(followed, followed.error().message);
    }
  }
  auto sealed = seal({.job = acting->job,
                      .first_seq = read.row.last_seq + 1,
                      .prev_hash = read.row.head,
                      .first_id = uuid_v7(static_cast<std::uint64_t>(now.us / 1000),
                                          world_.chance.next(), world_.chance.next()),
                      .created_at = now,
                      .attempt_id = std::nullopt,
                      .salt_seed_a = world_.chance.next(),
                      .salt_seed_b = world_.chance.next()},
                     events);
  if (!sealed) return acting->done(std::unexpected(sealed.error()));
  store::Batch batch;
  batch.job = acting->job;
  batch.authority = store::Batch::Free{};
  batch.expected_seq = read.row.last_seq;
  batch.effects_absent = std::move(decided);
  batch.inbox_taken = std::move(numbers);
  batch.row = row_of(read.state);
  const std::vector<Event> shown = std::move(sealed->events);
  if (world_.signer != nullptr) {
    batch.signed_head =
        engine::signed_head(*world_.signer, acting->job, sealed->last_seq, sealed->head, now);
  }
  read.row.head = sealed->head;
  read.bytes += bytes_of(*sealed);
  batch.sealed = std::move(*sealed);
  commit_surely(std::make_shared<store::Batch>(std::move(batch)),
                [this, acting, shown, answer, as_logged,
                 read = std::move(read)](Result<store::Committed> result) mutable {
                  if (!result) {
                    const Code code = result.error().code;
                    if (code == Code::held || code == Code::sequence_conflict)
                      return try_act(acting);
                    return acting->done(std::unexpected(result.error()));
                  }
                  committed(acting->job, shown);
                  if (read.state.ending) {
                    for (const Asker& asker : askers_of(read.state)) {
                      stop_asking(world_.performers, asker);
                    }
                  }
                  const bool ours = claims(read.row.agent, read.row.capabilities);
                  if (as_logged) keep_resting(acting->job, std::move(read));
                  acting->done(answer);
                  if (!ours) return;
                  claimable_ = true;
                  claim_more();
                });
}

// Post for whoever holds the job.
void Runtime::put(std::shared_ptr<Acting> acting, const engine::Taken& taken) {
  // A resolution is taken in later: it answers for the try it was judged against, for no later one.
  acting->act.try_no = taken.try_no;
  Value answer = Value::object({{"accepted", true}});
  if (taken.answer.find("buffered")) answer = taken.answer;
  if (const Value* why = taken.answer.find("reason")) {  // of an approval that is not used
    answer = answer.with("applied", false).with("reason", *why);
  }
  store::InboxEntry entry{.number = 0, .id = inbox_id(acting->act), .act = {}};
  entry.act = canonical(
      engine::with_checksum(engine::inbox_place(acting->job, entry.id), acting->act.to_json()));
  world_.store.put_inbox(acting->job, std::move(entry),
                         [this, acting, answer](Result<void> put) mutable {
                           if (!put && put.error().code == Code::not_held) return try_act(acting);
                           if (!put) return acting->done(std::unexpected(put.error()));
                           if (auto it = holders_.find(acting->job); it != holders_.end())
                             it->second->told();
                           if (acting->act.kind == engine::Act::Kind::timers)
                             return acting->done(std::move(answer));
                           accepted(acting, std::move(answer));
                         });
}

// The holder may have closed what the act is about between the reading and the post. Whatever closes it from now on
// reads the inbox in its own commit, so that one more look is enough: either the act can still be taken in, or it has
// been, or the job says what came before it.
void Runtime::accepted(std::shared_ptr<Acting> acting, Value answer) {
  look(acting->job, resting_.take(acting->job),
       [this, acting, answer = std::move(answer)](Result<Read> read) mutable {
         if (!read) {
           return acting->done(
               fail(Code::unknown_outcome,
                    "the request is in the job's inbox, and whether it was in time is unknown: " +
                        read.error().message));
         }
         engine::State& state = read->state;
         const bool taken_in = engine::was_taken(state, acting->act);
         const bool plan = acting->act.kind == engine::Act::Kind::plan;
         const bool unread = plan && std::ranges::count(read->inbox, inbox_id(acting->act),
                                                        &store::InboxEntry::id) > 0;
         const engine::Stamp stamp = act_stamp();
         const bool as_logged =
             !taken_ahead(state, read->inbox, acting->act, stamp, plans_.source());
         auto taken = engine::take_in(state, acting->act, stamp);
         // An early answer that its wait turns out not to take is kept, and listed as undelivered in the end.
         const bool kept =
             !taken && answer.find("buffered") && !engine::overtake(state, acting->act).empty();
         if (as_logged) keep_resting(acting->job, std::move(*read));
         if (taken_in || kept) return acting->done(std::move(answer));
         if (unread) return wait_for_plan(acting, std::move(answer));
         if (taken && plan && !taken->events.empty()) {
           taken = fail(Code::call_pending,
                        "the plan was rejected because a call was running when the lease holder "
                        "checked it; try again, or pause the job first");
         }
         if (!taken) return acting->done(std::unexpected(taken.error()));
         acting->done(taken->events.empty() ? std::move(taken->answer) : std::move(answer));
       });
}

// A plan is refused while a call is under way, and of that only the job's holder knows.
void Runtime::wait_for_plan(std::shared_ptr<Acting> acting, Value answer) {
  if (++acting->looks > kPlanLooks) {
    return acting->done(fail(Code::unknown_outcome,
                             "the plan is in the job's inbox, and the lease holder has not checked "
                             "it yet; the hash of the job's plan shows whether it was replaced"));
  }
  world_.loop.after(std::chrono::milliseconds(10 << std::min(acting->looks, 6)),
                    [this, alive = handle(), acting, answer = std::move(answer)]() mutable {
                      if (alive.lock()) accepted(acting, std::move(answer));
                    });
}

// Of the plan's tools, as this process offers them; "" = it does not.
std::vector<std::string> Runtime::tool_versions(const engine::State& state) {
  std::vector<std::string> versions;
  if (!state.plan) return versions;
  for (const engine::ToolPolicy& tool : state.plan->tools) {
    const Performers::Entry* entry = world_.performers.find(tool.name, tool.version);
    versions.push_back(entry ? entry->version : "");
  }
  return versions;
}

engine::Stamp Runtime::act_stamp() {
  const Instant now = world_.store.now();
  return {.now = now,
          .lease_until = now,
          .owned = world_.store.owned(),
          .chance = world_.chance.next()};
}

// ---------------------------------------------------------------- holders

std::string Runtime::agent_of(const JobId& job) const {
  const auto found = holders_.find(job);
  return found == holders_.end() ? "" : found->second->agent();
}

const engine::State* Runtime::state_of(const JobId& job) const {
  const auto found = holders_.find(job);
  return found == holders_.end() ? nullptr : &found->second->state();
}

void Runtime::committed(const JobId& job, const std::vector<Event>& events) {
  const bool fired = std::ranges::any_of(
      events, [](const Event& event) { return event.type == EventType::timer_fired; });
  if (fired) static_cast<void>(AE_POINT("timer.after_fire"));
  for (const Event& event : events) {
    if (event.type == EventType::confirmation_checked) confirmed(job, event);
    if (world_.sayings != nullptr && event.type == EventType::tool_invocation_finished) {
      world_.sayings->end(job, InvocationId(std::string(event.payload.text("invocation_id"))),
                          static_cast<std::uint32_t>(event.payload["try"].as_int()));
    }
  }
  if (observer_) observer_->on_events(job, events);
}

// A mismatch with which the job goes on is counted, and said.
void Runtime::confirmed(const JobId& job, const Event& event) {
  const Value& p = event.payload;
  if (p.text("verdict") != "mismatch" || p["detail"].text("mode") != "warn") return;
  counters_.aetheris_confirmation_replay_warn_total++;
  // What was seen there is the job's: its log has it.
  warn(job, std::string(p.text("resource_type")) + " \"" + std::string(p.text("resource_id")) +
                "\" is not as the job left it; the job continues (`verify: warn`), and its trace "
                "shows what was found");
}

void Runtime::ended(const Holder& holder, std::optional<Error> problem, Fate fate) {
  const JobId& job = holder.job();
  if (world_.sayings != nullptr) world_.sayings->end_all(job);
  if (problem && problem->code == Code::stale_attempt) ++counters_.aetheris_lease_conflict_total;
  if (fate == Fate::over) left_in_doubt_.erase(job);
  if (fate == Fate::in_doubt) left_in_doubt_.insert(job);
  if (problem && problem->code == Code::stale_attempt && holder.store_is_out()) {
    // One that is forgotten counts as a lost claim.
    if (lost_to_outage_.size() >= kOutagesMax) lost_to_outage_.erase(lost_to_outage_.begin());
    lost_to_outage_[job].insert(holder.fence().attempt);
  } else {
    lost_to_outage_.erase(job);
  }
  // What may be otherwise the next time; everything else is so for as long as this process lives.
  const bool passing =
      problem && (problem->code == Code::stale_attempt || problem->code == Code::unavailable ||
                  problem->code == Code::unknown_outcome);
  if (problem && !passing) {
    refused_.insert_or_assign(job, *problem);
    // That another process has the job's version is no fault.
    if (problem->code != Code::execution_version_mismatch) {
      warn(job, "this process cannot run the job: " + problem->message);
    }
  }
  if (auto it = holders_.find(job); it != holders_.end() && it->second.get() == &holder) {
    // The holder is still on the stack: let it go in a later turn.
    world_.loop.post([gone = std::move(it->second)] {});
    holders_.erase(it);
  }
  if (observer_) observer_->on_released(job, problem);
  if (stopping_ && holders_.empty() && stopped_) {
    world_.loop.post([stopped = std::exchange(stopped_, nullptr)] { stopped(); });
    return;
  }
  if (fate != Fate::over) {  // it may be claimed or woken again
    claimable_ = true;
    look_ahead();
  }
  if (!options_.queues.empty()) claimable_ = true;  // there may be room for another of its queue
  claim_more();
}

// ---------------------------------------------------------------- late results

void Runtime::came_late(const JobId& job, const engine::Sent& sent, const Outcome& outcome) {
  if (!engine::is_certain(outcome) || store_stopped_) return;
  auto batch = std::make_shared<store::Batch>();
  batch->job = job;
  batch->authority = store::Batch::Late{};
  batch->effects.push_back({sent.invocation, sent.try_no,
                            canonical(engine::effect_record(job, sent, outcome, world_.store.now(),
                                                            engine::Arrival::late))});
  keep_late(std::move(batch), 0);
}

// A job whose values were erased gets no new one: that the call happened, and its outcome, is kept without what it gave.
void Runtime::keep_late(std::shared_ptr<store::Batch> batch, int tries) {
  world_.store.load(
      batch->job, store::kFirstCommit, [this, batch, tries](Result<store::Loaded> loaded) {
        const auto created =
            loaded ? open_created(batch->job, *loaded) : std::unexpected(loaded.error());
        if (!created) return late_is_kept(batch, tries, std::unexpected(created.error()));
        if (!erased_values(*created).empty()) {
          store::EffectRow& effect = batch->effects.front();
          auto left = engine::erased_effect(
              engine::effect_place(batch->job, effect.invocation, effect.try_no), effect.record);
          AE_CHECK(left.has_value(), batch->job.text);  // it was made here
          effect.record = *std::move(left);
        }
        batch->authority = store::Batch::Late{.first_commit = sha256(loaded->commits.front())};
        world_.store.commit(*batch, [this, batch, tries](Result<store::Committed> result) {
          late_is_kept(batch, tries, std::move(result));
        });
      });
}

// The lease holder gets it through the job's inbox, so that the job cannot come to rest without it. Without a holder the
// result is taken in here, because no process reads a job again that has ended.
void Runtime::late_is_kept(std::shared_ptr<store::Batch> batch, int tries,
                           Result<store::Committed> result) {
  if (!result) return keep_late_again(batch, tries, "cannot be stored", result.error());
  if (tries == 0) warn(batch->job, "a late result is stored");
  try_act(std::make_shared<Acting>(
      Acting{.job = batch->job,
             .act = {.kind = engine::Act::Kind::timers, .id = fresh_attempt().text},
             .done =
                 [this, batch, tries](Result<Value> taken) {
                   if (taken) return;
                   keep_late_again(batch, tries, "is stored but not in the log", taken.error());
                 },
             .tells = true}));
}

void Runtime::keep_late_again(const std::shared_ptr<store::Batch>& batch, int tries,
                              const std::string& what, const Error& error) {
  const bool passing = error.code == Code::unavailable || error.code == Code::unknown_outcome ||
                       error.code == Code::sequence_conflict;  // its values were erased meanwhile
  if (!passing || tries >= kLateTries) {
    return warn(batch->job,
                "a late result " + what + ", its call has an unknown outcome: " + error.message);
  }
  world_.loop.after(std::chrono::milliseconds(50 << std::min(tries, 9)),
                    [this, alive = handle(), batch, tries] {
                      if (alive.lock()) keep_late(batch, tries + 1);
                    });
}

// ---------------------------------------------------------------- the end

void Runtime::store_stopped(const Error& error) {
  if (std::exchange(store_stopped_, true)) return;
  stopping_ = true;
  const auto holders = holders_;
  for (const auto& [job, holder] : holders) holder->give_up();
  if (observer_) observer_->on_store_stopped(error);
}

// An outage is told when it begins, and when it is over.
void Runtime::store_answered(const Error* error) {
  if (std::exchange(store_out_, error != nullptr) == (error != nullptr) || !observer_) return;
  observer_->on_store(error ? std::optional(*error) : std::nullopt);
}

void Runtime::warn(const JobId& job, const std::string& what) {
  if (observer_) observer_->on_warning(job, what);
}

void Runtime::stop(Duration grace, std::function<void()> stopped) {
  stopping_ = true;
  grace_ = grace;
  stopped_ = std::move(stopped);
  if (started_ && options_.claims) announce(Duration(0));
  if (holders_.empty()) {
    world_.loop.post([done = std::exchange(stopped_, nullptr)] { done(); });
    return;
  }
  const auto holders = holders_;
  for (const auto& [job, holder] : holders) holder->drain(grace);
}

}  // namespace ae::runtime
