// What the disk truly did.
#include "sim/witness.h"

#include <algorithm>
#include <memory>

#include "engine/heart/absorb.h"
#include "engine/heart/beside.h"
#include "json/json.h"

namespace ae::sim {
namespace {

// The entry with another act, as if it had been written so.
void forge(const JobId& job, store::InboxEntry& entry, const engine::Act& act) {
  entry.act = canonical(engine::with_checksum(engine::inbox_place(job, entry.id), act.to_json()));
}

}  // namespace

void Witness::opened_by_owner() {
  for (auto& [job, seen] : jobs_) seen.lease_until = {};
}

const Intent* Witness::intent(const InvocationId& invocation, std::uint32_t try_no) const {
  const auto it = intents_.find({invocation.text, try_no});
  return it == intents_.end() ? nullptr : &it->second;
}

void Witness::commit(store::Batch batch, async::Done<Result<store::Committed>> done) {
  auto written = std::make_shared<Written>();
  written->job = batch.job;
  written->at = now();
  written->authority = batch.authority;
  if (batch.sealed) {
    written->bytes = batch.sealed->bytes;
    written->blobs = batch.sealed->blobs;
  }
  written->status = batch.row.status;
  written->release = batch.release;
  if (!std::holds_alternative<store::Batch::Late>(batch.authority)) {
    for (const store::EffectRow& effect : batch.effects) {
      if (effect.record.find(R"("outcome":"success")") == effect.record.npos) continue;
      written->answered.push_back(effect.invocation.text);
    }
  }
  inside_batch_ = batch.sealed.has_value();
  inner_->commit(std::move(batch),
                 [this, written, done = std::move(done)](Result<store::Committed> answer) mutable {
                   if (answer && !answer->existing && !answer->repeated)
                     committed(*written, *answer);
                   done(std::move(answer));
                 });
  inside_batch_ = false;
  writes_++;
}

void Witness::committed(const Written& written, const store::Committed& answer) {
  Seen& seen = jobs_[written.job];
  order_++;
  for (const std::string& invocation : written.answered) answered_.emplace(invocation, order_);
  if (const auto* held = std::get_if<store::Batch::Held>(&written.authority)) {
    if (seen.claim != held->fence) {
      report_.violate("F6 a write is fenced by the claim that stands", written.job,
                      "a commit of epoch " + std::to_string(held->fence.epoch) +
                          " was accepted, the job is held by epoch " +
                          std::to_string(seen.claim ? seen.claim->epoch : 0));
    }
  } else if (std::holds_alternative<store::Batch::Free>(written.authority) && seen.claim) {
    report_.violate("F6 a write is fenced by the claim that stands", written.job,
                    "a commit for a free job was accepted, but the job is held");
  }
  if (!written.bytes.empty()) {
    const BlobSource blobs = [&](const Hash& hash) -> Result<std::string> {
      for (const Blob& blob : written.blobs) {
        if (blob.hash == hash) return blob.bytes;
      }
      return fail(Code::log_corrupt, "a value that stands apart is missing");
    };
    auto opened = open(written.job, written.bytes, seen.head, blobs,
                       plans_ != nullptr ? plans_->known() : KnownValue());
    if (!opened) {
      return report_.violate("L6 what is written goes on from what stands", written.job,
                             opened.error().message);
    }
    for (Event& event : opened->events) {
      learn(written.job, seen, event);
      seen.log.push_back(std::move(event));
    }
    seen.commits.push_back(written.bytes);
    seen.head = opened->head;
    seen.status = written.status;
  }
  if (answer.lease) {
    seen.claim = answer.lease->fence;
    seen.epoch = answer.lease->fence.epoch;
    seen.lease_until = answer.lease->lease_until;
    within_limit(written.job, seen, written.at);
  }
  if (written.release) seen.claim.reset();
}

void Witness::wait_opened(Seen& seen, const WaitOpened& event) {
  const std::string &key = event.correlation_key, &step = event.step_id.text;
  OpenWait wait{event.wait_type, or_empty(event.channel), {}};
  wait.question = key.starts_with("input/");
  if (key.starts_with("approval/")) {
    wait.approval = seen.requests[step];
  } else if (wait.type == "human" && !key.starts_with("resolve/")) {
    wait.approval = step;
  }
  seen.open_waits.emplace(key, std::move(wait));
}

void Witness::claimed_by(const JobId& job, const Seen& seen, const std::string& worker) {
  for (const std::string& needed : seen.required) {
    const auto offered = offers_.find(worker);
    if (offered == offers_.end() || std::ranges::count(offered->second, needed) == 0) {
      std::string what = worker;
      what.append(" does not offer ").append(needed);
      report_.violate("F7 a job runs only where its capabilities are offered", job,
                      std::move(what));
    }
  }
}

void Witness::learn_creation(Seen& seen, const JobCreated& event) {
  if (!or_empty(event.queue).empty()) seen.queue = *event.queue;
  seen.budget = event.budget;
  const Value& blind = event.blind.value;
  seen.blind = blind.is_string() ? blind.as_string() : "";
  if (!event.required_capabilities.is_array()) return;
  for (const Value& one : event.required_capabilities.items()) {
    seen.required.emplace_back(one.as_string());
  }
}

void Witness::learn_call(const Seen& seen, const Event& event) {
  const auto& call = std::get<ToolInvocationStarted>(event.body);
  declared_.insert(call.idempotency_key.text);
  intents_[{call.invocation_id.text, static_cast<std::uint32_t>(call.try_no)}] = {
      event.attempt_id.value_or(AttemptId()),
      to_hex(call.arguments_hash),
      call.external_key.text,
      call.idempotency_key.text,
      call.send_by,
      seen.epoch,
      order_,
      seen.blind};
}

void Witness::learn_decision(Seen& seen, const Event& event) {
  const auto& decision = std::get<DecisionRecorded>(event.body);
  const std::string step(step_of(event)), state = or_empty(decision.state);
  if (decision.kind == "approval" && state == "requested") {
    seen.requests[step] = decision.decision_id.text;
  }
  if (decision.kind != "confirmation") return;
  // What the job changed is not as it was: somebody is asked, or has answered.
  if (state == "requested") seen.raised.insert(step);
  if (state == "accept" || state == "fail") seen.raised.erase(step);
}

void Witness::learn(const JobId& job, Seen& seen, const Event& event) {
  seen.events = event.seq;
  switch (event.type) {
    case EventType::job_created:
      return learn_creation(seen, std::get<JobCreated>(event.body));
    case EventType::job_running:
      return claimed_by(job, seen, std::get<JobRunning>(event.body).worker_id);
    case EventType::tool_invocation_started:
      return learn_call(seen, event);
    case EventType::tool_invocation_finished: {
      const auto& finished = std::get<ToolInvocationFinished>(event.body);
      if (finished.outcome == "success" && !finished.late) {
        answered_.emplace(finished.invocation_id.text, order_);
      }
      return;
    }
    case EventType::step_committed:
      seen.done[std::string(node_of(event))] = event.seq;
      return;
    case EventType::wait_opened:
      return wait_opened(seen, std::get<WaitOpened>(event.body));
    case EventType::decision_recorded:
      return learn_decision(seen, event);
    case EventType::job_parked: {
      const auto& park = std::get<JobParked>(event.body);
      seen.paused = park.until == "resume";
      seen.parked = park.reason;
      return;
    }
    case EventType::job_resumed:
      seen.paused = false;
      seen.parked.clear();
      seen.raised.clear();
      return;
    case EventType::wait_completed:
      seen.open_waits.erase(std::get<WaitCompleted>(event.body).correlation_key);
      return;
    case EventType::job_cancel_requested:
      seen.cancel_requested = true;
      return;
    default:
      return;
  }
}

void Witness::put_inbox(JobId job, store::InboxEntry entry, async::Done<Result<void>> done) {
  if (forget_posts_ && jobs_[job].claim) entry.act = R"({"kind":"timers"})";
  auto json = says_yes_ || says_twice_ ? parse_json(entry.act) : Result<Value>(Value());
  auto act = json && json->is_object() ? engine::Act::from_json(*json)
                                       : Result<engine::Act>(engine::Act());
  if (says_yes_ && act && act->payload.text("decision") == "reject") {
    act->payload = act->payload.with("decision", "approve");
    forge(job, entry, *act);
  }
  if (says_twice_ && act && act->kind == engine::Act::Kind::message) {
    store::InboxEntry again = entry;
    again.id += "2";
    act->id += "-again";
    forge(job, again, *act);
    inner_->put_inbox(job, std::move(again), [](Result<void>) {});
  }
  writes_++;
  inner_->put_inbox(std::move(job), std::move(entry), std::move(done));
}

void Witness::within_limit(const JobId& job, const Seen& seen, Instant at) {
  const auto limit = std::ranges::find(limits_, seen.queue, &store::QueueLimit::queue);
  if (limit == limits_.end()) return;
  const auto live = std::ranges::count_if(jobs_, [&](const auto& other) {
    return other.second.queue == seen.queue && other.second.claim && other.second.lease_until > at;
  });
  if (static_cast<std::size_t>(live) <= limit->limit) return;
  report_.violate("F8 no queue has more live claims than its limit", job,
                  std::to_string(live) + " jobs of " + seen.queue + " are held, " +
                      std::to_string(limit->limit) + " may be");
}

void Witness::claimed(const store::Lease& lease, Instant at) {
  Seen& seen = jobs_[lease.job];
  if (lease.fence.epoch != seen.epoch + 1) {
    report_.violate("F1 epochs of a job are 1, 2, 3, …", lease.job,
                    "epoch " + std::to_string(lease.fence.epoch) + " was given after " +
                        std::to_string(seen.epoch));
  }
  if (seen.claim && seen.lease_until > at) {
    report_.violate("F1 a lease is given when the one before has run out", lease.job,
                    "at " + to_text(at) + ", the lease of epoch " +
                        std::to_string(seen.claim->epoch) + " runs until " +
                        to_text(seen.lease_until));
  }
  if (seen.status != "queued" && seen.status != "running") {
    report_.violate("F1 a blocked or ended job is never claimed", lease.job,
                    "it was " + seen.status);
  }
  seen.claim = lease.fence;
  seen.epoch = lease.fence.epoch;
  seen.lease_until = lease.lease_until;
  within_limit(lease.job, seen, at);
}

void Witness::claim(store::ClaimRequest request,
                    async::Done<Result<std::vector<store::Lease>>> done) {
  if (never_given_) request.except.push_back(*never_given_);
  if (forgets_limits_) request.queues.clear();
  writes_++;
  inner_->claim(std::move(request), [this, at = now(), done = std::move(done)](
                                        Result<std::vector<store::Lease>> leases) mutable {
    if (leases) {
      for (const store::Lease& lease : *leases) claimed(lease, at);
    }
    done(std::move(leases));
  });
}

void Witness::claim_job(JobId job, store::ClaimRequest request,
                        async::Done<Result<std::optional<store::Lease>>> done) {
  writes_++;
  inner_->claim_job(std::move(job), std::move(request),
                    [this, at = now(),
                     done = std::move(done)](Result<std::optional<store::Lease>> lease) mutable {
                      if (lease && *lease) claimed(**lease, at);
                      done(std::move(lease));
                    });
}

void Witness::heartbeat(std::vector<std::pair<JobId, store::Fence>> held, Duration lease,
                        async::Done<Result<std::vector<std::optional<Instant>>>> done) {
  auto asked = held;
  writes_++;
  inner_->heartbeat(
      std::move(held), lease,
      [this, at = now(), asked = std::move(asked),
       done = std::move(done)](Result<std::vector<std::optional<Instant>>> until) mutable {
        for (std::size_t i = 0; until && i < asked.size(); ++i) {
          if (!(*until)[i]) continue;
          Seen& seen = jobs_[asked[i].first];
          if (seen.claim != asked[i].second || seen.lease_until <= at) {
            report_.violate("F5 a heartbeat never revives a lease that is over", asked[i].first,
                            "epoch " + std::to_string(asked[i].second.epoch));
          }
          seen.lease_until = *(*until)[i];
        }
        done(std::move(until));
      });
}

void Witness::due(std::size_t limit, async::Done<Result<std::vector<JobId>>> done) {
  inner_->due(limit, std::move(done));
}
void Witness::next_due(async::Done<Result<std::optional<Instant>>> done) {
  inner_->next_due(std::move(done));
}
void Witness::load(JobId job, std::uint64_t from_seq, async::Done<Result<store::Loaded>> done) {
  inner_->load(std::move(job), from_seq, std::move(done));
}
void Witness::query(store::Filter filter, async::Done<Result<std::vector<store::JobRow>>> done) {
  inner_->query(std::move(filter), std::move(done));
}

}  // namespace ae::sim
