// run: check the file, find or make the job, see it through, say how it ended.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <expected>
#include <functional>
#include <memory>
#include <set>
#include <thread>
#include <utility>

#include "api/problem.h"
#include "app/door.h"
#include "app/secret_names.h"
#include "app/site.h"
#include "cli/commands.h"
#include "cli/graph_text.h"
#include "cli/run.h"
#include "core/json.h"
#include "core/schema.h"
#include "engine/plan.h"
#include "net/system.h"

namespace ae::cli {
namespace {

constexpr auto kLockWait = std::chrono::seconds(3);  // for a process that is about to end
constexpr int kOwnersMax = 1000;  // that may end, one after the other, while a job waits

struct Wish {
  app::StoreUrl store;
  std::string file;
  std::string agent;  // "" = the job says it
  bool has_one_agent = false;
  std::optional<Value> input;
  Value labels = Value::object({});
  std::int64_t priority = 0;
  std::vector<store::QueueLimit> queues;
  Duration grace{};
};

Result<Value> labels_of(const std::vector<std::string>& texts) {
  std::vector<Member> members;
  for (const std::string& text : texts) {
    const std::size_t at = text.find('=');
    if (at == 0 || at == text.npos) {
      return fail(Code::usage, "--label must be NAME=VALUE, not \"" + text + "\"");
    }
    const std::string name = text.substr(0, at);
    if (std::ranges::find(members, name, &Member::first) != members.end()) {
      return fail(Code::usage, "--label " + name + " is given twice");
    }
    members.emplace_back(name, text.substr(at + 1));
  }
  return Value::object(std::move(members));
}

Result<Wish> wish_of(const Options& options, const agents::AgentsFile& file) {
  Wish wish{.file = options.file, .has_one_agent = file.agents.size() == 1};
  AE_ASSIGN(wish.store, store_of(options));
  if (options.detach && wish.store.kind == app::StoreUrl::Kind::memory) {
    return fail(Code::usage, "--detach cannot be used with --store memory:");
  }
  AE_ASSIGN(wish.labels, labels_of(options.labels));
  wish.priority = options.priority;
  AE_ASSIGN(wish.queues, queue_limits(options));
  auto grace = duration_from_text(options.grace);
  if (!grace) return fail(Code::usage, "--grace: " + grace.error().message);
  wish.grace = *grace;
  if (!options.job_id.empty()) {
    auto id = job_id_from_text(options.job_id);
    if (!id) return std::unexpected(std::move(id).error().in("--job-id"));
  }
  std::string names;
  for (const auto& [name, agent] : file.agents) names += (names.empty() ? "" : ", ") + name;
  if (!options.agent.empty()) {
    if (!file.agents.contains(options.agent)) {
      return fail(Code::usage, "there is no agent \"" + options.agent + "\" in " + options.file +
                                   "; its agents: " + names);
    }
    wish.agent = options.agent;
  } else if (file.agents.size() == 1) {
    wish.agent = file.agents.begin()->first;
  } else if (options.job_id.empty()) {
    return fail(Code::usage, options.file + " has several agents; choose one of " + names);
  }
  AE_ASSIGN(wish.input, input_of(options));
  return wish;
}

// The command that continues a job, which names its agent itself.
std::string run_text(const Wish& wish, const std::string& id) {
  return "aetheris run " + quoted(wish.file) + " --job-id " + quoted(id) + store_flag(wish.store);
}

// ---------------------------------------------------------------- before anything is written

Status check_input(const agents::Agent& agent, const Value& input) {
  if (!agent.input_schema) return {};
  AE_ASSIGN(const Schema schema, Schema::compile(*agent.input_schema));
  if (auto valid = schema.check(input); !valid) {
    return std::unexpected(std::move(valid).error().in("the input of " + agent.name));
  }
  return {};
}

int dry_run(const Wish& wish, const agents::AgentsFile& file, Terminal& terminal) {
  if (wish.agent.empty()) return terminal.fail_with({Code::usage, "AGENT is missing"});
  const agents::Agent& agent = file.agents.find(wish.agent)->second;
  if (auto valid = check_input(agent, wish.input.value_or(Value::object({}))); !valid) {
    return terminal.fail_with(valid.error());
  }
  auto plan = engine::Plan::compile(agent.task_graph);
  if (!plan) return terminal.fail_with(plan.error());
  engine::Needs needs;
  for (const engine::Node& node : (*plan)->nodes) needs.push_back(node.needs);
  const auto nodes = agent.task_graph["nodes"].items();
  std::vector<Value> steps;
  Table table({"#", "NODE", "WHAT", "AFTER", "ARGUMENTS"});
  for (const std::uint32_t i : engine::order_of(needs).order) {
    const Value& node = nodes[i];
    std::string after;
    for (const std::uint32_t need : needs[i]) {
      after += (after.empty() ? "" : ", ") + (*plan)->nodes[need].id;
    }
    const Value& call = node.text("kind") == "map" ? node["do"] : node;
    std::string what = node_words(node, agent.task_graph);
    if (const Value* when = node.find("when")) what += ", when " + canonical(*when);
    std::vector<Member> step(node.members().begin(), node.members().end());
    if (call.find("tool")) {
      step.emplace_back(
          "effect", agent.task_graph["tools"][call.text("tool")].text("effect", "at_most_once"));
    }
    steps.push_back(Value::object(std::move(step)));
    table.row({{std::to_string(steps.size())},
               {(*plan)->nodes[i].id, Tint::accent},
               {what},
               {after, Tint::dim},
               {call.find("args") ? canonical(call["args"]) : ""}});
  }
  if (terminal.json()) {
    terminal.print_json(Value::object({{"agent", wish.agent},
                                       {"dry_run", true},
                                       {"input", wish.input.value_or(Value::object({}))},
                                       {"plan_hash", to_hex((*plan)->hash)},
                                       {"steps", Value::array(std::move(steps))}}));
  } else {
    terminal.print(table.text(terminal.out(), terminal.width()));
    terminal.note("dry run: nothing was called or written");
  }
  return kDone;
}

// ---------------------------------------------------------------- the job

std::string new_id() {
  net::SystemClock clock;
  net::SystemChance chance;
  const auto ms = static_cast<std::uint64_t>(clock.now().us / 1000);
  return to_text(uuid_v7(ms, chance.next(), chance.next()));
}

api::ApiRequest get_job(const std::string& id) {
  api::ApiRequest request;
  request.path = {"api", "jobs", id};
  return request;
}

// Is the job that stands under this id the one that is meant?
Status is_meant(const Wish& wish, const Options& options, const agents::AgentsFile& file,
                const Value& job) {
  const std::string agent(job.text("agent"));
  const std::string id(job.text("id"));
  if (!options.agent.empty() && agent != options.agent) {
    return fail(Code::already_exists, "job " + id + " belongs to agent \"" + agent +
                                          "\", not of \"" + options.agent + "\"");
  }
  if (!file.agents.contains(agent)) {
    return fail(Code::already_exists,
                "job " + id + " belongs to agent \"" + agent + "\", which is not in " + wish.file);
  }
  if (wish.input && *wish.input != job["input"]) {
    return fail(
        Code::already_exists,
        "job " + id +
            " exists with another input; omit --input to resume it, or use another --job-id");
  }
  return {};
}

bool has_ended(const Value& job) {
  const std::string_view status = job.text("status");
  return status == "completed" || status == "failed" || status == "cancelled";
}

// NAME=AMOUNT, each; what is none of the two is the server's to refuse.
Value budget_of(const std::vector<std::string>& limits) {
  Value budget = Value::object({});
  for (const std::string& limit : limits) {
    const std::size_t at = std::min(limit.find('='), limit.size());
    const std::string name = limit.substr(0, at);
    const std::string amount = limit.substr(std::min(at + 1, limit.size()));
    const bool counted = name != "cost" && name != "wall";
    budget = budget.with(name, counted ? number_or_text(amount) : Value(amount));
  }
  return budget;
}

api::ApiRequest creation(const Wish& wish, const Options& options, const std::string& plan_hash) {
  std::vector<Member> body{
      {"agent", wish.agent}, {"labels", wish.labels}, {"priority", wish.priority}};
  body.emplace_back("input", wish.input.value_or(Value::object({})));
  if (!options.job_id.empty()) body.emplace_back("id", options.job_id);
  if (!options.queue.empty()) body.emplace_back("queue", options.queue);
  if (!options.deadline.empty()) body.emplace_back("deadline", options.deadline);
  if (!options.budget.empty()) body.emplace_back("budget", budget_of(options.budget));
  if (!options.idempotency_key.empty()) {
    body.emplace_back("idempotency_key", options.idempotency_key);
  }
  if (!plan_hash.empty()) body.emplace_back("plan_hash", plan_hash);
  api::ApiRequest request;
  request.method = "POST";
  request.path = {"api", "jobs"};
  request.body = canonical(Value::object(std::move(body)));
  request.by = who();
  return request;
}

// The job existed before this command: what becomes of it.
void say_exists(const Value& job, const Options& options, Terminal& terminal) {
  if (options.sought || options.detach || options.command != "run") return;
  const std::string status(job.text("status"));
  if (!has_ended(job)) {
    return terminal.note("resuming job " + safe(job.text("id")) + " (" + status + ")");
  }
  terminal.note("job " + safe(job.text("id")) + " had already " +
                (status == "cancelled" ? "been " : "") + status +
                "; this command ran nothing and shows its recorded end");
}

// FILE's plan is not the one that the job has.
void say_plan_differs(const Value& job, const Wish& wish, const agents::AgentsFile& file,
                      Terminal& terminal) {
  const auto agent = file.agents.find(job.text("agent"));
  if (agent == file.agents.end() || !job["plan_hash"].is_string()) return;
  const auto plan = engine::Plan::compile(agent->second.task_graph);
  if (!plan || to_hex((*plan)->hash) == job.text("plan_hash")) return;
  const std::string id(job.text("id"));
  const std::string status(job.text("status"));
  const std::string with = quoted(id) + " " + quoted(wish.file) + store_flag(wish.store);
  std::string text = wish.file + " differs from the plan of job " + id + ", which keeps its plan.";
  if (!has_ended(job)) text += " To change the job's plan: aetheris plan " + with;
  terminal.note(safe(text));
}

using Asker = std::function<Result<api::ApiResponse>(const api::ApiRequest&)>;

// The job of this run: found under its id, or made.
Result<Value> find_or_make(const Wish& wish, const Options& options, const agents::AgentsFile& file,
                           const std::string& plan_hash, const Asker& ask, Terminal& terminal) {
  if (!options.job_id.empty()) {
    AE_ASSIGN(const api::ApiResponse found, ask(get_job(options.job_id)));
    if (found.status == 200) {
      AE_TRY(is_meant(wish, options, file, found.body));
      say_exists(found.body, options, terminal);
      say_plan_differs(found.body, wish, file, terminal);
      return found.body;
    }
    if (found.status != 404) {
      return std::unexpected(api::error_of_problem(found.body, found.status));
    }
  }
  if (wish.agent.empty()) {
    return fail(Code::usage, wish.file + " has several agents and job " + options.job_id +
                                 " is new: AGENT is missing");
  }
  AE_ASSIGN(const api::ApiResponse made, ask(creation(wish, options, plan_hash)));
  if (made.status >= 400) return std::unexpected(api::error_of_problem(made.body, made.status));
  if (made.status == 200) say_exists(made.body, options, terminal);  // by its --idempotency-key
  return made.body;
}

// An end, or a block that only somebody else can lift.
bool rests(const Value& job) {
  const std::string_view status = job.text("status");
  if (has_ended(job) || status == "parked") return true;
  if (status != "waiting" || !job["waits"].is_array()) return status == "waiting";
  return std::ranges::none_of(job["waits"].items(),
                              [](const Value& wait) { return wait.text("wait_type") == "timer"; });
}

int say_end(const Value& job, const Wish& wish, Terminal& terminal) {
  const std::string status(job.text("status"));
  const std::string id(job.text("id"));
  if (terminal.json()) {
    terminal.print_json(with_store(job, wish.store));
  } else if (status == "completed") {
    terminal.print(shown_value(job["result"]));
  }
  if (status == "failed") {
    terminal.note("job " + safe(id) + " " + terminal.err()(Tint::bad, "failed") +
                  failure_text(job["error"]));
    if (const std::string did = committed_text(job["error"]); !did.empty()) terminal.note(did);
    if (wish.store.kind != app::StoreUrl::Kind::memory) {
      terminal.note("Details: " + terminal.err()(Tint::bold, "aetheris trace " + quoted(id) +
                                                                 store_flag(wish.store)));
      const FileOfJob file{.path = wish.file,
                           .has_one_agent = wish.has_one_agent,
                           .store_flag = store_flag(wish.store),
                           .retried = retried(wish.store, id)};
      for (const NextCommand& next : after_failure(job, file)) {
        terminal.note(next.lead + terminal.err()(Tint::bold, next.command));
      }
    }
  } else if (status == "cancelled") {
    terminal.note("job " + safe(id) + " was " + terminal.err()(Tint::bad, "cancelled"));
  } else if (status == "waiting" || status == "parked") {
    say_blocked(job, wish.store, terminal);
    const bool runs_here = job["parked"].text("until") != "version";  // another file does
    if (runs_here && wish.store.kind != app::StoreUrl::Kind::memory) {
      terminal.note("then:   " + terminal.err()(Tint::bold, run_text(wish, id)));
    }
  }
  if (!rests(job)) {  // what it waited for came to pass while we were leaving
    terminal.note("job " + safe(id) +
                  " can continue: " + terminal.err()(Tint::bold, run_text(wish, id)));
    return kBlocked;
  }
  const auto doubts = doubts_of_end(job, wish.store, argument_columns(terminal, Stream::err));
  if (!doubts.empty()) {
    terminal.note("job " + safe(id) + " has ended with calls whose outcome is unknown:");
  }
  for (const std::string& doubt : doubts) terminal.note("  " + doubt);
  return exit_code_of_status(status);
}

// ---------------------------------------------------------------- another process runs the job

// A job at rest, and what it asks its user; or the exit code, when everything is printed.
struct Rest {
  Value job;
  Value approvals = {};  // as GET /api/approvals lists them; null = not asked for
};
using Outcome = std::expected<Rest, int>;

// A request that failed, with the body of a refusal.
struct Failure {
  Error error;
  Value body = {};
  // The process that was to answer has ended, or is ending.
  bool gone() const {
    return error.code == Code::unavailable || error.code == Code::unknown_outcome;
  }
};

Outcome print_detached(const Value& job, const app::StoreUrl* store, Terminal& terminal) {
  if (terminal.json()) {
    terminal.print_json(store != nullptr ? with_store(job, *store) : job);
  } else {
    terminal.print(safe(job.text("id")) + "\n");
  }
  return std::unexpected(static_cast<int>(kDone));
}

std::expected<Value, Failure> answer_to(const Asker& ask, const api::ApiRequest& request) {
  auto answer = ask(request);
  if (!answer) return std::unexpected(Failure{std::move(answer).error()});
  if (answer->status >= 400) {
    return std::unexpected(
        Failure{api::error_of_problem(answer->body, answer->status), answer->body});
  }
  return std::move(answer->body);
}

// Follows the job until it rests. `check` refuses a job that the other process does not run.
std::expected<Value, Failure> wait_for_rest(Value job, const Asker& ask,
                                            const std::function<Status(const Value&)>& check) {
  const std::string id(job.text("id"));
  std::int64_t seen = 0;
  while (!rests(job)) {
    if (auto runs = check(job); !runs) return std::unexpected(Failure{runs.error()});
    api::ApiRequest more = get_job(id);
    more.path.emplace_back("events");
    more.query = {{"after", std::to_string(seen)}, {"wait", "10s"}, {"limit", "1000"}};
    const auto events = answer_to(ask, more);
    if (!events) return std::unexpected(events.error());
    for (const Value& event : (*events)["events"].items()) seen = event["seq"].as_int();
    auto now = answer_to(ask, get_job(id));
    if (!now) return std::unexpected(now.error());
    job = *std::move(now);
  }
  return job;
}

// What a waiting job asks, when this command can put it to its user.
Rest rest_of(Value job, const app::StoreUrl& store, const Asker& ask, const Terminal& terminal) {
  const bool answers = store.kind != app::StoreUrl::Kind::memory && can_prompt(terminal);
  if (!answers || job.text("status") != "waiting") return {std::move(job)};
  api::ApiRequest request;
  request.path = {"api", "approvals"};
  request.query = {{"job", std::string(job.text("id"))}};
  auto list = answer_to(ask, request);
  if (!list) return {std::move(job)};
  return {std::move(job), (*list)["approvals"]};
}

// At a server: it runs the job, we wait for it to rest.
Outcome at_server(const std::string& url, const Wish& wish, const Options& options,
                  const agents::AgentsFile& file, const std::string& plan_hash,
                  Terminal& terminal) {
  const auto door = app::Door::to_server(url);
  if (!door) return std::unexpected(terminal.fail_with(door.error()));
  const auto ask = [&](const api::ApiRequest& request) { return (*door)->ask(request); };
  auto job = find_or_make(wish, options, file, plan_hash, ask, terminal);
  if (!job) return std::unexpected(terminal.fail_with(job.error()));
  if (options.detach) return print_detached(*job, nullptr, terminal);
  if (terminal.shows_progress() || options.verbose) {
    terminal.note("job " + safe(job->text("id")));
  }
  auto end = wait_for_rest(*std::move(job), ask, [](const Value&) -> Status { return {}; });
  if (end) return rest_of(*std::move(end), wish.store, ask, terminal);
  if (end.error().body.is_object()) {
    return std::unexpected(terminal.fail_with(end.error().error, end.error().body));
  }
  return std::unexpected(terminal.fail_with(end.error().error));
}

// Does the owner run the jobs of this agent?
Status is_served(const std::string& agent, const std::string& owner, const std::string& file,
                 const Asker& ask) {
  api::ApiRequest request;
  request.path = {"api", "agents", agent};
  const auto answer = answer_to(ask, request);
  if (answer && (*answer)["runs_here"] == Value(true)) return {};
  if (!answer && answer.error().error.code != Code::not_found) {
    return std::unexpected(answer.error().error);
  }
  return fail(Code::needs_version, owner + " owns the store and does not run agent \"" + agent +
                                       "\": serve this file too" + serve_too_text(file) +
                                       ", or run this again once it has ended");
}

// The owner of the store runs the job, and this process waits. nullopt: the owner has ended. From the creation on
// `options` name the job, so that it is the same one wherever it continues.
std::optional<Outcome> at_owner(app::Door& door, const Wish& wish, Options& options,
                                const agents::AgentsFile& file, const std::string& plan_hash,
                                Terminal& terminal) {
  const std::string owner = app::owner_name(wish.store);
  const Asker ask = [&](const api::ApiRequest& request) -> Result<api::ApiResponse> {
    if (request.method == "POST" && !options.detach) {
      AE_TRY(is_served(wish.agent, owner, wish.file,
                       [&](const auto& other) { return door.ask(other); }));
    }
    return door.ask(request);
  };
  const auto failed = [&](const Failure& failure) -> std::optional<Outcome> {
    if (failure.gone()) return std::nullopt;
    return std::unexpected(terminal.fail_with(failure.error));
  };
  // A creation without an answer is repeated with the same id.
  const bool names_job = !options.job_id.empty() || !options.idempotency_key.empty();
  if (!names_job) options.job_id = new_id();
  auto job = find_or_make(wish, options, file, plan_hash, ask, terminal);
  if (!job) {
    Error error = job.error();
    if (error.code == Code::needs_version && !error.message.starts_with(owner)) {
      error.message =
          owner + " owns the store and runs another version of agent \"" + wish.agent +
          "\": restart it (`serve --watch` reloads files) or stop it, then run this again";
    }
    return failed({std::move(error)});
  }
  options.job_id = job->text("id");
  options.idempotency_key.clear();
  options.sought = true;
  if (options.detach) return print_detached(*job, &wish.store, terminal);
  if (!rests(*job)) {
    if (auto served = is_served(std::string(job->text("agent")), owner, wish.file, ask); !served) {
      return failed({served.error()});
    }
    terminal.note("job " + safe(options.job_id) + " runs in " + owner + ", which owns the store");
  }
  auto end = wait_for_rest(*std::move(job), ask, [&](const Value& now) -> Status {
    if (!now["needs_version"].is_string()) return {};
    return fail(Code::needs_version, owner + " owns the store and cannot run job " +
                                         std::string(now.text("id")) + ": " +
                                         std::string(now.text("needs_version")));
  });
  if (end) return rest_of(*std::move(end), wish.store, ask, terminal);
  return failed(end.error());
}

// ---------------------------------------------------------------- this process runs the job

// `owner`: the process that has the store, when that is why it cannot be opened.
Result<std::unique_ptr<app::Site>> open_site(const Wish& wish, const Options& options,
                                             const app::LoadedAgents& loaded, Run& run,
                                             std::size_t descriptors,
                                             std::unique_ptr<app::Door>& owner) {
  const auto give_up = std::chrono::steady_clock::now() + kLockWait;
  while (true) {
    app::SiteOptions site{.store = wish.store};
    site.mode = options.detach ? app::SiteOptions::Mode::write : app::SiteOptions::Mode::run;
    site.agents = &loaded.file;
    site.agents_folder = loaded.folder;
    site.observer = &run;
    site.descriptors = descriptors;
    site.runtime.worker = worker_name();
    site.signing_key = options.signing_key;
    site.runtime.claims = !options.only;
    site.runtime.stays = false;
    site.runtime.capabilities = options.capabilities;
    site.runtime.queues = wish.queues;
    if (!options.fair_by.empty()) site.fair_by = options.fair_by;
    if (options.no_fair_by) site.fair_by = "";
    site.runtime.durability =
        options.durability == "split" ? runtime::Durability::split : runtime::Durability::fused;
    for (const auto& [name, agent] : loaded.file.agents) site.runtime.agents.push_back(name);
    auto opened = app::Site::open(std::move(site));
    if (opened || opened.error().code != Code::store_locked) return opened;
    // An owner that answers is there to stay; one that does not has just begun, or is about to end.
    owner = app::find_owner(wish.store);
    if (owner || std::chrono::steady_clock::now() > give_up) return opened;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

// REQUIRES: `run` observes `site`.
Outcome run_here(app::Site& site, Run& run, const Wish& wish, const Options& options,
                 const app::LoadedAgents& loaded, Terminal& terminal) {
  if (!options.detach) {
    if (auto listens = site.listen(); !listens) {
      terminal.warn("other commands cannot reach this process: " + listens.error().message);
    }
  }
  const auto job = find_or_make(
      wish, options, loaded.file, {},
      [&](const api::ApiRequest& request) -> Result<api::ApiResponse> {
        if (request.method == "POST" && !options.detach) {
          AE_TRY(app::has_secrets(loaded.file, wish.store,
                                  loaded.file.agents.find(wish.agent)->second));
        }
        return site.ask(request);
      },
      terminal);
  if (!job) return std::unexpected(terminal.fail_with(job.error()));
  const std::string id(job->text("id"));
  if (options.detach) return print_detached(*job, &wish.store, terminal);
  if (terminal.shows_progress() || options.verbose) terminal.note("job " + safe(id));
  const int signal = run.see_through(JobId(id));
  if (signal != 0) {
    if (terminal.json()) {
      const api::ApiResponse now = site.ask(get_job(id));
      terminal.print_json(now.status == 200 ? with_store(now.body, wish.store) : now.body);
    }
    const bool lost = wish.store.kind == app::StoreUrl::Kind::memory;
    terminal.note(lost ? "stopped; the job was lost with the memory store"
                       : "stopped; resume with: " + terminal.err()(Tint::bold, run_text(wish, id)));
    return std::unexpected(128 + signal);
  }
  const api::ApiResponse end = site.ask(get_job(id));
  const auto here = [&](const api::ApiRequest& request) -> Result<api::ApiResponse> {
    return site.ask(request);
  };
  Rest rest = end.status == 200 ? rest_of(end.body, wish.store, here, terminal) : Rest{end.body};
  site.stop_listening();
  if (end.status != 200) {
    return std::unexpected(
        terminal.fail_with(api::error_of_problem(end.body, end.status), end.body));
  }
  if (run.problem() && !has_ended(end.body)) {
    return std::unexpected(terminal.fail_with(*run.problem()));
  }
  return rest;
}

// Here, or at the process that owns the store. When that one ends before the job rests, the job continues here.
Outcome run_somewhere(const Wish& wish, Options& options, const app::LoadedAgents& loaded,
                      const std::string& plan_hash, Terminal& terminal) {
  Run::Wishes wishes{
      .only = options.only, .verbose = options.verbose, .grace = wish.grace, .store = wish.store};
  for (const auto& [name, agent] : loaded.file.agents) wishes.agents.insert(name);
  wishes.notify = options.notify;
  wishes.offers_only = options.command == "run";
  wishes.descriptors = net::raise_descriptors();
  for (int owners = 1;; ++owners) {
    Run run(terminal, wishes);
    std::unique_ptr<app::Door> owner;
    auto opened = open_site(wish, options, loaded, run, wishes.descriptors, owner);
    if (opened) {
      run.attach(**opened);
      say_created(**opened, terminal);
      return run_here(**opened, run, wish, options, loaded, terminal);
    }
    if (owner == nullptr || owners == kOwnersMax) {
      return std::unexpected(terminal.fail_with(opened.error()));
    }
    auto end = at_owner(*owner, wish, options, loaded.file, plan_hash, terminal);
    if (end) return *std::move(end);
  }
}

// Puts what the job asks to its user. True: something was approved, and the job can continue. Fails with the exit code
// of a Ctrl-C at the prompt. `asked`: what was put to the user before.
std::expected<bool, int> approve_now(const Rest& rest, const Wish& wish,
                                     std::set<std::string>& asked, Terminal& terminal) {
  bool approved = false;
  if (!rest.approvals.is_array()) return false;
  for (const Value& one : rest.approvals.items()) {
    const std::string id(one.text("id"));
    const std::string_view kind = one.text("kind");
    const bool decides = kind == "call" || (kind == "wait" && one.text("answer") == "decision");
    if (!decides || !asked.insert(id).second) continue;
    const PromptAnswer answer = prompt_approval(one, terminal);
    if (answer == PromptAnswer::interrupted) return std::unexpected(128 + SIGINT);
    if (answer == PromptAnswer::no) continue;
    api::ApiRequest request;
    request.method = "POST";
    request.path = {"api", "approvals", id};
    request.body = canonical(Value::object({{"decision", "approve"}}));
    request.by = who();
    const auto door = app::Door::open(wish.store, app::Purpose::write);
    const auto done = door ? answer_to([&](const auto& r) { return (*door)->ask(r); }, request)
                           : std::expected<Value, Failure>(std::unexpected(Failure{door.error()}));
    if (done) {
      approved = true;
    } else {
      terminal.warn("not approved: " + done.error().error.message);
    }
  }
  return approved;
}

}  // namespace

int run_command(const Options& options, Terminal& terminal) {
  auto loaded = load_sound(options.file, options, terminal);
  if (!loaded) return loaded.error();
  warn_of_idle_policies(loaded->policies, {&loaded->file}, options, terminal);
  auto wish = wish_of(options, loaded->file);
  if (!wish) return terminal.fail_with(wish.error());
  if (options.dry_run) return dry_run(*wish, loaded->file, terminal);
  std::string plan_hash;
  if (!wish->agent.empty()) {
    const agents::Agent& agent = loaded->file.agents.find(wish->agent)->second;
    if (wish->input || options.job_id.empty()) {
      if (auto valid = check_input(agent, wish->input.value_or(Value::object({}))); !valid) {
        return terminal.fail_with(valid.error());
      }
    }
    auto plan = engine::Plan::compile(agent.task_graph);
    if (!plan) return terminal.fail_with(plan.error());
    plan_hash = to_hex((*plan)->hash);
  }
  const char* const url = std::getenv("AETHERIS_URL");
  const bool elsewhere = url != nullptr && *url != '\0';
  Options now = options;
  std::set<std::string> asked;
  for (;;) {
    const Outcome end = elsewhere ? at_server(url, *wish, now, loaded->file, plan_hash, terminal)
                                  : run_somewhere(*wish, now, *loaded, plan_hash, terminal);
    if (!end) return end.error();
    const auto approved = approve_now(*end, *wish, asked, terminal);
    if (approved && *approved) {
      now.job_id = end->job.text("id");
      now.idempotency_key.clear();
      now.sought = true;
      continue;
    }
    const int code = say_end(end->job, *wish, terminal);
    return approved ? code : approved.error();
  }
}

}  // namespace ae::cli
