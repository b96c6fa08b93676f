#include "api/metrics.h"

#include <fmt/core.h>

#include <algorithm>
#include <iterator>

#include "base/error.h"
#include "log/decisions.h"
#include "log/field_names.h"

namespace ae::api {
namespace {

struct Family {
  std::string_view name;
  const char* type;
  const char* help;
};
constexpr Family kFamilies[] = {
    {"aetheris_approval_requests_total", "counter", "Calls that needed approval."},
    {"aetheris_confirmation_replay_fail_total", "counter",
     "Failed confirmations of recorded changes, by mode."},
    {"aetheris_human_decision_total", "counter", "Decisions by people, by kind."},
    {"aetheris_in_doubt_total", "counter", "Calls with an unknown outcome."},
    {"aetheris_job_created_total", "counter", "Jobs created."},
    {"aetheris_job_duration_seconds", "histogram", "Time from creation to end of jobs, by agent."},
    {"aetheris_job_fail_total", "counter", "Jobs that failed."},
    {"aetheris_job_parked_duration_seconds", "histogram", "Time jobs were parked."},
    {"aetheris_job_total", "counter", "Jobs that ended, by status."},
    {"aetheris_llm_tokens_total", "counter", "Tokens of models, by direction."},
    {"aetheris_node_execution_total", "counter", "Nodes that ended, by type of result."},
    {"aetheris_rate_limit_rejections_total", "counter", "Rejected requests, by limit."},
    {"aetheris_run_pause_total", "counter", "Jobs that were parked, by what ends the park."},
    {"aetheris_run_resume_total", "counter", "Parks ended by a request."},
    {"aetheris_step_retries_total", "counter", "Retries."},
    {"aetheris_step_timeout_total", "counter", "Tries that timed out."},
    {"aetheris_tool_errors_total", "counter",
     "Tries that failed or had an unknown outcome, by tool."},
    {"aetheris_tool_invocation_total", "counter", "Tries of calls that ended, by outcome."},
    {"aetheris_tool_invocations_total", "counter", "Tries that started, by tool."},
    {"aetheris_tool_duration_seconds", "histogram", "Duration of tries, by tool."},
    {"aetheris_wait_total", "counter", "Waits that were resolved, by outcome."},
};

// Families without labels: present from the start, so that the first count is visible as an
// increase.
constexpr std::string_view kPlain[] = {
    "aetheris_approval_requests_total", "aetheris_in_doubt_total",   "aetheris_job_created_total",
    "aetheris_job_fail_total",          "aetheris_run_resume_total", "aetheris_step_retries_total",
    "aetheris_step_timeout_total"};

std::string number(double value) { return fmt::format("{:.9g}", value); }

// The store's clock may be set back.
double seconds_between(Instant from, Instant to) {
  return static_cast<double>(std::max<std::int64_t>(0, (to - from).count())) / 1e6;
}

constexpr Family kGauges[] = {
    {"aetheris_confirmation_replay_warn_total", "counter",
     "Failed confirmations that the job continued with."},
    {"aetheris_job_reload_total", "counter",
     "Jobs read again because a request or a late result arrived during a commit."},
    {"aetheris_job_state", "gauge", "Jobs that have not ended, by status; 100000 is that or more."},
    {"aetheris_lease_acquire_total", "counter", "Jobs claimed (true); claims that failed (false)."},
    {"aetheris_lease_conflict_total", "counter", "Leases lost to another process."},
    {"aetheris_queue_backlog", "gauge", "Jobs that could be claimed now, by queue."},
    {"aetheris_requests_waiting", "gauge", "Open long-poll requests."},
    {"aetheris_store_hint_total", "counter", "Notifications from other processes of the store."},
    {"aetheris_store_up", "gauge", "1 if the store is available."},
    {"aetheris_stalled_job_count", "gauge", "Jobs that need an operator (jobs?stalled=true)."},
    {"aetheris_stuck_job_count", "gauge", "Alias of aetheris_stalled_job_count."},
    {"aetheris_worker_busy", "gauge", "Jobs held by this worker."},
    {"aetheris_workers", "gauge", "Processes that claim jobs of this store."},
};

}  // namespace

std::string labelled(std::string_view name, std::string_view label, std::string_view value) {
  std::string out(name);
  out.append("{").append(label).append("=\"");
  for (const char c : value) {
    if (c == '\n') {
      out += "\\n";
      continue;
    }
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out += "\"}";
}

std::string storage_text(const std::map<std::string_view, store::OperationLatency>& times) {
  constexpr std::string_view kSeconds = "aetheris_storage_operation_duration_seconds";
  constexpr std::string_view kFailures = "aetheris_storage_operation_errors_total";
  std::string out =
      fmt::format("# HELP {0} Latency of store operations.\n# TYPE {0} histogram\n", kSeconds);
  std::string failures = fmt::format(
      "# HELP {0} Store operations that failed or had an unknown outcome.\n# TYPE {0} counter\n",
      kFailures);
  for (const auto& [operation, seen] : times) {
    const std::string label = labelled("", "operation", operation);
    const std::string_view inside = std::string_view(label).substr(0, label.size() - 1);
    std::uint64_t so_far = 0;
    for (std::size_t i = 0; i < seen.buckets.size(); ++i) {
      so_far += seen.buckets.at(i);
      const bool bounded = i < store::OperationLatency::kBounds.size();
      const std::string bound = bounded ? number(store::OperationLatency::kBounds.at(i)) : "+Inf";
      out += fmt::format("{}_bucket{},le=\"{}\"}} {}\n", kSeconds, inside, bound, so_far);
    }
    out += fmt::format("{0}_sum{1} {2}\n{0}_count{1} {3}\n", kSeconds, label, number(seen.sum),
                       so_far);
    failures += fmt::format("{}{} {}\n", kFailures, label, seen.failures);
  }
  return out + failures;
}

Metrics::Metrics() {
  for (const std::string_view name : kPlain) counters_[std::string(name)] = 0;
}

void Metrics::Histogram::add(const std::array<double, 12>& bounds, double seconds) {
  std::size_t i = 0;
  while (i < bounds.size() && seconds > bounds.at(i)) ++i;
  ++buckets[i];
  sum += seconds;
}

// `label`: "" or `{NAME="VALUE"}`.
void Metrics::Histogram::append_to(std::string& out, const std::string& name,
                                   const std::string& label,
                                   const std::array<double, 12>& bounds) const {
  const std::string before =
      label.empty() ? "{" : fmt::format("{},", label.substr(0, label.size() - 1));
  std::uint64_t so_far = 0;
  for (std::size_t i = 0; i <= bounds.size(); ++i) {
    so_far += buckets.at(i);
    const std::string bound = i < bounds.size() ? number(bounds.at(i)) : "+Inf";
    out += fmt::format("{}_bucket{}le=\"{}\"}} {}\n", name, before, bound, so_far);
  }
  out += fmt::format("{0}_sum{1} {2}\n{0}_count{1} {3}\n", name, label, number(sum), so_far);
}

void Metrics::count_finished(const JobId& job, const ToolInvocationFinished& event) {
  count(labelled("aetheris_tool_invocation_total", "result", event.outcome));
  if (event.outcome == "timeout") count("aetheris_step_timeout_total");
  const auto call = calls_.find({job, event.invocation_id.text});
  if (call == calls_.end()) return;  // declared by another process
  if (event.outcome != "success") {
    count(labelled("aetheris_tool_errors_total", "tool", call->second));
  }
  if (event.duration_us) {
    tools_[call->second].add(kCallBounds, static_cast<double>(*event.duration_us) / 1e6);
  }
  calls_.erase(call);
}

void Metrics::count_committed(const CommandCommitted& event) {
  const TokenUsage usage = event.usage.read_leniently();
  for (const auto& [tokens, direction] :
       {std::pair{usage.input_tokens, "input"}, {usage.output_tokens, "output"}}) {
    if (tokens.value_or(0) <= 0) continue;
    count(labelled("aetheris_llm_tokens_total", "direction", direction),
          static_cast<std::uint64_t>(*tokens));
  }
}

void Metrics::count_decision(const DecisionRecorded& event) {
  const bool requested = event.state == "requested";
  if (event.kind == RetryScheduled::kKind) count("aetheris_step_retries_total");
  if (requested) count("aetheris_approval_requests_total");
  if (!or_empty(event.by).empty() && !requested && event.state != "resend") {
    count(labelled("aetheris_human_decision_total", field::kind, event.kind));
  }
}

Metrics::TrackedJob* Metrics::track_job(const JobId& job) {
  if (tracked_jobs_.size() >= kJobsMax && !tracked_jobs_.contains(job)) return nullptr;
  return &tracked_jobs_[job];
}

void Metrics::count_ended(const JobId& job, const Event& event) {
  count(labelled("aetheris_job_total", "status", event_name(event).substr(4)));
  if (event.type == EventType::job_failed) count("aetheris_job_fail_total");
  std::erase_if(calls_, [&](const auto& call) { return call.first.first == job; });
  count_unparked(job, event);
  const auto known = tracked_jobs_.find(job);
  if (known == tracked_jobs_.end()) return;
  if (known->second.created_at) {
    jobs_[known->second.agent].add(kJobBounds,
                                   seconds_between(*known->second.created_at, event.created_at));
  }
  tracked_jobs_.erase(known);
}

void Metrics::count_unparked(const JobId& job, const Event& event) {
  const auto known = tracked_jobs_.find(job);
  if (known == tracked_jobs_.end() || !known->second.parked_at) return;
  parks_.add(kJobBounds, seconds_between(*known->second.parked_at, event.created_at));
  known->second.parked_at.reset();
  if (!known->second.created_at) tracked_jobs_.erase(known);
}

void Metrics::count_rejection(std::string_view type) {
  count(labelled("aetheris_rate_limit_rejections_total", "type", type));
}

void Metrics::on_events(const JobId& job, const std::vector<Event>& events) {
  for (const Event& event : events) {
    switch (event.type) {
      case EventType::job_created:
        count("aetheris_job_created_total");
        if (TrackedJob* const one = track_job(job)) {
          one->agent = std::get<JobCreated>(event.body).agent;
          one->created_at = event.created_at;
        }
        break;
      case EventType::job_completed:
      case EventType::job_failed:
      case EventType::job_cancelled:
        count_ended(job, event);
        break;
      case EventType::tool_invocation_started: {
        const auto& started = std::get<ToolInvocationStarted>(event.body);
        count(labelled("aetheris_tool_invocations_total", "tool", started.tool_name));
        calls_[{job, started.invocation_id.text}] = started.tool_name;
        break;
      }
      case EventType::tool_invocation_finished:
        count_finished(job, std::get<ToolInvocationFinished>(event.body));
        break;
      case EventType::command_committed:
        count_committed(std::get<CommandCommitted>(event.body));
        break;
      case EventType::node_finished:
        count(labelled("aetheris_node_execution_total", "status",
                       std::get<NodeFinished>(event.body).result_type));
        break;
      case EventType::job_parked:
        count(labelled("aetheris_run_pause_total", field::until,
                       std::get<JobParked>(event.body).until));
        if (TrackedJob* const one = track_job(job)) one->parked_at = event.created_at;
        break;
      case EventType::job_resumed:
        count("aetheris_run_resume_total");
        count_unparked(job, event);
        break;
      case EventType::wait_opened:
        if (std::get<WaitOpened>(event.body).correlation_key.starts_with("resolve/")) {
          count("aetheris_in_doubt_total");
        }
        break;
      case EventType::wait_completed:
        count(labelled("aetheris_wait_total", field::outcome,
                       std::get<WaitCompleted>(event.body).outcome));
        break;
      case EventType::confirmation_checked:
        if (const auto* checked = as<ConfirmationChecked>(event);
            checked != nullptr && checked->verdict == "mismatch") {
          count(labelled("aetheris_confirmation_replay_fail_total", "mode",
                         or_empty(checked->detail.read_leniently().mode)));
        }
        break;
      case EventType::decision_recorded:
        count_decision(std::get<DecisionRecorded>(event.body));
        break;
      default:
        break;
    }
  }
}

std::string Metrics::text(const std::vector<std::pair<std::string, std::uint64_t>>& gauges) const {
  std::string out;
  for (const Family& family : kFamilies) {
    out += fmt::format("# HELP {0} {1}\n# TYPE {0} {2}\n", family.name, family.help, family.type);
    const std::string name(family.name);
    if (std::string_view(family.type) == "histogram") {
      if (family.name == "aetheris_tool_duration_seconds") {
        for (const auto& [tool, histogram] : tools_) {
          histogram.append_to(out, name, labelled("", "tool", tool), kCallBounds);
        }
      } else if (family.name == "aetheris_job_duration_seconds") {
        for (const auto& [agent, histogram] : jobs_) {
          histogram.append_to(out, name, labelled("", field::agent, agent), kJobBounds);
        }
      } else {
        parks_.append_to(out, name, "", kJobBounds);
      }
      continue;
    }
    for (auto it = counters_.lower_bound(name);
         it != counters_.end() && it->first.starts_with(name); ++it) {
      const bool same = it->first.size() == name.size() || it->first[name.size()] == '{';
      if (same) out += fmt::format("{} {}\n", it->first, it->second);
    }
  }
  for (const auto& [name, value] : gauges) {
    const std::string family = name.substr(0, name.find('{'));
    if (out.find(fmt::format("# TYPE {} ", family)) == out.npos) {
      const Family* const known = std::ranges::find(kGauges, family, &Family::name);
      AE_CHECK(known != std::end(kGauges), family);
      out += fmt::format("# HELP {0} {1}\n# TYPE {0} {2}\n", family, known->help, known->type);
    }
    out += fmt::format("{} {}\n", name, value);
  }
  return out;
}

}  // namespace ae::api
