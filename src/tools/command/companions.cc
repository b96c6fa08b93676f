#include "tools/command/companions.h"

#include <signal.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "tools/command/definition.h"
#include "tools/command/left_over.h"
#include "tools/command/proc.h"
#include "tools/output.h"

namespace ae::tools {
namespace {

constexpr Duration kStartWithin = std::chrono::seconds(30);
constexpr Duration kForEver = std::chrono::hours(24 * 3650);  // its end is ours, or its own
constexpr Duration kGrace = std::chrono::seconds(1);

// Shared with what the processes still have to tell when it is gone.
struct State {
  Companions::Ears ears;
  const SecretSource& secrets;  // outlives the companion, not what the processes still tell
  std::vector<UsedSecret> used = {};
  std::string name = {};
  bool open = true;
};

class Process final : public Companion {
 public:
  Process(Processes& processes, std::shared_ptr<State> state)
      : processes_(processes), state_(std::move(state)) {}
  ~Process() override {
    state_->open = false;
    if (!stops_) processes_.kill(id);
  }
  void stop() override {
    stops_ = true;
    processes_.stop(id);
  }
  void write(std::string bytes) override { processes_.write(id, std::move(bytes)); }

  Processes::Id id = 0;

 private:
  Processes& processes_;
  std::shared_ptr<State> state_;
  bool stops_ = false;
};

std::string how_it_ended(const std::string& name, const Ended& ended) {
  const std::string why = std::strerror(ended.value);
  switch (ended.how) {
    case Ended::How::late:
      return name + " could not be started in time";
    case Ended::How::not_started:
      return name + " could not be started: " + why;
    case Ended::How::exited:
      return name + " exited with code " + std::to_string(ended.value);
    case Ended::How::signalled:
      if (ended.killed != Killed::no) return name + " closed its output and was ended";
      return name + " was killed by signal " + std::to_string(ended.value);
    case Ended::How::lost:
      break;
  }
  return name + " was lost: its supervisor was killed";
}

CompanionEnded end_of(const State& state, const Ended& ended) {
  CompanionEnded end;
  end.started = ended.how != Ended::How::late && ended.how != Ended::How::not_started;
  end.for_now = ended.how == Ended::How::late ||
                (!end.started && (ended.value == EAGAIN || ended.value == ENOMEM ||
                                  ended.value == EMFILE || ended.value == ENFILE));
  end.how = how_it_ended(state.name, ended);
  std::vector<UsedSecret> hidden = state.used;
  state.secrets.add_known(hidden);  // also those that were changed since it began
  const std::string words =
      ended.errors_cut ? scrub_tail(ended.errors, hidden) : scrub(ended.errors, hidden);
  end.last_words = printable(words, Lines::keep);
  while (end.last_words.ends_with('\n')) end.last_words.pop_back();
  return end;
}

// What would be a call's: it serves many.
bool of_a_call(const std::string& variable) { return variable.starts_with("AETHERIS_"); }

}  // namespace

Result<std::unique_ptr<Companion>> CommandCompanions::start(const Value& definition,
                                                            const std::string& folder,
                                                            std::vector<UsedSecret>& used,
                                                            Ears ears) {
  AE_ASSIGN(const CommandDefinition read, CommandDefinition::read(definition, folder));
  auto state = std::make_shared<State>(State{.ears = {}, .secrets = secrets_});
  AE_ASSIGN(Order order, read.fill(Call{}, secrets_, state->used));
  std::erase_if(order.environment, of_a_call);
  const std::string mark = new_mark();
  order.environment.push_back(std::string(kMarkVariable) + "=" + mark);
  order.send_by = boot_now() + kStartWithin;
  order.timeout = kForEver;
  order.grace = kGrace;
  AE_TRY(check_closed(order.sandbox, processes_.closed()));
  order.sandbox.closed = processes_.closed();
  used.insert(used.end(), state->used.begin(), state->used.end());
  state->ears = std::move(ears);
  state->name = read.name;

  Launch launch{.invocation = InvocationId{"companion"},
                .mark = mark,
                .order = encode(order),
                .input = {},
                .time_max = kForEver,
                .heard = [state](std::string bytes) {
                  if (state->open) state->ears.heard(std::move(bytes));
                }};
  for (std::string& text : order.environment) ::explicit_bzero(text.data(), text.size());
  auto process = std::make_unique<Process>(processes_, state);
  const auto id = std::make_shared<Processes::Id>(0);
  process->id = *id = processes_.start(
      std::move(launch),
      [state, id, &processes = processes_](const Ready&) {
        if (state->open) processes.go(*id);
      },
      [](const std::string&) {},
      [state](const Ended& ended) {
        if (state->open && state->ears.gone) state->ears.gone(end_of(*state, ended));
      });
  return process;
}

Status CommandCompanions::check(const Value& definition, const std::string& folder) {
  AE_TRY(CommandDefinition::read(definition, folder));
  return {};
}

}  // namespace ae::tools
