// fork, retry: create a job at an event of another. plan: replace a running job's plan.
#include <fmt/core.h>

#include "api/problem.h"
#include "app/api_client.h"
#include "app/instance.h"
#include "cli/phrases.h"
#include "cli/process_options.h"
#include "cli/run_options.h"
#include "cli/shared.h"
#include "inspect/fork_preview.h"
#include "json/json.h"
#include "log/field_names.h"
#include "store/rules.h"

namespace ae::cli {
namespace {

// Options of the commands that create a job from another one.
struct NewJobOptions : CommonOptions {
  std::string id;  // of the other job
  std::string job_id, idempotency_key;
  bool repeat_effects = false;
  std::vector<std::string> repeat;
};

// `same`: what a repeated key must have in common; `effects`: what --repeat-effects allows.
std::vector<Option> new_job_options(NewJobOptions& o, const std::string& same,
                                    const std::string& effects) {
  return {{"--job-id", "ID", &o.job_id,
           "the id of the new job; repeating the command returns the same job", kNotEmpty},
          {"--idempotency-key", "KEY", &o.idempotency_key,
           "the same key with the same " + same + " returns the same new job", kNotEmpty},
          {"--repeat-effects", "", &o.repeat_effects, effects},
          {"--repeat", "NODE|ID", &o.repeat,
           "allow this effect to be repeated, with a new external key: node, step id or call id; "
           "repeatable"}};
}

struct ForkOptions : NewJobOptions {
  std::string at;
  std::optional<std::string> input;
};

std::vector<Option> fork_options(ForkOptions& o) {
  return std::vector<Option>{
             {"ID", "", &o.id, "the job to fork; it is not changed", kRequired},
             {"--at", "SEQ", &o.at, "the event to fork at, from `aetheris events`", kRequired},
             {"--input", "JSON", &o.input,
              "input for the steps that are not done: JSON, or @FILE"}} +
         new_job_options(o, "job, event and input",
                         "allow all effects after the event to be repeated");
}

std::string fork_pair_hint(const std::string&) { return "give the input as JSON: --input JSON"; }

struct PlanOptions : CommonOptions {
  std::string id, file, policies, reason;
  std::vector<std::string> drop;
};

std::vector<Option> plan_options(PlanOptions& o) {
  return {
      {"ID", "", &o.id, "the job", kRequired},
      {"FILE", "", &o.file, "the agents file with the new plan", kRequired},
      policies_option(o.policies),
      {"--drop", "NODE", &o.drop, "a node whose committed effect the new plan drops; repeatable"},
      {"--reason", "TEXT", &o.reason, "the reason, for the log"}};
}

struct RetryOptions : NewJobOptions {
  std::string file, policies;
  std::vector<std::string> drop;
  bool detach = false;
};

std::vector<Option> retry_options(RetryOptions& o) {
  return std::vector<Option>{
             {"ID", "", &o.id, "the job that failed", kRequired},
             {"FILE", "", &o.file,
              "the agents file: the new job runs its plan and keeps results that still apply"},
             policies_option(o.policies),
             {"--drop", "NODE", &o.drop,
              "a node whose committed effect the changed plan drops; repeatable"},
             {"--detach", "", &o.detach,
              "with FILE: create the job and exit; another process runs it"}} +
         new_job_options(
             o, "failed job",
             "allow every call that is not kept and may have taken effect to be made again");
}

std::string retry_pair_hint(const std::string& pair) {
  return fmt::format("a retry keeps the input; a new job repeats all calls: aetheris run FILE {}",
                     quoted(pair));
}

std::vector<Member> new_job_body(const NewJobOptions& options) {
  std::vector<Member> body;
  if (!options.job_id.empty()) body.emplace_back("id", options.job_id);
  if (!options.idempotency_key.empty()) {
    body.emplace_back(field::idempotency_key, options.idempotency_key);
  }
  if (options.repeat_effects) {
    body.emplace_back("repeat_effects", true);
  } else if (!options.repeat.empty()) {
    std::vector<Value> names(options.repeat.begin(), options.repeat.end());
    body.emplace_back("repeat_effects", Value::array(std::move(names)));
  }
  return body;
}

// Lists the calls of the origin that may have taken effect and that the new job would repeat.
void print_effects(const Value& effects, bool retries, Terminal& terminal) {
  if (!effects.is_array()) return;
  terminal.note(
      "The new job would make these calls again. Their external keys are new, so a service does "
      "not "
      "recognize them:");
  // A retry cannot start at a later event.
  std::vector<std::string> head{"NODE", "TOOL", "EFFECT", "OUTCOME", "STEP"};
  if (!retries) head.emplace_back("SENT AT EVENT");
  Table table(std::move(head));
  for (const Value& effect : effects.items()) {
    std::vector<Table::Cell> cells{
        {place_text(effect), Tint::accent},
        {safe(effect.text("tool"))},
        {safe(effect.text(field::effect_class)), Tint::dim},
        {safe(engine::effect_outcome_text(effect.text(field::state))), Tint::bad},
        {safe(effect.text(field::step_id)), Tint::dim}};
    if (!retries) {
      cells.push_back({effect["seq"].is_integer() ? std::to_string(effect["seq"].as_int()) : "-"});
    }
    table.row(std::move(cells));
  }
  terminal.note(table.text(terminal.err(), terminal.width()));
}

// The plan of the agents file `path` for the job's agent. Fails with plan_invalid: it has no such
// agent.
Result<Value> task_graph_of(const std::string& path, const agents::AgentsFile& file,
                            const Value& job) {
  const std::string name(job.text(field::agent));
  const auto agent = file.agents.find(name);
  if (agent != file.agents.end()) return agent->second.task_graph;
  return fail(Code::plan_invalid, "job {} belongs to agent \"{}\", which is not in {}",
              job.text("id"), name, path);
}

Result<Value> job_of(app::ApiClient& client, const std::string& id) {
  api::ApiRequest request;
  request.path = {"api", "jobs", id};
  AE_ASSIGN(api::ApiResponse job, client.send(request));
  if (job.status >= 400) return std::unexpected(api::error_of_problem(job.body, job.status));
  return std::move(job.body);
}

// Prints the plan changes of FILE, one line per node and tool.
void print_changes(const Value& changes, Terminal& terminal) {
  if (!changes.is_array()) return;
  if (changes.size() == 0) return terminal.note("plan unchanged");
  for (const Value& change : changes.items()) {
    std::string fields;
    for (const Value& field : change["fields"].items()) {
      fields += (fields.empty() ? ": " : ", ") + safe(field.as_string());
    }
    terminal.note(fmt::format("plan {}: {}{}", safe(change.text("change")),
                              safe(change.text("path")), fields));
  }
}

// Appends the command that also serves FILE, or the option that avoids a restart, and the process
// concerned.
void name_owner(Error& error, app::ApiClient& client, const std::string& agent,
                const app::StoreUrl& store, const std::string& file) {
  if (error.code != Code::needs_version || file.empty()) return;
  api::ApiRequest request;
  request.path = {"api", "agents", agent};
  const auto answer = client.send(request);
  const bool runs_agent = answer && answer->body["runs_here"] == Value(true);
  error.message += runs_agent ? ", or start it with `serve --watch`" : serve_too_text(file);
  if (uses_server() || !app::find_owner(store)) return;
  error.message += fmt::format(" ({})", app::owner_name(store));
}

// Creates the new job. Returns its body, or an exit code after the error was printed.
struct MadeFork {
  Value job;
  bool existed = false;  // the request was a repetition
};

// What the new job is made of.
struct NewJob {
  std::string verb;          // fork, retry
  std::vector<Member> body;  // of the request
  // retry with FILE: the agents, the file, and the nodes to drop.
  const agents::AgentsFile* agents = nullptr;
  std::string file = {};
  std::vector<std::string> drop = {};
};

std::expected<MadeFork, int> make_fork(const std::string& id, NewJob wanted,
                                       const app::StoreUrl& store, Terminal& terminal) {
  const auto failed = [&](const Error& error, const Value& body = {}) {
    return std::unexpected(terminal.fail_with(error, body));
  };
  auto client = app::ApiClient::open(store, app::OpenMode::write);
  if (!client && client.error().code == Code::not_found) {
    return failed(
        {Code::not_found, fmt::format("job {} not found: {}", id, client.error().message)});
  }
  if (!client) return failed(client.error());
  std::string agent;
  if (wanted.agents != nullptr) {
    const auto job = job_of(**client, id);
    if (!job) return failed(job.error());
    auto graph = task_graph_of(wanted.file, *wanted.agents, *job);
    if (!graph) return failed(graph.error());
    agent = job->text(field::agent);
    wanted.body.emplace_back(field::task_graph, *std::move(graph));
    if (!wanted.drop.empty()) {
      wanted.body.emplace_back(
          field::drop, Value::array(std::vector<Value>(wanted.drop.begin(), wanted.drop.end())));
    }
  }
  api::ApiRequest request;
  request.method = "POST";
  request.path = {"api", "jobs", id, wanted.verb};
  request.body = canonical(Value::object(std::move(wanted.body)));
  request.by = cli_actor();
  const auto answer = (*client)->send(request);
  if (!answer) return failed(answer.error());
  const Value& made = answer->body;
  if (answer->status < 400) return MadeFork{made, answer->status == 200};
  if (!terminal.json()) print_effects(made["effects"], wanted.verb == "retry", terminal);
  Error error = with_option_names(api::error_of_problem(made, answer->status));
  name_owner(error, **client, agent, store, wanted.file);
  const bool has_options = error.code == Code::effects_repeated;  // in its message
  return failed(error, has_options ? made.with(field::detail, error.message) : made);
}

void print_fork(const MadeFork& fork, Terminal& terminal) {
  const Value& made = fork.job;
  const Value& from = made[field::forked_from];
  const std::string id = safe(made.text("id")), origin = safe(from.text("job_id"));
  const std::int64_t seq = from["seq"].as_int();
  terminal.note(
      fork.existed
          ? fmt::format("Job {} was created before from job {}, event {}.", id, origin, seq)
          : fmt::format("Created job {} from job {}, event {}.", id, origin, seq));
  const std::string kept = names_text(made["kept"]);
  terminal.note(kept.empty() ? "It keeps no result."
                             : fmt::format("It keeps results of: {}", kept));
}

// Creates the job and prints it.
int create_from(const NewJobOptions& options, NewJob wanted, const app::StoreUrl& store,
                Terminal& terminal) {
  const auto made = make_fork(options.id, std::move(wanted), store, terminal);
  if (!made) return made.error();
  if (terminal.json()) {
    terminal.print_json(with_store(made->job, store));
    return kDone;
  }
  terminal.print(safe(made->job.text("id")) + "\n");
  print_fork(*made, terminal);
  print_next_step(options, std::string(made->job.text("id")), terminal);
  return kDone;
}

int fork_command(const ForkOptions& options, Terminal& terminal) {
  const auto store = store_of(options);
  if (!store) return terminal.fail_with(store.error());
  NewJob wanted{.verb = "fork", .body = new_job_body(options)};
  auto at = json_argument(options.at, "--at");
  if (!at) return terminal.fail_with(at.error());
  wanted.body.emplace_back("at_seq", *std::move(at));
  if (options.input) {
    auto input = json_argument(*options.input, "--input");
    if (!input) return terminal.fail_with(input.error());
    wanted.body.emplace_back(field::input, *std::move(input));
  }
  return create_from(options, std::move(wanted), *store, terminal);
}

bool exists(const std::string& id, const app::StoreUrl& store) {
  if (id.empty()) return false;
  const auto client = app::ApiClient::open(store, app::OpenMode::read);
  return client && job_of(**client, id).has_value();
}

// A retry gets the next id of the chain ID-retry-1, ID-retry-2, …, so that it can be found. A
// chosen id that exists is a repeated request, whatever came after it. Fails with effects_repeated:
// the newest job of the chain has not failed, so another retry would repeat its calls.
Result<std::string> retry_job_id(const RetryOptions& options, const app::StoreUrl& store) {
  if (!options.idempotency_key.empty()) return options.job_id;
  const RetryChain known = find_retries(store, options.id);
  if (!known.may_retry() && !options.repeat_effects && !exists(options.job_id, store)) {
    return fail(Code::effects_repeated,
                "job {} was retried as {} ({}); --repeat-effects allows another retry, "
                "which makes its calls again",
                options.id, known.last, known.status);
  }
  return options.job_id.empty() ? known.next : options.job_id;
}

// With FILE the new job runs under FILE's plan, and this command waits for it as `run` does.
int retry_command(const RetryOptions& given, Terminal& terminal) {
  const auto store = store_of(given);
  if (!store) return terminal.fail_with(store.error());
  RetryOptions options = given;
  if (auto id = retry_job_id(given, *store)) {
    options.job_id = *std::move(id);
  } else {
    return terminal.fail_with(id.error());
  }
  if (options.file.empty()) {
    if (options.detach || !options.drop.empty()) {
      return terminal.fail_with({Code::usage, "--detach and --drop need FILE"});
    }
    return create_from(options, {.verb = "retry", .body = new_job_body(options)}, *store, terminal);
  }
  RunOptions run;
  static_cast<CommonOptions&>(run) = options;
  run.file = options.file;
  run.policies = options.policies;
  run.has_only_option = false;
  {
    const auto loaded = load_valid_agents(options.file, {.policies = options.policies}, terminal);
    if (!loaded) return loaded.error();
    warn_of_idle_policies(options.policies, loaded->policies, {&loaded->file}, terminal);
    const auto made = make_fork(options.id,
                                {.verb = "retry",
                                 .body = new_job_body(options),
                                 .agents = &loaded->file,
                                 .file = options.file,
                                 .drop = options.drop},
                                *store, terminal);
    if (!made) return made.error();
    run.job_id = made->job.text("id");
    run.was_looked_up = !made->existed;  // `run` prints what happens to an existing job
    if (!terminal.json()) {
      print_fork(*made, terminal);
      print_changes(made->job["plan_changes"], terminal);
    }
    if (options.detach) {
      if (terminal.json()) {
        terminal.print_json(with_store(made->job, *store));
      } else {
        terminal.print(safe(run.job_id) + "\n");
      }
      return kDone;
    }
  }
  return run_command(run, terminal);
}

// FILE's plan for the job's agent, as the body of the request.
Result<Value> plan_request_body(const Value& job, const PlanOptions& options,
                                const agents::AgentsFile& file) {
  AE_ASSIGN(Value graph, task_graph_of(options.file, file, job));
  const std::string_view status = job.text("status");
  if (store::has_ended(status)) {
    return fail(Code::job_terminal, "the job has ended ({})", status);
  }
  Value body = Value::object({{field::task_graph, std::move(graph)}});
  if (!options.reason.empty()) body = body.with(field::reason, options.reason);
  if (options.drop.empty()) return body;
  std::vector<Value> names(options.drop.begin(), options.drop.end());
  return body.with(field::drop, Value::array(std::move(names)));
}

void print_plan(const Value& answer, const std::string& id, Terminal& terminal) {
  if (answer.find("unchanged") != nullptr) return terminal.print("it has this plan already\n");
  if (answer.find("accepted") != nullptr) {
    return terminal.print(fmt::format("accepted: the process that runs job {} applies it\n", id));
  }
  std::string carried;
  for (const Value& one : answer[field::carried].items()) {
    carried += (carried.empty() ? "" : ", ") + safe(one.text(field::node_id));
  }
  terminal.print(fmt::format("plan {} keeps {}\n", answer["plan"].as_int(),
                             carried.empty() ? "no node" : carried));
}

int plan_command(const PlanOptions& options, Terminal& terminal) {
  const auto store = store_of(options);
  if (!store) return terminal.fail_with(store.error());
  const auto loaded = app::load_agents(options.file, {.policies = options.policies});
  if (!loaded) return terminal.fail_with(loaded.error());
  if (!loaded->diagnostics.empty()) {
    const Error error{Code::plan_invalid,
                      fmt::format("{} has errors; nothing was changed", options.file)};
    Value body =
        api::problem(error).with("faults", agents::diagnostics_json(loaded->diagnostics)["faults"]);
    terminal.note(safe(agents::diagnostics_text(loaded->diagnostics), true));
    return terminal.fail_with(error, body);
  }
  warn_of_idle_policies(options.policies, loaded->policies, {&loaded->file}, terminal);
  auto client = app::ApiClient::open(*store, app::OpenMode::write);
  if (!client) return terminal.fail_with(client.error());
  const auto job = job_of(**client, options.id);
  if (!job) return terminal.fail_with(job.error());
  const auto body = plan_request_body(*job, options, loaded->file);
  if (!body) {
    const int code = terminal.fail_with(body.error());
    if (body.error().code == Code::job_terminal && job->text("status") == "failed") {
      print_retry(options.id, options.file, *store, terminal);
    }
    return code;
  }
  api::ApiRequest request;
  request.method = "POST";
  request.path = {"api", "jobs", options.id, "plan"};
  request.body = canonical(*body);
  request.by = cli_actor();
  const auto answer = (*client)->send(request);
  if (!answer) return terminal.fail_with(answer.error());
  if (answer->status >= 400) {
    Error error = api::error_of_problem(answer->body, answer->status);
    name_owner(error, **client, std::string(job->text(field::agent)), *store, options.file);
    return terminal.fail_with(error, answer->body);
  }
  if (terminal.json()) {
    terminal.print_json(answer->body);
  } else {
    print_plan(answer->body, safe(options.id), terminal);
  }
  return kDone;
}

}  // namespace

extern const Command kForkCommand{.name = "fork",
                                  .group = Group::control,
                                  .target = Target::store_or_server,
                                  .summary = "start a new job from an event of another job",
                                  .example = "aetheris fork holiday --at 12",
                                  .bind = bound_command<ForkOptions, fork_options, fork_command>,
                                  .pair_hint = fork_pair_hint};

extern const Command kPlanCommand{.name = "plan",
                                  .group = Group::control,
                                  .target = Target::store_or_server,
                                  .summary = "replace the plan of a running job",
                                  .example = "aetheris plan holiday agents.yaml",
                                  .bind = bound_command<PlanOptions, plan_options, plan_command>};

extern const Command kRetryCommand{
    .name = "retry",
    .group = Group::control,
    .target = Target::store_or_server,
    .summary = "create a job that continues a failed one; with FILE, under its plan, and run it",
    .example = "aetheris retry holiday agents.yaml",
    .bind = bound_command<RetryOptions, retry_options, retry_command>,
    .pair_hint = retry_pair_hint};

}  // namespace ae::cli
