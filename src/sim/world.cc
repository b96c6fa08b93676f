// SimWorld: the disk, the workers, and how they die.
#include "sim/world.h"

#include <fmt/core.h>

#include <filesystem>
#include <utility>

#include "store/sqlite/sqlite_store.h"

namespace ae::sim {
namespace {

// Failpoints after something is durable: it is done even if the process dies there.
bool is_after(std::string_view name, bool inside_batch) {
  if (name == "append.after" || name == "claim.after" || name == "signal.after_inbox" ||
      name == "timer.after_fire") {
    return true;
  }
  return (name == "effect.after_put" || name == "ledger.after_commit") && !inside_batch;
}

// The initial nodes of a plan of workload.cc.
Value nodes_of(const Value& task_graph) {
  std::vector<Value> ids;
  for (const Value& node : task_graph["nodes"].items()) {
    if (node.text("id").starts_with("n")) ids.emplace_back(node.text("id"));
  }
  return Value::array(std::move(ids));
}

// Increments every limit that is a number.
engine::Limits more_than(engine::Limits limits) {
  for (const engine::Limit limit : engine::kCountedLimits) {
    if (auto& most = limits.max_of(limit)) ++*most;
  }
  return limits;
}

}  // namespace

SimWorld::SimWorld(const WorldOptions& options)
    : options_(options),
      random_(options.seed),
      external_world_(
          {.loop = loop_,
           .random = random_,
           .clock = clock_,
           .observer = observer_,
           .report = report_,
           .at_boundary = [this](SimProcess& process,
                                 std::string_view where) { return at_boundary(process, where); },
           .has_lost_job =
               [this](const AttemptId& attempt) { return stale_attempts_.contains(attempt); }},
          options.odds),
      workers_(options.workers) {
  earlier_handler_ = async::failpoint_handler;
  async::failpoint_handler = this;
  external_world_.set_duplicate_requests(options_.canary == Canary::duplicate_request);
  observer_.set_losing_inbox_entries(options_.canary == Canary::lost_signal);
  observer_.set_false_approvals(options_.canary == Canary::false_approval);
  observer_.set_ignoring_limits(options_.canary == Canary::unlimited_queue);
  observer_.set_losing_child_requests(options_.canary == Canary::lost_child_request);
  observer_.set_double_messages(options_.canary == Canary::double_message);
  external_world_.set_false_probes(options_.canary == Canary::false_probe);
  external_world_.set_duplicate_model_requests(options_.canary == Canary::double_model_request);
  external_world_.set_always_matching_verifiers(options_.canary ==
                                                Canary::always_matching_verifier);
  external_world_.set_mutating_verifiers(options_.canary == Canary::mutating_verifier);
  for (std::size_t i : options_.capable) workers_[i].capable = true;
  if (options_.canary == Canary::unclaimed_job) observer_.set_withheld_job(JobId("job-0"));
  if (options_.sqlite) {
    const auto root = std::filesystem::exists("/dev/shm") ? std::filesystem::path("/dev/shm")
                                                          : std::filesystem::temp_directory_path();
    std::string pattern = (root / "aetheris-sim-XXXXXX").string();
    AE_CHECK(mkdtemp(pattern.data()) != nullptr, pattern);
    folder_ = pattern;
  }
  observer_.set_plan_cache(options_.plans);
  if (!options_.owned) open_disk();
}

SimWorld::~SimWorld() {
  freeze();
  for (Worker& worker : workers_) worker.runtime.reset();
  loop_.clear();
  close_disk();
  async::failpoint_handler = earlier_handler_;
  if (!folder_.empty()) {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
}

void SimWorld::open_disk() {
  if (options_.sqlite) {
    auto opened =
        store::SqliteStore::open({.path = disk_file(), .loop = mailbox_, .clock = clock_});
    AE_CHECK(opened.has_value(), opened ? "" : opened.error().message);
    disk_ = std::make_unique<BlockingStore>(loop_, mailbox_, std::move(*opened));
  } else {
    disk_ = std::make_unique<store::MemoryStore>(
        loop_, clock_, memory_, store::MemoryStore::Options{.owned = options_.owned});
  }
  if (options_.owned) observer_.on_opened_by_owner();
  observer_.set_inner(disk_.get());
  faulty_ = std::make_unique<store::FaultyStore>(
      loop_, observer_,
      store::FaultyStore::Options{
          .script =
              [this](const store::Call& call) {
                const store::Fault fault =
                    fault_plan_.store ? fault_plan_.store(call) : store::Fault::none;
                if (fault != store::Fault::none) {
                  was_disturbed_ = true;
                  report_.mark(fmt::format("store.{}.{}", to_text(fault), to_text(call.method)));
                }
                return fault;
              },
          .delay = options_.store_delay,
          .on_crash = {}});
}

void SimWorld::close_disk() {
  faulty_.reset();
  disk_.reset();
}

void SimWorld::start(std::size_t index) {
  Worker& worker = workers_[index];
  AE_CHECK(!is_alive(index));
  if (worker.process) reap(worker.process);
  if (!disk_) open_disk();
  worker.process = std::make_shared<SimProcess>(loop_, index, ++worker.life_count);
  worker.store = std::make_unique<SimStore>(
      SimStore::Host{
          .inner = faulty_.get(),
          .at_boundary = [this](SimProcess& process,
                                std::string_view where) { return at_boundary(process, where); },
          .stale_attempts = &stale_attempts_,
          .report = &report_,
          .latency = options_.store_latency,
          .owned = options_.owned},
      worker.process);
  worker.tool_registry = std::make_unique<runtime::ToolRegistry>();
  for (const ToolKind& kind : kTools) {
    if (kind.name == worker.without) continue;
    worker.tool_registry->add(std::string(kind.name),
                              {external_world_.tool(kind, worker.process), worker.version,
                               external_world_.verifier(kind, worker.process)});
  }
  worker.agents = std::make_unique<SimAgents>(options_.plan_of_child, worker.process);
  worker.code = std::make_unique<SimCode>(external_world_, worker.process);
  worker.output_hub = std::make_unique<runtime::OutputHub>();
  worker.page = worker.page_at_death;
  worker.slot = std::make_unique<runtime::RunningSlot>(worker.page);
  runtime::World world{*worker.process, *worker.process,         random_,
                       *worker.store,   *worker.tool_registry,   options_.plans,
                       nullptr,         worker.output_hub.get(), worker.slot.get()};
  world.new_jobs = worker.agents.get();
  world.routines = worker.code.get();
  runtime::RuntimeOptions options;
  options.worker = fmt::format("w{}", index);
  options.lease = options_.lease;
  options.poll = options_.poll;
  options.leased_max = options_.leased_max;
  options.durability = options_.durability[std::min(index, options_.durability.size() - 1)];
  if (worker.capable) options.capabilities = {"gpu"};
  observer_.set_capabilities(options.worker, options.capabilities);
  options.queues = {kNarrowQueue};
  observer_.limits(options.queues);
  runtime::RuntimeObserver* observer = this;
  worker.runtime = std::make_unique<runtime::Runtime>(world, options, observer);
  log_line(fmt::format("worker {} starts, life {}", index, worker.life_count));
  worker.process->post([runtime = worker.runtime.get()] { runtime->start(); });
}

void SimWorld::kill(std::size_t index) {
  if (!is_alive(index)) return;
  const std::shared_ptr<SimProcess> process = workers_[index].process;
  process->dead = true;
  workers_[index].page_at_death = workers_[index].page;
  deaths_++;
  was_disturbed_ = true;
  log_line(fmt::format("worker {} dies", index));
  // Its runtime may be on the stack, so a task of the world destroys it. Until then nothing that it
  // does has an effect.
  loop_.post([this, process] {
    reap(process);
    if (fault_plan_.died) fault_plan_.died(process->worker);
  });
}

void SimWorld::reap(const std::shared_ptr<SimProcess>& process) {
  Worker& worker = workers_[process->worker];
  if (worker.process != process || !worker.runtime) return;
  loop_.drop(*process);
  warning_count_ += worker.runtime->counters().aetheris_confirmation_replay_warn_total;
  worker.runtime.reset();
  loop_.drop(*process);
  worker.code.reset();
  worker.tool_registry.reset();
  worker.store.reset();
  if (options_.owned) close_disk();  // this process owned the store
}

void SimWorld::pause(std::size_t index) {
  if (!is_alive(index)) return;
  log_line(fmt::format("worker {} is paused", index));
  workers_[index].process->paused = true;
  was_disturbed_ = true;
}

void SimWorld::resume(std::size_t index) {
  if (!paused(index)) return;
  log_line(fmt::format("worker {} resumes", index));
  loop_.resume(*workers_[index].process);
}

void SimWorld::swap_tools(std::size_t index, std::string version, std::string without) {
  workers_[index].version = std::move(version);
  workers_[index].without = std::move(without);
}

void SimWorld::heal() {
  fault_plan_ = {};
  external_world_.disable_faults();
  clock_.catch_up();
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    resume(i);
    const bool swapped = !workers_[i].without.empty() || workers_[i].version != kToolVersion ||
                         !std::exchange(workers_[i].capable, true);
    swap_tools(i, std::string(kToolVersion), {});
    if (swapped) kill(i);
    if (!is_alive(i)) start(i);
  }
}

void SimWorld::create(std::size_t index, runtime::NewJobRequest request,
                      async::Done<Result<runtime::CreateResult>> done) {
  if (!is_alive(index)) return;
  Worker& worker = workers_[index];
  worker.process->post(
      [runtime = worker.runtime.get(), request = std::move(request),
       done = std::move(done)]() mutable { runtime->create(std::move(request), std::move(done)); });
}

void SimWorld::submit(std::size_t index, JobId job, engine::ControlRequest request,
                      async::Done<Result<Value>> done) {
  if (!is_alive(index)) return;
  auto* const plan = std::get_if<engine::PlanRequest>(&request.body);
  if (options_.canary == Canary::oversized_drop && plan) plan->drop = nodes_of(plan->task_graph);
  auto* const raise = std::get_if<engine::BudgetRequest>(&request.body);
  if (options_.canary == Canary::oversized_raise && raise) raise->limits = more_than(raise->limits);
  Worker& worker = workers_[index];
  worker.process->post([runtime = worker.runtime.get(), job = std::move(job),
                        request = std::move(request), done = std::move(done)]() mutable {
    runtime->submit_request(std::move(job), std::move(request), std::move(done));
  });
}

void SimWorld::fork(std::size_t index, runtime::ForkRequest request,
                    async::Done<Result<runtime::ForkResult>> done) {
  if (!is_alive(index)) return;
  if (options_.canary == Canary::fork_without_consent) request.repeat_all = true;
  Worker& worker = workers_[index];
  worker.process->post(
      [runtime = worker.runtime.get(), request = std::move(request),
       done = std::move(done)]() mutable { runtime->fork(std::move(request), std::move(done)); });
}

std::uint64_t SimWorld::warning_count() const {
  std::uint64_t sum = warning_count_;
  for (const Worker& worker : workers_) {
    if (worker.runtime) sum += worker.runtime->counters().aetheris_confirmation_replay_warn_total;
  }
  return sum;
}

void SimWorld::freeze() {
  for (Worker& worker : workers_) {
    if (worker.process) worker.process->dead = true;
  }
  loop_.clear();
  if (!disk_) open_disk();
}

Result<store::LoadedJob> SimWorld::read_disk(const JobId& job) {
  std::optional<Result<store::LoadedJob>> loaded;
  disk_->load(job, 1, [&](Result<store::LoadedJob> answer) { loaded.emplace(std::move(answer)); });
  loop_.run([&] { return loaded.has_value(); }, loop_.now());
  if (!loaded) return fail(Code::unavailable, "the disk did not answer");
  return std::move(*loaded);
}

bool SimWorld::at_boundary(SimProcess& process, std::string_view where) {
  if (process.dead) return false;
  if (options_.verbose) log_line(fmt::format("    w{} {}", process.worker, where));
  if (fault_plan_.dies && fault_plan_.dies(process, where)) {
    log_line(fmt::format("  at {}", where));
    kill(process.worker);
  }
  return !process.dead;
}

async::FailpointAction SimWorld::hit(std::string_view name) {
  // A failpoint in the middle of a slice: a separate test kills the worker there.
  if (name.starts_with("decided.") && name != kPoison) return async::FailpointAction::proceed;
  report_.mark(name);
  auto* process = static_cast<SimProcess*>(loop_.running());
  if (process == nullptr)
    return async::FailpointAction::proceed;  // the store runs outside of a process that could die
  const bool after = is_after(name, observer_.inside_batch());
  if (!at_boundary(*process, name)) {
    return after ? async::FailpointAction::proceed : async::FailpointAction::error;
  }
  const bool fails = !after && fault_plan_.fails && fault_plan_.fails(name);
  if (fails) report_.mark(fmt::format("fails.{}", name));
  return fails ? async::FailpointAction::error : async::FailpointAction::proceed;
}

namespace {
constexpr std::string_view kSilence = "M5 partial output is dropped when the outcome is durable";
}

void SimWorld::on_events(const JobId& job, const std::vector<Event>& events) {
  const auto* process = static_cast<SimProcess*>(loop_.running());
  if (process == nullptr || process->dead) return;
  for (const Event& event : events) {
    const auto* finished = as<ToolInvocationFinished>(event);
    if (!finished) continue;
    for (const auto& output : workers_[process->worker].output_hub->outputs_of(job)) {
      if (finished->invocation_id == output->invocation && finished->try_no == output->try_no) {
        report_.violate(kSilence, job, output->invocation.text);
      }
    }
  }
}

void SimWorld::on_released(const JobId& job, const std::optional<Error>&) {
  const auto* process = static_cast<SimProcess*>(loop_.running());
  if (process == nullptr || process->dead) return;
  if (!workers_[process->worker].output_hub->outputs_of(job).empty()) {
    report_.violate(kSilence, job, "it was released and still has partial output");
  }
}

void SimWorld::on_warning(const JobId& job, const std::string& what) {
  if (options_.verbose) log_line(fmt::format("  warning {}: {}", job.text, what));
}

void SimWorld::log_line(const std::string& what) {
  if (!options_.verbose) return;
  std::fprintf(stderr, "%12.3f  %s\n", static_cast<double>(loop_.since_start().count()) / 1e6,
               what.c_str());
}

}  // namespace ae::sim
