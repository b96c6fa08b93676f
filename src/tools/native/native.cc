#include "tools/native/native.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "json/json.h"

namespace ae::tools {
namespace {

constexpr std::size_t kMessageMax = 4096;  // bytes of a function's error message

using Key = std::pair<InvocationId, std::uint32_t>;

Outcome not_sent(std::string message) {
  Outcome outcome;
  outcome.kind = OutcomeKind::failure;
  outcome.definite = true;
  outcome.retryable = true;
  outcome.error_code = "not_sent";
  outcome.error_message = std::move(message);
  return outcome;
}

Outcome timed_out(std::string message) {
  Outcome outcome;
  outcome.kind = OutcomeKind::timeout;
  outcome.error_code = "timeout";
  outcome.error_message = std::move(message);
  return outcome;
}

Outcome unknown(std::string_view message, std::string_view code = "native_error") {
  Outcome outcome;
  outcome.kind = OutcomeKind::unknown;
  outcome.error_code = code;
  outcome.error_message = printable(message.substr(0, kMessageMax), LineBreaks::keep);
  return outcome;
}

Outcome failed(const NativeFailure& failure) {
  Outcome outcome;
  outcome.kind = failure.unknown ? OutcomeKind::unknown : OutcomeKind::failure;
  outcome.definite = !failure.unknown;
  outcome.retryable = failure.retryable;
  outcome.error_code = failure.code;
  outcome.error_message =
      printable(std::string_view(failure.message).substr(0, kMessageMax), LineBreaks::keep);
  return outcome;
}

// A lower bound of the canonical size, without writing it.
std::size_t size_at_least(const Value& value) {
  std::size_t size = 1;
  if (value.is_string()) size += value.as_string().size();
  if (value.is_array()) {
    for (const Value& item : value.items()) size += size_at_least(item);
  }
  if (value.is_object()) {
    for (const auto& [key, member] : value.members())
      size += key.size() + 3 + size_at_least(member);
  }
  return size;
}

Outcome succeeded(Value result, std::size_t output_max) {
  Outcome outcome;
  outcome.kind = OutcomeKind::success;
  if (size_at_least(result) > output_max) {
    const std::string text = canonical(result);
    outcome.invalid = invalid_output(fmt::format("the result is larger than {} bytes", output_max),
                                     text, text.size());
    return outcome;
  }
  outcome.result = std::move(result);
  return outcome;
}

// The only place that calls a user function; catches what it throws.
Outcome run(const NativeFunction& function, const Call& call, RunContext& context,
            std::size_t output_max) {
  try {
    auto answer = function(call, context);
    return answer ? succeeded(*std::move(answer), output_max) : failed(answer.error());
  } catch (const std::exception& e) {
    return unknown(fmt::format("the function threw: {}", e.what()));
  } catch (...) {
    return unknown("the function threw an object that is not a std::exception");
  }
}

// For a function that runs on the loop: its reports could not be delivered before it returns.
class InlineRunContext final : public RunContext {
 public:
  std::stop_token stop() const override { return {}; }
  void progress(Value) override {}
};

// Shared by a tool and the threads that run its function; outlives both.
struct LoopHandle {
  std::mutex mutex;
  // Guarded by mutex. Null: the tool is destroyed, results and reports are dropped.
  async::Loop* loop;
  async::SteadyClock* clock;
};

}  // namespace

// One call on a thread. Shared by the loop and the thread.
struct NativeTool::Run final : RunContext, std::enable_shared_from_this<Run> {
  Run(std::shared_ptr<LoopHandle> h, Permit p, Call c, State& state);

  std::stop_token stop() const override { return source.get_token(); }
  void progress(Value report) override;
  void work();

  const std::shared_ptr<LoopHandle> loop_handle;
  const Key key;
  const std::weak_ptr<State> tool;  // used only by tasks on the loop
  const Call call;                  // without its callbacks, which belong to the loop
  const NativeFunction function;
  const std::size_t output_max;
  std::stop_source source;

  // Guarded by loop_handle->mutex.
  enum class Stage { waiting, running, returned, withdrawn } stage = Stage::waiting;
  Permit permit;
  Duration send_by{}, started_at{}, last_report_at{};
  std::optional<Value> report;    // the latest one
  bool is_report_posted = false;  // a task to deliver it is posted
};

// A call on a thread, as the loop sees it.
struct NativeTool::InFlightCall {
  std::shared_ptr<Run> run;
  async::Done<Outcome> done;  // empty: cut off, the function is still running
  async::Done<Outcome> on_late_outcome;
  async::Done<Value> progress;
  std::optional<async::TimerId> timer;
  Duration due_at{};  // when the timer fires
};

// A call that waits for its task on the loop.
struct NativeTool::WaitingCall {
  Permit permit;
  Call call;
  async::Done<Outcome> done;
  Duration began;
  bool withdrawn = false;
};

struct NativeTool::State : std::enable_shared_from_this<State> {
  State(async::Loop& l, async::SteadyClock& c, NativeFunction f, Options o)
      : loop(l), clock(c), function(std::move(f)), options(o) {
    loop_handle->loop = &loop;
    loop_handle->clock = &clock;
  }
  void run_on_loop(Permit&& permit, Call&& call, async::Done<Outcome>&& done);
  void run_next();
  void run_on_thread(Permit&& permit, Call&& call, async::Done<Outcome>&& done);
  void check_deadline(const Key& key);
  void schedule_check(const Key& key, InFlightCall& flight, Duration now, Duration after);
  void on_returned(const Key& key, Outcome outcome);
  void deliver_report(const Key& key, Run& run);
  void end_early(InFlightCall& flight, Outcome outcome);
  void answer_later(async::Done<Outcome> done, Outcome outcome);

  async::Loop& loop;
  async::SteadyClock& clock;
  const NativeFunction function;
  const Options options;
  const std::shared_ptr<LoopHandle> loop_handle = std::make_shared<LoopHandle>();
  std::list<WaitingCall> waiting;               // in the order of their tasks
  std::map<Key, InFlightCall> in_flight_calls;  // on threads
};

// ---------------------------------------------------------------- on the function's thread

NativeTool::Run::Run(std::shared_ptr<LoopHandle> h, Permit p, Call c, State& state)
    : loop_handle(std::move(h)),
      key(c.invocation, c.try_no),
      tool(state.weak_from_this()),
      call(std::move(c)),
      function(state.function),
      output_max(state.options.output_max),
      permit(std::move(p)) {}

void NativeTool::Run::work() {
  {
    const std::scoped_lock lock(loop_handle->mutex);
    if (loop_handle->clock == nullptr || stage != Stage::waiting) return;
    started_at = last_report_at = loop_handle->clock->since_start();
    if (started_at >= send_by) return;  // the loop is about to withdraw it
    stage = Stage::running;
    std::move(permit).consume(call.invocation, call.try_no);
  }
  Outcome outcome = run(function, call, *this, output_max);
  const std::scoped_lock lock(loop_handle->mutex);
  if (loop_handle->loop == nullptr) return;
  stage = Stage::returned;
  outcome.elapsed = loop_handle->clock->since_start() - started_at;
  loop_handle->loop->post([weak = tool, key = key, outcome = std::move(outcome)]() mutable {
    if (const auto state = weak.lock()) state->on_returned(key, std::move(outcome));
  });
}

void NativeTool::Run::progress(Value value) {
  const bool fits = !canonical_exceeds(value, kProgressMax);
  const std::scoped_lock lock(loop_handle->mutex);
  if (loop_handle->loop == nullptr) return;
  last_report_at = loop_handle->clock->since_start();
  if (!fits) return;
  report = std::move(value);
  if (std::exchange(is_report_posted, true)) return;
  loop_handle->loop->post([weak = tool, key = key, self = shared_from_this()] {
    if (const auto state = weak.lock()) state->deliver_report(key, *self);
  });
}

// ---------------------------------------------------------------- on the loop

void NativeTool::State::run_on_loop(Permit&& permit, Call&& call, async::Done<Outcome>&& done) {
  waiting.emplace_back(std::move(permit), std::move(call), std::move(done), clock.since_start());
  // The posted task shares the state; it may run after the tool is destroyed.
  loop.post([state = shared_from_this()] { state->run_next(); });
}

void NativeTool::State::run_next() {
  std::list<WaitingCall> taken;
  taken.splice(taken.begin(), waiting, waiting.begin());
  auto& [permit, call, done, began, withdrawn] = taken.front();
  if (withdrawn) return done(not_sent("withdrawn before it began"));
  const Duration sent = clock.since_start();
  if (sent - began >= call.send_within) return done(not_sent("it was too late to begin"));
  std::move(permit).consume(call.invocation, call.try_no);
  InlineRunContext context;
  Outcome outcome = run(function, call, context, options.output_max);
  outcome.elapsed = clock.since_start() - sent;
  done(std::move(outcome));
}

void NativeTool::State::run_on_thread(Permit&& permit, Call&& call, async::Done<Outcome>&& done) {
  const Key key{call.invocation, call.try_no};
  AE_CHECK(!in_flight_calls.contains(key), call.invocation.text);
  const Duration now = clock.since_start();
  const Duration send_within = call.send_within;
  InFlightCall flight;
  flight.done = std::move(done);
  flight.on_late_outcome = std::move(call.on_late_outcome);
  flight.progress = std::move(call.progress);
  call.note_in_flight = nullptr;
  flight.run = std::make_shared<Run>(loop_handle, std::move(permit), std::move(call), *this);
  flight.run->send_by = now + send_within;  // safe without the lock: no thread has the run yet
  if (!options.executor->run([run = flight.run] { run->work(); })) {
    return answer_later(std::move(flight.done), not_sent("too many native calls wait"));
  }
  InFlightCall& entered = in_flight_calls.emplace(key, std::move(flight)).first->second;
  schedule_check(key, entered, now, send_within);
}

// Early enough even for a thread that starts right after this check.
void NativeTool::State::schedule_check(const Key& key, InFlightCall& flight, Duration now,
                                       Duration after) {
  after = std::min(after, flight.run->call.timeout);
  if (options.heartbeat.count() > 0) after = std::min(after, options.heartbeat);
  flight.due_at = now + after;
  flight.timer = loop.after(after, [weak = weak_from_this(), key] {
    if (const auto state = weak.lock()) state->check_deadline(key);
  });
}

void NativeTool::State::check_deadline(const Key& key) {
  const auto found = in_flight_calls.find(key);
  if (found == in_flight_calls.end()) return;
  InFlightCall& flight = found->second;
  flight.timer.reset();
  Run& run = *flight.run;
  const Duration timeout = run.call.timeout, heartbeat = options.heartbeat;
  std::unique_lock lock(loop_handle->mutex);
  const Duration now = clock.since_start();
  if (run.stage == Run::Stage::waiting) {
    if (now < run.send_by) return schedule_check(key, flight, now, run.send_by - now);
    run.stage = Run::Stage::withdrawn;
    lock.unlock();
    auto node = in_flight_calls.extract(found);
    return node.mapped().done(not_sent("no thread was free in time: native functions occupy them"));
  }
  if (run.stage == Run::Stage::returned) return;  // in time: its result is on the way
  Duration left = run.started_at + timeout - now;
  if (left.count() <= 0) {
    lock.unlock();
    return end_early(
        flight, timed_out(fmt::format("the function had not returned after {}", to_text(timeout))));
  }
  if (heartbeat.count() > 0) {
    // If this check is late, the process may have been suspended, and the function with it.
    if (now - flight.due_at >= heartbeat) run.last_report_at = now;
    const Duration silent = now - run.last_report_at;
    if (silent >= heartbeat) {
      lock.unlock();
      return end_early(flight, timed_out(fmt::format("the function reported nothing for {}",
                                                     to_text(heartbeat))));
    }
    left = std::min(left, heartbeat - silent);
  }
  schedule_check(key, flight, now, left);
}

// Ends the call while its function is still running. The entry stays until the function returns.
void NativeTool::State::end_early(InFlightCall& flight, Outcome outcome) {
  {
    const std::scoped_lock lock(loop_handle->mutex);
    outcome.elapsed = clock.since_start() - flight.run->started_at;
  }
  if (flight.timer) loop.cancel(*std::exchange(flight.timer, std::nullopt));
  flight.progress = nullptr;
  auto done = std::exchange(flight.done, nullptr);
  flight.run->source.request_stop();
  done(std::move(outcome));
}

void NativeTool::State::on_returned(const Key& key, Outcome outcome) {
  auto node = in_flight_calls.extract(key);
  if (node.empty()) return;
  InFlightCall& flight = node.mapped();
  if (flight.timer) loop.cancel(*flight.timer);
  if (flight.done) return flight.done(std::move(outcome));
  if (flight.on_late_outcome) flight.on_late_outcome(std::move(outcome));
}

void NativeTool::State::deliver_report(const Key& key, Run& run) {
  std::optional<Value> report;
  {
    const std::scoped_lock lock(loop_handle->mutex);
    run.is_report_posted = false;
    report.swap(run.report);
  }
  const auto found = in_flight_calls.find(key);
  if (!report || found == in_flight_calls.end() || !found->second.progress) return;
  // Moved out of the map while it runs: it may end the call.
  auto progress = std::move(found->second.progress);
  progress(*std::move(report));
  const auto still = in_flight_calls.find(key);
  if (still != in_flight_calls.end() && still->second.done)
    still->second.progress = std::move(progress);
}

void NativeTool::State::answer_later(async::Done<Outcome> done, Outcome outcome) {
  loop.post([done = std::move(done), outcome = std::move(outcome)]() mutable {
    done(std::move(outcome));
  });
}

NativeTool::NativeTool(async::Loop& loop, async::SteadyClock& clock, NativeFunction function,
                       Options options)
    : state_(std::make_shared<State>(loop, clock, std::move(function), options)) {}

NativeTool::~NativeTool() {
  for (WaitingCall& call : state_->waiting) call.withdrawn = true;
  {
    const std::scoped_lock lock(state_->loop_handle->mutex);
    state_->loop_handle->loop = nullptr;
    state_->loop_handle->clock = nullptr;
  }
  for (auto& [key, flight] : std::exchange(state_->in_flight_calls, {})) {
    if (flight.timer) state_->loop.cancel(*flight.timer);
    flight.run->source.request_stop();
    if (!flight.done) continue;
    bool has_started = false;
    {
      const std::scoped_lock lock(state_->loop_handle->mutex);
      has_started = flight.run->stage != Run::Stage::waiting;
    }
    state_->answer_later(std::move(flight.done), has_started
                                                     ? unknown("its tool was closed", "killed")
                                                     : not_sent("its tool was closed"));
  }
}

void NativeTool::perform(Permit permit, Call call, async::Done<Outcome> done) {
  if (state_->options.executor == nullptr) {
    return state_->run_on_loop(std::move(permit), std::move(call), std::move(done));
  }
  state_->run_on_thread(std::move(permit), std::move(call), std::move(done));
}

void NativeTool::abandon(const InvocationId& invocation, std::uint32_t try_no) {
  const Key key{invocation, try_no};
  for (WaitingCall& waiting : state_->waiting) {
    if (waiting.call.invocation == invocation && waiting.call.try_no == try_no)
      waiting.withdrawn = true;
  }
  const auto found = state_->in_flight_calls.find(key);
  if (found == state_->in_flight_calls.end() || !found->second.done) return;
  bool has_started = false;
  {
    const std::scoped_lock lock(state_->loop_handle->mutex);
    Run& run = *found->second.run;
    if (run.stage == Run::Stage::returned) return;  // its result is on the way
    has_started = run.stage == Run::Stage::running;
    if (!has_started) run.stage = Run::Stage::withdrawn;
  }
  InFlightCall& flight = found->second;
  if (flight.timer) state_->loop.cancel(*std::exchange(flight.timer, std::nullopt));
  flight.progress = nullptr;
  flight.run->source.request_stop();
  state_->answer_later(std::exchange(flight.done, nullptr),
                       has_started
                           ? unknown("stopped by the runtime while the function ran", "killed")
                           : not_sent("withdrawn before it began"));
  if (!has_started) state_->in_flight_calls.erase(found);
}

NativeFunctions built_in_functions() {
  return {
      {"echo",
       {.function = [](const Call& call, RunContext&) { return call.args; }, .runs_inline = true}}};
}

}  // namespace ae::tools
