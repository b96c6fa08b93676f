#include "tools/command/stdio_processes.h"

#include <fmt/core.h>
#include <signal.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "tools/command/definition.h"
#include "tools/command/leftovers.h"
#include "tools/command/proc.h"
#include "tools/output.h"

namespace ae::tools {
namespace {

constexpr Duration kStartTimeout = std::chrono::seconds(30);
constexpr Duration kUnlimited =
    std::chrono::hours(24 * 3650);  // the process ends itself, or we kill it
constexpr Duration kGrace = std::chrono::seconds(1);

// Shared with callbacks of the process that may run after it is destroyed.
struct State {
  StdioProcesses::Callbacks callbacks;
  const SecretSource& secrets;  // outlives the StdioProcess, but not all callbacks
  std::vector<UsedSecret> used = {};
  std::string name = {};
  bool is_open = true;
};

class SupervisedProcess final : public StdioProcess {
 public:
  SupervisedProcess(Processes& processes, std::shared_ptr<State> state)
      : processes_(processes), state_(std::move(state)) {}
  ~SupervisedProcess() override {
    state_->is_open = false;
    if (!is_stopping_) processes_.kill(id);
  }
  void stop() override {
    is_stopping_ = true;
    processes_.stop(id);
  }
  void write(std::string bytes) override { processes_.write(id, std::move(bytes)); }

  Processes::Id id = 0;

 private:
  Processes& processes_;
  std::shared_ptr<State> state_;
  bool is_stopping_ = false;
};

std::string exit_reason(const std::string& name, const ProcessExit& ended) {
  const std::string why = std::strerror(ended.value);
  switch (ended.kind) {
    case ProcessExit::Kind::late:
      return fmt::format("{} could not be started in time", name);
    case ProcessExit::Kind::not_started:
      return fmt::format("{} could not be started: {}", name, why);
    case ProcessExit::Kind::exited:
      return fmt::format("{} exited with code {}", name, ended.value);
    case ProcessExit::Kind::signalled:
      if (ended.kill_reason != KillReason::no)
        return fmt::format("{} closed its output and was ended", name);
      return fmt::format("{} was killed by signal {}", name, ended.value);
    case ProcessExit::Kind::lost:
      break;
  }
  return fmt::format("{} was lost: its supervisor was killed", name);
}

StdioProcessExit exit_of(const State& state, const ProcessExit& ended) {
  StdioProcessExit end;
  end.has_started =
      ended.kind != ProcessExit::Kind::late && ended.kind != ProcessExit::Kind::not_started;
  end.is_transient = ended.kind == ProcessExit::Kind::late ||
                     (!end.has_started && (ended.value == EAGAIN || ended.value == ENOMEM ||
                                           ended.value == EMFILE || ended.value == ENFILE));
  end.reason = exit_reason(state.name, ended);
  std::vector<UsedSecret> hidden = state.used;
  state.secrets.add_known(hidden);  // also secrets that changed since the start
  const std::string stderr_text =
      ended.is_errors_truncated ? scrub_tail(ended.errors, hidden) : scrub(ended.errors, hidden);
  end.stderr_tail = printable(stderr_text, LineBreaks::keep);
  while (end.stderr_tail.ends_with('\n')) end.stderr_tail.pop_back();
  return end;
}

// Variables of a call; this process serves many.
bool is_call_variable(const std::string& variable) { return variable.starts_with("AETHERIS_"); }

}  // namespace

Result<std::unique_ptr<StdioProcess>> SupervisedStdioProcesses::start(const Value& definition,
                                                                      const std::string& folder,
                                                                      std::vector<UsedSecret>& used,
                                                                      Callbacks callbacks) {
  AE_ASSIGN(const CommandDefinition read, CommandDefinition::read(definition, folder));
  auto state = std::make_shared<State>(State{.callbacks = {}, .secrets = secrets_});
  AE_ASSIGN(Order order, read.fill(Call{}, secrets_, state->used));
  std::erase_if(order.environment, is_call_variable);
  const std::string mark = make_process_mark();
  order.environment.push_back(fmt::format("{}={}", kMarkVariable, mark));
  order.send_by = boot_now() + kStartTimeout;
  order.timeout = kUnlimited;
  order.grace = kGrace;
  AE_TRY(check_denied_paths(order.sandbox, processes_.denied_paths()));
  order.sandbox.denied_paths = processes_.denied_paths();
  used.insert(used.end(), state->used.begin(), state->used.end());
  state->callbacks = std::move(callbacks);
  state->name = read.name;

  LaunchSpec launch{.invocation = InvocationId{"companion"},
                    .mark = mark,
                    .order = encode(order),
                    .input = {},
                    .time_max = kUnlimited,
                    .on_output = [state](std::string bytes) {
                      if (state->is_open) state->callbacks.on_output(std::move(bytes));
                    }};
  for (std::string& text : order.environment) ::explicit_bzero(text.data(), text.size());
  auto process = std::make_unique<SupervisedProcess>(processes_, state);
  const auto id = std::make_shared<Processes::Id>(0);
  process->id = *id = processes_.start(
      std::move(launch),
      [state, id, &processes = processes_](const ProcessGroup&) {
        if (state->is_open) processes.go(*id);
      },
      [](const std::string&) {},
      [state](const ProcessExit& ended) {
        if (state->is_open && state->callbacks.on_exit)
          state->callbacks.on_exit(exit_of(*state, ended));
      });
  return process;
}

Status SupervisedStdioProcesses::check(const Value& definition, const std::string& folder) {
  AE_TRY(CommandDefinition::read(definition, folder));
  return {};
}

}  // namespace ae::tools
