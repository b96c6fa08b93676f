#include "app/instance.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <utility>

#include "api/command_line.h"
#include "api/problem.h"
#include "app/archive_folder.h"
#include "app/clock_control.h"
#include "app/code_workers.h"
#include "app/key_file.h"
#include "app/running_file.h"
#include "app/secret_names.h"
#include "app/server_lock.h"
#include "app/toolbox.h"
#include "base/ids.h"
#include "json/json.h"
#include "net/system.h"
#include "net/thread_pool.h"
#include "store/measured_store.h"
#include "store/memory/memory_store.h"
#include "store/postgres/postgres_rebuild.h"
#include "store/postgres/postgres_store.h"
#include "store/sqlite/files.h"
#include "store/sqlite/sqlite_rebuild.h"
#include "store/sqlite/sqlite_store.h"
#include "tools/secrets.h"

namespace ae::app {
namespace {

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

// The default folder is private: git must ignore it.
void write_gitignore(const std::string& folder) {
  if (folder != ".aetheris") return;
  const int file = ::open(".aetheris/.gitignore", O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (file < 0) return;
  [[maybe_unused]] const ssize_t written = ::write(file, "*\n", 2);
  ::close(file);
}

// Where a process that runs jobs of a shared store records its store position. Without the folder
// it is kept in memory only.
constexpr const char* kGuardFolder = ".aetheris";
// A program that a killed process was starting keeps its lock until the execve.
constexpr std::chrono::seconds kLockWait(2);

// How long clients of the socket get their last responses when the process ends.
constexpr std::chrono::seconds kLastResponsesMax(1);

// One for each concurrent read of a log, and one that renders lists meanwhile.
constexpr std::size_t kReaderThreads = api::kConcurrentReadsMax + 1;

// No timer of the loop fires when a test advances the clock.
constexpr Duration kVirtualPoll = std::chrono::milliseconds(5);

void make_guard_folder() {
  if (::mkdir(kGuardFolder, 0700) == 0) write_gitignore(kGuardFolder);
}

class InstanceImpl final : public Instance,
                           private runtime::RuntimeObserver,
                           private runtime::NewJobSource {
 public:
  explicit InstanceImpl(InstanceOptions options) : options_(std::move(options)) {}

  ~InstanceImpl() override {
    private_listener_.reset();
    if (!private_folder_.empty()) {
      std::error_code ignored;
      std::filesystem::remove_all(private_folder_, ignored);
    }
    listener_.reset();
    network_listener_.reset();
    clock_control_.reset();
    readers_.reset();
    api_.reset();
    runtime_.reset();
    code_.reset();
    toolbox_.reset();
    store_.reset();
  }

  Status begin() {
    if (options_.mode != InstanceOptions::Mode::read) {
      std::string key = options_.signing_key;
      if (key.empty()) key = environment("AETHERIS_SIGNING_KEY");
      if (!key.empty()) {
        AE_ASSIGN(signer_, read_signing_key(key));
      }
    }
    AE_TRY(open_store());
    if (options_.mode == InstanceOptions::Mode::run) open_running_slot();
    measured_.emplace(*store_, steady_);
    if (options_.agents && options_.mode == InstanceOptions::Mode::run) {
      AE_ASSIGN(toolbox_,
                Toolbox::make(
                    loop_, steady_, *options_.agents, {options_.agents_folder, options_.folders},
                    secrets_file_of(options_.store), paths_closed_to_tools(*options_.agents),
                    options_.descriptors,
                    [this](const JobId& job, const std::string& what) { on_warning(job, what); }));
      warn_of_short_secrets();
    }
    files_in_use_ =
        std::shared_ptr<const agents::AgentsFile>(std::shared_ptr<void>(), options_.agents);
    accept_code();
    runtime::World world{.loop = loop_,
                         .steady = steady_,
                         .random = random_,
                         .store = *measured_,
                         .tool_registry = toolbox_ ? toolbox_->tool_registry() : no_tools_,
                         .signer = signer_ ? &*signer_ : nullptr,
                         .output_hub = &output_hub_,
                         .slot = slot_ ? &*slot_ : nullptr,
                         .readers = &*readers_,
                         .new_jobs = this,
                         .routines = &code_->provider(),
                         .code_versions = options_.code_versions};
    if (options_.on_worker) {
      world.functions_held_until = measured_->now() + worker_limits().resume;
    }
    if (options_.agents) {
      for (const auto& [name, agent] : options_.agents->agents) {
        options_.runtime.agent_versions[name] =
            agent.execution_version.empty() ? std::string(kVersion) : agent.execution_version;
        if (agent.is_code()) options_.runtime.code_agents.insert(name);
      }
    }
    options_.runtime.execution_version = kVersion;
    runtime::RuntimeObserver* const self = this;
    runtime_.emplace(world, options_.runtime, self);
    api_.emplace(
        loop_, steady_, *measured_, *runtime_,
        api::ApiOptions{.agents = options_.agents,
                        .runs = options_.mode == InstanceOptions::Mode::run,
                        .receives_commits = options_.mode != InstanceOptions::Mode::read,
                        .read_agent = options_.read_agent,
                        .measured = &*measured_,
                        .archive = [this](const std::string& folder)
                            -> Result<std::shared_ptr<runtime::Archive>> {
                          AE_ASSIGN(auto opened, ArchiveFolder::open(loop_, folder));
                          return std::shared_ptr<runtime::Archive>(std::move(opened));
                        },
                        .health_only = options_.health_only,
                        .on_refused = options_.on_refused,
                        .version = std::string(kVersion),
                        .store = store_name(),
                        .preview = [this](const api::PreviewedCall& call) { return preview(call); },
                        .random_source = &random_,
                        .code_workers = [this] { return code_->workers_json(); },
                        .warn = [this](const std::string& what) { on_warning({}, what); }});
    return {};
  }

  void accept_code() {
    code_.emplace(CodeWorkers::Parts{
        .loop = loop_, .steady = steady_, .random = random_, .store = *measured_});
    if (!options_.native_agents.empty()) {
      code_->add_native(std::move(options_.native_agents), std::move(options_.native_functions),
                        std::move(options_.function_observer));
    }
    if (options_.on_worker) {
      code_->accept_workers(
          {.on_worker = options_.on_worker,
           .rank =
               [this](const routines::AgentVersion& code) {
                 return api_ ? api::rank_of(api_->registry().registry(), code.agent, code.version)
                             : std::nullopt;
               },
           .on_change =
               [this] {
                 add_functions();
                 if (runtime_) runtime_->on_routines_changed();
               },
           .on_left =
               [this](const engine::WorkerName& worker, const routines::LeftCalls& left) {
                 if (runtime_) runtime_->on_worker_left(worker, left);
               },
           .on_late =
               [this](const engine::WorkerName& worker, const routines::CallName& call,
                      const Outcome& outcome) {
                 if (runtime_) runtime_->on_worker_late(worker, call, outcome);
               }});
    }
    add_functions();
  }
  void add_functions() {
    if (toolbox_ && files_in_use_) code_->add_functions(*files_in_use_, toolbox_->tool_registry());
  }

  void warn_of_short_secrets() {
    for (const std::string& name : toolbox_->short_secrets()) {
      on_warning({}, fmt::format("the secret {} has fewer than {} bytes: it is not removed from "
                                 "tool results; use a longer one",
                                 name, tools::kSecretHiddenMin));
    }
  }

  void warn_of_secrets(const agents::AgentsFile& file) {
    if (!toolbox_) return;
    for (const MissingSecret& one : missing_secrets(file, options_.store)) {
      on_warning({}, fmt::format("{} cannot be called: {}", one.tool, one.why.message));
    }
  }

  // The whole default folder; in another folder the files of the store. Also all files with keys
  // and secrets.
  std::vector<std::string> paths_closed_to_tools(const agents::AgentsFile& agents) const {
    std::vector<std::string> closed{store::sqlite::canonical_path(kGuardFolder)};
    const auto close = [&closed](const std::string& file) {
      const std::string path = store::sqlite::canonical_path(file);
      if (!path.empty() && !path.starts_with(closed[0] + "/")) closed.push_back(path);
    };
    const StoreUrl& store = options_.store;
    if (store.found) close(store.folder());
    if (store.kind == StoreUrl::Kind::sqlite) {
      close(store.path);
      close(store.socket_path());
    }
    close(secrets_file_of(store));
    close(options_.signing_key.empty() ? environment("AETHERIS_SIGNING_KEY")
                                       : options_.signing_key);
    close(options_.tls_key);
    close(environment("AETHERIS_API_KEY_FILE"));
    for (const auto* offered : {&agents.tools, &agents.models}) {
      for (const auto& [name, tool] : *offered) {
        for (const std::string& secret : secret_names_of(tool)) {
          close(environment((secret + "_FILE").c_str()));
        }
      }
    }
    return closed;
  }

  // Uses a placeholder for an external key that is not known yet.
  Result<Value> preview(const api::PreviewedCall& previewed) {
    auto* entry =
        toolbox_ ? toolbox_->tool_registry().find(previewed.tool, previewed.version) : nullptr;
    if (entry == nullptr) return Value();
    tools::Call call;
    call.job = previewed.job;
    call.tool = previewed.tool;
    call.args = previewed.arguments;
    call.key = previewed.key;
    if (call.key.empty()) {
      call.key = idempotency_key(previewed.job, previewed.step, previewed.tool,
                                 canonical(previewed.arguments), previewed.blind);
    }
    call.external_key = previewed.external_key;
    if (call.external_key.empty()) {
      call.external_key = ExternalKey(std::string("EXTERNAL_KEY"));
    }
    call.invocation = previewed.invocation;
    if (call.invocation.empty()) {
      call.invocation = invocation_id(previewed.job, previewed.step, call.key);
    }
    return entry->tool->preview(call);
  }

  net::AsioLoop& loop() override { return loop_; }
  store::Store& store() override { return *store_; }
  runtime::Runtime& runtime() override { return *runtime_; }
  api::Api& api() override { return *api_; }
  runtime::OutputHub& output_hub() override { return output_hub_; }
  std::string store_name() const override {
    return options_.store.kind == StoreUrl::Kind::sqlite
               ? store::sqlite::canonical_path(options_.store.path)
               : options_.store.text();
  }

  Status listen() override {
    if (options_.store.kind != StoreUrl::Kind::sqlite) return {};
    listener_.emplace(loop_, steady_, *api_, output_hub_, code_->remote());
    socket_path_ = options_.store.socket_path();
    Status listens = listener_->listen(socket_path_);
    if (!listens && listens.error().code == Code::held) {
      socket_path_ = options_.store.second_socket_path();
      listens = listener_->listen(socket_path_);
    }
    if (!listens) socket_path_.clear();
    return listens;
  }
  Result<std::string> listen_for_workers() override {
    // Other programs cannot connect to a longer path.
    constexpr std::size_t kPathMax = sizeof(sockaddr_un::sun_path) - 1;
    std::string path = socket_path_.empty() ? "" : store::sqlite::canonical_path(socket_path_);
    if (!path.empty() && path.size() <= kPathMax) return path;
    std::error_code error;
    std::string folder = (std::filesystem::temp_directory_path(error) / "aetheris-XXXXXX").string();
    if (error || ::mkdtemp(folder.data()) == nullptr) {
      return fail(Code::unavailable, "no folder for the socket of workers can be made: {}",
                  error ? error.message() : std::strerror(errno));
    }
    private_folder_ = folder;
    private_listener_.emplace(loop_, steady_, *api_, output_hub_, code_->remote());
    std::string socket = folder + "/aetheris.sock";
    AE_TRY(private_listener_->listen(socket));
    return socket;
  }
  routines::RoutineProvider& code() override { return code_->provider(); }
  void drain_worker(std::string_view worker) override {
    if (code_->remote() != nullptr) code_->remote()->drain(worker);
  }
  void end_worker(std::string_view worker) override {
    if (code_->remote() != nullptr) code_->remote()->end(worker);
  }
  Result<std::optional<runtime::ParkResult>> accept_rollback(const std::string& by) override {
    const bool accepting = sqlite_     ? sqlite_->accepting()
                           : postgres_ ? postgres_->accepting()
                                       : false;
    if (!accepting) return std::nullopt;
    const std::string timeline = sqlite_ ? sqlite_->timeline() : postgres_->timeline();
    AE_ASSIGN(runtime::ParkResult parked, await<Result<runtime::ParkResult>>([&](auto done) {
                runtime::park_rolled_back(
                    *store_, runtime_->reader(),
                    [this](JobId job, engine::ControlRequest request, auto answered) {
                      runtime_->submit_request(std::move(job), std::move(request),
                                               std::move(answered));
                    },
                    by, timeline, std::move(done));
              }));
    AE_TRY(await<Result<void>>([&](auto done) {
      sqlite_ ? sqlite_->finish_accepting(std::move(done))
              : postgres_->finish_accepting(std::move(done));
    }));
    return parked;
  }
  bool created() const override { return created_; }
  bool was_recreated() const override { return sqlite_ && sqlite_->was_recreated(); }
  void stop_listening() override {
    if (!listener_) return api_->stop_waiting();
    const auto is_stopped = std::make_shared<bool>(false);
    const auto stop = [this, is_stopped] {
      if (!std::exchange(*is_stopped, true)) loop_.stop();
    };
    const async::TimerId timer = loop_.after(kLastResponsesMax, stop);
    api_->stop_waiting([this, is_stopped, stop] {
      if (!*is_stopped) listener_->stop(kLastResponsesMax, stop);
    });
    while (!*is_stopped) loop_.run();
    loop_.cancel(timer);
    listener_.reset();
  }
  Result<std::uint16_t> serve(ServeOptions options) override {
    AE_TRY(await<Status>(
        [&](auto done) { api_->registry().refresh_if_older(Duration(0), std::move(done)); }));
    if (options_.read_agent && !options_.health_only) {
      AE_TRY(register_agents());
    }
    if (options_.agents) warn_of_secrets(*options_.agents);
    options.warn = [this](const std::string& what) { on_warning({}, what); };
    if (options_.store.has_virtual_clock) {
      clock_control_.emplace(ClockControl::Parts{.loop = loop_,
                                                 .steady = steady_,
                                                 .clock = virtual_clock_,
                                                 .store = *store_,
                                                 .runtime = *runtime_});
      options.clock = &*clock_control_;
    }
    network_listener_.emplace(loop_, steady_, *store_, *api_, output_hub_, std::move(options),
                              code_->remote());
    return network_listener_->listen_tcp();
  }
  Status register_agents() override {
    return await<Status>([&](auto done) { api_->agents().register_all(std::move(done)); });
  }
  Status follow_agents() override {
    return await<Status>([&](auto done) { api_->agents().follow_registry(std::move(done)); });
  }
  bool is_superseded(const routines::AgentVersion& code) override {
    return api_ && api::is_superseded(api_->registry().registry(), code.agent, code.version);
  }
  void reload(std::shared_ptr<const LoadedAgents> loaded,
              async::Done<Result<std::vector<api::AgentChange>>> done) override {
    const auto refuse = [&](Error why) {
      loop_.post([done = std::move(done), why = std::move(why)]() mutable {
        done(std::unexpected(std::move(why)));
      });
    };
    async::Task begin = [] {};
    if (toolbox_) {
      // Running sandboxes keep their list of closed paths.
      const auto closed = paths_closed_to_tools(*options_.agents);
      for (const std::string& path : paths_closed_to_tools(loaded->file)) {
        if (std::ranges::find(closed, path) != closed.end()) continue;
        return refuse({Code::unsupported,
                       "a tool uses a new secret from a file; restart the server to use it"});
      }
      auto renewed = toolbox_->update_tools(loaded->file, {loaded->folder, loaded->folders});
      if (!renewed) return refuse(renewed.error());
      begin = *std::move(renewed);
    }
    api_->agents().reload(
        {.file = std::shared_ptr<const agents::AgentsFile>(loaded, &loaded->file),
         .read_agent = [loaded](
                           std::string_view name, std::string_view json,
                           agents::Agent& out) { return read_agent(*loaded, name, json, out); },
         .begin = std::move(begin)},
        [this, loaded,
         done = std::move(done)](Result<std::vector<api::AgentChange>> changes) mutable {
          if (changes) {
            files_in_use_ = std::shared_ptr<const agents::AgentsFile>(loaded, &loaded->file);
            add_functions();
            runtime_->retry_refused();
            warn_of_secrets(loaded->file);
            if (toolbox_) warn_of_short_secrets();
          }
          done(std::move(changes));
        });
  }
  bool has_no_live_key() override { return network_listener_->has_no_live_key(); }
  bool needs_keys() override { return network_listener_->needs_keys(); }
  void close_workers() override {
    if (code_->remote() != nullptr) code_->remote()->close();
  }
  void stop_serving(Duration grace, std::function<void()> done) override {
    api_->begin_shutdown();
    api_->stop_waiting();
    if (code_->remote() != nullptr) code_->remote()->begin_closing(grace);
    if (!network_listener_) return loop_.post(std::move(done));
    network_listener_->stop(grace, std::move(done));
  }

 private:
  template <class T, class Start>
  T await(Start start) {
    std::optional<T> answer;
    start([&](T given) {
      answer = std::move(given);
      loop_.stop();
    });
    while (!answer) loop_.run();
    return *std::move(answer);
  }

  Status open_store() {
    if (options_.store.kind == StoreUrl::Kind::postgres) {
      // A control request needs an existing job; creating one needs a store.
      const bool makes_jobs = options_.mode == InstanceOptions::Mode::run || options_.create ||
                              (options_.mode == InstanceOptions::Mode::write && options_.agents);
      if (options_.mode == InstanceOptions::Mode::run) make_guard_folder();
      AE_ASSIGN(auto opened, store::PostgresStore::open(
                                 {.url = options_.store.path,
                                  .loop = loop_,
                                  .fair_by = options_.fair_by,
                                  .create = makes_jobs,
                                  .read_only = options_.mode == InstanceOptions::Mode::read,
                                  .rollback_guard_dir = kGuardFolder,
                                  .accept_loss = options_.accept_rollback,
                                  .is_loss_certain = options_.restored,
                                  .nothing_lost = options_.nothing_lost,
                                  .accepted_by = options_.accepted_by}));
      postgres_ = opened.get();
      store_ = std::move(opened);
      return {};
    }
    if (options_.store.kind == StoreUrl::Kind::memory) {
      const bool is_virtual = options_.store.has_virtual_clock;
      if (is_virtual) options_.runtime.poll = kVirtualPoll;
      if (options_.make_store) {
        store_ = options_.make_store(loop_);
        return {};
      }
      async::Clock& clock = is_virtual ? static_cast<async::Clock&>(virtual_clock_) : clock_;
      store_ = std::make_unique<store::MemoryStore>(
          loop_, clock, disk_, store::MemoryStore::Options{.fair_by = options_.fair_by});
      return {};
    }
    const bool writes = options_.mode != InstanceOptions::Mode::read;
    if (writes) AE_TRY(check_folder(options_.store));
    struct stat before{};
    const bool is_new = ::stat(options_.store.path.c_str(), &before) != 0;
    AE_ASSIGN(auto opened, store::SqliteStore::open({.path = options_.store.path,
                                                     .loop = loop_,
                                                     .clock = clock_,
                                                     .fair_by = options_.fair_by,
                                                     .accept_loss = options_.accept_rollback,
                                                     .is_loss_certain = options_.restored,
                                                     .nothing_lost = options_.nothing_lost,
                                                     .accepted_by = options_.accepted_by,
                                                     .read_only = !writes}));
    sqlite_ = opened.get();
    store_ = std::move(opened);
    created_ = writes && is_new;
    if (writes) write_gitignore(options_.store.folder());
    return {};
  }

  // Without it jobs still run, but the next process does not know which job killed this one.
  void open_running_slot() {
    if (options_.store.kind == StoreUrl::Kind::memory) return;
    const bool shared = options_.store.kind == StoreUrl::Kind::postgres;
    auto opened =
        shared
            ? RunningFile::open_any(
                  fmt::format("{}/{}.running", kGuardFolder, postgres_->identity()))
            : RunningFile::open(
                  store::sqlite::running_path(store::sqlite::resolve_symlinks(options_.store.path)),
                  kLockWait);
    if (!opened) {
      return on_warning({},
                        fmt::format("{}; a job that kills this process will not be parked for it",
                                    opened.error().message));
    }
    running_file_ = std::move(*opened);
    slot_.emplace(running_file_->bytes());
  }

  void make_child_request(runtime::ChildJobSpec spec,
                          async::Done<Result<runtime::NewJobRequest>> done) override {
    api_->make_child_request(spec, std::move(done));
  }
  bool reads(EventType type) const override {
    return api::Api::reads(type) || (options_.observer && options_.observer->reads(type));
  }
  void on_events(const JobId& job, const std::vector<Event>& events) override {
    api_->on_events(job, events);
    if (options_.observer) options_.observer->on_events(job, events);
  }
  void on_released(const JobId& job, const std::optional<Error>& problem) override {
    if (options_.observer) options_.observer->on_released(job, problem);
  }
  void on_idle(const JobId& job) override {
    api_->on_idle(job);
    if (options_.observer) options_.observer->on_idle(job);
  }
  void on_warning(const JobId& job, const std::string& what) override {
    if (options_.observer) options_.observer->on_warning(job, what);
  }
  void on_store_health(const std::optional<Error>& out) override {
    if (options_.observer) options_.observer->on_store_health(out);
  }
  void on_store_stopped(const Error& error) override {
    if (options_.observer) options_.observer->on_store_stopped(error);
  }

  InstanceOptions options_;
  net::AsioLoop loop_;
  net::SystemClock clock_;
  VirtualClock virtual_clock_{clock_};  // of a store in memory, for tests
  net::BootClock steady_;
  net::SystemRandom random_;
  runtime::ToolRegistry no_tools_;
  runtime::OutputHub output_hub_;
  std::optional<net::ThreadPool> readers_{std::in_place, loop_, kReaderThreads};
  std::unique_ptr<RunningFile> running_file_;
  std::optional<runtime::RunningSlot> slot_;  // in the page of running_file_
  std::optional<SigningKey> signer_;
  store::MemoryDisk disk_;
  std::unique_ptr<store::Store> store_;
  store::SqliteStore* sqlite_ = nullptr;      // the same store, if SQLite
  store::PostgresStore* postgres_ = nullptr;  // … or PostgreSQL
  bool created_ = false;
  std::optional<store::MeasuredStore> measured_;  // the same store, with latencies
  std::unique_ptr<Toolbox> toolbox_;
  std::optional<CodeWorkers> code_;
  std::shared_ptr<const agents::AgentsFile> files_in_use_;  // the newest; nullptr: none
  std::optional<runtime::Runtime> runtime_;
  std::optional<api::Api> api_;
  std::optional<ClockControl> clock_control_;
  std::optional<Listener> listener_,
      network_listener_,        // for commands of our user; for network clients
      private_listener_;        // for workers that we start
  std::string socket_path_;     // of listener_; "" = it does not listen
  std::string private_folder_;  // of private_listener_; "" = none
};

}  // namespace

const std::string_view kVersion = AE_VERSION;

Result<std::unique_ptr<Instance>> Instance::open(InstanceOptions options) {
  auto instance = std::make_unique<InstanceImpl>(std::move(options));
  AE_TRY(instance->begin());
  return instance;
}

api::ApiResponse Instance::send(api::ApiRequest request) {
  std::optional<api::ApiResponse> answer;
  api().handle(std::move(request), [&](api::ApiResponse response) {
    answer = std::move(response);
    loop().stop();
  });
  while (!answer) loop().run();
  return std::move(*answer);
}

Status check_for_rollback(const StoreUrl& store) {
  switch (store.kind) {
    case StoreUrl::Kind::memory:
      break;
    case StoreUrl::Kind::sqlite:
      return store::check_for_lost_writes(store.path);
    case StoreUrl::Kind::postgres:
      return store::check_rollback(store.path, kGuardFolder);
  }
  return {};
}

Result<std::optional<store::PostgresServerInfo>> examine(const StoreUrl& store) {
  if (store.kind != StoreUrl::Kind::postgres) return std::nullopt;
  AE_ASSIGN(const store::PostgresServerInfo facts, store::read_server_info(store.path));
  return facts;
}

Result<std::unique_ptr<store::Rebuild>> open_rebuild(const RebuildRequest& request) {
  if (request.store.kind == StoreUrl::Kind::memory) {
    return fail(Code::unsupported,
                "a memory: store is gone with its process: there is nothing to rebuild");
  }
  if (request.store.kind == StoreUrl::Kind::postgres) {
    return store::open_postgres_rebuild(
        {.url = request.store.path, .compare_only = request.compare_only, .job = request.job});
  }
  return store::open_sqlite_rebuild(
      {.path = request.store.path, .compare_only = request.compare_only, .job = request.job});
}

}  // namespace ae::app
