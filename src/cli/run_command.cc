// run: check the file, find or create the job, wait for it, and print the result.
#include <fmt/core.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cli/graph_text.h"
#include "cli/run_job.h"
#include "cli/shared.h"
#include "json/json.h"
#include "log/field_names.h"
#include "net/system.h"
#include "plan/plan.h"

namespace ae::cli {
namespace {

std::vector<Option> run_options(RunOptions& o) {
  return std::vector<Option>{
             {"FILE", "", &o.file, "the agents file, or a file of code", kRequired},
             policies_option(o.policies),
             {"AGENT", "", &o.agent, "needed when FILE has several agents"},
             {"KEY=VALUE", "", &o.input.pairs,
              "add a member to the input: KEY=TEXT a string, KEY:=JSON any JSON value; also with "
              "--input"},
             {"--input", "JSON", &o.input.input, "JSON, or @FILE (@- is stdin)"},
             {"--message", "TEXT", &o.input.message,
              "the member \"message\" of the input, which loops and planners read"},
             {"--job-id", "ID", &o.job_id, "the job's id; an existing job is resumed", kNotEmpty},
             {"--idempotency-key", "KEY", &o.idempotency_key,
              "repeating the key with the same input returns the same job", kNotEmpty},
             {"--priority",
              "N",
              &o.priority,
              "-1000 to 1000; higher is claimed first",
              {.accepts = Accepts::priority}},
             {"--deadline", "WHEN", &o.deadline, "the deadline: a duration (30m) or a time in UTC",
              kNotEmpty},
             {"--budget", "NAME=AMOUNT", &o.budget,
              "NAME=AMOUNT: limit tokens, model_calls, tool_calls, cost or wall; at most the "
              "agent's own limit; repeatable"},
             capability_option(o),
             {"--queue",
              "NAME",
              &o.queue,
              "the queue to enqueue the job on",
              {.accepts = Accepts::identifier}}} +
         queue_options(o) +
         std::vector<Option>{
             {"--label", "NAME=VALUE", &o.labels, "NAME=VALUE; repeatable"},
             {"--detach", "", &o.detach, "create the job and exit; another process runs it"},
             {"--only", "", &o.only,
              "run this job alone: other unfinished jobs of this store are not resumed"},
             {"--dry-run", "", &o.dry_run, "check and show the plan; write nothing"},
             durability_option(o),
             {"--grace", "DURATION", &o.grace,
              "time for calls in flight after Ctrl-C (default 10s)"},
             signing_key_option(o),
             notify_option(o, "with JSON on stdin; best effort"),
             {"-v,--verbose", "", &o.verbose, "print each step on stderr"}};
}

constexpr int kOwnersMax = 1000;  // owners that may end in turn while a job waits

int dry_run(const RunParams& params, const agents::AgentsFile& file, Terminal& terminal) {
  if (params.agent.empty()) return terminal.fail_with({Code::usage, "AGENT is missing"});
  const agents::Agent& agent = file.agents.find(params.agent)->second;
  if (auto valid = check_input(agent, params.input.value_or(Value::object({}))); !valid) {
    return terminal.fail_with(valid.error());
  }
  auto plan = engine::Plan::compile(agent.task_graph);
  if (!plan) return terminal.fail_with(plan.error());
  engine::Needs needs;
  for (const engine::Node& node : (*plan)->nodes) needs.push_back(node.needs);
  const auto nodes = agent.task_graph["nodes"].items();
  std::vector<Value> steps;
  Table table({"#", "NODE", "WHAT", "AFTER", "ARGUMENTS"});
  for (const std::uint32_t i : engine::topological_order(needs).order) {
    const Value& node = nodes[i];
    std::string after;
    for (const std::uint32_t need : needs[i]) {
      after += (after.empty() ? "" : ", ") + (*plan)->nodes[need].id;
    }
    const Value& call = node.text(field::kind) == "map" ? node["do"] : node;
    std::string what = node_words(node, agent.task_graph);
    if (const Value* when = node.find("when")) what += fmt::format(", when {}", canonical(*when));
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
    terminal.print_json(Value::object({{field::agent, params.agent},
                                       {"dry_run", true},
                                       {field::input, params.input.value_or(Value::object({}))},
                                       {field::plan_hash, to_hex((*plan)->hash)},
                                       {"steps", Value::array(std::move(steps))}}));
  } else {
    terminal.print(table.text(terminal.out(), terminal.width()));
    terminal.note("dry run: nothing was called or written");
  }
  return kDone;
}

// Runs the job here or at the owner of the store. If that ends before the job is idle, the job
// continues here.
RunOutcome run_here_or_at_owner(const RunParams& params, RunOptions& options,
                                const app::LoadedAgents& loaded, const std::string& plan_hash,
                                Terminal& terminal) {
  JobRun::Options run_options = job_run_options(params, options);
  for (const auto& [name, agent] : loaded.file.agents) run_options.agents.insert(name);
  for (int owners = 1;; ++owners) {
    JobRun run(terminal, run_options);
    std::unique_ptr<app::ApiClient> owner;
    auto opened =
        open_instance(params, options, loaded, run, nullptr, run_options.descriptors, owner);
    if (opened) {
      run.attach(**opened);
      print_created(**opened, terminal);
      if (!options.detach) listen(**opened, terminal);
      return run_here(**opened, run, params, options, loaded, terminal);
    }
    if (owner == nullptr || owners == kOwnersMax) {
      return std::unexpected(terminal.fail_with(opened.error()));
    }
    auto end = run_at_owner(*owner, params, options, loaded.file, plan_hash, terminal);
    if (end) return *std::move(end);
  }
}

}  // namespace

int run_command(const RunOptions& given, Terminal& terminal) {
  RunOptions options = given;
  if (options.agent.find('=') != std::string::npos) {  // no AGENT
    options.input.pairs.insert(options.input.pairs.begin(), std::exchange(options.agent, {}));
  }
  if (app::is_code_file(options.file)) {
    const auto command = app::code_command(options.file);
    if (!command) return terminal.fail_with(command.error());
    return run_code(*command, options, terminal);
  }
  auto loaded = load_valid_agents(options.file, {.policies = options.policies}, terminal);
  if (!loaded) return loaded.error();
  warn_of_idle_policies(options.policies, loaded->policies, {&loaded->file}, terminal);
  auto params = parse_run_params(options, loaded->file);
  if (!params) return terminal.fail_with(params.error());
  if (options.dry_run) return dry_run(*params, loaded->file, terminal);
  std::string plan_hash;
  if (!params->agent.empty()) {
    const agents::Agent& agent = loaded->file.agents.find(params->agent)->second;
    if (params->input || options.job_id.empty()) {
      if (auto valid = check_input(agent, params->input.value_or(Value::object({}))); !valid) {
        return terminal.fail_with(valid.error());
      }
    }
    auto plan = engine::Plan::compile(agent.task_graph);
    if (!plan) return terminal.fail_with(plan.error());
    plan_hash = to_hex((*plan)->hash);
  }
  const char* const url = std::getenv("AETHERIS_URL");
  const bool elsewhere = url != nullptr && *url != '\0';
  return run_until_answered(*params, options, terminal, [&] {
    return elsewhere ? run_at_server(url, *params, options, loaded->file, plan_hash, terminal)
                     : run_here_or_at_owner(*params, options, *loaded, plan_hash, terminal);
  });
}

extern const Command kRunCommand{.name = "run",
                                 .group = Group::run,
                                 .target = Target::store_or_server,
                                 .summary = "run a job of FILE's agent and wait for its result",
                                 .example = "aetheris run agents.yaml name=Ada",
                                 .bind = bound_command<RunOptions, run_options, run_command>};

}  // namespace ae::cli
