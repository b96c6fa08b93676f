// Observer: what really happened on the disk.
#include "sim/observer.h"

#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <variant>

#include "engine/heart/ingest.h"
#include "engine/heart/side_record.h"
#include "json/json.h"
#include "log/park_until.h"
#include "sim/checker.h"
#include "sim/tool_kinds.h"
#include "store/rules.h"

namespace ae::sim {
namespace {

// Replaces the entry's control request, with a valid checksum.
void replace_request(const JobId& job, store::InboxEntry& entry,
                     const engine::ControlRequest& request) {
  entry.request =
      canonical(engine::with_checksum(engine::inbox_location(job, entry.id), request.to_json()));
}

// Turns a rejection into an approval. Returns false if the request is no rejection.
bool approve_rejection(engine::ControlRequest& request) {
  if (auto* const approve = std::get_if<engine::ApproveRequest>(&request.body)) {
    return std::exchange(approve->decision, "approve") == "reject";
  }
  auto* const signal = std::get_if<engine::SignalRequest>(&request.body);
  if (signal == nullptr || signal->payload.text("decision") != "reject") return false;
  signal->payload = signal->payload.with("decision", "approve");
  return true;
}

}  // namespace

void Observer::on_opened_by_owner() {
  for (auto& [job, observed] : jobs_) observed.lease_until = {};
}

const DeclaredCall* Observer::declared_call(const InvocationId& invocation,
                                            std::uint32_t try_no) const {
  const auto it = declared_calls_.find({invocation.text, try_no});
  return it == declared_calls_.end() ? nullptr : &it->second;
}

void Observer::commit(store::Batch batch, async::Done<Result<store::CommitResult>> done) {
  auto written = std::make_shared<PendingCommit>();
  written->job = batch.job;
  written->at = now();
  written->authority = batch.authority;
  if (batch.sealed) {
    written->bytes = batch.sealed->bytes;
    written->blobs = batch.sealed->blobs;
  }
  written->status = batch.row.status;
  written->release = batch.release;
  if (!std::holds_alternative<store::Batch::LateResult>(batch.authority)) {
    for (const store::EffectRow& effect : batch.effects) {
      if (effect.record.find(R"("outcome":"success")") == effect.record.npos) continue;
      written->answered.push_back(effect.invocation.text);
    }
  }
  if (loses_child_requests_) batch.inbox_puts.clear();
  inside_batch_ = batch.sealed.has_value();
  inner().commit(std::move(batch), [this, written, done = std::move(done)](
                                       Result<store::CommitResult> answer) mutable {
    if (answer && !answer->existing && !answer->is_duplicate) committed(*written, *answer);
    done(std::move(answer));
  });
  inside_batch_ = false;
  writes_++;
}

void Observer::committed(const PendingCommit& written, const store::CommitResult& answer) {
  ObservedJob& observed = jobs_[written.job];
  order_++;
  for (const std::string& invocation : written.answered) answered_.emplace(invocation, order_);
  if (const auto* held = std::get_if<store::Batch::Leased>(&written.authority)) {
    if (observed.claim != held->fence) {
      report_.violate(
          "F6 every write is fenced by the current claim", written.job,
          fmt::format("a commit of epoch {} was accepted, the job is claimed by epoch {}",
                      held->fence.epoch, observed.claim ? observed.claim->epoch : 0));
    }
  } else if (std::holds_alternative<store::Batch::Unleased>(written.authority) && observed.claim) {
    report_.violate("F6 every write is fenced by the current claim", written.job,
                    "an unleased commit was accepted, but the job is claimed");
  }
  if (!written.bytes.empty()) {
    const BlobSource blobs = [&](const Hash& hash) -> Result<std::string> {
      for (const Blob& blob : written.blobs) {
        if (blob.hash == hash) return blob.bytes;
      }
      return fail(Code::log_corrupt, "a blob is missing");
    };
    auto opened = open(written.job, written.bytes, observed.head, blobs,
                       plans_ != nullptr ? plans_->lookup() : ValueLookup());
    if (!opened) {
      return report_.violate("L6 a commit continues the stored log", written.job,
                             opened.error().message);
    }
    for (Event& event : opened->events) {
      apply_event(written.job, observed, event);
      observed.log.push_back(std::move(event));
    }
    observed.commits.push_back(written.bytes);
    observed.head = opened->head;
    observed.status = written.status;
  }
  if (answer.lease) {
    observed.claim = answer.lease->fence;
    observed.epoch = answer.lease->fence.epoch;
    observed.lease_until = answer.lease->lease_until;
    check_queue_limit(written.job, observed, written.at);
  }
  if (written.release) observed.claim.reset();
}

void Observer::wait_opened(ObservedJob& observed, const WaitOpened& event) {
  const std::string &key = event.correlation_key, &step = event.step_id.text;
  OpenWait wait{event.wait_type, or_empty(event.channel), {}};
  wait.question = key.starts_with("input/");
  if (key.starts_with("approval/")) {
    wait.approval = observed.requests[step];
  } else if (wait.type == "human" && !key.starts_with("resolve/")) {
    wait.approval = step;
  }
  observed.open_waits.emplace(key, std::move(wait));
}

void Observer::check_capabilities(const JobId& job, const ObservedJob& observed,
                                  const std::string& worker) {
  for (const std::string& needed : observed.required) {
    const auto offered = capabilities_.find(worker);
    if (offered == capabilities_.end() || std::ranges::count(offered->second, needed) == 0) {
      report_.violate("F7 a job runs only on a worker with its capabilities", job,
                      fmt::format("{} does not offer {}", worker, needed));
    }
  }
}

void Observer::apply_creation(const JobId& job, ObservedJob& observed, const JobCreated& event) {
  if (!event.parent.is_null()) {
    observed.parent = event.parent.read_leniently();
    const auto creator = jobs_.find(JobId(observed.parent->job_id));
    if (creator == jobs_.end() || store::has_ended(creator->second.status)) {
      report_.violate("J2 a job creates no child after its end", job, observed.parent->job_id);
    }
  }
  if (!or_empty(event.queue).empty()) observed.queue = *event.queue;
  observed.budget = event.budget.json();
  const Value& blind = event.blind.value;
  observed.blind = blind.is_string() ? blind.as_string() : "";
  observed.required = event.required_capabilities.read_leniently();
}

void Observer::apply_call(const ObservedJob& observed, const Event& event) {
  const auto& call = std::get<ToolInvocationStarted>(event.body);
  declared_.insert(call.idempotency_key.text);
  declared_calls_[{call.invocation_id.text, static_cast<std::uint32_t>(call.try_no)}] = {
      event.attempt_id.value_or(AttemptId()),
      to_hex(call.arguments_hash),
      call.external_key.text,
      call.idempotency_key.text,
      call.send_by,
      observed.epoch,
      order_,
      observed.blind};
}

void Observer::apply_decision(ObservedJob& observed, const Event& event) {
  const auto& decision = std::get<DecisionRecorded>(event.body);
  const std::string step(step_of(event));
  if (is_decision<ApprovalRequested>(decision)) {
    observed.requests[step] = decision.decision_id.text;
  }
  // A verification mismatch was opened or answered.
  if (is_decision<ConfirmationRequested>(decision)) observed.open_mismatches.insert(step);
  if (is_decision<ConfirmationAnswered>(decision)) observed.open_mismatches.erase(step);
}

// The job ends, or undoes one of its steps.
void Observer::check_children(const JobId& job, const Event& event) {
  for (const auto& [child, observed] : jobs_) {
    if (!observed.is_awaited_by(job) || store::has_ended(observed.status)) continue;
    report_.violate("J2 a job ends, and undoes its steps, after its children", job,
                    fmt::format("{} at event {}: its child {} is {}", event_name(event), event.seq,
                                child.text, observed.status));
  }
}

void Observer::apply_event(const JobId& job, ObservedJob& observed, const Event& event) {
  observed.events = event.seq;
  const auto* call = as<ToolInvocationStarted>(event);
  if (is_end(event.type) || (call && is_undo(*tool_kind(call->tool_name)))) {
    check_children(job, event);
  }
  switch (event.type) {
    case EventType::job_created:
      return apply_creation(job, observed, std::get<JobCreated>(event.body));
    case EventType::job_running:
      return check_capabilities(job, observed, std::get<JobRunning>(event.body).worker_id);
    case EventType::tool_invocation_started:
      return apply_call(observed, event);
    case EventType::tool_invocation_finished: {
      const auto& finished = std::get<ToolInvocationFinished>(event.body);
      if (finished.outcome == "success" && !finished.late) {
        answered_.emplace(finished.invocation_id.text, order_);
      }
      return;
    }
    case EventType::step_committed:
      observed.done[std::string(node_of(event))] = event.seq;
      return;
    case EventType::wait_opened:
      return wait_opened(observed, std::get<WaitOpened>(event.body));
    case EventType::decision_recorded:
      return apply_decision(observed, event);
    case EventType::job_parked: {
      const auto& park = std::get<JobParked>(event.body);
      observed.paused = park.until == park_until::kResume;
      observed.parked = park.reason;
      return;
    }
    case EventType::job_resumed:
      observed.paused = false;
      observed.parked.clear();
      observed.open_mismatches.clear();
      return;
    case EventType::wait_completed:
      observed.open_waits.erase(std::get<WaitCompleted>(event.body).correlation_key);
      return;
    case EventType::job_cancel_requested:
      observed.cancel_requested = true;
      return;
    default:
      return;
  }
}

// Approves what the entry rejects, or adds a second message, for a canary.
void Observer::falsify(const JobId& job, store::InboxEntry& entry) {
  const auto json = parse_json(entry.request);
  if (!json || !json->is_object()) return;
  auto request = engine::ControlRequest::from_json(*json);
  if (!request) return;
  if (approves_falsely_ && approve_rejection(*request)) replace_request(job, entry, *request);
  if (doubles_messages_ && request->is<engine::MessageRequest>()) {
    store::InboxEntry again = entry;
    again.id += "2";
    request->id += "-again";
    replace_request(job, again, *request);
    inner().put_inbox(job, std::move(again), [](Result<void>) {});
  }
}

void Observer::put_inbox(JobId job, store::InboxEntry entry, async::Done<Result<void>> done) {
  if (loses_inbox_entries_ && jobs_[job].claim) entry.request = R"({"kind":"timers"})";
  if (approves_falsely_ || doubles_messages_) falsify(job, entry);
  writes_++;
  inner().put_inbox(std::move(job), std::move(entry), std::move(done));
}

void Observer::check_queue_limit(const JobId& job, const ObservedJob& observed, Instant at) {
  const auto limit = std::ranges::find(limits_, observed.queue, &store::QueueLimit::queue);
  if (limit == limits_.end()) return;
  const auto live = std::ranges::count_if(jobs_, [&](const auto& other) {
    return other.second.queue == observed.queue && other.second.claim &&
           other.second.lease_until > at;
  });
  if (static_cast<std::size_t>(live) <= limit->limit) return;
  report_.violate(
      "F8 no queue has more live claims than its limit", job,
      fmt::format("{} jobs of {} are claimed, {} may be", live, observed.queue, limit->limit));
}

void Observer::on_claimed(const store::Lease& lease, Instant at) {
  ObservedJob& observed = jobs_[lease.job];
  if (lease.fence.epoch != observed.epoch + 1) {
    report_.violate(
        "F1 epochs of a job are 1, 2, 3, …", lease.job,
        fmt::format("epoch {} was granted after {}", lease.fence.epoch, observed.epoch));
  }
  if (observed.claim && observed.lease_until > at) {
    report_.violate("F1 a lease is granted only after the previous one has expired", lease.job,
                    fmt::format("at {}, the lease of epoch {} runs until {}", to_text(at),
                                observed.claim->epoch, to_text(observed.lease_until)));
  }
  if (observed.status != "queued" && observed.status != "running") {
    report_.violate("F1 a blocked or ended job is never claimed", lease.job,
                    fmt::format("it was {}", observed.status));
  }
  observed.claim = lease.fence;
  observed.epoch = lease.fence.epoch;
  observed.lease_until = lease.lease_until;
  check_queue_limit(lease.job, observed, at);
}

void Observer::claim(store::ClaimRequest request,
                     async::Done<Result<std::vector<store::Lease>>> done) {
  if (withheld_job_) request.excluded_jobs.push_back(*withheld_job_);
  if (ignores_limits_) request.queues.clear();
  writes_++;
  inner().claim(std::move(request), [this, at = now(), done = std::move(done)](
                                        Result<std::vector<store::Lease>> leases) mutable {
    if (leases) {
      for (const store::Lease& lease : *leases) on_claimed(lease, at);
    }
    done(std::move(leases));
  });
}

void Observer::claim_job(JobId job, store::ClaimRequest request,
                         async::Done<Result<std::optional<store::Lease>>> done) {
  writes_++;
  inner().claim_job(std::move(job), std::move(request),
                    [this, at = now(),
                     done = std::move(done)](Result<std::optional<store::Lease>> lease) mutable {
                      if (lease && *lease) on_claimed(**lease, at);
                      done(std::move(lease));
                    });
}

void Observer::heartbeat(std::vector<std::pair<JobId, store::Fence>> held, Duration lease,
                         async::Done<Result<std::vector<std::optional<Instant>>>> done) {
  auto requested = held;
  writes_++;
  inner().heartbeat(
      std::move(held), lease,
      [this, at = now(), requested = std::move(requested),
       done = std::move(done)](Result<std::vector<std::optional<Instant>>> until) mutable {
        for (std::size_t i = 0; until && i < requested.size(); ++i) {
          if (!(*until)[i]) continue;
          ObservedJob& observed = jobs_[requested[i].first];
          if (observed.claim != requested[i].second || observed.lease_until <= at) {
            report_.violate("F5 a heartbeat never revives an expired lease", requested[i].first,
                            fmt::format("epoch {}", requested[i].second.epoch));
          }
          observed.lease_until = *(*until)[i];
        }
        done(std::move(until));
      });
}

}  // namespace ae::sim
