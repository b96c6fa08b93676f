#include "runtime/request_submitter.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <utility>

#include "engine/heart/decide.h"
#include "engine/heart/side_record.h"
#include "json/json.h"
#include "log/seal.h"
#include "runtime/log.h"
#include "runtime/log_writer.h"
#include "runtime/open_questions.h"
#include "runtime/row.h"

namespace ae::runtime {
namespace {

// A plan in the inbox is checked for about ten seconds, with growing intervals, until the lease
// holder has applied or rejected it.
constexpr int kPlanChecks = 20;
// A request that loses this many races in a row fails with unavailable
constexpr int kRequestTries = 64;

// A request has one inbox entry, however often it is sent; requests about different subjects may
// use the same id.
std::string inbox_id(const engine::ControlRequest& request) {
  return to_hex(
      sha256(canonical(Value::object({{"about", request.correlation_key + request.approval},
                                      {"channel", request.channel},
                                      {"id", request.id},
                                      {"kind", static_cast<int>(request.kind)}}))));
}

// May these two requests concern the same wait or the same call? A request names its wait by its
// correlation key or by its approval id.
bool concern_same_wait(const engine::ControlRequest& before,
                       const engine::ControlRequest& request) {
  using Kind = engine::ControlRequest::Kind;
  const auto answers = [](const engine::ControlRequest& a) {
    return a.kind == Kind::signal || a.kind == Kind::resolve;
  };
  if (!answers(before) || !answers(request)) return false;
  const bool keys = !before.correlation_key.empty() && !request.correlation_key.empty();
  return !keys || before.correlation_key == request.correlation_key;
}

// Applies the requests that precede `new_request` in the inbox and that the lease holder has not applied
// yet: a pause, so that `resume` withdraws it; an answer to the same wait or a resolution of the
// same call, so that a second one is rejected. Returns true if the state is now ahead of the log.
bool apply_earlier_requests(engine::State& state, const std::vector<store::InboxEntry>& inbox,
                            const engine::ControlRequest& new_request,
                            const engine::DecisionContext& context,
                            const engine::PlanSource& plans) {
  using Kind = engine::ControlRequest::Kind;
  if (inbox.empty()) return false;
  bool ahead = false;
  const std::string own_id = inbox_id(new_request);
  for (const store::InboxEntry& entry : inbox) {
    auto json = parse_json(entry.request);
    auto request = json ? engine::ControlRequest::from_json(*json) : std::unexpected(json.error());
    if (!request) continue;
    // The same request, sent again, and everything after it. With another payload it is another
    // answer with the same id.
    if (entry.id == own_id && request->payload == new_request.payload &&
        request->arguments == new_request.arguments) {
      break;
    }
    const bool is_pause_or_resume = request->kind == Kind::pause || request->kind == Kind::resume;
    if (is_pause_or_resume || concern_same_wait(*request, new_request)) {
      auto applied = engine::apply_request(state, *request, context);
      for (const EventBody& draft : applied ? applied->events : std::vector<EventBody>()) {
        ahead = true;
        if (!engine::apply(state, draft, context.now, plans)) return true;
      }
    }
    if (entry.id == own_id) break;
  }
  return ahead;
}

// Messages of a channel, and answers to a wait or a call, apply in the order in which they were
// accepted. If a job was parked with its inbox, its earlier entries are applied before `new_request`.
// Appends their events to `events` and returns the numbers of their inbox entries.
Result<std::vector<std::uint64_t>> collect_earlier_requests(
    engine::State& state, const std::vector<store::InboxEntry>& inbox,
    const engine::ControlRequest& new_request, const engine::DecisionContext& context,
    const engine::PlanSource& plans, std::vector<EventBody>& events) {
  std::vector<std::uint64_t> numbers;
  const std::string own_id = inbox_id(new_request);
  for (const store::InboxEntry& entry : inbox) {
    const auto json =
        engine::read_side_record(engine::inbox_location(state.job, entry.id), entry.request);
    const auto request =
        json ? engine::ControlRequest::from_json(*json) : std::unexpected(json.error());
    const bool same_channel = request && request->kind == engine::ControlRequest::Kind::message &&
                              new_request.kind == request->kind &&
                              request->channel == new_request.channel;
    if (!same_channel && !(request && concern_same_wait(*request, new_request))) continue;
    auto applied = engine::apply_request(state, *request, context);
    if (!applied) continue;  // the job is ending: `apply_remaining_requests` handles this entry
    for (EventBody& draft : applied->events) {
      AE_TRY(engine::apply(state, draft, context.now, plans));
      events.push_back(std::move(draft));
    }
    numbers.push_back(entry.number);
    if (entry.id == own_id) break;  // the same request, sent again
  }
  return numbers;
}

// Applies the rest of the inbox that the job was parked with, as a lease holder does; ending the
// job in this commit would lose it. `numbers`: entries that are already in the log; the others are
// added.
Status apply_remaining_requests(const engine::State& state,
                                const std::vector<store::InboxEntry>& inbox,
                                const engine::DecisionContext& context,
                                std::vector<std::uint64_t>& numbers,
                                const std::function<Status(EventBody)>& follow) {
  for (const store::InboxEntry& entry : inbox) {
    if (std::ranges::find(numbers, entry.number) != numbers.end()) continue;
    AE_ASSIGN(const Value json,
              engine::read_side_record(engine::inbox_location(state.job, entry.id), entry.request));
    AE_ASSIGN(const engine::ControlRequest request, engine::ControlRequest::from_json(json));
    numbers.push_back(entry.number);
    if (request.kind == engine::ControlRequest::Kind::timers) continue;
    auto applied = engine::apply_request(state, request, context);
    auto drafts = applied ? std::move(applied->events) : std::vector<EventBody>();
    if (drafts.empty()) drafts = engine::expire_request(state, request);
    for (EventBody& draft : drafts) AE_TRY(follow(std::move(draft)));
  }
  return {};
}

// Importing a late result may be what kills the process: for a worn-out job, its next attempt does
// that. These requests do not depend on the outcome of a call.
bool skips_late_results(const engine::State& state, const engine::ControlRequest& request) {
  using Kind = engine::ControlRequest::Kind;
  switch (request.kind) {
    case Kind::pause:
    case Kind::resume:
    case Kind::cancel:
    case Kind::timers:
    case Kind::version:
      // After the job ended, a late result is only noted.
      return state.is_worn_out() && !engine::is_terminal(state.status);
    default:
      return false;
  }
}

}  // namespace

struct RequestSubmitter::ActiveRequest {
  JobId job;
  engine::ControlRequest request;
  async::Done<Result<Value>> done;
  bool must_notify = false;  // notify the lease holder, even if there is nothing to write
  int tries = 0;
  int checks = 0;  // checks whether it was applied
};

void RequestSubmitter::submit(JobId job, engine::ControlRequest request,
                              async::Done<Result<Value>> done) {
  if (canonical_exceeds(request.payload, kValueMax) ||
      (request.result && canonical_exceeds(*request.result, kValueMax))) {
    return world_.loop.post([done = std::move(done)]() mutable {
      done(fail(Code::payload_too_large,
                "a payload may have " + std::to_string(kValueMax >> 20) +
                    " MiB as canonical JSON; keep the rest elsewhere and send where it is"));
    });
  }
  if (request.id.empty()) request.id = new_uuid(world_);
  if (request.kind == engine::ControlRequest::Kind::resolve) {
    // The decision is based on a view no later than now, however long the request waits afterwards.
    const Instant now = world_.store.now();
    request.checked_at = std::min(now, request.checked_at.value_or(now));
  }
  try_request(std::make_shared<ActiveRequest>(ActiveRequest{
      .job = std::move(job), .request = std::move(request), .done = std::move(done)}));
}

void RequestSubmitter::submit_late_result(JobId job, async::Done<Result<Value>> done) {
  try_request(std::make_shared<ActiveRequest>(ActiveRequest{
      .job = std::move(job),
      .request = {.kind = engine::ControlRequest::Kind::timers, .id = new_uuid(world_)},
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
  const engine::DecisionContext context = request_context();
  const Instant now = context.now;
  // Late results are applied first: they are facts, whatever the request says.
  std::vector<EventBody> events;
  if (!read.row.claim && !skips_late_results(read.state, active->request)) {
    auto imported = engine::import_stored_effects(read.state, stored_effects(read.effects));
    if (!imported) return active->done(std::unexpected(imported.error()));
    events = std::move(*imported);
    for (const EventBody& draft : events) {
      Status applied = engine::apply(read.state, draft, now, plans_.source());
      if (!applied) return active->done(std::unexpected(applied.error()));
    }
  }
  std::vector<std::uint64_t> numbers;
  if (!read.row.claim) {
    auto earlier = collect_earlier_requests(read.state, read.inbox, active->request, context,
                                            plans_.source(), events);
    if (!earlier) return active->done(std::unexpected(earlier.error()));
    numbers = *std::move(earlier);
  }
  // With a lease holder, earlier inbox entries are only simulated and the state is then ahead of
  // the log. Without one, a job that was parked with its inbox applies the rest of it when it is
  // claimed.
  const bool as_logged =
      !read.row.claim ||
      !apply_earlier_requests(read.state, read.inbox, active->request, context, plans_.source());
  const std::vector<std::string> offered = tool_versions(read.state);
  // The request is applied as this process would continue the job
  engine::DecisionContext offering = context;
  offering.tool_versions = &offered;
  offering.execution_version = &host_.version_of(read.state.agent);
  auto applied = engine::apply_request(read.state, active->request, offering);
  const bool accepted_before =
      std::ranges::count(read.inbox, inbox_id(active->request), &store::InboxEntry::id) > 0;
  if (applied && !applied->events.empty() && !accepted_before) {
    if (auto in_time = engine::check_not_expired(read.state, active->request, now); !in_time) {
      applied = std::unexpected(in_time.error());
    }
  }
  const Result<Value> answer =
      applied ? Result<Value>(applied->answer) : std::unexpected(applied.error());
  const bool must_notify = active->must_notify && read.row.claim;
  if (events.empty() && (!applied || applied->events.empty()) && !must_notify) {
    if (as_logged) reader_.cache_state(active->job, std::move(read));
    return active->done(answer);
  }

  const bool counts = active->request.kind == engine::ControlRequest::Kind::signal ||
                      active->request.kind == engine::ControlRequest::Kind::message;
  const std::uint64_t accepted = read.state.signals + read.inbox.size() - numbers.size();
  if (counts && accepted >= engine::kSignalsMax) {
    return active->done(fail(Code::signals_limit, "the job has accepted " +
                                                      std::to_string(engine::kSignalsMax) +
                                                      " signals, the most that one job may have"));
  }
  if (read.row.claim) {
    // The lease holder fires its timers, after the entries of the inbox.
    if (active->request.kind == engine::ControlRequest::Kind::timers && !must_notify) {
      return active->done(Value::object({{"fired", 0}}));
    }
    if (as_logged) reader_.cache_state(active->job, std::move(read));
    return post_to_inbox(active, applied ? *applied : engine::AppliedRequest{});
  }

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
  if (read.state.ending) {
    if (auto followed = apply_remaining_requests(read.state, read.inbox, context, numbers, follow);
        !followed) {
      return active->done(std::unexpected(followed.error()));
    }
  }
  // If nothing is in flight, a job that is ending ends in this commit.
  while (read.state.ending && !engine::is_terminal(read.state.status)) {
    engine::Decision decision = engine::decide(read.state, context);
    if (decision.events.empty()) break;
    for (EventBody& draft : decision.events) {
      const Status followed = follow(std::move(draft));
      AE_CHECK(followed, followed.error().message);
    }
  }
  LogWriter writer(world_, active->job, {read.row.last_seq, read.row.head}, now, std::nullopt);
  store::Batch batch;
  auto sealed_events = writer.append(std::move(events), row_of(read.state), batch);
  if (!sealed_events) return active->done(std::unexpected(sealed_events.error()));
  batch.authority = store::Batch::Unleased{};
  batch.effects_absent = std::move(decided);
  batch.inbox_consumed = std::move(numbers);
  sign_head(world_, writer.end(), now, batch);
  read.row.head = writer.end().head;
  read.bytes += bytes_of(*batch.sealed);
  commit_until_known(world_, alive_.watch(), std::make_shared<store::Batch>(std::move(batch)),
                     [this, active, sealed_events = *std::move(sealed_events), answer, as_logged,
                      read = std::move(read)](Result<store::CommitResult> result) mutable {
                       if (!result) {
                         const Code code = result.error().code;
                         if (code == Code::held || code == Code::sequence_conflict)
                           return try_request(active);
                         return active->done(std::unexpected(result.error()));
                       }
                       host_.on_committed_events(active->job, sealed_events);
                       if (read.state.ending) {
                         for (const OpenQuestion& question : open_questions_of(read.state)) {
                           abandon_question(world_.tool_registry, question);
                         }
                       }
                       const bool may_claim =
                           host_.may_claim(read.row.agent, read.row.capabilities);
                       if (as_logged) reader_.cache_state(active->job, std::move(read));
                       active->done(answer);
                       if (may_claim) host_.on_claimable();
                     });
}

// Writes the request to the inbox of the lease holder.
void RequestSubmitter::post_to_inbox(std::shared_ptr<ActiveRequest> active,
                                     const engine::AppliedRequest& applied) {
  // The request is applied later: it binds the resolution to the try it was checked against.
  active->request.try_no = applied.try_no;
  Value answer = Value::object({{"accepted", true}});
  if (applied.answer.find("buffered")) answer = applied.answer;
  if (const Value* why = applied.answer.find("reason")) {  // an approval that is not used
    answer = answer.with("applied", false).with("reason", *why);
  }
  store::InboxEntry entry{.number = 0, .id = inbox_id(active->request), .request = {}};
  entry.request = canonical(engine::with_checksum(engine::inbox_location(active->job, entry.id),
                                                  active->request.to_json()));
  world_.store.put_inbox(active->job, std::move(entry),
                         [this, active, answer](Result<void> put) mutable {
                           if (!put && put.error().code == Code::not_held)
                             return try_request(active);
                           if (!put) return active->done(std::unexpected(put.error()));
                           host_.on_inbox_written(active->job);
                           if (active->request.kind == engine::ControlRequest::Kind::timers)
                             return active->done(std::move(answer));
                           recheck_accepted(active, std::move(answer));
                         });
}

// The lease holder may have closed the request's subject between the read and the write to the
// inbox. A commit that closes it after that reads the inbox first, so one more check is enough: the
// request can still be applied, or it has been, or the job shows what came before it.
void RequestSubmitter::recheck_accepted(std::shared_ptr<ActiveRequest> active, Value answer) {
  reader_.read_newest(
      active->job, [this, active, answer = std::move(answer)](Result<JobSnapshot> read) mutable {
        if (!read) {
          return active->done(
              fail(Code::unknown_outcome,
                   "the request is in the job's inbox, and whether it was in time is unknown: " +
                       read.error().message));
        }
        engine::State& state = read->state;
        const bool is_applied = engine::is_handled(state, active->request);
        const bool plan = active->request.kind == engine::ControlRequest::Kind::plan;
        const bool is_pending = plan && std::ranges::count(read->inbox, inbox_id(active->request),
                                                           &store::InboxEntry::id) > 0;
        const engine::DecisionContext context = request_context();
        const bool as_logged =
            !apply_earlier_requests(state, read->inbox, active->request, context, plans_.source());
        auto applied = engine::apply_request(state, active->request, context);
        // An early answer that its wait turns out not to accept is kept and finally listed as
        // undelivered.
        const bool is_buffered = !applied && answer.find("buffered") &&
                                 !engine::expire_request(state, active->request).empty();
        if (as_logged) reader_.cache_state(active->job, std::move(*read));
        if (is_applied || is_buffered) return active->done(std::move(answer));
        if (is_pending) return wait_for_plan(active, std::move(answer));
        if (applied && plan && !applied->events.empty()) {
          applied = fail(Code::call_pending,
                         "the plan was rejected because a call was running when the lease holder "
                         "checked it; try again, or pause the job first");
        }
        if (!applied) return active->done(std::unexpected(applied.error()));
        active->done(applied->events.empty() ? std::move(applied->answer) : std::move(answer));
      });
}

// A plan is rejected while a call is in flight, which only the lease holder knows.
void RequestSubmitter::wait_for_plan(std::shared_ptr<ActiveRequest> active, Value answer) {
  if (++active->checks > kPlanChecks) {
    return active->done(fail(Code::unknown_outcome,
                             "the plan is in the job's inbox, and the lease holder has not checked "
                             "it yet; the hash of the job's plan shows whether it was replaced"));
  }
  world_.loop.after(std::chrono::milliseconds(10 << std::min(active->checks, 6)),
                    [this, alive = alive_.watch(), active, answer = std::move(answer)]() mutable {
                      if (alive) recheck_accepted(active, std::move(answer));
                    });
}

// This process's versions of the plan's tools; "" = it does not offer the tool.
std::vector<std::string> RequestSubmitter::tool_versions(const engine::State& state) {
  std::vector<std::string> versions;
  if (!state.plan) return versions;
  for (const engine::ToolPolicy& tool : state.plan->tools) {
    const ToolRegistry::Entry* entry = world_.tool_registry.find(tool.name, tool.version);
    versions.push_back(entry ? entry->version : "");
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
