// What a process says of itself: is it there, can it work, what does it offer, what has it counted.
#include <algorithm>
#include <utility>

#include "api/asked.h"
#include "api/standing.h"
#include "json/json.h"

namespace ae::api {
namespace {

Value tool_json(const agents::ToolDefinition& tool) {
  std::vector<Member> members{{"name", tool.name},
                              {"kind", tool.kind},
                              {"effect", std::string(to_text(tool.policy.effect))},
                              {"version", tool.policy.version}};
  return Value::object(std::move(members));
}

}  // namespace

// What there is to ask for; the same for everybody.
void Api::index(Ask ask) {
  ask->answer(200, Value::object({{"docs", "docs/api.md"},
                                  {"health", "/api/health"},
                                  {"name", "aetheris"},
                                  {"openapi", "/openapi.json"}}));
}

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
    return ask->refuse({Code::unavailable, "this process is shutting down; use another one"});
  }
  if (options_.measured != nullptr && options_.measured->writes_fail()) {
    return ask->refuse({Code::unavailable,
                        "the last write to the store failed (disk full or database read-only?); "
                        "see the log of this process"});
  }
  store_.next_due([ask](Result<std::optional<Instant>> due) {
    if (!due) {
      const bool stranger = ask->request.role == Role::nobody;
      return ask->refuse({Code::unavailable, stranger ? "the store is not available"
                                                      : "the store: " + due.error().message});
    }
    ask->answer(200, Value::object({{"status", "ready"}}));
  });
}

void Api::metrics(Ask ask) {
  standing([this, ask](const Standing* standing) { answer_metrics(ask, standing); });
}

// nullptr: the store does not say where its jobs stand.
void Api::answer_metrics(const Ask& ask, const Standing* standing) {
  const runtime::RuntimeOptions& us = runtime_.options();
  const runtime::Counters& counted = runtime_.counters();
  std::vector<std::pair<std::string, std::uint64_t>> now{
      {labelled("aetheris_worker_busy", "worker_id", us.worker), runtime_.held()},
      {"aetheris_requests_waiting",
       std::ranges::count_if(waiting_, [](const auto& waiting) { return !waiting->over; })},
      {"aetheris_confirmation_replay_warn_total", counted.aetheris_confirmation_replay_warn_total},
      {"aetheris_lease_acquire_total{ok=\"true\"}", counted.aetheris_lease_acquired},
      {"aetheris_lease_acquire_total{ok=\"false\"}", counted.aetheris_lease_acquire_failed},
      {"aetheris_lease_conflict_total", counted.aetheris_lease_conflict_total},
      {"aetheris_store_hint_total", counted.aetheris_store_hint_total},
      {"aetheris_store_up", standing != nullptr ? 1 : 0}};
  if (standing != nullptr) {
    for (const auto& [status, jobs] : standing->census.statuses) {
      now.emplace_back(labelled("aetheris_job_state", "state", status), jobs);
    }
    // A queue that has run empty is said to be so, where it is ours to limit.
    std::map<std::string, std::uint64_t> queues = standing->census.ready;
    queues.try_emplace(std::string(store::kDefaultQueue), 0);
    for (const store::QueueLimit& limit : us.queues) queues.try_emplace(limit.queue, 0);
    for (const auto& [queue, jobs] : queues) {
      now.emplace_back(labelled("aetheris_queue_backlog", "queue", queue), jobs);
    }
    now.emplace_back("aetheris_stuck_job_count", standing->stuck);
    now.emplace_back("aetheris_workers", standing->offers.size());
  }
  std::string text = metrics_.text(now);
  if (options_.measured != nullptr) text += storage_text(options_.measured->times());
  ask->done({.status = 200, .body = {}, .location = {}, .text = std::move(text)});
}

void Api::openapi(Ask ask) {
  auto document = parse_json(openapi_json(), {.depth_max = 100});
  AE_CHECK(document.has_value(), "docs/openapi.json is valid JSON");
  ask->answer(200, document->with("info", (*document)["info"].with("version", options_.version)));
}

// Whoever holds jobs of this store, or says that it would take some.
void Api::workers(Ask ask) {
  store_.census([this, alive = std::weak_ptr(alive_), ask](Result<store::Census> census) {
    if (!census) return ask->refuse(census.error());
    if (!alive.lock()) return;
    const runtime::RuntimeOptions& us = runtime_.options();
    census->workers.try_emplace(us.worker);
    std::vector<Value> workers;
    for (const auto& [name, worker] : census->workers) {
      Value one =
          Value::object({{"expired", worker.expired}, {"held", worker.live}, {"worker", name}});
      const auto says = parse_json(worker.says);
      if (says && says->is_object()) {
        for (const char* word : {"agents", "capabilities", "jobs_max", "version"}) {
          one = one.with(word, (*says)[word]);
        }
      }
      if (name == us.worker) {
        one = one.with("held", std::uint64_t{runtime_.held()})
                  .with("this", true)
                  .with("agents", texts(us.agents))
                  .with("capabilities", texts(us.capabilities))
                  .with("jobs_max", std::uint64_t{us.held_max})
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
