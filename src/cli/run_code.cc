// run for a file of code: the worker is a child of this process, which ends with it.
#include <fmt/core.h>

#include <cstdlib>
#include <set>
#include <utility>

#include "cli/code_children.h"
#include "cli/run_job.h"
#include "cli/shared.h"
#include "net/system.h"

namespace ae::cli {
namespace {

constexpr Duration kWorkerStop = std::chrono::seconds(2);

// ---------------------------------------------------------------- another process runs the job

// The agents that another process runs, by name; their definitions are not known here.
Result<agents::AgentsFile> agents_of(const SendRequest& send) {
  api::ApiRequest request;
  request.path = {"api", "agents"};
  const auto answer = answer_to(send, request);
  if (!answer) return std::unexpected(answer.error().error);
  agents::AgentsFile file;
  for (const Value& agent : (*answer)["agents"].items()) {
    if (agent["runs_here"] == Value(true)) file.agents[std::string(agent.text("name"))] = {};
  }
  return file;
}

using RunElsewhere = std::function<RunOutcome(const RunParams&, const agents::AgentsFile&)>;

int run_elsewhere(const std::string& owner, RunOptions& options, const SendRequest& send,
                  Terminal& terminal, const RunElsewhere& run) {
  const auto file = agents_of(send);
  if (!file) return terminal.fail_with(file.error());
  if (file->agents.empty()) {
    return terminal.fail_with(
        {Code::needs_version,
         fmt::format("{} owns the store, and no worker offers an agent there: start one for {} "
                     "(`aetheris dev` serves files of code), or use another --store",
                     owner, options.file)});
  }
  const auto params = parse_run_params(options, *file);
  if (!params) return terminal.fail_with(params.error());
  return run_until_answered(*params, options, terminal, [&] { return run(*params, *file); });
}

int run_code_at_server(const char* url, RunOptions& options, Terminal& terminal) {
  const auto client = app::ApiClient::connect_to_server(url);
  if (!client) return terminal.fail_with(client.error());
  const SendRequest send = [&](const api::ApiRequest& request) { return (*client)->send(request); };
  return run_elsewhere("the server", options, send, terminal,
                       [&](const RunParams& params, const agents::AgentsFile& file) {
                         return run_at_server(url, params, options, file, {}, terminal);
                       });
}

int run_code_at_owner(app::ApiClient& client, const app::StoreUrl& store, RunOptions& options,
                      Terminal& terminal) {
  const std::string owner = app::owner_name(store);
  const SendRequest send = [&](const api::ApiRequest& request) { return client.send(request); };
  return run_elsewhere(
      owner, options, send, terminal,
      [&](const RunParams& params, const agents::AgentsFile& file) -> RunOutcome {
        auto end = run_at_owner(client, params, options, file, {}, terminal);
        if (end) return *std::move(end);
        return std::unexpected(terminal.fail_with(
            {Code::unavailable, fmt::format("{} has ended; run this again", owner)}));
      });
}

// ---------------------------------------------------------------- this process runs the job

// What is known before the worker has offered its agents.
Result<RunParams> first_params(const RunOptions& options) {
  RunParams params{.file = options.file};
  AE_ASSIGN(params.store, store_of(options));
  AE_ASSIGN(params.queues, queue_limits(options.queue_limits));
  auto grace = duration_from_text(options.grace);
  if (!grace) return fail(Code::usage, "--grace: {}", grace.error().message);
  params.grace = *grace;
  return params;
}

class CodeRun {
 public:
  CodeRun(const app::CodeCommand& command, RunOptions& options, RunParams first,
          const app::LoadedAgents& loaded, Terminal& terminal)
      : command_(command),
        options_(options),
        first_(std::move(first)),
        loaded_(loaded),
        terminal_(terminal),
        run_(terminal, job_run_options(first_, options)),
        served_(server_, loaded,
                {.on_worker =
                     [this](const routines::Definitions& offered, const auto& faults, bool) {
                       if (children_) children_->on_worker(offered, faults);
                       check_in_use_soon();
                     },
                 .on_reload = [this](const app::Reloader::Report& report) { on_reload(report); }}) {
    server_.policies = options.policies;
  }
  ~CodeRun() {
    if (children_) children_->stop(kWorkerStop);
    served_.end();
    children_.reset();
  }
  CodeRun(const CodeRun&) = delete;
  CodeRun& operator=(const CodeRun&) = delete;

  int run() {
    std::unique_ptr<app::ApiClient> owner;
    auto opened = open_instance(first_, options_, loaded_, run_, &served_,
                                net::raise_descriptor_limit(), owner);
    if (!opened && owner != nullptr) {
      return run_code_at_owner(*owner, first_.store, options_, terminal_);
    }
    if (!opened) return terminal_.fail_with(opened.error());
    instance_ = *std::move(opened);
    served_.attach(*instance_);
    if (auto begun = begin(); !begun) return terminal_.fail_with(begun.error());
    const auto loaded = served_.load();
    if (!loaded) return terminal_.fail_with(loaded.error());
    const auto params = prepare(loaded->file);
    if (!params) return terminal_.fail_with(params.error());
    const RunOutcome end = run_here(*instance_, run_, *params, options_, *loaded, terminal_);
    return end ? print_end(end->job, *params, terminal_) : end.error();
  }

 private:
  // Starts the worker, and waits until its agents are in use. Fails if it ended, or was refused.
  Status begin() {
    run_.attach(*instance_);
    print_created(*instance_, terminal_);
    listen(*instance_, terminal_);
    AE_TRY(instance_->register_agents());
    AE_ASSIGN(std::string socket, instance_->listen_for_workers());
    children_.emplace(
        *instance_,
        CodeChildren::Options{
            .commands = {command_},
            .environment = {{"AETHERIS_SOCKET", std::move(socket)}, {"AETHERIS_URL", ""}},
            .restarts = false},
        CodeChildren::Callbacks{.print = [this](const std::string& line) { terminal_.note(line); },
                                .on_failed = [this](Error why) { fail_run(std::move(why)); }});
    served_.begin(*instance_, false);
    children_->begin();
    while (!is_in_use_ && !failed_) instance_->loop().run();
    if (failed_) return std::unexpected(*failed_);
    return {};
  }

  Result<RunParams> prepare(const agents::AgentsFile& file) {
    AE_ASSIGN(RunParams params, parse_run_params(options_, file));
    std::set<std::string, std::less<>> names;
    for (const auto& [name, agent] : file.agents) names.insert(name);
    run_.set_agents(std::move(names));
    const auto agent = file.agents.find(params.agent);
    const bool is_new = params.input || options_.job_id.empty();
    if (agent != file.agents.end() && is_new) {
      AE_TRY(check_input(agent->second, params.input.value_or(Value::object({}))));
    }
    return params;
  }

  void fail_run(Error error) {
    if (!failed_) failed_ = error;
    instance_->loop().stop();
    run_.fail(std::move(error));
  }

  void on_reload(const app::Reloader::Report& report) {
    if (report.error) return fail_run(*report.error);
    if (!report.diagnostics.empty()) {
      return fail_run({Code::plan_invalid, report.diagnostics.front().message});
    }
    check_in_use();
  }

  // Other workers may connect, too: only what our worker offers counts.
  void check_in_use() {
    if (is_in_use_ || !children_ || !children_->are_accepted() || !served_.is_in_use()) return;
    is_in_use_ = true;
    instance_->loop().stop();
  }
  void check_in_use_soon() {
    if (instance_ == nullptr) return;
    instance_->loop().post([this, alive = alive_.watch()] {
      if (alive) check_in_use();
    });
  }

  const app::CodeCommand& command_;
  RunOptions& options_;
  const RunParams first_;
  const app::LoadedAgents& loaded_;
  Terminal& terminal_;
  ServiceOptions server_;
  JobRun run_;
  ServedAgents served_;
  std::unique_ptr<app::Instance> instance_;
  std::optional<CodeChildren> children_;
  bool is_in_use_ = false;
  std::optional<Error> failed_;
  async::Alive alive_;
};

// The worker that `run` starts ends with it, so another process must run the job.
int detach_code(RunOptions& options, Terminal& terminal) {
  const auto store = store_of(options);
  if (!store) return terminal.fail_with(store.error());
  const auto owner = app::find_owner(*store);
  if (owner == nullptr) {
    return terminal.fail_with(
        {Code::usage,
         fmt::format("{0} is code, and no process serves the store {1} to run its job: start "
                     "`aetheris dev {0}`, or name a server with AETHERIS_URL",
                     options.file, store->text())});
  }
  return run_code_at_owner(*owner, *store, options, terminal);
}

}  // namespace

int run_code(const app::CodeCommand& command, RunOptions& options, Terminal& terminal) {
  if (options.dry_run) {
    return terminal.fail_with(
        {Code::usage, fmt::format("{} is code: --dry-run is for agents files", options.file)});
  }
  if (const char* const url = std::getenv("AETHERIS_URL"); url != nullptr && *url != '\0') {
    return run_code_at_server(url, options, terminal);
  }
  if (options.detach) return detach_code(options, terminal);
  const auto loaded =
      load_valid_agents("", {.policies = options.policies, .needs_agents = false}, terminal);
  if (!loaded) return loaded.error();
  auto first = first_params(options);
  if (!first) return terminal.fail_with(first.error());
  return CodeRun(command, options, *std::move(first), *loaded, terminal).run();
}

}  // namespace ae::cli
