// The parts of `run`: where a job runs, what follows its end, and the prompts in between.
#include "cli/run_job.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <set>
#include <thread>
#include <utility>

#include "api/command_line.h"
#include "api/problem.h"
#include "app/secret_names.h"
#include "cli/code_end.h"
#include "cli/shared.h"
#include "json/json.h"
#include "log/field_names.h"
#include "log/park_until.h"
#include "net/system.h"
#include "schema/schema.h"
#include "store/rules.h"

namespace ae::cli {
namespace {

constexpr auto kLockWait = std::chrono::seconds(3);  // for a process that is stopping

}  // namespace

Status check_input(const agents::Agent& agent, const Value& input) {
  if (!agent.input_schema) return {};
  AE_ASSIGN(const Schema schema, Schema::compile(*agent.input_schema));
  if (auto valid = schema.check(input); !valid) {
    return std::unexpected(
        std::move(valid).error().with_context(fmt::format("the input of {}", agent.name)));
  }
  return {};
}

// ---------------------------------------------------------------- the end

int print_end(const Value& job, const RunParams& params, Terminal& terminal) {
  const std::string status(job.text("status"));
  const std::string id(job.text("id")), shown = safe(id);
  if (terminal.json()) {
    terminal.print_json(with_store(job, params.store));
  } else if (status == "completed") {
    terminal.print(shown_value(job[field::result]));
  }
  if (status == "failed") {
    terminal.note(fmt::format("job {} {}{}", shown, terminal.err()(Tint::bad, "failed"),
                              failure_text(job[field::error])));
    if (const std::string did = committed_text(job); !did.empty()) terminal.note(did);
    if (params.store.kind != app::StoreUrl::Kind::memory) {
      const std::string trace =
          fmt::format("aetheris trace {}{}", quoted(id), store_flag(params.store));
      terminal.note(fmt::format("Details: {}", terminal.err()(Tint::bold, trace)));
      const FailedJobFile file{.path = params.file,
                               .has_one_agent = params.has_one_agent,
                               .store_flag = store_flag(params.store),
                               .retry_chain = find_retries(params.store, id)};
      for (const NextCommand& next : next_commands(job, file)) {
        terminal.note(next.lead + terminal.err()(Tint::bold, next.command));
      }
    }
  } else if (status == "cancelled") {
    terminal.note(fmt::format("job {} was {}", shown, terminal.err()(Tint::bad, "cancelled")));
  } else if (status == "waiting" || status == "parked") {
    print_blocked(job, params.store, terminal);
    const bool runs_here = job["parked"].text(field::until) != park_until::kVersion ||
                           is_parked_by_code(job["parked"]);  // else another file does
    if (runs_here && params.store.kind != app::StoreUrl::Kind::memory) {
      terminal.note(fmt::format("then:   {}", terminal.err()(Tint::bold, run_text(params, id))));
    }
  }
  if (!is_idle(job)) {  // unblocked while we shut down
    terminal.note(fmt::format("job {} can continue: {}", shown,
                              terminal.err()(Tint::bold, run_text(params, id))));
    return kBlocked;
  }
  const auto doubts =
      final_unknown_outcomes(job, params.store, argument_columns(terminal, Stream::err));
  if (!doubts.empty()) {
    terminal.note(fmt::format("job {} has ended with calls whose outcome is unknown:", shown));
  }
  for (const std::string& doubt : doubts) terminal.note("  " + doubt);
  return exit_code_of_status(status);
}

// ---------------------------------------------------------------- another process runs the job

namespace {

RunOutcome print_detached(const Value& job, const app::StoreUrl* store, Terminal& terminal) {
  if (terminal.json()) {
    terminal.print_json(store != nullptr ? with_store(job, *store) : job);
  } else {
    terminal.print(safe(job.text("id")) + "\n");
  }
  return std::unexpected(static_cast<int>(kDone));
}

}  // namespace

std::expected<Value, RequestFailure> answer_to(const SendRequest& send,
                                               const api::ApiRequest& request) {
  auto answer = send(request);
  if (!answer) return std::unexpected(RequestFailure{std::move(answer).error()});
  if (answer->status >= 400) {
    return std::unexpected(
        RequestFailure{api::error_of_problem(answer->body, answer->status), answer->body});
  }
  return std::move(answer->body);
}

namespace {

// Follows the job until it is idle. `check` fails for a job that the other process does not run.
std::expected<Value, RequestFailure> wait_until_idle(
    Value job, const SendRequest& send, const std::function<Status(const Value&)>& check) {
  const std::string id(job.text("id"));
  std::int64_t seen = 0;
  while (!is_idle(job)) {
    if (auto runs = check(job); !runs) return std::unexpected(RequestFailure{runs.error()});
    api::ApiRequest more = get_job(id);
    more.path.emplace_back("events");
    more.query = {{"after", std::to_string(seen)}, {"wait", "10s"}, {"limit", "1000"}};
    const auto events = answer_to(send, more);
    if (!events) return std::unexpected(events.error());
    for (const Value& event : (*events)["events"].items()) seen = event["seq"].as_int();
    auto now = answer_to(send, get_job(id));
    if (!now) return std::unexpected(now.error());
    job = *std::move(now);
  }
  return job;
}

// The open requests of a waiting job, if this command can prompt its user.
IdleJob with_approvals(Value job, const app::StoreUrl& store, const SendRequest& send,
                       const Terminal& terminal) {
  const bool answers = store.kind != app::StoreUrl::Kind::memory && can_prompt(terminal);
  if (!answers || job.text("status") != "waiting") return {std::move(job)};
  api::ApiRequest request;
  request.path = {"api", "approvals"};
  request.query = {{"job", std::string(job.text("id"))}};
  auto list = answer_to(send, request);
  if (!list) return {std::move(job)};
  return {std::move(job), (*list)["approvals"]};
}

}  // namespace

RunOutcome run_at_server(const std::string& url, const RunParams& params, const RunOptions& options,
                         const agents::AgentsFile& file, const std::string& plan_hash,
                         Terminal& terminal) {
  const auto client = app::ApiClient::connect_to_server(url);
  if (!client) return std::unexpected(terminal.fail_with(client.error()));
  const auto send = [&](const api::ApiRequest& request) { return (*client)->send(request); };
  auto job = find_or_create_job(params, options, file, plan_hash, send, false, terminal);
  if (!job) return std::unexpected(terminal.fail_with(job.error()));
  if (options.detach) return print_detached(*job, nullptr, terminal);
  if (terminal.shows_progress() || options.verbose) {
    terminal.note(fmt::format("job {}", safe(job->text("id"))));
  }
  auto end = wait_until_idle(*std::move(job), send, [](const Value&) -> Status { return {}; });
  if (end) return with_approvals(*std::move(end), params.store, send, terminal);
  if (end.error().body.is_object()) {
    return std::unexpected(terminal.fail_with(end.error().error, end.error().body));
  }
  return std::unexpected(terminal.fail_with(end.error().error));
}

namespace {

// Does the owner run jobs of this agent?
Status check_served(const std::string& agent, const std::string& owner, const std::string& file,
                    const SendRequest& send) {
  api::ApiRequest request;
  request.path = {"api", "agents", agent};
  const auto answer = answer_to(send, request);
  if (answer && (*answer)["runs_here"] == Value(true)) return {};
  if (!answer && answer.error().error.code != Code::not_found) {
    return std::unexpected(answer.error().error);
  }
  return fail(Code::needs_version,
              "{} owns the store and does not run agent \"{}\": serve this file too{}, "
              "run this again once it has ended, or use another --store",
              owner, agent, serve_too_text(file));
}

}  // namespace

std::optional<RunOutcome> run_at_owner(app::ApiClient& client, const RunParams& params,
                                       RunOptions& options, const agents::AgentsFile& file,
                                       const std::string& plan_hash, Terminal& terminal) {
  const std::string owner = app::owner_name(params.store);
  const SendRequest send = [&](const api::ApiRequest& request) -> Result<api::ApiResponse> {
    if (request.method == "POST" && !options.detach) {
      AE_TRY(check_served(params.agent, owner, params.file,
                          [&](const auto& other) { return client.send(other); }));
    }
    return client.send(request);
  };
  const auto failed = [&](const RequestFailure& failure) -> std::optional<RunOutcome> {
    if (failure.is_process_gone()) return std::nullopt;
    return std::unexpected(terminal.fail_with(failure.error));
  };
  // A creation without a response is repeated with the same id.
  const bool names_job = !options.job_id.empty() || !options.idempotency_key.empty();
  if (!names_job) options.job_id = new_job_id();
  auto job = find_or_create_job(params, options, file, plan_hash, send, false, terminal);
  if (!job) {
    Error error = job.error();
    if (error.code == Code::needs_version && !error.message.starts_with(owner)) {
      error.message = fmt::format(
          "{} owns the store and runs another version of agent \"{}\": restart it (`serve --watch` "
          "reloads files) or stop it, then run this again",
          owner, params.agent);
    }
    return failed({std::move(error)});
  }
  options.job_id = job->text("id");
  options.idempotency_key.clear();
  options.was_looked_up = true;
  if (options.detach) return print_detached(*job, &params.store, terminal);
  if (!is_idle(*job)) {
    if (auto served = check_served(std::string(job->text(field::agent)), owner, params.file, send);
        !served) {
      return failed({served.error()});
    }
    terminal.note(
        fmt::format("job {} runs in {}, which owns the store", safe(options.job_id), owner));
  }
  auto end = wait_until_idle(*std::move(job), send, [&](const Value& now) -> Status {
    if (!now["needs_version"].is_string()) return {};
    return fail(Code::needs_version, "{} owns the store and cannot run job {}: {}", owner,
                now.text("id"), now.text("needs_version"));
  });
  if (end) return with_approvals(*std::move(end), params.store, send, terminal);
  return failed(end.error());
}

// ---------------------------------------------------------------- this process runs the job

Result<std::unique_ptr<app::Instance>> open_instance(const RunParams& params,
                                                     const RunOptions& options,
                                                     const app::LoadedAgents& loaded, JobRun& run,
                                                     ServedAgents* served, std::size_t descriptors,
                                                     std::unique_ptr<app::ApiClient>& owner) {
  const auto retry_until = std::chrono::steady_clock::now() + kLockWait;
  while (true) {
    app::InstanceOptions site_options{.store = params.store};
    site_options.mode =
        options.detach ? app::InstanceOptions::Mode::write : app::InstanceOptions::Mode::run;
    site_options.agents = &loaded.file;
    site_options.agents_folder = loaded.folder;
    site_options.observer = &run;
    site_options.descriptors = descriptors;
    site_options.runtime.worker = worker_name();
    site_options.signing_key = options.signing_key;
    site_options.runtime.may_claim = !options.only;
    site_options.runtime.is_resident = false;
    site_options.runtime.capabilities = options.capabilities;
    site_options.runtime.queues = params.queues;
    if (!options.fair_by.empty()) site_options.fair_by = options.fair_by;
    if (options.no_fair_by) site_options.fair_by = "";
    site_options.runtime.durability =
        options.durability == "split" ? runtime::Durability::split : runtime::Durability::fused;
    for (const auto& [name, agent] : loaded.file.agents)
      site_options.runtime.agents.push_back(name);
    if (served != nullptr) {
      site_options.runtime.has_agents = false;
      site_options.code_versions = engine::VersionPolicy::warn;  // the code of this run
      site_options.on_worker = [served](const routines::Definitions& offered) {
        return served->accept(offered);
      };
      site_options.read_agent = [&loaded](std::string_view name, std::string_view json,
                                          agents::Agent& out) {
        return app::read_agent(loaded, name, json, out);
      };
    }
    auto opened = app::Instance::open(std::move(site_options));
    if (opened || opened.error().code != Code::store_locked) return opened;
    // An owner that responds will stay; one that does not is starting or stopping.
    owner = app::find_owner(params.store);
    if (owner || std::chrono::steady_clock::now() > retry_until) return opened;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

void listen(app::Instance& instance, Terminal& terminal) {
  if (auto listens = instance.listen(); !listens) {
    terminal.warn(
        fmt::format("other commands cannot reach this process: {}", listens.error().message));
  }
}

RunOutcome run_here(app::Instance& instance, JobRun& run, const RunParams& params,
                    const RunOptions& options, const app::LoadedAgents& loaded,
                    Terminal& terminal) {
  const auto job = find_or_create_job(
      params, options, loaded.file, {},
      [&](const api::ApiRequest& request) -> Result<api::ApiResponse> {
        if (request.method == "POST" && !options.detach) {
          AE_TRY(app::has_secrets(loaded.file, params.store,
                                  loaded.file.agents.find(params.agent)->second));
        }
        return instance.send(request);
      },
      true, terminal);
  if (!job) return std::unexpected(terminal.fail_with(job.error()));
  const std::string id(job->text("id"));
  if (options.detach) return print_detached(*job, &params.store, terminal);
  if (terminal.shows_progress() || options.verbose) terminal.note(fmt::format("job {}", safe(id)));
  const int signal = run.run_until_idle(JobId(id));
  if (signal != 0) {
    if (terminal.json()) {
      const api::ApiResponse now = instance.send(get_job(id));
      terminal.print_json(now.status == 200 ? with_store(now.body, params.store) : now.body);
    }
    const bool lost = params.store.kind == app::StoreUrl::Kind::memory;
    terminal.note(lost ? "stopped; the job was lost with the memory store"
                       : fmt::format("stopped; resume with: {}",
                                     terminal.err()(Tint::bold, run_text(params, id))));
    return std::unexpected(128 + signal);
  }
  const api::ApiResponse end = instance.send(get_job(id));
  const auto send = [&](const api::ApiRequest& request) -> Result<api::ApiResponse> {
    return instance.send(request);
  };
  IdleJob idle_job = end.status == 200 ? with_approvals(end.body, params.store, send, terminal)
                                       : IdleJob{end.body};
  instance.stop_listening();
  if (end.status != 200) {
    return std::unexpected(
        terminal.fail_with(api::error_of_problem(end.body, end.status), end.body));
  }
  if (run.problem() && !store::has_ended(end.body.text("status"))) {
    return std::unexpected(terminal.fail_with(*run.problem()));
  }
  return idle_job;
}

JobRun::Options job_run_options(const RunParams& params, const RunOptions& options) {
  return {.only = options.only,
          .verbose = options.verbose,
          .grace = params.grace,
          .store = params.store,
          .agents = {},
          .notify = options.notify,
          .has_only_option = options.has_only_option,
          .descriptors = net::raise_descriptor_limit()};
}

namespace {

// Prompts for the open requests. True: one was approved, and the job can continue. Fails with the
// exit code of Ctrl-C at the prompt. `prompted`: requests shown before.
std::expected<bool, int> prompt_approvals(const IdleJob& idle_job, const RunParams& params,
                                          std::set<std::string>& prompted, Terminal& terminal) {
  bool approved = false;
  if (!idle_job.approvals.is_array()) return false;
  for (const Value& one : idle_job.approvals.items()) {
    const std::string id(one.text("id"));
    const std::string_view kind = one.text(field::kind);
    const bool decides = kind == "call" || (kind == "wait" && one.text("answer") == "decision");
    if (!decides || !prompted.insert(id).second) continue;
    const PromptAnswer answer = prompt_approval(one, terminal);
    if (answer == PromptAnswer::interrupted) return std::unexpected(128 + SIGINT);
    if (answer == PromptAnswer::no) continue;
    api::ApiRequest request;
    request.method = "POST";
    request.path = {"api", "approvals", id};
    request.body = canonical(Value::object({{"decision", "approve"}}));
    request.by = cli_actor();
    const auto client = app::ApiClient::open(params.store, app::OpenMode::write);
    const auto done =
        client
            ? answer_to([&](const auto& r) { return (*client)->send(r); }, request)
            : std::expected<Value, RequestFailure>(std::unexpected(RequestFailure{client.error()}));
    if (done && done->find("duplicate") != nullptr) {
      const std::string_view outcome = done->text(field::outcome);
      terminal.note(fmt::format("already answered before this reply: {}", safe(outcome)));
      approved = approved || outcome == "approved" || outcome == "edited";
    } else if (done) {
      approved = true;
    } else {
      terminal.warn(fmt::format("not approved: {}", api::message_with_command(done.error().error)));
    }
  }
  return approved;
}

}  // namespace

int run_until_answered(const RunParams& params, RunOptions& options, Terminal& terminal,
                       const std::function<RunOutcome()>& run) {
  std::set<std::string> prompted;
  for (;;) {
    const RunOutcome end = run();
    if (!end) return end.error();
    const auto approved = prompt_approvals(*end, params, prompted, terminal);
    if (approved && *approved) {
      options.job_id = end->job.text("id");
      options.idempotency_key.clear();
      options.was_looked_up = true;
      continue;
    }
    const int code = print_end(end->job, params, terminal);
    return approved ? code : approved.error();
  }
}

}  // namespace ae::cli
