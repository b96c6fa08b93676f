// CommandTool: one call, on the loop:
//
//   perform ─▶ starting ─ready─▶ noting ─noted─▶ running ─ended─▶ outcome
//                  └─────── abandon, too late, not noted ───▶ outcome not_sent
//
// The program does not run before `running`: until then a call can be withdrawn without any effect.
#include "tools/command/command_tool.h"

#include <fmt/core.h>
#include <signal.h>
#include <sysexits.h>

#include <cstring>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "base/utf8.h"
#include "json/json.h"
#include "tools/command/definition.h"
#include "tools/command/leftovers.h"
#include "tools/command/proc.h"
#include "tools/output.h"

namespace ae::tools {
namespace {

using Key = std::pair<InvocationId, std::uint32_t>;

enum class Phase { starting, noting, running };

struct InFlightCall {
  Permit permit;
  Call call;
  async::Done<Outcome> done;
  std::vector<UsedSecret> used;
  std::string mark;
  Duration send_by{};  // boot time
  Phase phase = Phase::starting;
  Processes::Id process = 0;
  async::TimerId timer = 0;
};

Outcome definite(std::string code, std::string message, bool retryable) {
  Outcome outcome;
  outcome.kind = OutcomeKind::failure;
  outcome.definite = true;
  outcome.retryable = retryable;
  outcome.error_code = std::move(code);
  outcome.error_message = std::move(message);
  return outcome;
}

Outcome not_sent(std::string message) { return definite("not_sent", std::move(message), true); }

Outcome unfinished_outcome(OutcomeKind kind, std::string code, std::string message) {
  Outcome outcome;
  outcome.kind = kind;
  outcome.error_code = std::move(code);
  outcome.error_message = std::move(message);
  return outcome;
}

Outcome render_failure(const Error& error) {
  const bool is_secret = error.code == Code::secret_missing || error.code == Code::forbidden;
  return definite(is_secret ? "secret_missing" : "request_invalid",
                  printable(error.message, LineBreaks::keep), false);
}

// ": " and the end of its stderr, or "".
std::string stderr_tail(const ProcessExit& ended, const std::vector<UsedSecret>& used) {
  std::string_view raw = ended.errors;
  if (ended.is_errors_truncated) {  // the cut may have split a character
    for (int i = 0; i < 3 && !raw.empty() && (raw[0] & 0xC0) == 0x80; ++i) raw.remove_prefix(1);
  }
  std::string text = ended.is_errors_truncated ? scrub_tail(raw, used) : scrub(raw, used);
  text = printable(text, LineBreaks::keep);
  while (text.ends_with('\n')) text.pop_back();
  return text.empty() ? "" : fmt::format(": {}{}", ended.is_errors_truncated ? "…" : "", text);
}

// A temporary lack of resources on this machine, no error of the program.
bool is_resource_shortage(int error) {
  return error == EAGAIN || error == ENOMEM || error == EMFILE || error == ENFILE;
}

bool is_transient_errno(int error) {
  return error == ETXTBSY || error == ECHILD || error == ECANCELED || error == ESRCH;
}

Outcome not_started(const CommandDefinition& definition, const ProcessExit& ended) {
  const std::string why = std::strerror(ended.value);
  const std::string what = ended.stage == Stage::folder ? "its folder " + definition.folder
                                                        : "the program " + definition.program;
  if (ended.stage == Stage::sandbox) {
    return definite("spawn_failed",
                    fmt::format("{} was not started: its sandbox failed: {}", what, why), false);
  }
  if (is_resource_shortage(ended.value))
    return not_sent(fmt::format("{} could not be started now: {}", what, why));
  return definite("spawn_failed", fmt::format("{} could not be started: {}", what, why),
                  is_transient_errno(ended.value));
}

// Exit code 0: the effect counts as applied, even if the output is invalid.
Outcome succeeded(const CommandDefinition& definition, ProcessExit ended,
                  const std::vector<UsedSecret>& used) {
  Outcome outcome;
  outcome.kind = OutcomeKind::success;
  const auto set_invalid = [&](const std::string& reason, const Hash& hash) {
    outcome.invalid =
        invalid_output(scrub(reason, used), scrub(ended.output, used), hash, ended.output_size);
  };
  if (ended.output_size > definition.output_max) {
    set_invalid(fmt::format("the output is larger than {} bytes", definition.output_max),
                ended.output_hash);
  } else if (definition.json) {
    auto value =
        parse_json(ended.output, {.bytes_max = definition.output_max,
                                  .big_integers_as_strings = definition.big_integers_as_strings});
    if (value) {
      outcome.result = scrub_value(*value, used);
    } else {
      set_invalid(fmt::format("the output is {}", value.error().message), sha256(ended.output));
    }
  } else if (!is_utf8(ended.output)) {
    set_invalid("the output is not UTF-8", sha256(ended.output));
  } else {
    if (ended.output.ends_with('\n')) ended.output.pop_back();
    outcome.result = scrub(ended.output, used);
  }
  return outcome;
}

Outcome outcome_of(const CommandDefinition& definition, const Call& call, ProcessExit ended,
                   const std::vector<UsedSecret>& used) {
  const std::string& name = definition.name;
  switch (ended.kind) {
    case ProcessExit::Kind::late:
      return not_sent("it was too late to start the program");
    case ProcessExit::Kind::not_started:
      return not_started(definition, ended);
    default:
      break;
  }
  const std::string still = ended.stuck ? " (and is still running after SIGKILL)" : "";
  if (ended.kill_reason == KillReason::timeout) {
    return unfinished_outcome(OutcomeKind::timeout, "timeout",
                              fmt::format("{} was killed after {}{}{}", name, to_text(call.timeout),
                                          still, stderr_tail(ended, used)));
  }
  if (ended.kill_reason == KillReason::silent) {
    return unfinished_outcome(
        OutcomeKind::timeout, "timeout",
        fmt::format("{} was killed: it reported nothing for {}{}{}", name,
                    to_text(definition.heartbeat), still, stderr_tail(ended, used)));
  }
  if (ended.kill_reason == KillReason::ordered) {
    return unfinished_outcome(OutcomeKind::unknown, "killed",
                              fmt::format("{} was killed by the runtime while it was running{}{}",
                                          name, still, stderr_tail(ended, used)));
  }
  if (ended.kind == ProcessExit::Kind::signalled) {
    const char* known = ::sigabbrev_np(ended.value);
    const std::string signal =
        known != nullptr ? fmt::format("SIG{}", known) : fmt::format("signal {}", ended.value);
    return unfinished_outcome(
        OutcomeKind::unknown, fmt::format("signal_{}", ended.value),
        fmt::format("{} was killed by {}{}", name, signal, stderr_tail(ended, used)));
  }
  if (ended.kind == ProcessExit::Kind::lost) {
    return unfinished_outcome(
        OutcomeKind::unknown, "killed",
        fmt::format("{} was lost: its supervisor was killed{}", name, stderr_tail(ended, used)));
  }
  if (ended.value != 0) {
    return definite(
        fmt::format("exit_{}", ended.value),
        fmt::format("{} exited with code {}{}", name, ended.value, stderr_tail(ended, used)),
        ended.value == EX_TEMPFAIL);
  }
  return succeeded(definition, std::move(ended), used);
}

}  // namespace

// Callbacks in flight hold weak references; they may run after the tool is destroyed.
struct CommandTool::State : std::enable_shared_from_this<CommandTool::State> {
  State(Dependencies w, CommandDefinition d) : deps(w), definition(std::move(d)) {}

  void begin(Permit permit, Call call, async::Done<Outcome> done);
  void on_ready(const Key& key, ProcessGroup ready);
  void go(const Key& key);
  void on_report(const Key& key, std::string_view line);
  void on_exit(const Key& key, ProcessExit ended);
  void withdraw(const Key& key, std::string why);
  void answer_later(async::Done<Outcome> done, Outcome outcome);

  Dependencies deps;
  CommandDefinition definition;
  std::map<Key, InFlightCall> in_flight_calls;
};

void CommandTool::State::answer_later(async::Done<Outcome> done, Outcome outcome) {
  deps.loop.post([done = std::move(done), outcome = std::move(outcome)]() mutable {
    done(std::move(outcome));
  });
}

void CommandTool::State::begin(Permit permit, Call call, async::Done<Outcome> done) {
  const Key key{call.invocation, call.try_no};
  AE_CHECK(!in_flight_calls.contains(key), call.invocation.text);
  const Duration send_by = boot_now() + call.send_within;
  std::vector<UsedSecret> used;
  auto order = definition.fill(call, deps.secrets, used);
  if (!order) return answer_later(std::move(done), render_failure(order.error()));
  deps.secrets.add_known(used);
  const std::string mark = make_process_mark();
  order->environment.push_back(fmt::format("{}={}", kMarkVariable, mark));
  order->send_by = send_by;
  order->timeout = call.timeout;
  order->grace = kKillGrace;
  order->sandbox.denied_paths = deps.processes.denied_paths();

  LaunchSpec launch{.invocation = call.invocation,
                    .mark = mark,
                    .order = encode(*order),
                    .input = canonical(call.args),
                    .output_max = definition.output_max,
                    .time_max = call.timeout + kKillGrace,
                    .heartbeat = definition.heartbeat};
  for (std::string& text : order->environment) ::explicit_bzero(text.data(), text.size());

  const Duration send_within = call.send_within;
  InFlightCall& flight = in_flight_calls
                             .emplace(key, InFlightCall{.permit = std::move(permit),
                                                        .call = std::move(call),
                                                        .done = std::move(done),
                                                        .used = std::move(used),
                                                        .mark = mark,
                                                        .send_by = send_by})
                             .first->second;
  const std::weak_ptr<State> weak = weak_from_this();
  flight.timer = deps.loop.after(send_within, [weak, key] {
    if (const auto state = weak.lock())
      state->withdraw(key, "it was too late to start the program");
  });
  flight.process = deps.processes.start(
      std::move(launch),
      [weak, key](ProcessGroup ready) {
        if (const auto state = weak.lock()) state->on_ready(key, ready);
      },
      [weak, key](const std::string& line) {
        if (const auto state = weak.lock()) state->on_report(key, line);
      },
      [weak, key](ProcessExit ended) {
        if (const auto state = weak.lock()) state->on_exit(key, std::move(ended));
      });
}

void CommandTool::State::on_ready(const Key& key, ProcessGroup ready) {
  const auto found = in_flight_calls.find(key);
  if (found == in_flight_calls.end() || found->second.phase != Phase::starting) return;
  InFlightCall& flight = found->second;
  flight.phase = Phase::noting;
  if (!flight.call.note_in_flight) return go(key);
  // `noted` may run inside this call and end the flight, so the function must not be owned by it.
  auto note_in_flight = std::exchange(flight.call.note_in_flight, nullptr);
  note_in_flight(make_in_flight_note(ready.group, ready.start, flight.mark),
                 [weak = weak_from_this(), key](Status noted) {
                   const auto state = weak.lock();
                   if (!state) return;
                   if (noted) return state->go(key);
                   state->withdraw(key, fmt::format("its process group could not be noted: {}",
                                                    noted.error().message));
                 });
}

void CommandTool::State::go(const Key& key) {
  const auto found = in_flight_calls.find(key);
  if (found == in_flight_calls.end() || found->second.phase != Phase::noting) return;
  InFlightCall& flight = found->second;
  if (boot_now() >= flight.send_by) return withdraw(key, "it was too late to start the program");
  deps.loop.cancel(flight.timer);
  std::move(flight.permit).consume(key.first, key.second);
  flight.phase = Phase::running;
  deps.processes.go(flight.process);
}

// A line that is not JSON only counts as a heartbeat.
void CommandTool::State::on_report(const Key& key, std::string_view line) {
  const auto found = in_flight_calls.find(key);
  if (found == in_flight_calls.end() || !found->second.call.progress) return;
  auto report = parse_json(line, {.bytes_max = kProgressMax});
  if (!report) return;
  Value clean = scrub_value(*report, found->second.used);
  // Moved out while it runs: it may end the flight.
  auto progress = std::move(found->second.call.progress);
  progress(std::move(clean));
  if (const auto still = in_flight_calls.find(key); still != in_flight_calls.end()) {
    still->second.call.progress = std::move(progress);
  }
}

void CommandTool::State::on_exit(const Key& key, ProcessExit ended) {
  auto flight = in_flight_calls.extract(key);
  if (flight.empty()) return;
  InFlightCall& f = flight.mapped();
  deps.loop.cancel(f.timer);
  const Duration took = ended.elapsed;
  Outcome outcome = outcome_of(definition, f.call, std::move(ended), f.used);
  outcome.elapsed = took;
  f.done(std::move(outcome));
}

// REQUIRES: not running yet, or no such flight.
void CommandTool::State::withdraw(const Key& key, std::string why) {
  auto flight = in_flight_calls.extract(key);
  if (flight.empty()) return;
  InFlightCall& f = flight.mapped();
  AE_CHECK(f.phase != Phase::running, key.first.text);
  deps.loop.cancel(f.timer);
  deps.processes.kill(f.process);
  answer_later(std::move(f.done), not_sent(std::move(why)));
}

Result<std::unique_ptr<CommandTool>> CommandTool::make(const Value& definition, Dependencies deps,
                                                       const std::string& folder) {
  AE_ASSIGN(auto read, CommandDefinition::read(definition, folder));
  AE_TRY(check_denied_paths(read.sandbox, deps.processes.denied_paths()));
  return std::unique_ptr<CommandTool>(
      new CommandTool(std::make_shared<State>(deps, std::move(read))));
}

Status CommandTool::check(const Value& definition, const std::string& folder) {
  AE_TRY(CommandDefinition::read(definition, folder));
  return {};
}

CommandTool::CommandTool(std::shared_ptr<State> state) : state_(std::move(state)) {}

CommandTool::~CommandTool() {
  while (!state_->in_flight_calls.empty()) {
    auto flight = state_->in_flight_calls.extract(state_->in_flight_calls.begin());
    InFlightCall& f = flight.mapped();
    state_->deps.loop.cancel(f.timer);
    state_->deps.processes.kill(f.process);
    state_->answer_later(std::move(f.done), f.phase == Phase::running
                                                ? unfinished_outcome(OutcomeKind::unknown, "killed",
                                                                     "its tool was closed")
                                                : not_sent("its tool was closed"));
  }
}

void CommandTool::perform(Permit permit, Call call, async::Done<Outcome> done) {
  state_->begin(std::move(permit), std::move(call), std::move(done));
}

Result<Value> CommandTool::preview(const Call& call) {
  SecretNames names;
  std::vector<UsedSecret> used;
  const CommandDefinition& definition = state_->definition;
  AE_ASSIGN(const Order order, definition.fill(call, names, used));
  std::vector<Member> env;
  for (const auto& [name, parts] : definition.variables) {
    for (const std::string& assigned : order.environment) {
      if (!assigned.starts_with(name + "=")) continue;
      env.emplace_back(name, assigned.substr(name.size() + 1));
      break;
    }
  }
  std::vector<Member> sends{
      {"argv", Value::array(std::vector<Value>(order.argv.begin(), order.argv.end()))},
      {"stdin", canonical(call.args)}};
  if (!order.folder.empty()) sends.emplace_back("cwd", order.folder);
  if (!env.empty()) sends.emplace_back("env", Value::object(std::move(env)));
  return Value::object(std::move(sends));
}

void CommandTool::abandon(const InvocationId& invocation, std::uint32_t try_no) {
  const Key key{invocation, try_no};
  const auto found = state_->in_flight_calls.find(key);
  if (found == state_->in_flight_calls.end()) return;
  if (found->second.phase != Phase::running) return state_->withdraw(key, "withdrawn in time");
  state_->deps.processes.kill(
      found->second.process);  // its exit determines the outcome, mostly unknown
}

Status CommandTool::kill_leftovers(const Value& note) { return tools::kill_leftovers(note); }

}  // namespace ae::tools
