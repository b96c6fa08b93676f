// What a process says of itself: is it there, can it work, what does it offer, what has it counted.
#include <algorithm>
#include <utility>

#include "api/asked.h"
#include "core/json.h"

namespace ae::api {
namespace {

constexpr std::size_t kRunningMax = 1'000;  // rows that are looked through for other workers

Value texts(const std::vector<std::string>& from) {
  return Value::array(std::vector<Value>(from.begin(), from.end()));
}

Value tool_json(const agents::ToolDefinition& tool) {
  std::vector<Member> members{{"name", tool.name},
                              {"kind", tool.kind},
                              {"effect", std::string(to_text(tool.policy.effect))},
                              {"version", tool.policy.version}};
  return Value::object(std::move(members));
}

}  // namespace

void Api::health(Ask ask) {
  // Whoever shows no key learns that we are there, and nothing else.
  if (ask->request.role == Role::nobody) {
    return ask->answer(200, Value::object({{"status", "ok"}}));
  }
  ask->answer(200, Value::object({{"held", static_cast<std::uint64_t>(runtime_.held())},
                                  {"status", "ok"},
                                  {"store", options_.store},
                                  {"version", options_.version}}));
}

// Can a job be created and run here now? A balancer sends nobody here while not.
void Api::ready(Ask ask) {
  if (leaving_) {
    return ask->refuse({Code::unavailable, "this process is about to end; ask another one"});
  }
  store_.next_due([ask](Result<std::optional<Instant>> due) {
    if (!due) {
      const bool stranger = ask->request.role == Role::nobody;
      return ask->refuse({Code::unavailable, stranger ? "the store does not answer"
                                                      : "the store: " + due.error().message});
    }
    ask->answer(200, Value::object({{"status", "ready"}}));
  });
}

void Api::metrics(Ask ask) {
  const runtime::RuntimeOptions& us = runtime_.options();
  std::vector<std::pair<std::string, std::uint64_t>> now{
      {"aetheris_worker_busy{worker_id=\"" + us.worker + "\"}", runtime_.held()},
      {"aetheris_requests_waiting",
       std::ranges::count_if(waiting_, [](const auto& waiting) { return !waiting->over; })},
      {"aetheris_confirmation_replay_warn_total",
       runtime_.counters().aetheris_confirmation_replay_warn_total}};
  ask->done({.status = 200, .body = {}, .location = {}, .text = metrics_.text(now)});
}

void Api::openapi(Ask ask) {
  auto document = parse_json(openapi_json(), {.depth_max = 100});
  AE_CHECK(document.has_value(), "docs/openapi.json is no JSON");
  ask->answer(200, document->with("info", (*document)["info"].with("version", options_.version)));
}

// Whoever holds jobs of this store: this process, and those whose claims are seen.
void Api::workers(Ask ask) {
  store::Filter running;
  running.status = "running";
  running.limit = kRunningMax;
  store_.query(std::move(running),
               [this, alive = std::weak_ptr(alive_), ask](Result<std::vector<store::JobRow>> rows) {
                 if (!rows) return ask->refuse(rows.error());
                 if (!alive.lock()) return;
                 const runtime::RuntimeOptions& us = runtime_.options();
                 std::map<std::string, std::uint64_t> held{{us.worker, 0}};
                 for (const store::JobRow& row : *rows) {
                   if (row.claim) ++held[row.claim_worker];
                 }
                 std::vector<Value> workers;
                 for (const auto& [worker, jobs] : held) {
                   Value one = Value::object({{"worker", worker}, {"held", jobs}});
                   if (worker == us.worker) {
                     one = one.with("held", static_cast<std::uint64_t>(runtime_.held()))
                               .with("this", true)
                               .with("agents", texts(us.agents))
                               .with("capabilities", texts(us.capabilities))
                               .with("version", options_.version);
                   }
                   workers.push_back(std::move(one));
                 }
                 ask->answer(200, Value::object({{"workers", Value::array(std::move(workers))}}));
               });
}

void Api::tools(Ask ask) {
  std::vector<Value> tools;
  if (options_.agents) {
    for (const auto& [name, tool] : options_.agents->tools) tools.push_back(tool_json(tool));
  }
  ask->answer(200, Value::object({{"tools", Value::array(std::move(tools))}}));
}
}  // namespace ae::api
