// The world's machinery: its disk, its workers, and how they die.
#include "sim/world.h"

#include <filesystem>
#include <utility>

#include "store/sqlite/sqlite_store.h"

namespace ae::sim {
namespace {

// Points after something is durable: whoever dies there leaves it done.
bool is_after(std::string_view name, bool inside_batch) {
  if (name == "append.after" || name == "claim.after" || name == "signal.after_inbox" ||
      name == "timer.after_fire") {
    return true;
  }
  return (name == "effect.after_put" || name == "ledger.after_commit") && !inside_batch;
}

// Of a plan that workload.cc made, those that its jobs began with.
Value nodes_of(const Value& task_graph) {
  std::vector<Value> ids;
  for (const Value& node : task_graph["nodes"].items()) {
    if (node.text("id").starts_with("n")) ids.emplace_back(node.text("id"));
  }
  return Value::array(std::move(ids));
}

// One more of everything that is counted.
Value more_than(const Value& limits) {
  Value more = limits;
  for (const auto& [name, most] : limits.members()) {
    if (most.is_integer()) more = more.with(name, Value(most.as_int() + 1));
  }
  return more;
}

}  // namespace

SimWorld::SimWorld(const WorldOptions& options)
    : options_(options),
      chance_(options.seed),
      outside_(
          {.loop = loop_,
           .chance = chance_,
           .clock = clock_,
           .witness = witness_,
           .report = report_,
           .boundary = [this](Life& life, std::string_view where) { return boundary(life, where); },
           .refused = [this](const AttemptId& attempt) { return refused_.contains(attempt); }},
          options.odds),
      workers_(options.workers) {
  earlier_handler_ = async::point_handler;
  async::point_handler = this;
  outside_.duplicate_requests(options_.canary == Canary::duplicate_request);
  witness_.forget_posts(options_.canary == Canary::lost_signal);
  witness_.say_yes(options_.canary == Canary::false_approval);
  witness_.forget_limits(options_.canary == Canary::open_queue);
  witness_.say_twice(options_.canary == Canary::double_message);
  outside_.lie_to_probes(options_.canary == Canary::lying_probe);
  outside_.ask_twice(options_.canary == Canary::double_question);
  outside_.praise(options_.canary == Canary::praising_verifier);
  outside_.touch_when_looking(options_.canary == Canary::touching_verifier);
  for (std::size_t i : options_.capable) workers_[i].capable = true;
  if (options_.canary == Canary::forgotten_job) witness_.never_give(JobId("job-0"));
  if (options_.sqlite) {
    const auto root = std::filesystem::exists("/dev/shm") ? std::filesystem::path("/dev/shm")
                                                          : std::filesystem::temp_directory_path();
    std::string pattern = (root / "aetheris-sim-XXXXXX").string();
    AE_CHECK(mkdtemp(pattern.data()) != nullptr, pattern);
    folder_ = pattern;
  }
  witness_.know_plans(options_.plans);
  if (!options_.owned) open_disk();
}

SimWorld::~SimWorld() {
  freeze();
  for (Worker& worker : workers_) worker.runtime.reset();
  loop_.clear();
  close_disk();
  async::point_handler = earlier_handler_;
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
    disk_ = std::make_unique<PatientStore>(loop_, mailbox_, std::move(*opened));
  } else {
    disk_ = std::make_unique<store::MemoryStore>(
        loop_, clock_, memory_, store::MemoryStore::Options{.owned = options_.owned});
  }
  if (options_.owned) witness_.opened_by_owner();
  witness_.stand_on(disk_.get());
  faulty_ = std::make_unique<store::FaultyStore>(
      loop_, witness_,
      store::FaultyStore::Options{.script =
                                      [this](const store::Call& call) {
                                        const store::Fault fault =
                                            fates_.store ? fates_.store(call) : store::Fault::none;
                                        if (fault != store::Fault::none) {
                                          disturbed_ = true;
                                          report_.mark("store." + std::string(to_text(fault)) +
                                                       "." + std::string(to_text(call.method)));
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
  AE_CHECK(!lives(index));
  if (worker.life) bury(worker.life);
  if (!disk_) open_disk();
  worker.life = std::make_shared<Life>(loop_, index, ++worker.lives);
  worker.store = std::make_unique<SimStore>(
      SimStore::Host{
          .inner = faulty_.get(),
          .boundary = [this](Life& life, std::string_view where) { return boundary(life, where); },
          .refused = &refused_,
          .report = &report_,
          .latency = options_.store_latency,
          .owned = options_.owned},
      worker.life);
  worker.performers = std::make_unique<runtime::Performers>();
  for (const ToolKind& kind : kTools) {
    if (kind.name == worker.without) continue;
    worker.performers->add(
        std::string(kind.name),
        {outside_.tool(kind, worker.life), worker.version, outside_.verifier(kind, worker.life)});
  }
  worker.sayings = std::make_unique<runtime::Sayings>();
  worker.page = worker.left;
  worker.slot = std::make_unique<runtime::RunningSlot>(worker.page);
  runtime::World world{*worker.life,  *worker.life,         chance_,
                       *worker.store, *worker.performers,   options_.plans,
                       nullptr,       worker.sayings.get(), worker.slot.get()};
  runtime::RuntimeOptions options;
  options.worker = "w" + std::to_string(index);
  options.lease = options_.lease;
  options.poll = options_.poll;
  options.held_max = options_.held_max;
  options.durability = options_.durability[std::min(index, options_.durability.size() - 1)];
  if (worker.capable) options.capabilities = {"gpu"};
  witness_.offers(options.worker, options.capabilities);
  options.queues = {kNarrow};
  witness_.limits(options.queues);
  runtime::RuntimeObserver* observer = this;
  worker.runtime = std::make_unique<runtime::Runtime>(world, options, observer);
  say("worker " + std::to_string(index) + " starts, life " + std::to_string(worker.lives));
  worker.life->post([runtime = worker.runtime.get()] { runtime->start(); });
}

void SimWorld::kill(std::size_t index) {
  if (!lives(index)) return;
  const std::shared_ptr<Life> life = workers_[index].life;
  life->dead = true;
  workers_[index].left = workers_[index].page;
  deaths_++;
  disturbed_ = true;
  say("worker " + std::to_string(index) + " dies");
  // Its runtime may be on the stack: it goes in a task of the world. Nothing that it does until then has an effect.
  loop_.post([this, life] {
    bury(life);
    if (fates_.died) fates_.died(life->worker);
  });
}

void SimWorld::bury(const std::shared_ptr<Life>& life) {
  Worker& worker = workers_[life->worker];
  if (worker.life != life || !worker.runtime) return;
  loop_.drop(*life);
  warned_ += worker.runtime->counters().aetheris_confirmation_replay_warn_total;
  worker.runtime.reset();
  loop_.drop(*life);
  worker.performers.reset();
  worker.store.reset();
  if (options_.owned) close_disk();  // it was the process that owned the store
}

void SimWorld::pause(std::size_t index) {
  if (!lives(index)) return;
  say("worker " + std::to_string(index) + " is paused");
  workers_[index].life->paused = true;
  disturbed_ = true;
}

void SimWorld::resume(std::size_t index) {
  if (!paused(index)) return;
  say("worker " + std::to_string(index) + " goes on");
  loop_.resume(*workers_[index].life);
}

void SimWorld::swap_tools(std::size_t index, std::string version, std::string without) {
  workers_[index].version = std::move(version);
  workers_[index].without = std::move(without);
}

void SimWorld::heal() {
  fates_ = {};
  outside_.calm();
  clock_.catch_up();
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    resume(i);
    const bool swapped = !workers_[i].without.empty() || workers_[i].version != kToolVersion ||
                         !std::exchange(workers_[i].capable, true);
    swap_tools(i, std::string(kToolVersion), {});
    if (swapped) kill(i);
    if (!lives(i)) start(i);
  }
}

void SimWorld::create(std::size_t index, runtime::NewJobRequest request,
                      async::Done<Result<runtime::Created>> done) {
  if (!lives(index)) return;
  Worker& worker = workers_[index];
  worker.life->post(
      [runtime = worker.runtime.get(), request = std::move(request),
       done = std::move(done)]() mutable { runtime->create(std::move(request), std::move(done)); });
}

void SimWorld::act(std::size_t index, JobId job, engine::Act act, async::Done<Result<Value>> done) {
  if (!lives(index)) return;
  if (options_.canary == Canary::greedy_plan && act.kind == engine::Act::Kind::plan) {
    act.payload = act.payload.with("drop", nodes_of(act.payload["task_graph"]));
  }
  if (options_.canary == Canary::generous_raise && act.kind == engine::Act::Kind::budget) {
    act.payload = more_than(act.payload);
  }
  Worker& worker = workers_[index];
  worker.life->post([runtime = worker.runtime.get(), job = std::move(job), act = std::move(act),
                     done = std::move(done)]() mutable {
    runtime->act(std::move(job), std::move(act), std::move(done));
  });
}

void SimWorld::fork(std::size_t index, runtime::ForkRequest request,
                    async::Done<Result<runtime::Forked>> done) {
  if (!lives(index)) return;
  if (options_.canary == Canary::rash_fork) request.repeat_all = true;
  Worker& worker = workers_[index];
  worker.life->post(
      [runtime = worker.runtime.get(), request = std::move(request),
       done = std::move(done)]() mutable { runtime->fork(std::move(request), std::move(done)); });
}

std::uint64_t SimWorld::warned() const {
  std::uint64_t sum = warned_;
  for (const Worker& worker : workers_) {
    if (worker.runtime) sum += worker.runtime->counters().aetheris_confirmation_replay_warn_total;
  }
  return sum;
}

void SimWorld::freeze() {
  for (Worker& worker : workers_) {
    if (worker.life) worker.life->dead = true;
  }
  loop_.clear();
  if (!disk_) open_disk();
}

Result<store::Loaded> SimWorld::read_disk(const JobId& job) {
  std::optional<Result<store::Loaded>> loaded;
  disk_->load(job, 1, [&](Result<store::Loaded> answer) { loaded.emplace(std::move(answer)); });
  loop_.run([&] { return loaded.has_value(); }, loop_.now());
  if (!loaded) return fail(Code::unavailable, "the disk did not answer");
  return std::move(*loaded);
}

bool SimWorld::boundary(Life& life, std::string_view where) {
  if (life.dead) return false;
  if (options_.verbose) say("    w" + std::to_string(life.worker) + " " + std::string(where));
  if (fates_.dies && fates_.dies(life, where)) {
    say("  at " + std::string(where));
    kill(life.worker);
  }
  return !life.dead;
}

async::PointAction SimWorld::hit(std::string_view name) {
  // In the middle of a slice: a test of its own ends the worker there.
  if (name.starts_with("decided.") && name != kPoison) return async::PointAction::go;
  report_.mark(name);
  auto* life = static_cast<Life*>(loop_.running());
  if (life == nullptr) return async::PointAction::go;  // the store works for nobody who could die
  const bool after = is_after(name, witness_.inside_batch());
  if (!boundary(*life, name)) {
    return after ? async::PointAction::go : async::PointAction::error;
  }
  const bool fails = !after && fates_.fails && fates_.fails(name);
  if (fails) report_.mark("fails." + std::string(name));
  return fails ? async::PointAction::error : async::PointAction::go;
}

namespace {
constexpr std::string_view kSilence = "M5 what was said of a call is gone when its end is durable";
}

void SimWorld::on_events(const JobId& job, const std::vector<Event>& events) {
  const auto* life = static_cast<Life*>(loop_.running());
  if (life == nullptr || life->dead) return;
  for (const Event& event : events) {
    const auto* finished = as<ToolInvocationFinished>(event);
    if (!finished) continue;
    for (const auto& saying : workers_[life->worker].sayings->of(job)) {
      if (finished->invocation_id == saying->invocation && finished->try_no == saying->try_no) {
        report_.violate(kSilence, job, saying->invocation.text);
      }
    }
  }
}

void SimWorld::on_released(const JobId& job, const std::optional<Error>&) {
  const auto* life = static_cast<Life*>(loop_.running());
  if (life == nullptr || life->dead) return;
  if (!workers_[life->worker].sayings->of(job).empty()) {
    report_.violate(kSilence, job, "it is no longer held, and still says something");
  }
}

void SimWorld::on_warning(const JobId& job, const std::string& what) {
  if (options_.verbose) say("  warning " + job.text + ": " + what);
}

void SimWorld::say(const std::string& what) {
  if (!options_.verbose) return;
  std::fprintf(stderr, "%12.3f  %s\n", static_cast<double>(loop_.since_start().count()) / 1e6,
               what.c_str());
}

}  // namespace ae::sim
