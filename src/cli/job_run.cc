#include "cli/job_run.h"

#include <fmt/core.h>

#include <csignal>
#include <utility>

#include "api/views.h"
#include "base/counted.h"
#include "cli/phrases.h"
#include "cli/shared.h"
#include "json/json.h"
#include "log/decisions.h"

namespace ae::cli {
namespace {

constexpr Duration kPollEvery = std::chrono::milliseconds(50);
constexpr Duration kCheckEvery = std::chrono::seconds(1);
constexpr int kDueChecksMax = 100;              // while nothing happens
constexpr std::size_t kPageSize = 100;          // jobs per page of store::Filter
constexpr std::size_t kUnfinishedNamed = 3;     // jobs named when unfinished ones are announced
constexpr std::size_t kUnfinishedColumns = 80;  // … columns of their names
constexpr std::size_t kProgressArguments = 60;  // columns, in a progress line
constexpr Duration kTimerSlack = std::chrono::milliseconds(25);  // the delay of a timer

std::string duration_text(Duration d) {
  const auto us = d.count();
  if (us < 10'000) return fmt::format("{}.{} ms", us / 1000, us / 100 % 10);
  if (us < 10'000'000) return fmt::format("{} ms", us / 1000);
  return fmt::format("{} s", us / 1'000'000);
}

std::optional<Instant> next_timer(const engine::State& state) {
  std::optional<Instant> next;
  for (const auto& [key, wait] : state.waits) {
    if (wait.due_at && (!next || *wait.due_at < *next)) next = wait.due_at;
  }
  return next;
}

Error missing_capability_error(const std::string& missing_capabilities) {
  constexpr std::string_view kVersion = "execution_version:";
  if (missing_capabilities.starts_with(kVersion)) {
    return {Code::execution_version_mismatch,
            fmt::format("the job needs the execution version {}, which this process does not have; "
                        "start a process that has it",
                        missing_capabilities.substr(kVersion.size()))};
  }
  return {Code::needs_version,
          fmt::format("the job needs a worker with the capability \"{0}\" (--capability {0})",
                      missing_capabilities)};
}

}  // namespace

JobRun::JobRun(Terminal& terminal, Options run_options)
    : terminal_(terminal),
      options_(std::move(run_options)),
      notifier_(options_.notify, store_flag(options_.store), options_.descriptors) {}

int JobRun::run_until_idle(const JobId& job) {
  job_ = job;
  net::AsioLoop& loop = instance_->loop();
  loop.on_signals([this](int signal) { on_signal(signal); });
  if (terminal_.shows_progress()) {
    output_subscription_ =
        instance_->output_hub().subscribe(job_, [this] { print_partial_output(); });
  }
  if (!options_.only) print_resumed_jobs();
  // Our job first: it must not wait behind many recovered ones.
  instance_->runtime().claim_job(job, [this](Result<bool>) {
    instance_->runtime().start();
    schedule_check();
  });
  while (!finished_) loop.run();
  if (timer_) loop.cancel(*std::exchange(timer_, std::nullopt));
  if (!std::exchange(stopping_, true)) stop_runtime();
  output_subscription_.reset();
  if (signal_ == 0) notifier_.finish();
  print_notify_failures();
  return signal_;
}

// Jobs claimed since the last check are released.
void JobRun::stop_runtime() {
  bool stopped = false;
  instance_->runtime().stop(options_.grace, [&] {
    stopped = true;
    instance_->loop().stop();
  });
  while (!stopped && signal_ == 0) instance_->loop().run();
}

void JobRun::fail(Error problem) {
  if (!problem_) problem_ = std::move(problem);
  if (!job_.empty() && !finished_) finish();
}

void JobRun::finish() {
  finished_ = true;
  instance_->loop().stop();
}

// The calls of this process's job that have not ended, for a message.
std::string JobRun::calls_in_flight() const {
  constexpr std::size_t kNamesMax = 3;
  const engine::State* const state = instance_->runtime().state_of(job_);
  if (state == nullptr || state->calling.empty()) return "calls in flight";
  std::string names;
  std::size_t count = 0;
  for (const std::uint32_t index : state->calling) {
    if (count++ == kNamesMax) break;
    names += (names.empty() ? "" : ", ") + safe(state->node_of(state->steps[index]).id);
  }
  const std::size_t more = state->calling.size() - std::min(state->calling.size(), kNamesMax);
  if (more > 0) names += fmt::format(" and {} more", more);
  return fmt::format("the {} in flight: {}", noun_of(state->calling.size(), "call"), names);
}

void JobRun::on_signal(int signal) {
  if (std::exchange(signal_, signal) != 0) return finish();  // second signal: exit now
  if (std::exchange(stopping_, true)) return finish();       // already shutting down
  terminal_.note(fmt::format("Shutting down; waiting up to {} for {} (Ctrl-C again to force)",
                             to_text(options_.grace), calls_in_flight()));
  instance_->runtime().stop(options_.grace, [this] { finish(); });
}

// ---------------------------------------------------------------- is anything unfinished?

void JobRun::schedule_check() {
  if (std::exchange(is_check_scheduled_, true)) return;
  instance_->loop().post([this] {
    is_check_scheduled_ = false;
    check_job();
  });
}

void JobRun::check_again_after(Duration wait) {
  if (timer_) instance_->loop().cancel(*timer_);
  timer_ = instance_->loop().after(std::max(wait, Duration(0)), [this] {
    timer_.reset();
    check_job();
  });
}

void JobRun::check_job() {
  if (finished_ || stopping_ || job_.empty()) return;  // earlier events are read later
  if (instance_->runtime().is_leased(job_))
    return check_again_after(kCheckEvery);  // it will be released
  if (is_checking_) {
    check_again_ = true;
    return;
  }
  is_checking_ = true;
  instance_->runtime().read_state(job_, [this](Result<runtime::Runtime::JobSnapshot> read) {
    is_checking_ = false;
    if (finished_ || stopping_) return;
    if (std::exchange(check_again_, false)) return schedule_check();
    if (!read) {
      if (read.error().code == Code::unavailable) return check_again_after(kCheckEvery);
      problem_ = read.error();
      return finish();
    }
    on_job_read(*read);
  });
}

// Prints one line with the other jobs that run.
void JobRun::print_resumed_jobs() {
  struct UnfinishedJobs {
    std::string names;
    std::size_t count = 0;
    bool answered = false, more = false;
  };
  const auto unfinished = std::make_shared<UnfinishedJobs>();
  for (const char* status : {"running", "queued"}) {
    store::Filter filter;
    filter.statuses = {status};
    unfinished->answered = false;
    instance_->store().query(filter, [this, unfinished](Result<std::vector<store::JobRow>> rows) {
      unfinished->answered = true;
      instance_->loop().stop();
      if (!rows) return;
      unfinished->more = unfinished->more || rows->size() >= kPageSize;
      for (const store::JobRow& row : *rows) {
        if (row.id == job_ || created_here_.contains(row.id) || !is_ours(row)) continue;
        if (++unfinished->count > kUnfinishedNamed) continue;
        unfinished->names += (unfinished->names.empty() ? "" : ", ") + row.id.text;
      }
    });
    while (!unfinished->answered && signal_ == 0) instance_->loop().run();
    if (!unfinished->answered) return;
  }
  const std::size_t count = unfinished->count;
  if (count == 0) return;
  std::string names = cut(unfinished->names, kUnfinishedColumns);
  if (count > kUnfinishedNamed || unfinished->more) names += ", …";
  terminal_.note(fmt::format("resuming {}{} unfinished {}: {}{}", count,
                             unfinished->more ? " or more" : "", noun_of(count, "job"), safe(names),
                             options_.has_only_option ? "; use --only to skip" : ""));
}

// Will this process run the job?
bool JobRun::is_ours(const store::JobRow& row) const {
  const bool later = row.not_before && *row.not_before > instance_->store().now();
  return !later && !unrunnable_.contains(row.id) && options_.agents.contains(row.agent) &&
         instance_->runtime().missing_capabilities(row).empty();
}

void JobRun::on_job_read(const runtime::Runtime::JobSnapshot& read) {
  const engine::State& state = read.state;
  if (engine::is_terminal(state.status)) return check_other_jobs();
  const Instant now = instance_->store().now();
  if (engine::is_blocked(state.status)) {
    // The runtime fires due timers, expiries and the deadline; we do it only if that did not
    // happen.
    if (const auto due = state.next_due(); due && *due + kTimerSlack <= now) {
      instance_->runtime().submit_request(job_, {.body = engine::TimersRequest{}},
                                          [this](Result<Value>) { check_again_after(kPollEvery); });
      return;
    }
    const auto timer =
        state.status == engine::JobStatus::waiting ? next_timer(state) : std::nullopt;
    // Its children run here, too.
    if (!timer && state.open_children > 0 && instance_->runtime().leased_jobs() > 0) {
      return check_again_after(kPollEvery);
    }
    if (!timer) return check_other_jobs();
    return check_again_after(
        std::min(*timer + kTimerSlack - now + std::chrono::milliseconds(1), kCheckEvery));
  }
  if (unrunnable_.contains(job_)) return finish();
  if (const auto missing_capabilities = instance_->runtime().missing_capabilities(read.row);
      !missing_capabilities.empty()) {
    problem_ = missing_capability_error(missing_capabilities.front());
    return finish();
  }
  if (read.row.not_before && *read.row.not_before > now) {
    return check_again_after(
        std::min(*read.row.not_before - now + std::chrono::milliseconds(1), kCheckEvery));
  }
  instance_->runtime().claim_job(job_, [this](Result<bool> claimed) {
    if (!claimed || !*claimed) check_again_after(kPollEvery);
  });
}

// Our job is idle. Are the recovered ones idle, too?
void JobRun::check_other_jobs() {
  if (options_.only) return finish();
  if (instance_->runtime().leased_jobs() > 0 || blocked_reads_ > 0)
    return check_again_after(kCheckEvery);
  is_checking_ = true;
  // A job that is due has a message: from a child that has ended, for example.
  instance_->store().next_due([this](Result<std::optional<Instant>> due) {
    if (finished_ || stopping_) return;
    is_checking_ = false;
    if (!due) return check_again_after(kCheckEvery);
    if (*due && **due <= instance_->store().now() && due_checks_++ < kDueChecksMax) {
      return check_again_after(kPollEvery);
    }
    find_runnable_jobs();
  });
}

void JobRun::find_runnable_jobs() {
  struct Search {
    std::vector<std::string> statuses{"running", "queued"};
    std::string after;
    std::optional<std::uint64_t> after_number;
    std::uint64_t commits = 0;
  };
  auto search = std::make_shared<Search>();
  search->commits = commits_;
  auto step = std::make_shared<std::function<void()>>();
  is_checking_ = true;
  *step = [this, search, weak = std::weak_ptr(step)] {
    const auto self = weak.lock();
    if (search->statuses.empty()) {
      is_checking_ = false;
      const bool changed = search->commits != commits_;
      if (!std::exchange(check_again_, false) && !changed) return finish();
      return schedule_check();
    }
    store::Filter filter;
    filter.statuses = {search->statuses.back()};
    filter.after = search->after;
    filter.after_number = search->after_number;
    instance_->store().query(filter, [this, search, self](Result<std::vector<store::JobRow>> rows) {
      if (finished_ || stopping_) return;
      if (!rows) {
        is_checking_ = false;
        return check_again_after(kCheckEvery);
      }
      for (const store::JobRow& row : *rows) {
        if (!is_ours(row)) continue;
        is_checking_ = false;
        return check_again_after(kPollEvery);  // the runtime is about to claim it
      }
      if (rows->size() < kPageSize) {
        search->statuses.pop_back();
        search->after.clear();
        search->after_number.reset();
      } else {
        search->after = rows->back().id.text;
        search->after_number = rows->back().number;
      }
      (*self)();
    });
  };
  (*step)();
}

// ---------------------------------------------------------------- events

void JobRun::on_events(const JobId& job, const std::vector<Event>& events) {
  commits_++;
  due_checks_ = 0;
  notifier_.notify_open_questions(job, events);
  print_notify_failures();
  if (job != job_ && !job_.empty()) {
    for (const Event& event : events) on_event_of_another(job, event);
    return;
  }
  if (terminal_.shows_progress() || options_.verbose) {
    for (const Event& event : events) print_progress(event);
  }
  if (instance_ && !job_.empty() && !instance_->runtime().is_leased(job_)) schedule_check();
}

namespace {

// The number of calls whose outcome is unknown when the job ends.
std::size_t unknown_calls(const Event& end) {
  return std::visit(
      [](const auto& ended) -> std::size_t {
        if constexpr (requires { ended.in_doubt; }) return ended.in_doubt.json().size();
        return 0;
      },
      end.body);
}

}  // namespace

void JobRun::on_event_of_another(const JobId& job, const Event& event) {
  const std::string which =
      fmt::format("{} {}", created_here_.contains(job) ? "job" : "recovered job", job.text);
  switch (event.type) {
    case EventType::job_created:
      created_here_.insert(job);
      return;
    case EventType::job_running:
      blocked_.erase(job);
      if (recovered_.insert(job).second && (terminal_.shows_progress() || options_.verbose)) {
        terminal_.note(created_here_.contains(job)
                           ? fmt::format("running job {} for another command", job.text)
                           : fmt::format("recovering job {}", job.text));
      }
      return;
    case EventType::job_waiting:
    case EventType::job_parked:
      blocked_.insert(job);
      return;
    case EventType::job_completed:
    case EventType::job_failed:
    case EventType::job_cancelled: {
      const std::string how(event_name(event).substr(4));
      const std::size_t unknown = unknown_calls(event);
      const std::string doubt =
          unknown == 0
              ? ""
              : fmt::format("; the outcome of {} is unknown (aetheris job {}{})",
                            counted(unknown, "call"), job.text, store_flag(options_.store));
      terminal_.note(fmt::format("{}: {}{}", which, terminal_.err()(status_tint(how), how), doubt));
      return;
    }
    default:
      return;
  }
}

void JobRun::print_notify_failures() {
  for (const std::string& failure : notifier_.failures()) terminal_.warn(failure);
}

void JobRun::print_partial_output() {
  auto printed = std::exchange(printed_, {});
  for (const auto& output : instance_->output_hub().outputs_of(job_)) {
    const std::pair key{output->invocation, output->try_no};
    const std::size_t from = std::min(printed[key], output->text.size());
    const std::string text = safe(std::string_view(output->text).substr(from), true);
    terminal_.print_stream(
        {.stream_name = fmt::format("{}/{}", output->invocation.text, output->try_no),
         .head =
             fmt::format("  {} {} ", terminal_.err()(Tint::dim, "“"), pad(safe(output->node), 20)),
         .text = text},
        false);
    printed_[key] = output->text.size();
  }
}

// Prints one line if an operator can unblock the job; a timer fires by itself.
void JobRun::print_blocked_job(const JobId& job) {
  blocked_reads_++;
  instance_->runtime().read(job, [this, job](Result<runtime::Runtime::JobSnapshot> read) {
    blocked_reads_--;
    schedule_check();
    if (!read || !engine::is_blocked(read->state.status)) return;
    // It waits for children only, which answer it.
    if (read->state.open_children > 0 && read->state.open_children == read->state.waits.size()) {
      return;
    }
    const auto all =
        answer_commands(api::job_body(*read, instance_->store().now()), options_.store);
    if (all.empty()) return;
    const std::string status(engine::to_text(read->state.status));
    const bool more = all.size() > 1 || all[0].size() > 1;
    terminal_.note(fmt::format(
        "{} {} is {}; answer: {}", created_here_.contains(job) ? "job" : "recovered job", job.text,
        terminal_.err()(status_tint(status), status), terminal_.err()(Tint::bold, all[0][0])));
    if (more) {
      terminal_.note(fmt::format("more: aetheris job {}{}", job.text, store_flag(options_.store)));
    }
  });
}

void JobRun::on_released(const JobId& job, const std::optional<Error>& problem) {
  if (blocked_.erase(job) > 0) print_blocked_job(job);
  if (problem) {
    const bool passing = problem->code == Code::unavailable ||
                         problem->code == Code::unknown_outcome ||
                         problem->code == Code::stale_attempt;
    if (passing) {
      terminal_.warn(fmt::format("job {}: {}", job.text, problem->message));
    } else {
      unrunnable_.insert(job);
      if (job == job_) problem_ = problem;
    }
  }
  schedule_check();
}

void JobRun::on_store_health(const std::optional<Error>& out) {
  terminal_.warn(out ? fmt::format("the store is unavailable; retrying: {}", out->message)
                     : "the store is available again");
}

void JobRun::on_warning(const JobId& job, const std::string& what) {
  terminal_.warn(job.empty() ? what : fmt::format("job {}: {}", job.text, what));
}

void JobRun::on_store_stopped(const Error& error) {
  problem_ = error;
  stopping_ = true;  // nothing can be written any more
  instance_->loop().post([this] { finish(); });
}

void JobRun::step_line(Tint tint, const char* mark, const std::string& node,
                       const std::string& what) {
  const std::string text = what.empty() ? safe(node)
                                        : fmt::format("{} {}", pad(safe(node), 20),
                                                      terminal_.err()(Tint::dim, safe(what)));
  terminal_.note(fmt::format("  {} {}", terminal_.err()(tint, mark), text));
}

namespace {

std::string called_text(std::string_view tool, const Value& arguments) {
  if (tool.starts_with(kModelToolPrefix)) {
    return fmt::format("model {}", tool.substr(kModelToolPrefix.size()));
  }
  if (arguments.is_null()) return std::string(tool);
  return fmt::format("{} {}", tool, cut(canonical(arguments), kProgressArguments));
}

}  // namespace

// Remembers what a part of a map or a loop calls.
void JobRun::record_call(const ToolInvocationStarted& started) {
  calls_[started.step_id.text] = called_text(started.tool_name, started.arguments.value);
}

JobRun::Place JobRun::place_of(const std::string& node, const std::string& step) const {
  const engine::State* const state = instance_ ? instance_->runtime().state_of(job_) : nullptr;
  Place place{.name = node};
  if (state == nullptr) return place;
  const engine::Step* const known = state->find_step(StepId{step});
  if (known == nullptr) return place;
  const engine::Step& at = *known;
  if (!at.is_part()) return place;
  place.turn = at.turn != engine::kNoTurn;
  place.request = at.request != nullptr;
  if (place.request) {
    place.name += fmt::format(" {}", at.request->position);
  } else if (!place.turn) {
    place.name += fmt::format("[{}]", at.item);
  }
  const auto call = calls_.find(step);
  place.part = call != calls_.end()  ? call->second
               : state->has_tool(at) ? called_text(state->tool_of(at).name, {})
                                     : std::string(engine::to_text(state->kind_of(at)));
  if (place.turn) place.part = fmt::format("turn {}: {}", at.turn + 1, place.part);
  return place;
}

void JobRun::print_finished(const Event& event) {
  const auto& finished = std::get<NodeFinished>(event.body);
  const Place place = place_of(finished.node_id, finished.step_id.text);
  const std::string& part = place.part;
  const auto begun = steps_.find(finished.step_id.text);
  const std::string took =
      begun == steps_.end() ? "" : duration_text(event.created_at - begun->second);
  if (finished.error) {
    const Value& message = finished.error->message.value;
    return step_line(Tint::bad, "✗", place.name,
                     fmt::format("{}{}{}: {}", part, part.empty() ? "" : ": ", finished.error->code,
                                 first_line(message.is_string() ? message.as_string() : "")));
  }
  if (!part.empty() && !options_.verbose && !place.turn && !place.request) return;
  if (finished.skipped == true) return step_line(Tint::dim, "-", place.name, "skipped");
  const std::string done =
      took.empty() && part.empty() ? "done" : took;  // it started in an earlier process
  step_line(Tint::good, "✓", place.name,
            fmt::format("{}{}{}", part, part.empty() || done.empty() ? "" : ", ", done));
}

void JobRun::print_wait(const WaitOpened& wait) {
  const Place place = place_of(wait.node_id, wait.step_id.text);
  const std::string of_turn = place.turn ? fmt::format("{}: ", place.part) : "";
  if (wait.correlation_key.starts_with("resolve/")) {
    return step_line(Tint::bad, "?", place.name, fmt::format("{}outcome unknown", of_turn));
  }
  const std::string what =
      wait.correlation_key.starts_with("approval/") ? "waits for approval of a call"
      : wait.wait_type == "job" ? fmt::format("waits for job {}", wait.correlation_key.substr(4))
      : wait.wait_type == "timer"
          ? fmt::format("waits for timer until {}",
                        short_time(wait.due_at ? to_text(*wait.due_at) : ""))
          : fmt::format("waits for {} {}", wait.wait_type, wait.correlation_key);
  step_line(Tint::warn, "…", place.name, of_turn + what);
}

void JobRun::print_progress(const Event& event) {
  switch (event.type) {
    case EventType::node_started:
      steps_.try_emplace(std::string(step_of(event)), event.created_at);
      return;
    case EventType::node_finished:
      return print_finished(event);
    case EventType::job_requeued: {
      const auto& requeued = std::get<JobRequeued>(event.body);
      if (requeued.reason != "settling") return;
      return terminal_.note(fmt::format(
          "  {} a call has an unknown outcome and can still take effect; the job continues at {}",
          terminal_.err()(Tint::warn, "…"),
          short_time_after(requeued.not_before ? to_text(*requeued.not_before) : "")));
    }
    case EventType::tool_invocation_started:
      return record_call(std::get<ToolInvocationStarted>(event.body));
    case EventType::decision_recorded: {
      const auto& decision = std::get<DecisionRecorded>(event.body);
      if (decision.kind != RetryScheduled::kKind) return;
      const Place place = place_of(std::string(node_of(event)), std::string(step_of(event)));
      return step_line(Tint::warn, "↻", place.name,
                       fmt::format("{}{}retrying after {}", place.turn ? place.part : "",
                                   place.turn ? ": " : "", first_line(or_empty(decision.reason))));
    }
    case EventType::wait_opened:
      return print_wait(std::get<WaitOpened>(event.body));
    default:
      return;
  }
}

}  // namespace ae::cli
