// fork, retry: create a job at an event of another. plan: replace a running job's plan.
#include "api/problem.h"
#include "app/api_client.h"
#include "app/instance.h"
#include "cli/commands.h"
#include "cli/phrases.h"
#include "json/json.h"

namespace ae::cli {
namespace {

Result<std::vector<Member>> body_of(const Options& options) {
  std::vector<Member> body;
  if (options.command == "fork") {
    AE_ASSIGN(Value at, json_argument(options.at, "--at"));
    body.emplace_back("at_seq", std::move(at));
    if (options.has_input) {
      AE_ASSIGN(Value input, json_argument(options.input, "--input"));
      body.emplace_back("input", std::move(input));
    }
  }
  if (!options.job_id.empty()) body.emplace_back("id", options.job_id);
  if (!options.idempotency_key.empty()) {
    body.emplace_back("idempotency_key", options.idempotency_key);
  }
  if (options.repeat_effects) {
    body.emplace_back("repeat_effects", true);
  } else if (!options.repeat.empty()) {
    std::vector<Value> names(options.repeat.begin(), options.repeat.end());
    body.emplace_back("repeat_effects", Value::array(std::move(names)));
  }
  return body;
}

// The outcome of a call of the origin; --json has the stored word.
std::string effect_words(std::string_view state) {
  if (state == "committed") return "applied";
  if (state == "in_doubt") return "outcome unknown";
  return state == "undone" ? "compensated" : safe(state);
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
    std::vector<Table::Cell> cells{{place_text(effect), Tint::accent},
                                   {safe(effect.text("tool"))},
                                   {safe(effect.text("effect_class")), Tint::dim},
                                   {effect_words(effect.text("state")), Tint::bad},
                                   {safe(effect.text("step_id")), Tint::dim}};
    if (!retries) {
      cells.push_back({effect["seq"].is_integer() ? std::to_string(effect["seq"].as_int()) : "-"});
    }
    table.row(std::move(cells));
  }
  terminal.note(table.text(terminal.err(), terminal.width()));
}

}  // namespace

namespace {

// FILE's plan for the job's agent. Fails with plan_invalid: FILE has no such agent.
Result<Value> task_graph_of(const Options& options, const agents::AgentsFile& file,
                            const Value& job) {
  const std::string name(job.text("agent"));
  const auto agent = file.agents.find(name);
  if (agent != file.agents.end()) return agent->second.task_graph;
  return fail(Code::plan_invalid, "job " + options.id + " belongs to agent \"" + name +
                                      "\", which is not in " + options.file);
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
    terminal.note("plan " + safe(change.text("change")) + ": " + safe(change.text("path")) +
                  fields);
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
  error.message += " (" + app::owner_name(store) + ")";
}

// Creates the new job. Returns its body, or an exit code after the error was printed.
struct MadeFork {
  Value job;
  bool existed = false;  // the request was a repetition
};

std::expected<MadeFork, int> make_fork(const Options& options, const app::StoreUrl& store,
                                       const agents::AgentsFile* file, Terminal& terminal) {
  const auto failed = [&](const Error& error, const Value& body = {}) {
    return std::unexpected(terminal.fail_with(error, body));
  };
  auto body = body_of(options);
  if (!body) return failed(body.error());
  auto client = app::ApiClient::open(store, app::OpenMode::write);
  if (!client && client.error().code == Code::not_found) {
    return failed({Code::not_found, "job " + options.id + " not found: " + client.error().message});
  }
  if (!client) return failed(client.error());
  std::string agent;
  if (file != nullptr) {
    const auto job = job_of(**client, options.id);
    if (!job) return failed(job.error());
    auto graph = task_graph_of(options, *file, *job);
    if (!graph) return failed(graph.error());
    agent = job->text("agent");
    body->emplace_back("task_graph", *std::move(graph));
    if (!options.drop.empty()) {
      body->emplace_back(
          "drop", Value::array(std::vector<Value>(options.drop.begin(), options.drop.end())));
    }
  }
  api::ApiRequest request;
  request.method = "POST";
  request.path = {"api", "jobs", options.id, options.command};
  request.body = canonical(Value::object(std::move(*body)));
  request.by = cli_actor();
  const auto answer = (*client)->send(request);
  if (!answer) return failed(answer.error());
  const Value& made = answer->body;
  if (answer->status < 400) return MadeFork{made, answer->status == 200};
  if (!terminal.json()) print_effects(made["effects"], options.command == "retry", terminal);
  Error error = with_option_names(api::error_of_problem(made, answer->status));
  name_owner(error, **client, agent, store, options.file);
  return failed(error, made);
}

}  // namespace

namespace {

void print_fork(const MadeFork& fork, Terminal& terminal) {
  const Value& made = fork.job;
  const Value& from = made["forked_from"];
  terminal.note((fork.existed ? "Job " : "Created job ") + safe(made.text("id")) +
                (fork.existed ? " was created before from job " : " from job ") +
                safe(from.text("job_id")) + ", event " + std::to_string(from["seq"].as_int()) +
                ".");
  const std::string kept = names_text(made["kept"]);
  terminal.note(kept.empty() ? "It keeps no result." : "It keeps results of: " + kept);
}

}  // namespace

int fork_command(const Options& options, Terminal& terminal) {
  const auto store = store_of(options);
  if (!store) return terminal.fail_with(store.error());
  const auto made = make_fork(options, *store, nullptr, terminal);
  if (!made) return made.error();
  if (terminal.json()) {
    terminal.print_json(with_store(made->job, *store));
    return kDone;
  }
  terminal.print(safe(made->job.text("id")) + "\n");
  print_fork(*made, terminal);
  print_next_step(options, std::string(made->job.text("id")), terminal);
  return kDone;
}

namespace {

bool exists(const std::string& id, const app::StoreUrl& store) {
  if (id.empty()) return false;
  const auto client = app::ApiClient::open(store, app::OpenMode::read);
  return client && job_of(**client, id).has_value();
}

// A retry gets the next id of the chain ID-retry-1, ID-retry-2, …, so that it can be found. A
// chosen id that exists is a repeated request, whatever came after it. Fails with effects_repeated:
// the newest job of the chain has not failed, so another retry would repeat its calls.
Result<std::string> retry_job_id(const Options& options, const app::StoreUrl& store) {
  if (!options.idempotency_key.empty()) return options.job_id;
  const RetryChain known = find_retries(store, options.id);
  if (!known.may_retry() && !options.repeat_effects && !exists(options.job_id, store)) {
    return fail(Code::effects_repeated,
                "job " + options.id + " was retried as " + known.last + " (" + known.status +
                    "); --repeat-effects allows another retry, which makes its calls again");
  }
  return options.job_id.empty() ? known.next : options.job_id;
}

}  // namespace

// With FILE the new job runs under FILE's plan, and this command waits for it as `run` does.
int retry_command(const Options& asked, Terminal& terminal) {
  const auto store = store_of(asked);
  if (!store) return terminal.fail_with(store.error());
  Options options = asked;
  if (auto id = retry_job_id(asked, *store)) {
    options.job_id = *std::move(id);
  } else {
    return terminal.fail_with(id.error());
  }
  if (options.file.empty()) {
    if (options.detach || !options.drop.empty()) {
      return terminal.fail_with({Code::usage, "--detach and --drop need FILE"});
    }
    return fork_command(options, terminal);
  }
  Options run = options;
  run.id.clear();
  run.idempotency_key.clear();
  {
    const auto loaded = load_valid_agents(options.file, options, terminal);
    if (!loaded) return loaded.error();
    warn_of_idle_policies(loaded->policies, {&loaded->file}, options, terminal);
    const auto made = make_fork(options, *store, &loaded->file, terminal);
    if (!made) return made.error();
    run.job_id = made->job.text("id");
    if (made->existed) run.command = "run";  // it reports what happens to an existing job
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

namespace {

// FILE's plan for the job's agent, as the body of the request.
Result<Value> plan_request_body(const Value& job, const Options& options,
                                const agents::AgentsFile& file) {
  AE_ASSIGN(Value graph, task_graph_of(options, file, job));
  const std::string_view status = job.text("status");
  if (status == "completed" || status == "failed" || status == "cancelled") {
    return fail(Code::job_terminal, "the job has ended (" + std::string(status) + ")");
  }
  Value body = Value::object({{"task_graph", std::move(graph)}});
  if (!options.reason.empty()) body = body.with("reason", options.reason);
  if (options.drop.empty()) return body;
  std::vector<Value> names(options.drop.begin(), options.drop.end());
  return body.with("drop", Value::array(std::move(names)));
}

void print_plan(const Value& answer, const std::string& id, Terminal& terminal) {
  if (answer.find("unchanged") != nullptr) return terminal.print("it has this plan already\n");
  if (answer.find("accepted") != nullptr) {
    return terminal.print("accepted: the process that runs job " + id + " applies it\n");
  }
  std::string carried;
  for (const Value& one : answer["carried"].items()) {
    carried += (carried.empty() ? "" : ", ") + safe(one.text("node_id"));
  }
  terminal.print("plan " + std::to_string(answer["plan"].as_int()) + " keeps " +
                 (carried.empty() ? "no node" : carried) + "\n");
}

}  // namespace

int plan_command(const Options& options, Terminal& terminal) {
  const auto store = store_of(options);
  if (!store) return terminal.fail_with(store.error());
  const auto loaded = app::load_agents(options.file, {.policies = options.policies});
  if (!loaded) return terminal.fail_with(loaded.error());
  if (!loaded->diagnostics.empty()) {
    const Error error{Code::plan_invalid, options.file + " has errors; nothing was changed"};
    Value body =
        api::problem(error).with("faults", agents::diagnostics_json(loaded->diagnostics)["faults"]);
    terminal.note(safe(agents::diagnostics_text(loaded->diagnostics), true));
    return terminal.fail_with(error, body);
  }
  warn_of_idle_policies(loaded->policies, {&loaded->file}, options, terminal);
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
    name_owner(error, **client, std::string(job->text("agent")), *store, options.file);
    return terminal.fail_with(error, answer->body);
  }
  if (terminal.json()) {
    terminal.print_json(answer->body);
  } else {
    print_plan(answer->body, safe(options.id), terminal);
  }
  return kDone;
}

}  // namespace ae::cli
