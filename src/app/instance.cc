#include "app/instance.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
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

void make_guard_folder() {
  if (::mkdir(kGuardFolder, 0700) == 0) write_gitignore(kGuardFolder);
}

class InstanceImpl final : public Instance, private runtime::RuntimeObserver {
 public:
  explicit InstanceImpl(InstanceOptions options) : options_(std::move(options)) {}

  ~InstanceImpl() override {
    listener_.reset();
    network_listener_.reset();
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
                         .routines = &code_->provider()};
    if (options_.agents) {
      for (const auto& [name, agent] : options_.agents->agents) {
        options_.runtime.agent_versions[name] =
            agent.execution_version.empty() ? std::string(kVersion) : agent.execution_version;
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
                        .warn = [this](const std::string& what) { on_warning({}, what); }});
    return {};
  }

  void accept_code() {
    code_.emplace(
        CodeWorkers::Parts{.loop = loop_,
                           .steady = steady_,
                           .random = random_,
                           .store = *measured_,
                           .warn = [this](const std::string& what) { on_warning({}, what); }});
    if (!options_.native_agents.empty()) {
      code_->add_native(std::move(options_.native_agents), std::move(options_.native_functions));
    }
    if (options_.on_worker) {
      code_->accept_workers(options_.on_worker, [this] {
        add_functions();
        if (runtime_) runtime_->retry_refused();
      });
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
    Status listens = listener_->listen(options_.store.socket_path());
    if (!listens && listens.error().code == Code::held) {
      listens = listener_->listen(options_.store.second_socket_path());
    }
    return listens;
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
      store_ = std::make_unique<store::MemoryStore>(
          loop_, clock_, disk_, store::MemoryStore::Options{.fair_by = options_.fair_by});
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
  std::optional<Listener> listener_,
      network_listener_;  // for commands of our user; for network clients
};

Result<std::string> read_file(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return fail(Code::usage, "cannot read {}: {}", path, std::strerror(errno));
  std::string text;
  char buffer[65536];
  while (true) {
    const ssize_t size = ::read(file, buffer, sizeof buffer);
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) {
      const int error = errno;
      ::close(file);
      return fail(Code::usage, "cannot read {}: {}", path, std::strerror(error));
    }
    text.append(buffer, static_cast<std::size_t>(size));
    // The parser rejects a file that is too large; it need not be read completely.
    if (size == 0 || text.size() > (64u << 20)) break;
  }
  ::close(file);
  return text;
}

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

namespace {

// The text of the file if there is none.
constexpr std::string_view kNoFile = R"({"aetheris": 1})";

agents::Source source_of(const LoadedAgents& loaded) {
  return {.name = loaded.path,
          .text = loaded.text,
          .env = [](std::string_view name) -> std::optional<std::string> {
            const char* value = std::getenv(std::string(name).c_str());
            return value ? std::optional<std::string>(value) : std::nullopt;
          },
          .native = has_native,
          .usable = {},
          .server_tools = [&loaded](std::string_view server, const Value&) -> Result<Value> {
            const auto found = loaded.server_tools.find(server);
            if (found != loaded.server_tools.end()) return found->second;
            return fail(Code::unavailable, "its tools were not listed when this file was read");
          },
          .code = loaded.code,
          .policies = &loaded.policies};
}

// A diagnostic is text: an error that becomes one has its command in the message.
template <class T>
Result<T> with_command(Result<T> result) {
  if (result) return result;
  return fail(result.error().code, api::message_with_command(result.error()));
}

}  // namespace

std::vector<agents::Diagnostic> read_agent(const LoadedAgents& loaded, std::string_view name,
                                           std::string_view json, agents::Agent& out) {
  std::vector<agents::Diagnostic> first = agents::load_agent(source_of(loaded), name, json, out);
  if (first.empty()) return first;
  for (const LoadedAgents& file : loaded.more) {
    if (agents::load_agent(source_of(file), name, json, out).empty()) return {};
  }
  return first;
}

Result<LoadedAgents> load_agents(const std::string& path, const AgentsFileOptions& load_options) {
  LoadedAgents loaded;
  loaded.code = load_options.code;
  loaded.folder = ".";
  if (path.empty()) {
    loaded.text = std::string(kNoFile);
    loaded.path = "code.json";
  } else {
    AE_ASSIGN(loaded.text, read_file(path));
    loaded.path = path;
    loaded.read[path] = sha256(loaded.text);
    const std::size_t slash = path.rfind('/');
    if (slash != path.npos) loaded.folder = slash == 0 ? "/" : path.substr(0, slash);
  }
  if (!load_options.policies.empty()) {
    AE_ASSIGN(const std::string text, read_file(load_options.policies));
    loaded.read[load_options.policies] = sha256(text);
    loaded.diagnostics = agents::load_policies(
        {.name = load_options.policies, .text = text, .env = {}, .native = {}, .usable = {}},
        loaded.policies);
    if (!loaded.diagnostics.empty()) return loaded;
  }
  agents::Source source = source_of(loaded);
  source.usable = [&loaded](const agents::ToolDefinition& tool) {
    return with_command(check_usable(tool, loaded.folder));
  };
  if (path.empty()) {
    loaded.diagnostics = agents::load(source, loaded.file);
    return loaded;
  }
  AE_ASSIGN(ServerLock lock, ServerLock::read(path));
  source.server_tools = [&](std::string_view server, const Value& connection) -> Result<Value> {
    AE_ASSIGN(Value tools,
              with_command(lock.tools_of(server, connection, loaded.folder, load_options.servers)));
    loaded.server_tools.insert_or_assign(std::string(server), tools);
    return tools;
  };
  loaded.diagnostics = agents::load(source, loaded.file);
  AE_TRY(lock.write());
  loaded.read[lock_path_of(path)] = lock.content();
  loaded.notices = lock.notices();
  return loaded;
}

}  // namespace ae::app
