#include "runtime/service/request_submitter.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <utility>

#include "engine/heart/decide.h"
#include "engine/heart/side_record.h"
#include "json/json.h"
#include "log/seal.h"
#include "runtime/child_requests.h"
#include "runtime/code_offers.h"
#include "runtime/log.h"
#include "runtime/log_writer.h"
#include "runtime/open_questions.h"
#include "runtime/reply.h"
#include "runtime/row.h"

namespace ae::runtime {
namespace {

// How long a sender waits for the reply of the lease holder.
constexpr Duration kReplyWait = std::chrono::seconds(10);
constexpr Duration kPollFirst = std::chrono::milliseconds(5);
constexpr Duration kPollMax = std::chrono::milliseconds(500);
// A request that loses this many races in a row fails with unavailable
constexpr int kRequestTries = 64;

// The correlation key of the answered wait. "" = the request names an approval, or a call with an
// unknown outcome.
std::string_view key_of(const engine::ControlRequest& request) {
  const auto* const signal = request.as<engine::SignalRequest>();
  return signal == nullptr ? std::string_view() : signal->correlation_key;
}

// The end of a child, or a cancel, which a parent sends to its child: they are in the inbox of a job
// that no worker holds, too.
bool is_of_another_job(const engine::ControlRequest& request) {
  return request.is<engine::ChildEndedRequest, engine::CancelRequest>();
}

// Must `before`, which was accepted first, be applied first? Messages of one channel, and requests
// that may answer the same wait or the same call.
bool applies_before(const engine::ControlRequest& before, const engine::ControlRequest& request) {
  if (is_of_another_job(before)) return true;
  const auto* const earlier = before.as<engine::MessageRequest>();
  const auto* const message = request.as<engine::MessageRequest>();
  if (earlier != nullptr && message != nullptr) return earlier->channel == message->channel;
  const auto answers = [](const engine::ControlRequest& one) {
    return one.is<engine::SignalRequest, engine::ApproveRequest, engine::ResolveRequest>();
  };
  if (!answers(before) || !answers(request)) return false;
  const std::string_view first = key_of(before), key = key_of(request);
  return first.empty() || key.empty() || first == key;
}

// The job has changed since it was read: it is read again.
bool has_changed(const Error& error) {
  return error.code == Code::held || error.code == Code::sequence_conflict ||
         error.code == Code::inbox_pending;
}

Result<engine::ControlRequest> read_entry(const JobId& job, const store::InboxEntry& entry) {
  AE_ASSIGN(const Value json,
            engine::read_side_record(engine::inbox_location(job, entry.id), entry.request));
  return engine::ControlRequest::from_json(json);
}

// What a request demands, without what may differ when it is sent again. Two requests with one inbox
// id are the same request if this is equal.
Value demand_of(engine::ControlRequest request) {
  request.by.clear();
  request.checked_at.reset();
  std::visit(
      [](auto& body) {
        if constexpr (requires { body.traceparent; }) body.traceparent.clear();
        if constexpr (requires { body.try_no; }) body.try_no = 0;
      },
      request.body);
  return request.to_json();
}

// Is another request with its id in the inbox?
bool is_behind_another(const JobSnapshot& read, const engine::ControlRequest& request) {
  const auto entry =
      std::ranges::find(read.inbox, engine::inbox_id(request), &store::InboxEntry::id);
  if (entry == read.inbox.end()) return false;
  const auto other = read_entry(read.state.job, *entry);
  return other && demand_of(*other) != demand_of(request);
}

// Messages of a channel, and answers to a wait or a call, apply in the order in which they were
// accepted. If a job was parked with its inbox, its earlier entries are applied before
// `new_request`. Appends their events to `events` and returns their inbox entries.
Result<std::vector<AppliedEntry>> collect_earlier_requests(
    engine::State& state, const std::vector<store::InboxEntry>& inbox,
    const engine::ControlRequest& new_request, const engine::DecisionContext& context,
    const engine::PlanSource& plans, std::vector<EventBody>& events) {
  std::vector<AppliedEntry> entries;
  const std::string own_id = engine::inbox_id(new_request);
  for (const store::InboxEntry& entry : inbox) {
    const auto request = read_entry(state.job, entry);
    if (!request || !applies_before(*request, new_request)) continue;
    auto applied = engine::apply_request(state, *request, context);
    if (!applied && is_of_another_job(*request)) {  // it has no effect any more
      entries.push_back({.number = entry.number, .id = entry.id, .reply = {}});
      continue;
    }
    if (!applied) continue;  // the job is ending: `apply_remaining_requests` handles this entry
    for (EventBody& draft : applied->events) {
      AE_TRY(engine::apply(state, draft, context.now, plans));
      events.push_back(std::move(draft));
    }
    const bool has_sender = !request->is<engine::ChildEndedRequest>();
    entries.push_back({entry.number, entry.id, has_sender ? reply_text(applied->answer) : ""});
    if (entry.id == own_id) break;  // the same request, sent again
  }
  return entries;
}

// Applies the rest of the inbox that the job was parked with, as a lease holder does; ending the
// job in this commit would lose it. `entries`: those that are already in the log; the others are
// added.
Status apply_remaining_requests(const engine::State& state,
                                const std::vector<store::InboxEntry>& inbox,
                                const engine::DecisionContext& context,
                                std::vector<AppliedEntry>& entries,
                                const std::function<Status(EventBody)>& follow) {
  for (const store::InboxEntry& entry : inbox) {
    if (std::ranges::find(entries, entry.number, &AppliedEntry::number) != entries.end()) continue;
    AE_ASSIGN(const engine::ControlRequest request, read_entry(state.job, entry));
    entries.push_back({.number = entry.number, .id = entry.id, .reply = {}});
    if (request.is<engine::TimersRequest>()) continue;
    auto applied = engine::apply_accepted(state, request, context);
    entries.back().reply = reply_text(applied.answer);
    for (EventBody& draft : applied.events) AE_TRY(follow(std::move(draft)));
  }
  return {};
}

// Fails as engine::check_not_expired. An entry of the inbox was accepted in time: it may be sent
// again later, and may close the wait of this request before the wait expires.
Status check_in_time(const JobSnapshot& read, const engine::ControlRequest& request, Instant now) {
  for (const store::InboxEntry& entry : read.inbox) {
    if (entry.id == engine::inbox_id(request)) return {};
    const auto before = read_entry(read.state.job, entry);
    if (before && applies_before(*before, request)) return {};
  }
  return engine::check_not_expired(read.state, request, now);
}

// Importing a late result may be what kills the process: for a worn-out job, its next attempt does
// that. These requests do not depend on the outcome of a call.
bool skips_late_results(const engine::State& state, const engine::ControlRequest& request) {
  const bool needs_no_outcome =
      request.is<engine::PauseRequest, engine::ResumeRequest, engine::CancelRequest,
                 engine::TimersRequest, engine::VersionRequest>();
  // After the job ended, a late result is only noted.
  return needs_no_outcome && state.is_worn_out() && !engine::is_terminal(state.status);
}

// Applies the late results of the job; `events` receives their events.
Status import_late_results(JobSnapshot& read, Instant now, const engine::PlanSource& plans,
                           std::vector<EventBody>& events) {
  AE_ASSIGN(events, engine::import_stored_effects(read.state, stored_effects(read.effects)));
  for (const EventBody& draft : events) AE_TRY(engine::apply(read.state, draft, now, plans));
  return {};
}

// Of a job that is ending: applies the rest of its inbox; if nothing is in flight, the job ends in
// this commit. `entries`, `follow`: as for apply_remaining_requests.
Status finish_ending_job(const engine::State& state, const std::vector<store::InboxEntry>& inbox,
                         const engine::DecisionContext& context, std::vector<AppliedEntry>& entries,
                         const std::function<Status(EventBody)>& follow) {
  if (!state.ending) return {};
  AE_TRY(apply_remaining_requests(state, inbox, context, entries, follow));
  while (!engine::is_terminal(state.status)) {
    engine::Decision decision = engine::decide(state, context);
    if (decision.events.empty()) break;
    for (EventBody& draft : decision.events) {
      const Status followed = follow(std::move(draft));
      AE_CHECK(followed, followed.error().message);
    }
  }
  return {};
}

}  // namespace

// What a request, and the inbox before it, have done.
struct RequestSubmitter::Applied {
  std::vector<EventBody> events;
  std::vector<AppliedEntry> entries;
  std::vector<std::pair<InvocationId, std::uint32_t>> decided;  // calls without a result
  engine::SummaryKey summary_key;                               // before them
  Instant now;
};

struct RequestSubmitter::ActiveRequest {
  JobId job;
  engine::ControlRequest request;
  async::Done<Result<Value>> done;
  std::optional<store::HeldJob> sender = {};
  bool must_notify = false;  // notify the lease holder, even if there is nothing to write
  int tries = 0;
  // While the request is in the inbox:
  std::string entry;     // its id
  bool applies = false;  // to the log as it was when it was written
  // The entry is another request with the same id: this one is tried again once that is applied.
  bool behind_another = false;
  Duration waited{0}, poll = kPollFirst;
  std::optional<async::TimerId> timer;
};

void RequestSubmitter::submit(JobId job, engine::ControlRequest request,
                              async::Done<Result<Value>> done,
                              std::optional<store::HeldJob> sender) {
  if (engine::is_too_large(request)) {
    return world_.loop.post([done = std::move(done)]() mutable {
      done(fail(Code::payload_too_large,
                "a payload may have {} MiB as canonical JSON; "
                "keep the rest elsewhere and send where it is",
                kValueMax >> 20));
    });
  }
  if (request.id.empty()) request.id = new_uuid(world_);
  // The decision was made no later than now, however long the request waits afterwards.
  const Instant now = world_.store.now();
  request.checked_at = std::min(now, request.checked_at.value_or(now));
  try_request(std::make_shared<ActiveRequest>(ActiveRequest{.job = std::move(job),
                                                            .request = std::move(request),
                                                            .done = std::move(done),
                                                            .sender = std::move(sender)}));
}

void RequestSubmitter::submit_late_result(JobId job, async::Done<Result<Value>> done) {
  try_request(std::make_shared<ActiveRequest>(
      ActiveRequest{.job = std::move(job),
                    .request = {.id = new_uuid(world_), .body = engine::TimersRequest{}},
                    .done = std::move(done),
                    .must_notify = true}));
}

void RequestSubmitter::try_request(std::shared_ptr<ActiveRequest> active) {
  if (++active->tries > kRequestTries) {
    return active->done(fail(Code::unavailable, "the job changes too quickly; try again"));
  }
  reader_.read_newest(active->job, [this, active](Result<JobSnapshot> read) {
    if (!read) return active->done(std::unexpected(read.error()));
    apply_or_enqueue(active, std::move(*read));
  });
}

// One transaction decides between inbox and log: each write names the state of the claim that it
// requires and fails if that has changed; then everything is read again (SPEC §10).
void RequestSubmitter::apply_or_enqueue(std::shared_ptr<ActiveRequest> active, JobSnapshot&& read) {
  if (read.row.claim) return enqueue(std::move(active), std::move(read));
  const engine::DecisionContext context = request_context();
  const Instant now = context.now;
  const engine::SummaryKey summary_key = engine::summary_key(read.state);
  // Late results are applied first: they are facts, and no request can change them.
  std::vector<EventBody> events;
  if (!skips_late_results(read.state, active->request)) {
    if (auto imported = import_late_results(read, now, plans_.source(), events); !imported) {
      return active->done(std::unexpected(imported.error()));
    }
  }
  auto entries = collect_earlier_requests(read.state, read.inbox, active->request, context,
                                          plans_.source(), events);
  if (!entries) return active->done(std::unexpected(entries.error()));
  const Offered offered = this->offered(read.state);
  engine::DecisionContext offering = context;
  offering.tool_versions = &offered.tools;
  offering.execution_version = &offered.version;
  offering.code_offers = &offered.code;
  auto applied = engine::apply_request(read.state, active->request, offering);
  if (applied && !applied->events.empty()) {
    if (auto in_time = check_in_time(read, active->request, now); !in_time) {
      applied = std::unexpected(in_time.error());
    }
  }
  Result<Value> answer =
      applied ? Result<Value>(applied->answer) : std::unexpected(applied.error());
  const bool is_unchanged = events.empty() && (!applied || applied->events.empty());
  // Else the job would stay due.
  if (is_unchanged && !entries->empty()) {
    return consume_entries(active, std::move(read), *std::move(entries), std::move(answer));
  }
  if (active->request.is<engine::TimersRequest>() && applied) {
    answer = Value::object({{"fired", std::uint64_t{events.size() + applied->events.size()}}});
  }
  if (is_unchanged) {
    reader_.cache_state(active->job, std::move(read));
    return active->done(answer);
  }
  const std::uint64_t accepted = read.state.signals + read.inbox.size() - entries->size();
  if (engine::is_counted(active->request) && accepted >= engine::kSignalsMax)
    return active->done(std::unexpected(engine::signals_limit_error()));
  std::vector<std::pair<InvocationId, std::uint32_t>> decided;
  const auto follow = [&](EventBody draft) -> Status {
    if (auto slot = engine::decided_effect_slot(read.state, draft))
      decided.push_back(*std::move(slot));
    AE_TRY(engine::apply(read.state, draft, now, plans_.source()));
    events.push_back(std::move(draft));
    return {};
  };
  if (applied) {
    for (EventBody& draft : applied->events) {
      if (auto followed = follow(std::move(draft)); !followed) {
        return active->done(std::unexpected(followed.error()));
      }
    }
  }
  if (auto finished = finish_ending_job(read.state, read.inbox, context, *entries, follow);
      !finished) {
    return active->done(std::unexpected(finished.error()));
  }
  commit(std::move(active), std::move(read),
         {.events = std::move(events),
          .entries = *std::move(entries),
          .decided = std::move(decided),
          .summary_key = summary_key,
          .now = now},
         std::move(answer));
}

// The job after these events.
void RequestSubmitter::commit(std::shared_ptr<ActiveRequest> active, JobSnapshot&& read,
                              Applied applied, Result<Value> answer) {
  LogWriter writer(world_, active->job, {read.row.last_seq, read.row.head}, applied.now,
                   std::nullopt);
  store::Batch batch;
  for (const EventBody& event : applied.events) add_child_request(read.state, event, batch);
  auto sealed_events = writer.append(std::move(applied.events), row_of(read.state), batch);
  if (!sealed_events) return active->done(std::unexpected(sealed_events.error()));
  batch.authority = store::Batch::Unleased{};
  batch.sender = active->sender;
  // An entry that comes meanwhile makes the job due, which this row would undo.
  batch.inbox_read_through = read.inbox.empty() ? 0 : read.inbox.back().number;
  batch.summary = changed_summary(read.state, applied.summary_key);
  batch.effects_absent = std::move(applied.decided);
  consume(std::move(applied.entries), batch);
  sign_head(world_, writer.end(), applied.now, batch);
  read.row.head = writer.end().head;
  read.bytes += bytes_of(*batch.sealed);
  std::vector<JobId> addressees = addressees_of(batch);
  commit_until_known(world_, alive_.watch(), std::make_shared<store::Batch>(std::move(batch)),
                     [this, active, sealed_events = *std::move(sealed_events), answer,
                      addressees = std::move(addressees),
                      read = std::move(read)](Result<store::CommitResult> result) mutable {
                       if (result) {
                         if (!addressees.empty()) host_.on_inbox_puts(addressees);
                         return on_applied(active, std::move(read), sealed_events, answer);
                       }
                       if (has_changed(result.error())) return try_request(active);
                       active->done(std::unexpected(result.error()));
                     });
}

// Entries of the inbox that change nothing.
void RequestSubmitter::consume_entries(const std::shared_ptr<ActiveRequest>& active,
                                       JobSnapshot&& read, std::vector<AppliedEntry> entries,
                                       Result<Value> answer) {
  store::Batch batch{
      .job = active->job, .authority = store::Batch::Unleased{}, .expected_seq = read.row.last_seq};
  batch.row = row_of(read.state);
  batch.writes_row = true;
  batch.inbox_read_through = read.inbox.back().number;
  consume(std::move(entries), batch);
  commit_until_known(world_, alive_.watch(), std::make_shared<store::Batch>(std::move(batch)),
                     [this, active, answer = std::move(answer),
                      read = std::move(read)](Result<store::CommitResult> result) mutable {
                       if (!result && has_changed(result.error())) return try_request(active);
                       if (!result) return active->done(std::unexpected(result.error()));
                       reader_.cache_state(active->job, std::move(read));
                       active->done(std::move(answer));
                     });
}

// The events of the request are durable. `read`: the job after them.
void RequestSubmitter::on_applied(const std::shared_ptr<ActiveRequest>& active, JobSnapshot&& read,
                                  const std::vector<Event>& events, const Result<Value>& answer) {
  host_.on_committed_events(active->job, events);
  if (read.state.ending) {
    for (const OpenQuestion& question : open_questions_of(read.state)) {
      abandon_question(world_.tool_registry, question);
    }
  }
  const bool may_claim = host_.may_claim(read.row.agent, read.row.capabilities);
  reader_.cache_state(active->job, std::move(read));
  active->done(answer);
  if (may_claim) host_.on_claimable();
}

// A worker holds the job: writes the request to its inbox.
void RequestSubmitter::enqueue(std::shared_ptr<ActiveRequest> active, JobSnapshot&& read) {
  engine::ControlRequest& request = active->request;
  // The lease holder fires its timers, after the entries of the inbox.
  if (request.is<engine::TimersRequest>() && !active->must_notify)
    return active->done(Value::object({{"fired", 0}}));
  if (engine::is_counted(request) && read.state.signals + read.inbox.size() >= engine::kSignalsMax)
    return active->done(std::unexpected(engine::signals_limit_error()));
  const engine::DecisionContext context = request_context();
  const auto applied = engine::apply_request(read.state, request, context);
  if (applied && !applied->events.empty()) {
    if (auto in_time = check_in_time(read, request, context.now); !in_time)
      return active->done(std::unexpected(in_time.error()));
  }
  // An entry that is applied first may change whether this request applies; a message is recorded
  // in any case.
  const bool first = read.inbox.empty() && !request.is<engine::TimersRequest>();
  if (first && applied && applied->events.empty()) return active->done(applied->answer);
  active->applies = applied && (first || request.is<engine::MessageRequest>());
  // It is applied later: this binds it to the try whose outcome its author has seen as unknown.
  auto* const resolve = std::get_if<engine::ResolveRequest>(&request.body);
  if (applied && resolve != nullptr) resolve->try_no = applied->try_no;
  store::InboxEntry entry{
      .number = 0, .id = engine::inbox_id(request), .request = {}, .sender = active->sender};
  active->entry = entry.id;
  active->behind_another = runtime::is_behind_another(read, request);
  reader_.cache_state(active->job, std::move(read));
  if (active->behind_another) return wait_for_reply(active);
  entry.request = canonical(
      engine::with_checksum(engine::inbox_location(active->job, entry.id), request.to_json()));
  world_.store.put_inbox(active->job, std::move(entry),
                         [this, alive = alive_.watch(), active](Result<void> put) {
                           if (!alive) return;
                           if (!put && put.error().code == Code::not_held)
                             return try_request(active);
                           if (!put) return active->done(std::unexpected(put.error()));
                           host_.on_inbox_written(active->job);
                           if (active->request.is<engine::TimersRequest>())
                             return active->done(Value::object({{"accepted", true}}));
                           active->behind_another = is_behind_another(*active);
                           wait_for_reply(active);
                         });
}

// Does another request of this process, with the same id, wait for the reply to this entry?
bool RequestSubmitter::is_behind_another(const ActiveRequest& active) const {
  const auto [first, last] = waiting_.equal_range(std::pair(active.job, active.entry));
  return std::any_of(first, last, [&](const auto& one) {
    return !one.second->behind_another &&
           demand_of(one.second->request) != demand_of(active.request);
  });
}

void RequestSubmitter::wait_for_reply(const std::shared_ptr<ActiveRequest>& active) {
  waiting_.emplace(std::pair(active->job, active->entry), active);
  active->waited = {};
  active->poll = kPollFirst;
  poll_later(active);
}

// The reply of a lease holder in this process arrives by on_reply, that of another one is read.
void RequestSubmitter::poll_later(const std::shared_ptr<ActiveRequest>& active) {
  active->timer = world_.loop.after(active->poll, [this, alive = alive_.watch(), active] {
    if (!alive) return;
    active->timer.reset();
    active->waited += active->poll;
    active->poll = std::min(2 * active->poll, kPollMax);
    world_.store.read_inbox_entry(active->job, active->entry,
                                  [this, alive, active](Result<store::InboxEntryState> state) {
                                    if (alive) on_polled(active, std::move(state));
                                  });
  });
}

void RequestSubmitter::on_polled(const std::shared_ptr<ActiveRequest>& active,
                                 Result<store::InboxEntryState> state) {
  if (!is_waiting(active)) return;  // answered meanwhile
  if (active->behind_another) {
    if (state && !state->pending) {
      stop_waiting(active);
      return try_request(active);
    }
    if (active->waited < kReplyWait) return poll_later(active);
    return finish(active, fail(Code::unavailable,
                               "another request with the same id is in the job's inbox; send this "
                               "one again once a worker runs the job, or with another id"));
  }
  if (!state) {
    return finish(
        active, fail(Code::unknown_outcome,
                     "the request is in the job's inbox, and whether it was applied is unknown: {}",
                     state.error().message));
  }
  if (state->reply) return finish(active, read_reply(*state->reply));
  if (state->pending && active->waited < kReplyWait) return poll_later(active);
  // No process runs the job now, or one of an earlier version: the request is applied later, or was
  // applied without a reply.
  if (active->request.is<engine::PlanRequest>()) {
    return finish(active, fail(Code::unknown_outcome,
                               "the plan is in the job's inbox, and the lease holder has not "
                               "checked it yet; the hash of the job's plan shows whether it was "
                               "replaced"));
  }
  if (!active->applies) {
    return finish(active, fail(Code::unknown_outcome,
                               "the request is in the job's inbox, and whether it applies is known "
                               "once a worker runs the job; send it again with the same id"));
  }
  finish(active, Value::object({{"accepted", true}}));
}

void RequestSubmitter::on_reply(const JobId& job, const std::string& id, const std::string& reply) {
  const auto [first, last] = waiting_.equal_range(std::pair(job, id));
  std::vector<std::shared_ptr<ActiveRequest>> answered;
  for (auto it = first; it != last; ++it) answered.push_back(it->second);
  for (const auto& active : answered) {
    if (!active->behind_another) {
      finish(active, read_reply(reply));
    } else {
      stop_waiting(active);
      try_request(active);
    }
  }
}

bool RequestSubmitter::is_waiting(const std::shared_ptr<ActiveRequest>& active) const {
  const auto [first, last] = waiting_.equal_range(std::pair(active->job, active->entry));
  return std::any_of(first, last, [&](const auto& one) { return one.second == active; });
}

void RequestSubmitter::stop_waiting(const std::shared_ptr<ActiveRequest>& active) {
  const auto [first, last] = waiting_.equal_range(std::pair(active->job, active->entry));
  waiting_.erase(std::find_if(first, last, [&](const auto& one) { return one.second == active; }));
  if (active->timer) world_.loop.cancel(*active->timer);
  active->timer.reset();
}

void RequestSubmitter::finish(const std::shared_ptr<ActiveRequest>& active, Result<Value> answer) {
  stop_waiting(active);
  active->done(std::move(answer));
}

// As this process would continue the job.
RequestSubmitter::Offered RequestSubmitter::offered(const engine::State& state) {
  return {.tools = tool_versions(state),
          .version = offered_version(world_, state, host_.version_of(state.agent)),
          .code = state.awaits_code() ? code_offers(world_, state) : engine::CodeOffers()};
}

// This process's versions of the plan's tools; "" = it does not offer the tool.
std::vector<std::string> RequestSubmitter::tool_versions(const engine::State& state) {
  std::vector<std::string> versions;
  if (!state.plan) return versions;
  for (const engine::ToolPolicy& tool : state.plan->tools) {
    const ToolRegistry::Entry* entry = world_.tool_registry.find(tool.name, tool.version);
    const bool has_version = entry != nullptr || tool.needs_no_transport();
    versions.push_back(!has_version ? "" : entry != nullptr ? entry->version : tool.version);
  }
  return versions;
}

engine::DecisionContext RequestSubmitter::request_context() {
  const Instant now = world_.store.now();
  return {.now = now,
          .lease_until = now,
          .owned = world_.store.owned(),
          .jitter_seed = world_.random.next()};
}

}  // namespace ae::runtime
