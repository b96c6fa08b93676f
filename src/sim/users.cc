// Users: send requests, wait for answers, retry.
#include "sim/users.h"

#include <fmt/core.h>

#include "json/json.h"
#include "log/field_names.h"
#include "store/rules.h"

namespace ae::sim {

using namespace std::chrono_literals;

struct Users::PendingRequest {
  JobId job;
  engine::ControlRequest request;
  int tries = 0;
  std::uint64_t attempts = 0;  // number of the newest send
  bool finished = false;
  std::string name;
  std::function<void()> then;
};

struct Users::PendingCreate {
  runtime::NewJobRequest request;
  std::uint64_t attempts = 0;
  bool finished = false;
};

struct Users::PendingFork {
  runtime::ForkRequest request;
  int tries = 0;
  std::uint64_t attempts = 0;
  bool finished = false;
  std::function<void(std::vector<Value>)> then;
};

std::optional<std::size_t> Users::pick_live_worker() {
  const std::size_t first = world_.random().below(world_.workers());
  for (std::size_t i = 0; i < world_.workers(); ++i) {
    const std::size_t worker = (first + i) % world_.workers();
    if (world_.is_alive(worker)) return worker;
  }
  return std::nullopt;
}

void Users::create(runtime::NewJobRequest request) {
  requested_jobs_++;
  busy_++;
  auto pending = std::make_shared<PendingCreate>();
  pending->request = std::move(request);
  send_create(pending);
}

void Users::send_create(const std::shared_ptr<PendingCreate>& pending) {
  if (pending->finished) return;
  const std::uint64_t question = ++pending->attempts;
  if (auto worker = pick_live_worker()) {
    world_.create(
        *worker, pending->request, [this, pending](Result<runtime::CreateResult> created) {
          if (pending->finished) return;
          const bool exists = created || created.error().code == Code::already_exists;
          if (!exists) return;  // retried below
          if (created && created->job != pending->request.job) {
            world_.report().violate("D3 one idempotency key creates one job", pending->request.job,
                                    fmt::format("the answer was job {}", created->job.text));
          }
          pending->finished = true;
          busy_--;
          created_.push_back(pending->request.job);
        });
  }
  world_.loop().after(world_.random().between(2s, 6s), [this, pending, question] {
    if (pending->attempts == question) send_create(pending);
  });
}

void Users::fork(runtime::ForkRequest request, int tries,
                 std::function<void(std::vector<Value>)> then) {
  const auto observed = world_.observer().jobs().find(request.origin);
  const std::uint64_t events =
      observed == world_.observer().jobs().end() ? 0 : observed->second.events;
  forks_.emplace(request.job, RequestedFork{request, events});
  busy_++;
  send_fork(std::make_shared<PendingFork>(
      PendingFork{std::move(request), tries, 0, false, std::move(then)}));
}

void Users::send_fork(const std::shared_ptr<PendingFork>& pending) {
  if (pending->finished) return;
  if (pending->tries-- <= 0) {
    pending->finished = true;
    busy_--;
    return;
  }
  const std::uint64_t question = ++pending->attempts;
  if (auto worker = pick_live_worker()) {
    world_.fork(*worker, pending->request, [this, pending](Result<runtime::ForkResult> answer) {
      on_fork_answered(pending, std::move(answer));
    });
  }
  world_.loop().after(world_.random().between(2s, 6s), [this, pending, question] {
    if (pending->attempts == question) send_fork(pending);
  });
}

void Users::on_fork_answered(const std::shared_ptr<PendingFork>& pending,
                             Result<runtime::ForkResult> answer) {
  if (pending->finished) return;
  const Code code = answer ? Code{} : answer.error().code;
  const bool made = answer ? answer->repeated.empty() : code == Code::already_exists;
  const bool never = code == Code::input_invalid;  // no such event, or the job has not failed
  if (!answer && !made && !never) return;          // retried
  pending->finished = true;
  busy_--;
  if (made) {
    forked_.push_back(pending->request.job);
    const std::string& origin = world_.observer().jobs().at(pending->request.origin).status;
    const bool finished = store::has_ended(origin);
    world_.report().mark(finished ? "fork.origin_ended" : "fork.origin_running");
  }
  world_.log_line(
      fmt::format("  fork {}{}", pending->request.job.text, made ? ": made" : ": refused"));
  world_.report().mark(made ? "fork.made" : never ? "fork.impossible" : "fork.without_consent");
  if (!never && pending->then) {
    pending->then(answer ? std::move(answer->repeated) : std::vector<Value>());
  }
}

void Users::record_request(const JobId& job, const engine::ControlRequest& request) {
  requested_[job].try_emplace(request.id, SentRequest{request, world_.loop().now(), {}});
}

void Users::submit(const JobId& job, engine::ControlRequest request, int tries,
                   std::function<void()> then) {
  if (request.id.empty()) request.id = fmt::format("act-{}", ++last_id_);
  std::string name = request.id;
  if (!in_progress_.emplace(job, name).second) return;
  record_request(job, request);
  busy_++;
  send_request(std::make_shared<PendingRequest>(
      PendingRequest{job, std::move(request), tries, 0, false, std::move(name), std::move(then)}));
}

void Users::send_request(const std::shared_ptr<PendingRequest>& pending) {
  if (pending->finished) return;
  if (pending->tries-- <= 0) return finish_request(pending);
  const std::uint64_t attempt_no = ++pending->attempts;
  if (auto worker = pick_live_worker()) {
    world_.submit(*worker, pending->job, pending->request, [this, pending](Result<Value> answer) {
      on_answered(pending, std::move(answer));
    });
  }
  world_.loop().after(world_.random().between(3s, 6s), [this, pending, attempt_no] {
    if (pending->attempts == attempt_no) send_request(pending);
  });
}

void Users::finish_request(const std::shared_ptr<PendingRequest>& pending) {
  if (std::exchange(pending->finished, true)) return;
  busy_--;
  in_progress_.erase({pending->job, pending->name});
  if (pending->then) pending->then();
}

void Users::on_answered(const std::shared_ptr<PendingRequest>& pending, Result<Value> answer) {
  if (answer) {  // also a late answer: it is an acknowledgement
    world_.log_line(fmt::format("  {}: {} → {}", pending->job.text,
                                canonical(pending->request.to_json()), canonical(*answer)));
    acks_.push_back({pending->job, pending->request, *answer});
    SentRequest& requested = requested_[pending->job].at(pending->request.id);
    if (!requested.acked) requested.acked = world_.loop().now();
    world_.report().mark("user.acknowledged");
    if ((*answer)["duplicate"].is_bool()) world_.report().mark("user.duplicate");
    if ((*answer)["accepted"].is_bool()) world_.report().mark("user.accepted_in_inbox");
    return finish_request(pending);
  }
  switch (answer.error().code) {
    case Code::job_terminal:
    case Code::not_in_doubt:
    case Code::input_invalid:
    case Code::not_paused:
      return finish_request(pending);
    case Code::plan_invalid:
      world_.report().mark("plan.invalid");
      return finish_request(pending);
    case Code::call_pending:
      world_.report().mark("plan.too_early");
      return;  // retried
    case Code::not_settled:
      world_.report().mark("user.not_settled");
      return finish_request(pending);  // a later review tries again
    case Code::wait_mismatch:
    case Code::not_found:  // no such approval yet, or the job does not exist yet
      world_.report().mark("user.too_early");
      return;  // too early: retried
    default:
      return;
  }
}

// There is no declared call: the request of the compensation could not be computed. The user
// resolves it manually, as done or as failed; "not_happened" (try again) changes nothing.
void Users::resolve_undeclared(const JobId& job, std::string id, engine::ResolveRequest resolve) {
  const std::uint64_t draw = user_model_.resolves_by_hand ? world_.random().below(3) : 0;
  resolve.resolution = draw == 0 ? "fail" : draw == 1 ? "happened" : "not_happened";
  world_.report().mark("user.manual_undo_" + resolve.resolution);
  submit_resolution(job, std::move(id), std::move(resolve));
}

// Decides from what the user knows now.
void Users::submit_resolution(const JobId& job, std::string id, engine::ResolveRequest resolve) {
  submit(job,
         {.id = std::move(id),
          .by = "someone",
          .checked_at = world_.clock().now(),
          .body = std::move(resolve)},
         1);
}

void Users::resolve(const JobId& job, const std::string& key) {
  engine::ResolveRequest request{.idempotency_key = key};
  std::string id = fmt::format("resolve-{}-{}", key.substr(0, 12), ++last_id_);
  if (!world_.observer().was_declared(key))
    return resolve_undeclared(job, std::move(id), std::move(request));
  const KeyRecord* record = world_.external_world().find(key);
  if (world_.random().one_in(user_model_.resolve_fail_one_in)) {
    request.resolution = "fail";
  } else if (record && record->effects > 0) {
    request.resolution = "happened";
    request.result = record->result;
  } else if (!user_model_.impatient && record && record->in_transit > 0) {
    return;  // it may still arrive: a later review resolves it
  } else {
    request.resolution = "not_happened";
  }
  world_.report().mark("user.resolve_" + request.resolution);
  submit_resolution(job, std::move(id), std::move(request));
}

// Approves or rejects, by the approval's id or by the wait's key, and sometimes sends it twice.
void Users::answer(const JobId& job, const std::string& key, const OpenWait& wait,
                   const ReviewOptions& options) {
  if (!world_.random().one_in(options.answer_one_in)) return;
  std::string decision(options.decision);
  if (decision.empty()) decision = world_.random().one_in(3) ? "reject" : "approve";
  const engine::ApproveRequest approve{
      .approval_id = wait.approval, .decision = decision, .note = key};
  engine::SignalRequest signal{.correlation_key = key, .payload = approve.payload()};
  // Half of the forms are accepted with their defaults, always the same ones, so that a retry sends
  // the same.
  const auto digit = static_cast<unsigned char>(key.back()) + static_cast<unsigned char>(key[6]);
  if (wait.question && decision == "approve" && options.decision.empty() && digit % 2 == 0) {
    signal.payload = signal.payload.with("content", Value::object({{"n", 1 + digit % 9}}));
  }
  engine::ControlRequest request{.id = fmt::format("{}-{}-by-key", decision, key),
                                 .by = "operator",
                                 .body = std::move(signal)};
  if (!wait.question && world_.random().one_in(2)) {
    request.id = fmt::format("{}-{}-by-id", decision, key);
    request.body = approve;
  }
  world_.report().mark("user." + decision);
  submit(job, std::move(request), 2);
}

// Answers a verification mismatch, or resumes the job to repeat an unreachable check.
void Users::confirm(const JobId& job, const ObservedJob& observed, const ReviewOptions& options) {
  const std::string nth = std::to_string(++last_id_);
  if (observed.parked == "verifier_unreachable" && options.confirm.empty() &&
      world_.random().one_in(2)) {
    world_.report().mark("user.verify_again");
    return submit(
        job,
        {.id = "look-again-" + nth, .by = "look-again-" + nth, .body = engine::ResumeRequest{}}, 2);
  }
  for (const std::string& step : observed.open_mismatches) {
    if (!world_.random().one_in(options.confirm_one_in)) continue;
    std::string decision(options.confirm);
    if (decision.empty()) decision = world_.random().one_in(4) ? "fail" : "accept";
    world_.report().mark("user.change_" + decision);
    const std::string id = fmt::format("{}-{}-{}", decision, step, nth);
    engine::RequestBody body = engine::ResolveRequest{.step_id = step, .resolution = decision};
    if (world_.random().one_in(3)) {
      const std::string_view answer = decision == "accept" ? "approve" : "reject";
      body = engine::ApproveRequest{.approval_id = step, .decision = std::string(answer)};
    }
    submit(job, {.id = id, .by = id, .body = std::move(body)}, 2);
  }
}

// Raises the budget: by too little, enough for a while, or, when the world must end, practically
// without limit.
void Users::raise(const JobId& job, const ObservedJob& observed, const ReviewOptions& options) {
  if (options.raise_one_in == 0 || !world_.random().one_in(options.raise_one_in)) return;
  std::vector<Member> limits;
  for (const auto& [name, most] : observed.budget.members()) {
    if (name == "wall") {
      limits.emplace_back(
          name, options.waits ? "10000h" : fmt::format("{}s", world_.random().below(60) + 1));
    } else if (most.is_integer() && name != "soft") {
      const std::uint64_t some = world_.random().below(name == "tokens" ? 9'000 : 9) + 1;
      limits.emplace_back(name, options.waits ? 1'000'000'000 : some);
    }
  }
  const auto raised = engine::limits_of(Value::object(std::move(limits)));
  AE_CHECK(raised.has_value(), job.text);
  const std::string id = fmt::format("raise-{}", ++last_id_);
  world_.report().mark("user.raise");
  submit(job, {.id = id, .by = id, .body = engine::BudgetRequest{.limits = *raised}}, 2);
}

void Users::review_open_requests(const ReviewOptions& options) {
  for (const auto& [job, observed] : world_.observer().jobs()) {
    if (observed.parked == "budget_exceeded") raise(job, observed, options);
    if (observed.parked == "worn_out") {  // its process died: resume it once more
      const std::string id = fmt::format("one-more-try-{}", ++last_id_);
      submit(job, {.id = id, .by = id, .body = engine::ResumeRequest{}}, 1);
    } else if (options.waits && observed.paused) {
      submit(job, {.id = "late-resume", .by = "late-resume", .body = engine::ResumeRequest{}}, 1);
    }
    if (!observed.open_mismatches.empty()) {
      confirm(job, observed, options);
    } else if (observed.parked ==
               "verifier_unreachable") {  // all mismatches are answered: the job must check again
      const std::string id = fmt::format("look-again-{}", ++last_id_);
      submit(job, {.id = id, .by = id, .body = engine::ResumeRequest{}}, 2);
    }
    for (const auto& [key, wait] : observed.open_waits) {
      if (key.starts_with("resolve/")) {
        resolve(job, key.substr(8, 64));
      } else if (!wait.approval.empty()) {
        answer(job, key, wait, options);
      } else if (options.waits && wait.type == "message") {
        const std::string id = "late-" + key;
        submit(job,
               {.id = id,
                .by = "someone",
                .body = engine::MessageRequest{.channel = wait.channel,
                                               .payload = Value::object({{"message", id}})}},
               2);
      } else if (options.waits && (wait.type == "signal" || wait.type == "webhook")) {
        submit(job,
               {.id = "late-" + key,
                .by = "someone",
                .body = engine::SignalRequest{.correlation_key = key,
                                              .payload = Value::object({{field::late, true}})}},
               2);
      }
    }
  }
}

}  // namespace ae::sim
