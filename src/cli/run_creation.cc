#include "cli/run_creation.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "api/problem.h"
#include "cli/shared.h"
#include "json/json.h"
#include "log/field_names.h"
#include "net/system.h"
#include "plan/plan.h"
#include "store/rules.h"

namespace ae::cli {

std::string new_job_id() {
  net::SystemClock clock;
  net::SystemRandom random;
  const auto ms = static_cast<std::uint64_t>(clock.now().us / 1000);
  return to_text(uuid_v7(ms, random.next(), random.next()));
}

api::ApiRequest get_job(const std::string& id) {
  api::ApiRequest request;
  request.path = {"api", "jobs", id};
  return request;
}

bool is_idle(const Value& job) {
  const std::string_view status = job.text("status");
  if (store::has_ended(status) || status == "parked") return true;
  if (status != "waiting" || !job[field::waits].is_array()) return status == "waiting";
  return std::ranges::none_of(job[field::waits].items(), [](const Value& wait) {
    return wait.text(field::wait_type) == "timer";
  });
}

namespace {

// Does the existing job with this id match the command?
Status check_same_job(const RunParams& params, const RunOptions& options,
                      const agents::AgentsFile& file, const Value& job) {
  const std::string agent(job.text(field::agent));
  const std::string id(job.text("id"));
  if (!options.agent.empty() && agent != options.agent) {
    return fail(Code::already_exists, "job {} belongs to agent \"{}\", not of \"{}\"", id, agent,
                options.agent);
  }
  if (!file.agents.contains(agent)) {
    return fail(Code::already_exists, "job {} belongs to agent \"{}\", which is not in {}", id,
                agent, params.file);
  }
  if (params.input && *params.input != job[field::input]) {
    return fail(
        Code::already_exists,
        "job {} exists with another input; omit --input to resume it, or use another --job-id", id);
  }
  return {};
}

// Parses NAME=AMOUNT of each limit; the server rejects invalid ones.
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

api::ApiRequest creation_request(const RunParams& params, const RunOptions& options,
                                 const std::string& plan_hash) {
  std::vector<Member> body{{field::agent, params.agent},
                           {field::labels, params.labels},
                           {field::priority, params.priority}};
  body.emplace_back(field::input, params.input.value_or(Value::object({})));
  if (!options.job_id.empty()) body.emplace_back("id", options.job_id);
  if (!options.queue.empty()) body.emplace_back(field::queue, options.queue);
  if (!options.deadline.empty()) body.emplace_back(field::deadline, options.deadline);
  if (!options.budget.empty()) body.emplace_back(field::budget, budget_of(options.budget));
  if (!options.idempotency_key.empty()) {
    body.emplace_back(field::idempotency_key, options.idempotency_key);
  }
  if (!plan_hash.empty()) body.emplace_back(field::plan_hash, plan_hash);
  api::ApiRequest request;
  request.method = "POST";
  request.path = {"api", "jobs"};
  request.body = canonical(Value::object(std::move(body)));
  request.by = cli_actor();
  return request;
}

// For a job that existed before: prints what this command does with it.
void print_exists(const Value& job, const RunOptions& options, bool runs_here, Terminal& terminal) {
  if (options.was_looked_up || options.detach) return;
  const std::string status(job.text("status"));
  if (!store::has_ended(job.text("status")) && !runs_here) return;
  if (!store::has_ended(job.text("status"))) {
    return terminal.note(fmt::format("resuming job {} ({})", safe(job.text("id")), status));
  }
  terminal.note(
      fmt::format("job {} had already {}{}; this command ran nothing and shows its recorded end",
                  safe(job.text("id")), status == "cancelled" ? "been " : "", status));
}

// Warns if FILE's plan differs from the job's plan.
void print_plan_differs(const Value& job, const RunParams& params, const agents::AgentsFile& file,
                        Terminal& terminal) {
  const auto agent = file.agents.find(job.text(field::agent));
  if (agent == file.agents.end() || !job[field::plan_hash].is_string()) return;
  const auto plan = engine::Plan::compile(agent->second.task_graph);
  if (!plan || to_hex((*plan)->hash) == job.text(field::plan_hash)) return;
  const std::string id(job.text("id"));
  std::string text = fmt::format(
      "{}, or a variable that it reads, differs from the plan of job {}, which keeps its plan.",
      params.file, id);
  if (!store::has_ended(job.text("status"))) {
    text += fmt::format(" To change the job's plan: aetheris plan {} {}{}", quoted(id),
                        quoted(params.file), store_flag(params.store));
  }
  terminal.note(safe(text));
}

}  // namespace

Result<Value> find_or_create_job(const RunParams& params, const RunOptions& options,
                                 const agents::AgentsFile& file, const std::string& plan_hash,
                                 const SendRequest& send, bool runs_here, Terminal& terminal) {
  if (!options.job_id.empty()) {
    AE_ASSIGN(const api::ApiResponse found, send(get_job(options.job_id)));
    if (found.status == 200) {
      AE_TRY(check_same_job(params, options, file, found.body));
      print_exists(found.body, options, runs_here, terminal);
      print_plan_differs(found.body, params, file, terminal);
      return found.body;
    }
    if (found.status != 404) {
      return std::unexpected(api::error_of_problem(found.body, found.status));
    }
  }
  if (params.agent.empty()) {
    return fail(Code::usage, "{} has several agents and job {} is new: AGENT is missing",
                params.file, options.job_id);
  }
  AE_ASSIGN(const api::ApiResponse made, send(creation_request(params, options, plan_hash)));
  if (made.status >= 400) return std::unexpected(api::error_of_problem(made.body, made.status));
  if (made.status == 200) {  // found by its --idempotency-key
    print_exists(made.body, options, runs_here, terminal);
  }
  return made.body;
}

}  // namespace ae::cli
