#include "routines/remote/session.h"

#include <fmt/core.h>

#include <algorithm>

#include "json/json.h"
#include "log/field_names.h"
#include "routines/remote/server_messages.h"
#include "tools/output.h"

namespace ae::routines {

Session::Session(const Parts& parts, std::string id, std::string principal, Hello hello)
    : parts_(parts),
      id_(std::move(id)),
      principal_(std::move(principal)),
      hello_(std::move(hello)),
      begun_at_(parts.clock.now()),
      received_at_(parts.steady_clock.since_start()),
      calls_({.loop = parts.loop,
              .clock = parts.steady_clock,
              .lost = parts.lost,
              .calls_max = std::max<std::size_t>(hello_.calls_max, 1),
              .on_ready = [this](std::uint64_t call) { add(call); },
              .send = [this](const Value& message) { send(message); }}) {
  for (const WorkerAgent& agent : hello_.agents) agents_.insert({agent.name, agent.version});
  for (const WorkerTool& tool : hello_.tools) tools_.insert(tool.name);
}

Session::~Session() = default;

// ---------------------------------------------------------------- its connection

void Session::attach(WorkerConnection& connection, std::string_view first, bool is_resumed) {
  AE_CHECK(!is_gone_, id_);
  connection_ = &connection;
  received_at_ = acked_at_ = parts_.steady_clock.since_start();
  if (!is_resumed) return write(frames_.make(first));
  write(frame_text(0, frames_.received(), first));
  for (const std::string& frame : frames_.kept()) write(frame);
  flush();
}

void Session::detach() {
  connection_ = nullptr;
  detached_at_ = parts_.steady_clock.since_start();
}

// Of a frame that cannot be sent the session learns when its connection is closed.
void Session::write(const std::string& frame) {
  if (connection_ != nullptr) connection_->send(frame);
}

void Session::send(const Value& message) { add(canonical(message)); }

void Session::add(Pending pending) {
  if (is_gone_) return;
  pending_.push_back(std::move(pending));
  if (std::exchange(is_flush_posted_, true)) return;
  parts_.loop.post([self = shared_from_this()] {
    self->is_flush_posted_ = false;
    self->flush();
  });
}

// Everything of one turn of the loop is one frame, unless it is large.
void Session::flush() {
  if (connection_ == nullptr) return;
  std::string messages;
  const auto end_frame = [&] {
    if (!messages.empty()) write(frames_.make(messages));
    messages.clear();
  };
  for (const Pending& pending : std::exchange(pending_, {})) {
    const auto* const call = std::get_if<std::uint64_t>(&pending);
    // received_at_: of the frame that this one acknowledges.
    const std::string text = call != nullptr ? calls_.perform_message(*call, received_at_)
                                             : std::get<std::string>(pending);
    if (text.empty()) continue;
    if (!messages.empty() && messages.size() + text.size() > kBatchMax) end_frame();
    if (!messages.empty()) messages += ',';
    messages += text;
  }
  end_frame();
}

void Session::acknowledge() {
  if (connection_ != nullptr && frames_.owes_ack()) write(frames_.make(""));
}

std::optional<Session::Breach> Session::on_frame(const WorkerFrame& frame) {
  const std::size_t kept = frames_.kept().size();
  const Frames::Arrival arrival = frames_.on_frame(frame.number, frame.ack);
  if (frames_.kept().size() < kept) acked_at_ = parts_.steady_clock.since_start();
  switch (arrival) {
    case Frames::Arrival::broken:
      return Breach{close_code::kProtocolError, "a frame that is not the next one"};
    case Frames::Arrival::repeated:
      return std::nullopt;
    case Frames::Arrival::next:
      break;
  }
  received_at_ = parts_.steady_clock.since_start();
  for (const Value& message : frame.messages.items()) {
    if (is_gone_) return std::nullopt;
    if (errors_ > kErrorsMax) break;
    on_message(message);
  }
  if (errors_ > kErrorsMax) return Breach{close_code::kPolicy, "too many errors"};
  return std::nullopt;
}

void Session::lose(std::string_view why) {
  if (std::exchange(is_gone_, true)) return;
  const auto self = shared_from_this();
  connection_ = nullptr;
  pending_.clear();
  calls_.lose(principal_, hello_.worker);
  // Each client may drop other routines.
  while (!routines_.empty()) {
    RemoteRoutine& routine = *routines_.begin()->second;
    routines_.erase(routines_.begin());
    routine.client_->on_lost(routine.node_, {Code::unavailable, std::string(why)});
  }
}

// ---------------------------------------------------------------- what it runs

bool Session::has_room() const {
  return is_attached() && !draining_since_ && !is_gone_ && routines_.size() < hello_.routines_max &&
         connection_->unsent() <= kUnsentHigh && frames_.kept_bytes() <= kKeptMax / 4;
}

std::unique_ptr<Routine> Session::start(RoutineStart start) {
  const engine::CodeSpec& code = *start.plan->nodes[start.node].code;
  const std::uint64_t number = ++last_routine_;
  std::vector<Value> parts = record_parts(start.record);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    std::vector<Member> members{{"record", std::move(parts[i])}, {"routine", number}};
    if (i + 1 < parts.size()) members.emplace_back("more", true);
    if (i > 0) {
      members.emplace_back("type", "record");
      send(Value::object(std::move(members)));
      continue;
    }
    members.emplace_back("type", "start");
    members.emplace_back("job", start.job_value);
    members.emplace_back(
        "steps", Value::object({{"decision", start.plan->decision.text}, {"path", start.path}}));
    members.emplace_back(field::agent, code.agent);
    members.emplace_back(field::version, start.version);
    if (start.is_trial) members.emplace_back("trial", true);
    if (start.is_check) members.emplace_back("check", true);
    members.emplace_back(field::input, start.input);
    members.emplace_back("now", to_text(parts_.clock.now()));
    members.emplace_back(field::blind, start.blind);
    if (start.is_blind_erased) members.emplace_back("blind_erased", true);
    send(Value::object(std::move(members)));
  }
  auto routine = std::make_unique<RemoteRoutine>(shared_from_this(), number, std::move(start));
  routines_.emplace(number, routine.get());
  return routine;
}

void Session::remove(std::uint64_t routine, std::string_view reason) {
  if (routines_.erase(routine) == 0) return;
  send(Value::object({{field::reason, reason}, {"routine", routine}, {"type", "stop"}}));
}

// ---------------------------------------------------------------- messages

void Session::send_error(const Error& error, std::optional<std::uint64_t> routine) {
  errors_++;
  std::vector<Member> members{
      {field::code, code_name(error.code)}, {"message", error.message}, {"type", field::error}};
  if (routine) members.emplace_back("routine", *routine);
  send(Value::object(std::move(members)));
}

void Session::on_message(const Value& message) {
  const std::string_view type = message.text("type");
  if (type.empty()) {
    return send_error({Code::input_invalid, "a message is an object with `type`"}, std::nullopt);
  }
  if (const Status handled = handle(message, type); !handled) {
    send_error(handled.error(), std::nullopt);
  }
}

Status Session::handle(const Value& message, std::string_view type) {
  if (type == "advance") return on_advance(message);
  if (type == "ended") return calls_.on_ended(message, principal_, hello_.worker);
  if (type == "text") return calls_.on_text(message);
  if (type == "progress") return calls_.on_progress(message);
  if (type == field::late) return on_late(message);
  if (type == "drain") {
    drain();
    return {};
  }
  if (type == "hello") return fail(Code::input_invalid, "the session has begun");
  if (type != "diverged" && type != "lost") return {};  // heartbeat, or of a newer protocol
  AE_ASSIGN(RemoteRoutine* const routine, find_routine(message));
  if (routine == nullptr) return {};
  if (type == "diverged") {
    auto divergence = read_diverged(message);
    if (!divergence) {
      refuse(*routine, divergence.error());
      return {};
    }
    routines_.erase(routine->number_);
    routine->client_->on_diverged(routine->node_, *std::move(divergence));
    return {};
  }
  auto failure = read_failure(message);
  if (!failure) {
    refuse(*routine, failure.error());
    return {};
  }
  routines_.erase(routine->number_);
  routine->client_->on_lost(
      routine->node_, {Code::unavailable, fmt::format("{}: {}", failure->code, failure->message)});
  return {};
}

Result<RemoteRoutine*> Session::find_routine(const Value& message) const {
  AE_ASSIGN(const std::uint64_t number, read_number(message, "routine"));
  if (number == 0 || number > last_routine_) {
    return fail(Code::not_found, "this session has no routine {}", number);
  }
  const auto found = routines_.find(number);
  return found == routines_.end() ? nullptr : found->second;
}

// The ends of functions count, whatever becomes of their routine.
Status Session::end_functions(const Value& message) {
  AE_ASSIGN(std::vector<FunctionSuccess> functions, read_functions(message));
  for (FunctionSuccess& one : functions) {
    AE_TRY(calls_.on_success(one.call, std::move(one.outcome)));
  }
  return {};
}

Status Session::on_advance(const Value& message) {
  AE_ASSIGN(RemoteRoutine* const routine, find_routine(message));
  if (routine == nullptr) return end_functions(message);  // it was dropped
  auto made = read_advance(message, *routine->plan_, routine->node_);
  if (!made) {
    const Status ended = end_functions(message);
    const auto still = find_routine(message);
    if (still && *still != nullptr) refuse(**still, made.error());
    return ended;
  }
  for (std::size_t i = 0; i < made->functions.size(); ++i) {
    FunctionSuccess& one = made->functions[i];
    auto end = calls_.take_success(one.call, routine->number_, std::move(one.outcome));
    if (end && *end) {
      made->advance.functions.push_back(**std::move(end));
      continue;
    }
    // The routine was given what is not recorded: its calls end, it does not.
    for (FunctionEnd& taken : std::exchange(made->advance.functions, {})) {
      taken.outcome.delivered.reset();
      taken.done(std::move(taken.outcome));
    }
    const auto still = find_routine(message);
    if (!still || *still == nullptr) return {};
    if (!end) {
      refuse(*routine, end.error());
      return {};
    }
    remove(routine->number_, "lost");
    routine->client_->on_lost(routine->node_,
                              {Code::unavailable, "another outcome of a function was recorded"});
    return {};
  }
  routine->has_settled_ = made->advance.has_settled && made->advance.requests.empty();
  routine->has_ended_ = made->advance.end.has_value();
  const std::uint64_t number = routine->number_;
  routine->client_->on_advance(routine->node_, std::move(made->advance));
  if (const auto still = routines_.find(number); still != routines_.end()) {
    release_if_idle(*still->second);
  }
  return {};
}

// Its worker has broken a rule: its job parks.
void Session::refuse(RemoteRoutine& routine, const Error& why) {
  send_error(why, routine.number_);
  remove(routine.number_, "refused");
  routine.client_->on_refused(routine.node_, why);
}

Status Session::on_late(const Value& message) {
  AE_ASSIGN(const CallName name, read_call_name(message));
  AE_ASSIGN(const Outcome outcome, read_end(message));
  if (parts_.lost.on_late(principal_, hello_.worker, name, outcome)) return {};
  if (parts_.earlier != nullptr) {
    parts_.earlier->on_late(principal_, hello_.worker, name, outcome);
  }
  return {};
}

void Session::drain() {
  if (draining_since_) return;
  draining_since_ = parts_.steady_clock.since_start();
  for (const auto& [number, routine] : std::map(routines_)) {
    if (const auto still = routines_.find(number); still != routines_.end()) {
      release_if_idle(*still->second);
    }
  }
}

// In a worker that stops, a routine that waits for others can be run elsewhere.
void Session::release_if_idle(RemoteRoutine& routine) {
  if (!draining_since_ || !routine.has_settled_ || routine.has_ended_ ||
      calls_.has_calls_of(routine.number_)) {
    return;
  }
  remove(routine.number_, "suspended");
  routine.client_->on_lost(routine.node_, {Code::unavailable, "the worker stops"});
}

// ---------------------------------------------------------------- RemoteRoutine

RemoteRoutine::RemoteRoutine(std::shared_ptr<Session> session, std::uint64_t number,
                             RoutineStart start)
    : session_(std::move(session)),
      number_(number),
      job_(start.job),
      node_(start.node),
      plan_(std::move(start.plan)),
      client_(start.client) {}

RemoteRoutine::~RemoteRoutine() { session_->remove(number_, has_ended_ ? "ended" : "suspended"); }

void RemoteRoutine::deliver(std::vector<engine::Delivery> outcomes) {
  if (!session_->routines_.contains(number_)) return;
  has_settled_ = false;
  for (std::vector<Value>& part : outcome_parts(outcomes)) {
    session_->send(Value::object(
        {{"outcomes", Value::array(std::move(part))}, {"routine", number_}, {"type", "deliver"}}));
  }
}

void RemoteRoutine::perform(tools::Permit permit, tools::Call call, async::Done<Outcome> done) {
  const bool is_stated = call.tool.starts_with("run:");
  const bool can_perform =
      session_->routines_.contains(number_) && (is_stated || session_->offers_tool(call.tool));
  if (!can_perform) {
    return session_->parts_.loop.post([done = std::move(done), tool = call.tool]() mutable {
      done(tools::make_outcome(OutcomeKind::failure, true, true, "not_sent",
                               fmt::format("this routine has no function for \"{}\"", tool)));
    });
  }
  session_->calls_.perform(std::move(permit), std::move(call), std::move(done), number_);
}

void RemoteRoutine::abandon(const InvocationId& invocation, std::uint32_t try_no) {
  session_->calls_.abandon(invocation, try_no);
}

}  // namespace ae::routines
