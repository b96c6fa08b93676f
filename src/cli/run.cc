#include "cli/run.h"

#include <csignal>
#include <utility>

#include "api/views.h"
#include "cli/commands.h"
#include "cli/phrases.h"
#include "core/counted.h"
#include "core/json.h"

namespace ae::cli {
namespace {

constexpr Duration kPollEvery = std::chrono::milliseconds(50);
constexpr Duration kLookFloor = std::chrono::seconds(1);
constexpr std::size_t kPageSize = 100;          // of jobs, as store::Filter has it
constexpr std::size_t kOlderNamed = 3;          // unfinished jobs, in the line that announces them
constexpr std::size_t kOlderColumns = 80;       // … of their names
constexpr std::size_t kProgressArguments = 60;  // columns, in a line of progress
constexpr Duration kLate = std::chrono::milliseconds(25);  // of a timer

std::string duration_text(Duration d) {
  const auto us = d.count();
  if (us < 10'000) return std::to_string(us / 1000) + "." + std::to_string(us / 100 % 10) + " ms";
  if (us < 10'000'000) return std::to_string(us / 1000) + " ms";
  return std::to_string(us / 1'000'000) + " s";
}

std::optional<Instant> next_timer(const engine::State& state) {
  std::optional<Instant> next;
  for (const auto& [key, wait] : state.waits) {
    if (wait.due_at && (!next || *wait.due_at < *next)) next = wait.due_at;
  }
  return next;
}

Error needs(const std::string& missing) {
  constexpr std::string_view kVersion = "execution_version:";
  if (missing.starts_with(kVersion)) {
    return {Code::execution_version_mismatch,
            "the job needs the execution version " + missing.substr(kVersion.size()) +
                ", which this process does not have; start a process that has it"};
  }
  return {Code::needs_version, "the job needs a worker with the capability \"" + missing +
                                   "\" (--capability " + missing + ")"};
}

}  // namespace

Run::Run(Terminal& terminal, Wishes wishes)
    : terminal_(terminal),
      wishes_(std::move(wishes)),
      notifier_(wishes_.notify, store_flag(wishes_.store), wishes_.descriptors) {}

int Run::see_through(const JobId& job) {
  job_ = job;
  net::AsioLoop& loop = site_->loop();
  loop.on_signals([this](int signal) { interrupted(signal); });
  if (terminal_.shows_progress()) {
    hears_ = site_->sayings().listen(job_, [this] { say_pieces(); });
  }
  if (!wishes_.only) say_older();
  // Ours first: it must not wait behind a crowd of recovered ones.
  site_->runtime().claim_job(job, [this](Result<bool>) {
    site_->runtime().start();
    look_soon();
  });
  while (!finished_) loop.run();
  if (timer_) loop.forget(*std::exchange(timer_, std::nullopt));
  if (!std::exchange(stopping_, true)) leave();
  hears_.reset();
  if (signal_ == 0) notifier_.finish();
  say_untold();
  return signal_;
}

// What was claimed while we looked the last time is given back.
void Run::leave() {
  bool stopped = false;
  site_->runtime().stop(wishes_.grace, [&] {
    stopped = true;
    site_->loop().stop();
  });
  while (!stopped && signal_ == 0) site_->loop().run();
}

void Run::finish() {
  finished_ = true;
  site_->loop().stop();
}

void Run::interrupted(int signal) {
  if (std::exchange(signal_, signal) != 0) return finish();  // the second time: now
  if (std::exchange(stopping_, true)) return finish();       // it was leaving already
  terminal_.note("Shutting down; waiting up to " + to_text(wishes_.grace) +
                 " for calls in flight (Ctrl-C again to force)");
  site_->runtime().stop(wishes_.grace, [this] { finish(); });
}

// ---------------------------------------------------------------- is there anything left to wait for?

void Run::look_soon() {
  if (std::exchange(soon_, true)) return;
  site_->loop().post([this] {
    soon_ = false;
    look();
  });
}

void Run::again(Duration wait) {
  if (timer_) site_->loop().forget(*timer_);
  timer_ = site_->loop().after(std::max(wait, Duration(0)), [this] {
    timer_.reset();
    look();
  });
}

void Run::look() {
  if (finished_ || stopping_ || job_.empty())
    return;  // what happens before we know our job is seen later
  if (site_->runtime().holds(job_)) return again(kLookFloor);  // it will be released
  if (looking_) {
    look_again_ = true;
    return;
  }
  looking_ = true;
  site_->runtime().read_state(job_, [this](Result<runtime::Runtime::Read> read) {
    looking_ = false;
    if (finished_ || stopping_) return;
    if (std::exchange(look_again_, false)) return look_soon();
    if (!read) {
      if (read.error().code == Code::unavailable) return again(kLookFloor);
      problem_ = read.error();
      return finish();
    }
    looked(*read);
  });
}

// One line: which jobs are run besides ours.
void Run::say_older() {
  struct Older {
    std::string names;
    std::size_t count = 0;
    bool answered = false, more = false;
  };
  const auto older = std::make_shared<Older>();
  for (const char* status : {"running", "queued"}) {
    store::Filter filter;
    filter.status = status;
    older->answered = false;
    site_->store().query(filter, [this, older](Result<std::vector<store::JobRow>> rows) {
      older->answered = true;
      site_->loop().stop();
      if (!rows) return;
      older->more = older->more || rows->size() >= kPageSize;
      for (const store::JobRow& row : *rows) {
        if (row.id == job_ || !is_ours(row) || ++older->count > kOlderNamed) continue;
        older->names += (older->names.empty() ? "" : ", ") + row.id.text;
      }
    });
    while (!older->answered && signal_ == 0) site_->loop().run();
    if (!older->answered) return;
  }
  const std::size_t count = older->count;
  if (count == 0) return;
  std::string names = cut(older->names, kOlderColumns);
  if (count > kOlderNamed || older->more) names += ", …";
  terminal_.note("resuming " + std::to_string(count) + (older->more ? " or more" : "") +
                 " unfinished " + noun_of(count, "job") + ": " + safe(names) +
                 (wishes_.offers_only ? "; use --only to skip" : ""));
}

// Does this process run the job as soon as it can?
bool Run::is_ours(const store::JobRow& row) const {
  const bool later = row.not_before && *row.not_before > site_->store().now();
  return !later && !cannot_.contains(row.id) && wishes_.agents.contains(row.agent) &&
         site_->runtime().missing(row).empty();
}

void Run::looked(const runtime::Runtime::Read& read) {
  const engine::State& state = read.state;
  if (engine::is_terminal(state.status)) return look_at_others();
  const Instant now = site_->store().now();
  if (engine::is_blocked(state.status)) {
    // The runtime fires what is due, also expiries and the deadline; we do only if nobody did.
    if (const auto due = state.next_due(); due && *due + kLate <= now) {
      site_->runtime().act(job_, {.kind = engine::Act::Kind::timers},
                           [this](Result<Value>) { again(kPollEvery); });
      return;
    }
    const auto timer =
        state.status == engine::JobStatus::waiting ? next_timer(state) : std::nullopt;
    if (!timer) return look_at_others();
    return again(std::min(*timer + kLate - now + std::chrono::milliseconds(1), kLookFloor));
  }
  if (cannot_.contains(job_)) return finish();
  if (const auto missing = site_->runtime().missing(read.row); !missing.empty()) {
    problem_ = needs(missing.front());
    return finish();
  }
  if (read.row.not_before && *read.row.not_before > now) {
    return again(std::min(*read.row.not_before - now + std::chrono::milliseconds(1), kLookFloor));
  }
  site_->runtime().claim_job(job_, [this](Result<bool> claimed) {
    if (!claimed || !*claimed) again(kPollEvery);
  });
}

// Our job rests. Do those that we recovered rest too?
void Run::look_at_others() {
  if (wishes_.only) return finish();
  if (site_->runtime().held() > 0 || saying_ > 0) return again(kLookFloor);
  struct Search {
    std::vector<std::string> statuses{"running", "queued"};
    std::string after;
    std::optional<std::uint64_t> after_number;
  };
  auto search = std::make_shared<Search>();
  auto step = std::make_shared<std::function<void()>>();
  looking_ = true;
  *step = [this, search, weak = std::weak_ptr(step)] {
    const auto self = weak.lock();
    if (search->statuses.empty()) {
      looking_ = false;
      if (!std::exchange(look_again_, false)) return finish();
      return look_soon();
    }
    store::Filter filter;
    filter.status = search->statuses.back();
    filter.after = search->after;
    filter.after_number = search->after_number;
    site_->store().query(filter, [this, search, self](Result<std::vector<store::JobRow>> rows) {
      if (finished_ || stopping_) return;
      if (!rows) {
        looking_ = false;
        return again(kLookFloor);
      }
      for (const store::JobRow& row : *rows) {
        if (!is_ours(row)) continue;
        looking_ = false;
        return again(kPollEvery);  // the runtime is about to claim it
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

// ---------------------------------------------------------------- what happens

void Run::on_events(const JobId& job, const std::vector<Event>& events) {
  notifier_.look_at(job, events);
  say_untold();
  if (job != job_ && !job_.empty()) {
    for (const Event& event : events) on_event_of_another(job, event);
    return;
  }
  if (terminal_.shows_progress() || wishes_.verbose) {
    for (const Event& event : events) tell(event);
  }
  if (site_ && !job_.empty() && !site_->runtime().holds(job_)) look_soon();
}

void Run::on_event_of_another(const JobId& job, const Event& event) {
  const std::string which = (handed_.contains(job) ? "job " : "recovered job ") + job.text;
  switch (event.type) {
    case EventType::job_created:
      handed_.insert(job);
      return;
    case EventType::job_running:
      blocked_.erase(job);
      if (recovered_.insert(job).second && (terminal_.shows_progress() || wishes_.verbose)) {
        terminal_.note(handed_.contains(job) ? "running job " + job.text + " for another command"
                                             : "recovering job " + job.text);
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
      const std::size_t unknown = event.payload["in_doubt"].size();
      terminal_.note(which + ": " + terminal_.err()(status_tint(how), how) +
                     (unknown == 0 ? ""
                                   : "; the outcome of " + counted(unknown, "call") +
                                         " is unknown (aetheris job " + job.text +
                                         store_flag(wishes_.store) + ")"));
      return;
    }
    default:
      return;
  }
}

void Run::say_untold() {
  for (const std::string& failure : notifier_.failures()) terminal_.warn(failure);
}

void Run::say_pieces() {
  auto told = std::exchange(told_, {});
  for (const auto& saying : site_->sayings().of(job_)) {
    const std::pair key{saying->invocation, saying->try_no};
    const std::size_t from = std::min(told[key], saying->text.size());
    const std::string text = safe(std::string_view(saying->text).substr(from), true);
    terminal_.say(
        {.who = saying->invocation.text + "/" + std::to_string(saying->try_no),
         .head = "  " + terminal_.err()(Tint::dim, "“") + " " + pad(safe(saying->node), 20) + " ",
         .text = text},
        false);
    told_[key] = saying->text.size();
  }
}

// One line, when somebody can answer it: a timer ends by itself.
void Run::say_rest(const JobId& job) {
  saying_++;
  site_->runtime().read(job, [this, job](Result<runtime::Runtime::Read> read) {
    saying_--;
    look_soon();
    if (!read || !engine::is_blocked(read->state.status)) return;
    const auto all = answers(api::job_body(*read, site_->store().now()), wishes_.store);
    if (all.empty()) return;
    const std::string status(engine::to_text(read->state.status));
    const bool more = all.size() > 1 || all[0].size() > 1;
    terminal_.note((handed_.contains(job) ? "job " : "recovered job ") + job.text + " is " +
                   terminal_.err()(status_tint(status), status) +
                   "; answer: " + terminal_.err()(Tint::bold, all[0][0]));
    if (more) {
      terminal_.note("more: aetheris job " + job.text + store_flag(wishes_.store));
    }
  });
}

void Run::on_released(const JobId& job, const std::optional<Error>& problem) {
  if (blocked_.erase(job) > 0) say_rest(job);
  if (problem) {
    const bool passing = problem->code == Code::unavailable ||
                         problem->code == Code::unknown_outcome ||
                         problem->code == Code::stale_attempt;
    if (passing) {
      terminal_.warn("job " + job.text + ": " + problem->message);
    } else {
      cannot_.insert(job);
      if (job == job_) problem_ = problem;
    }
  }
  look_soon();
}

void Run::on_store(const std::optional<Error>& out) {
  terminal_.warn(out ? "the store is unavailable; retrying: " + out->message
                     : std::string("the store is available again"));
}

void Run::on_warning(const JobId& job, const std::string& what) {
  terminal_.warn(job.empty() ? what : "job " + job.text + ": " + what);
}

void Run::on_store_stopped(const Error& error) {
  problem_ = error;
  stopping_ = true;  // there is nothing to leave in order: nothing can be written
  site_->loop().post([this] { finish(); });
}

void Run::step_line(Tint tint, const char* mark, const std::string& node, const std::string& what) {
  terminal_.note("  " + terminal_.err()(tint, mark) + " " +
                 (what.empty()
                      ? safe(node)
                      : pad(safe(node), 20) + " " + terminal_.err()(Tint::dim, safe(what))));
}

namespace {

std::string called_text(std::string_view tool, const Value& arguments) {
  if (tool.starts_with(kModelToolPrefix)) {
    return "model " + std::string(tool.substr(kModelToolPrefix.size()));
  }
  const std::string name(tool);
  return arguments.is_null() ? name : name + " " + cut(canonical(arguments), kProgressArguments);
}

}  // namespace

// What a part of a map or a loop calls.
void Run::tell_call(const Value& started) {
  calls_[std::string(started.text("step_id"))] =
      called_text(started.text("tool_name"), started["arguments"]);
}

Run::Place Run::place_of(const std::string& node, const std::string& step) const {
  const engine::State* const state = site_ ? site_->runtime().state_of(job_) : nullptr;
  Place place{.name = node};
  if (state == nullptr) return place;
  const auto known = state->by_id.find(StepId{step});
  if (known == state->by_id.end()) return place;
  const engine::Step& at = state->steps[known->second];
  if (!at.is_part()) return place;
  place.turn = at.turn != engine::kNoTurn;
  if (!place.turn) place.name += "[" + std::to_string(at.item) + "]";
  const auto call = calls_.find(step);
  place.part = (place.turn ? "turn " + std::to_string(at.turn + 1) + ": " : "") +
               (call != calls_.end() ? call->second : called_text(state->tool_of(at).name, {}));
  return place;
}

void Run::tell(const Event& event) {
  const Value& p = event.payload;
  const std::string node(p.text("node_id"));
  const std::string step(p.text("step_id"));
  switch (event.type) {
    case EventType::node_started:
      steps_.try_emplace(step, event.created_at);
      return;
    case EventType::node_finished: {
      const Place place = place_of(node, step);
      const std::string& part = place.part;
      const auto begun = steps_.find(step);
      const std::string took =
          begun == steps_.end() ? "" : duration_text(event.created_at - begun->second);
      if (p["error"].is_object()) {
        return step_line(Tint::bad, "✗", place.name,
                         (part.empty() ? "" : part + ": ") + std::string(p["error"].text("code")) +
                             ": " + first_line(p["error"].text("message")));
      }
      if (!part.empty() && !wishes_.verbose && !place.turn) return;
      if (p["skipped"] == Value(true)) return step_line(Tint::dim, "-", place.name, "skipped");
      const std::string done =
          took.empty() && part.empty() ? "done" : took;  // it began in an earlier process
      return step_line(Tint::good, "✓", place.name,
                       part + (part.empty() || done.empty() ? "" : ", ") + done);
    }
    case EventType::job_requeued:
      if (p.text("reason") != "settling") return;
      return terminal_.note(
          "  " + terminal_.err()(Tint::warn, "…") +
          " a call has an unknown outcome and can still take effect; the job continues at " +
          short_time_after(p.text("not_before")));
    case EventType::tool_invocation_started:
      return tell_call(p);
    case EventType::decision_recorded:
      if (p.text("kind") == "retry") {
        const Place place = place_of(node, step);
        step_line(Tint::warn, "↻", place.name,
                  (place.turn ? place.part + ": " : "") + "retrying after " +
                      first_line(p.text("reason")));
      }
      return;
    case EventType::wait_opened: {
      const Place place = place_of(node, step);
      const std::string of_turn = place.turn ? place.part + ": " : "";
      if (p.text("correlation_key").starts_with("resolve/")) {
        return step_line(Tint::bad, "?", place.name, of_turn + "outcome unknown");
      }
      std::string what = "waits for " + std::string(p.text("wait_type"));
      if (p.text("correlation_key").starts_with("approval/")) {
        what = "waits for approval of a call";
      } else if (p.text("wait_type") == "timer") {
        what += " until " + short_time(p.text("due_at"));
      } else {
        what += " " + std::string(p.text("correlation_key"));
      }
      return step_line(Tint::warn, "…", place.name, of_turn + what);
    }
    default:
      return;
  }
}

}  // namespace ae::cli
