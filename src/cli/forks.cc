// fork, retry: a new job that begins where another one stood. plan: a job goes on under another plan.
#include "api/problem.h"
#include "app/door.h"
#include "app/site.h"
#include "cli/commands.h"
#include "cli/phrases.h"
#include "core/json.h"

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

// What became of a call of the origin; --json has the stored word.
std::string effect_words(std::string_view state) {
  if (state == "committed") return "applied";
  if (state == "in_doubt") return "outcome unknown";
  return state == "undone" ? "compensated" : safe(state);
}

// The calls of the origin that may have taken effect, and that the new job would make again.
void say_effects(const Value& effects, bool retries, Terminal& terminal) {
  if (!effects.is_array()) return;
  terminal.note(
      "The new job would make these calls again. Their external keys are new, so a service does "
      "not "
      "recognize them:");
  // A retry has no later event to begin at.
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

// FILE's plan of the job's agent. Fails with plan_invalid: FILE has no such agent.
Result<Value> task_graph_of(const Options& options, const agents::AgentsFile& file,
                            const Value& job) {
  const std::string name(job.text("agent"));
  const auto agent = file.agents.find(name);
  if (agent != file.agents.end()) return agent->second.task_graph;
  return fail(Code::plan_invalid, "job " + options.id + " belongs to agent \"" + name +
                                      "\", which is not in " + options.file);
}

Result<Value> job_of(app::Door& door, const std::string& id) {
  api::ApiRequest look;
  look.path = {"api", "jobs", id};
  AE_ASSIGN(api::ApiResponse job, door.ask(look));
  if (job.status >= 400) return std::unexpected(api::error_of_problem(job.body, job.status));
  return std::move(job.body);
}

// What FILE changes of the plan, a line for each node and tool.
void say_changes(const Value& changes, Terminal& terminal) {
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

// Adds the command that serves FILE too, or what avoids the restart, and names the process that it is about.
void of_owner(Error& error, app::Door& door, const std::string& agent, const app::StoreUrl& store,
              const std::string& file) {
  if (error.code != Code::needs_version || file.empty()) return;
  api::ApiRequest look;
  look.path = {"api", "agents", agent};
  const auto answer = door.ask(look);
  const bool runs_agent = answer && answer->body["runs_here"] == Value(true);
  error.message += runs_agent ? ", or start it with `serve --watch`" : serve_too_text(file);
  if (uses_server() || !app::find_owner(store)) return;
  error.message += " (" + app::owner_name(store) + ")";
}

// Makes the new job. Its body, or an exit code when the failure has been printed.
std::expected<Value, int> make_fork(const Options& options, const app::StoreUrl& store,
                                    const agents::AgentsFile* file, Terminal& terminal) {
  const auto failed = [&](const Error& error, const Value& body = {}) {
    return std::unexpected(terminal.fail_with(error, body));
  };
  auto body = body_of(options);
  if (!body) return failed(body.error());
  auto door = app::Door::open(store, app::Purpose::write);
  if (!door && door.error().code == Code::not_found) {
    return failed({Code::not_found, "job " + options.id + " not found: " + door.error().message});
  }
  if (!door) return failed(door.error());
  std::string agent;
  if (file != nullptr) {
    const auto job = job_of(**door, options.id);
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
  request.by = who();
  const auto answer = (*door)->ask(request);
  if (!answer) return failed(answer.error());
  const Value& made = answer->body;
  if (answer->status < 400) return made;
  if (!terminal.json()) say_effects(made["effects"], options.command == "retry", terminal);
  Error error = of_option(api::error_of_problem(made, answer->status));
  of_owner(error, **door, agent, store, options.file);
  return failed(error, made);
}

}  // namespace

namespace {

void say_made(const Value& made, Terminal& terminal) {
  const Value& from = made["forked_from"];
  terminal.note("Created job " + safe(made.text("id")) + " from job " + safe(from.text("job_id")) +
                ", event " + std::to_string(from["seq"].as_int()) + ".");
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
    terminal.print_json(with_store(*made, *store));
    return kDone;
  }
  terminal.print(safe(made->text("id")) + "\n");
  say_made(*made, terminal);
  say_next(options, std::string(made->text("id")), terminal);
  return kDone;
}

namespace {

bool exists(const std::string& id, const app::StoreUrl& store) {
  if (id.empty()) return false;
  const auto door = app::Door::open(store, app::Purpose::read);
  return door && job_of(**door, id).has_value();
}

// A retry gets the next id of the chain ID-retry-1, ID-retry-2, …, so that it is found again. A named job that exists is
// a repeated request, whatever came after it. Fails with effects_repeated: the newest of the chain has not failed, so that
// another retry would make its calls again.
Result<std::string> retry_job_id(const Options& options, const app::StoreUrl& store) {
  if (!options.idempotency_key.empty()) return options.job_id;
  const Retried known = retried(store, options.id);
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
  std::string id;
  {
    const auto loaded = load_sound(options.file, options, terminal);
    if (!loaded) return loaded.error();
    warn_of_idle_policies(loaded->policies, {&loaded->file}, options, terminal);
    const auto made = make_fork(options, *store, &loaded->file, terminal);
    if (!made) return made.error();
    id = made->text("id");
    if (!terminal.json()) {
      say_made(*made, terminal);
      say_changes((*made)["plan_changes"], terminal);
    }
    if (options.detach) {
      if (terminal.json()) {
        terminal.print_json(with_store(*made, *store));
      } else {
        terminal.print(safe(id) + "\n");
      }
      return kDone;
    }
  }
  Options run = options;
  run.id.clear();
  run.job_id = id;
  run.idempotency_key.clear();
  return run_command(run, terminal);
}

namespace {

// The plan that FILE has for the job's agent, as the job is told of it.
Result<Value> asked_of(const Value& job, const Options& options, const agents::AgentsFile& file) {
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

void say_plan(const Value& answer, const std::string& id, Terminal& terminal) {
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
  if (!loaded->faults.empty()) {
    const Error error{Code::plan_invalid, options.file + " has errors; nothing was changed"};
    Value body = api::problem(error).with("faults", agents::faults_json(loaded->faults)["faults"]);
    terminal.note(safe(agents::faults_text(loaded->faults), true));
    return terminal.fail_with(error, body);
  }
  warn_of_idle_policies(loaded->policies, {&loaded->file}, options, terminal);
  auto door = app::Door::open(*store, app::Purpose::write);
  if (!door) return terminal.fail_with(door.error());
  const auto job = job_of(**door, options.id);
  if (!job) return terminal.fail_with(job.error());
  const auto body = asked_of(*job, options, loaded->file);
  if (!body) {
    const int code = terminal.fail_with(body.error());
    if (body.error().code == Code::job_terminal && job->text("status") == "failed") {
      say_retry(options.id, options.file, *store, terminal);
    }
    return code;
  }
  api::ApiRequest request;
  request.method = "POST";
  request.path = {"api", "jobs", options.id, "plan"};
  request.body = canonical(*body);
  request.by = who();
  const auto answer = (*door)->ask(request);
  if (!answer) return terminal.fail_with(answer.error());
  if (answer->status >= 400) {
    Error error = api::error_of_problem(answer->body, answer->status);
    of_owner(error, **door, std::string(job->text("agent")), *store, options.file);
    return terminal.fail_with(error, answer->body);
  }
  if (terminal.json()) {
    terminal.print_json(answer->body);
  } else {
    say_plan(answer->body, safe(options.id), terminal);
  }
  return kDone;
}

}  // namespace ae::cli
