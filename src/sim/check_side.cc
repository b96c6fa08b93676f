// The rules about calls that concern another call: probes, which query its outcome, and
// compensations, which undo it.
#include <fmt/core.h>

#include <algorithm>
#include <optional>
#include <set>

#include "json/json.h"
#include "log/decisions.h"
#include "sim/checker.h"

namespace ae::sim {
namespace {

// The state of a command as of an event of the log.
struct Command {
  std::string tool, key, attempt;
  bool node = false;  // not about another call
  bool open = false, in_doubt = false, probing = false, committed = false;
  bool absent = false;                  // the newest try is known not to have happened
  Instant settled_at;                   // the newest try may take effect until then
  std::optional<Instant> ended_settle;  // tries that have ended may take effect until then
  std::optional<Instant> opening;       // of the store, when the newest try was sent
  bool unknown = false;                 // a try ended without a known outcome
  bool is_abandoned = false;            // by a user
  std::string node_id;
  std::map<std::string, Value> answers;  // its successful results, by invocation
};

// Walks the log; each rule is checked before the event is applied.
class CommandWalker {
 public:
  explicit CommandWalker(const JobEvidence& e) : side_(side_commands(e.events)) {}

  std::map<std::string, Command, std::less<>> commands;  // by step
  bool is_node(std::string_view step) const { return !side_.contains(step); }
  // The command that this event's command is about; nullptr = none.
  Command* about(const Event& event) {
    const auto of = side_.find(step_of(event));
    return of == side_.end() ? nullptr : &commands[of->second];
  }

  void apply(const Event& event) {
    if (const auto* running = as<JobRunning>(event)) return opened(*running);
    const std::string step(step_of(event));
    if (step.empty()) return;
    Command& command = commands[step];
    if (const auto* call = as<ToolInvocationStarted>(event)) {
      command.tool = call->tool_name;
      command.key = call->idempotency_key.text;
      command.attempt = event.attempt_id ? event.attempt_id->text : "";
      command.node = is_node(step);
      command.node_id = call->node_id;
      command.open = true;
      command.probing = command.absent = false;
      command.settled_at = call->deadline + kToolGrace;
      command.opening = opening_;
    } else if (const auto* finish = as<ToolInvocationFinished>(event)) {
      if (!finish->late) finished(command, *finish);
    } else if (const auto* decision = decision_of(event, OutcomeDecided::kKind)) {
      decided(command, or_empty(decision->state));
    } else if (event.type == EventType::command_committed) {
      command.committed = true;
      command.in_doubt = command.unknown = command.probing = false;
    } else if (event.type == EventType::node_finished) {
      command.in_doubt = command.probing = false;
    }
  }

 private:
  // The current lease holder has opened the store, so the sender of these calls is dead.
  void opened(const JobRunning& running) {
    opening_ = running.opened_at;
    if (!opening_) return;
    for (auto& [step, command] : commands) {
      if (command.opening == opening_) continue;
      const Instant over = *opening_ + kToolTimeout + kToolGrace;
      command.settled_at = std::min(command.settled_at, over);
      if (command.ended_settle) command.ended_settle = std::min(*command.ended_settle, over);
    }
  }
  static void decided(Command& command, std::string_view state) {
    command.in_doubt = command.probing = false;
    command.absent = state == "not_happened";
    if (command.absent) command.ended_settle.reset();
    if (state == "fail") {
      command.is_abandoned = true;
    } else {
      command.unknown = false;
    }
  }
  static void finished(Command& command, const ToolInvocationFinished& finish) {
    command.open = false;
    const std::string_view outcome = finish.outcome;
    const std::string_view error =
        finish.error ? std::string_view(finish.error->code) : std::string_view();
    const bool definite = is_definite(finish);
    if (outcome == "success" || definite) command.probing = false;
    const bool settled = outcome == "success" || definite || finish.settled == true;
    if (!settled && !command.absent) {
      command.ended_settle = std::max(command.ended_settle, std::optional(command.settled_at));
    }
    if (outcome == "success") {
      command.in_doubt = command.unknown = false;
      command.answers[finish.invocation_id.text] = finish.result.value;
    } else if (!definite) {
      command.in_doubt =
          !command.absent && tool_kind(command.tool)->effect_class != EffectClass::read;
      command.unknown = command.unknown || command.in_doubt;
    } else if (finish.external_id || (error != "connect" && error != "not_sent")) {
      // With an id it is the end of a child, which has the code of the child.
      command.in_doubt = command.unknown = false;
    }
  }

  std::map<std::string, std::string, std::less<>> side_;
  std::optional<Instant> opening_;  // of the store, by the current lease holder
};

// ---------------------------------------------------------------- probes

void probe_begins(const JobEvidence& e, CommandWalker& walker, const Event& event,
                  Checker& checker) {
  Command* requested = walker.about(event);
  if (!requested || requested->committed) return;  // else it is a compensation
  checker.fail_if(
      tool_kind(requested->tool)->probe.empty() || (!requested->open && !requested->in_doubt),
      "event {}: {} is probed, and its outcome is not unknown", event.seq, requested->tool);
  std::optional<Instant> settled_at = requested->ended_settle;
  if (requested->open) settled_at = std::max(settled_at, std::optional(requested->settled_at));
  checker.fail_if(!e.clock_jumped && settled_at && event.created_at < *settled_at,
                  "event {}: {} is probed while it may still arrive", event.seq, requested->tool);
  requested->probing = true;
}

void probe_answered(const JobEvidence& e, CommandWalker& walker, std::size_t index,
                    Checker& checker) {
  const auto& decision = std::get<DecisionRecorded>(e.events[index].body);
  const auto decided = decision_as<OutcomeDecided>(decision);
  const std::string invocation = decided && decided->probe ? decided->probe->text.string() : "";
  const Value* answer = nullptr;
  for (const auto& [step, command] : walker.commands) {
    if (const auto it = command.answers.find(invocation); it != command.answers.end()) {
      answer = &it->second;
    }
  }
  if (!answer) return checker.fail("event {}: no probe returned this", index + 1);
  const Value& found = (*answer)["found"];
  const bool happened = decision.state == "happened";
  checker.fail_if(happened == found.is_null(), "event {}: the probe returned something else",
                  index + 1);
  checker.mark(happened ? "probe.happened" : "probe.not_happened");
  if (!happened) return;
  const auto* next =
      index + 1 < e.events.size() ? as<CommandCommitted>(e.events[index + 1]) : nullptr;
  checker.fail_if(
      !next || next->step_id.text != step_of(e.events[index]) || next->result.value != found,
      "event {}: what the probe found is not what is committed", index + 1);
}

void probe_results_are_applied(const JobEvidence& e, Checker& checker) {
  CommandWalker walker(e);
  for (std::size_t i = 0; i < e.events.size(); ++i) {
    const Event& event = e.events[i];
    if (event.type == EventType::command_emitted) probe_begins(e, walker, event, checker);
    const auto* decision = as<DecisionRecorded>(event);
    if (decision && decision->by == "probe") probe_answered(e, walker, i, checker);
    if (const auto* call = as<ToolInvocationStarted>(event)) {
      const Command& command = walker.commands[call->step_id.text];
      checker.fail_if(command.probing, "event {}: a try begins during its probe", event.seq);
      checker.fail_if(command.committed, "event {}: a try begins after the call was committed",
                      event.seq);
    }
    walker.apply(event);
  }
}

// ---------------------------------------------------------------- compensations

// Tracks the compensations of a job, event by event.
class CompensationWalker {
 public:
  CompensationWalker(const JobEvidence& e, Checker& checker) : e_(e), checker_(checker), walk_(e) {}

  void run() {
    for (const Event& event : e_.events) {
      look(event);
      walk_.apply(event);
    }
    if (const Event* const end = end_of(e_)) ended(*end);
    match_effects();
  }

 private:
  void look(const Event& event) {
    const std::string step(step_of(event));
    at_ = fmt::format("event {}", event.seq);
    switch (event.type) {
      case EventType::step_committed:
        if (const ToolKind* kind = tool_kind(walk_.commands[step].tool);
            kind && !kind->undo.empty()) {
          undoable_.push_back(step);
        }
        nodes_[step] = node_of(event);
        break;
      case EventType::command_emitted:
        if (const Command* about = walk_.about(event); about && about->committed) {
          begins(std::get<CommandEmitted>(event.body));
        }
        break;
      case EventType::tool_invocation_started:
        checker_.fail_if(!undoing_.empty() && walk_.is_node(step),
                         "{}: a call starts during a compensation", at_);
        break;
      case EventType::decision_recorded:
        decided(std::get<DecisionRecorded>(event.body), step);
        break;
      case EventType::step_compensated:
        compensated(std::get<StepCompensated>(event.body));
        break;
      case EventType::plan_generated:
        abandon(std::get<PlanGenerated>(event.body).carried);
        break;
      case EventType::fork_imported:
        apply_import(std::get<ForkImported>(event.body));
        break;
      case EventType::job_cancel_requested:
        effects_stay_ =
            effects_stay_ || !std::get<JobCancelRequested>(event.body).compensate.value_or(true);
        break;
      default:
        break;
    }
  }

  // The job does not compensate what a re-plan does not carry over.
  void abandon(const JsonOf<std::vector<CarriedNode>>& carried) {
    if (carried.is_null()) return;
    std::set<std::string, std::less<>> nodes;
    for (const CarriedNode& entry : list_of(carried)) nodes.insert(entry.node_id);
    std::erase_if(undoable_,
                  [&](const std::string& step) { return !nodes.contains(nodes_[step]); });
    std::erase_if(walk_.commands, [&](const auto& entry) {
      const Command& command = entry.second;
      const bool is_dropped = !command.node_id.empty() && !nodes.contains(command.node_id);
      if (is_dropped && command.unknown) earlier_unknown_.insert(command.key);
      return is_dropped;
    });
    std::erase_if(imported_undoable_,
                  [&](const std::string& node) { return !nodes.contains(node); });
  }

  template <class Record>
  std::vector<Record> list_of(const JsonOf<std::vector<Record>>& list) {
    if (list.is_null()) return {};
    auto records = list.read();
    checker_.fail_if(!records, "{}: an import that cannot be read", at_);
    return records ? *std::move(records) : std::vector<Record>();
  }

  // The job does not compensate imported calls; those with unknown outcomes are listed if it fails.
  void apply_import(const ForkImported& fork) {
    for (const UnknownImport& call : list_of(fork.unknown)) {
      earlier_unknown_.emplace(call.idempotency_key.text);
      checker_.mark("fork.unknown");
    }
    for (const ForkEntry& entry : list_of(fork.commands)) {
      const ToolKind* kind = tool_kind(or_empty(entry.tool));
      const bool done = entry.result_type == "side_effect_committed" || entry.committed == true;
      if (kind && !kind->undo.empty() && done) imported_undoable_.emplace_back(entry.node_id);
    }
  }

  void begins(const CommandEmitted& undo) {
    const std::string of = undo.of.value_or(StepId()).text;
    checker_.fail_if(undoable_.empty() || undoable_.back() != of,
                     "{}: the compensated step is not the last committed one", at_);
    checker_.fail_if(!undoing_.empty(), "{}: two steps are compensated at once", at_);
    for (const auto& [step, command] : walk_.commands) {
      checker_.fail_if(command.open, "{}: {} is in flight", at_, command.tool);
      checker_.fail_if(command.node && command.in_doubt, "{}: {} has an unknown outcome", at_,
                       command.tool);
    }
    undoing_ = of;
    undo_ = undo.step_id.text;
  }

  void decided(const DecisionRecorded& decision, const std::string& step) {
    if (!is_decision<OutcomeDecided>(decision) || step != undo_) return;
    const bool called = walk_.commands.contains(step) && !walk_.commands[step].key.empty();
    if (decision.state == "happened" && !called) undone_by_hand_.insert(undoing_);
    if (decision.state != "fail") return;
    checker_.mark("undo.abandoned");
    abandoned_.insert(undoing_);
    over();
  }

  void compensated(const StepCompensated& undone) {
    const std::string& step = undone.step_id.text;
    checker_.mark("undo.done");
    checker_.fail_if(undoing_ != step, "{}: no compensation of it is in progress", at_);
    checker_.fail_if(!undone_by_hand_.contains(step) && !walk_.commands[undo_].committed,
                     "{}: its compensation is not committed", at_);
    checker_.fail_if(undone.compensation_invocation_id.empty(), "{}: it names no call", at_);
    undone_.push_back(step);
    over();
  }

  void over() {
    if (!undoable_.empty()) undoable_.pop_back();
    undoing_.clear();
    undo_.clear();
  }

  void ended(const Event& end) {
    at_ = "the end";
    const bool completed = end.type == EventType::job_completed;
    lists_unknown(end, completed);
    checker_.fail_if(completed && !(undone_.empty() && abandoned_.empty() && undoing_.empty()),
                     "{}: a completed job has compensated steps", at_);
    if (completed) return;
    checker_.fail_if(!undoable_.empty() && !effects_stay_, "{}: {} steps are not compensated", at_,
                     undoable_.size());
    const auto [compensated, uncompensated] = listed_by(end);
    checker_.fail_if(
        compensated != undone_.size() ||
            uncompensated != abandoned_.size() + undoable_.size() + imported_undoable_.size(),
        "{}: it lists other steps", at_);
    if (!undoable_.empty()) checker_.mark("undo.uncompensated");
  }

  // The number of compensated and uncompensated steps that a terminal event lists.
  static std::pair<std::size_t, std::size_t> listed_by(const Event& end) {
    return std::visit(
        [](const auto& ended) -> std::pair<std::size_t, std::size_t> {
          if constexpr (requires { ended.uncompensated; }) {
            return {ended.compensated.json().size(), ended.uncompensated.json().size()};
          }
          return {};
        },
        end.body);
  }
  static Value in_doubt_by(const Event& end) {
    return std::visit(
        [](const auto& ended) {
          if constexpr (requires { ended.in_doubt; }) return ended.in_doubt.json();
          return Value();
        },
        end.body);
  }

  // The terminal event lists every call whose outcome stayed unknown. None of them could have been
  // undone, unless a user or its tool gave it up, or a user decided that effects stay.
  void lists_unknown(const Event& end, bool completed) {
    std::set<std::string> unknown = earlier_unknown_, listed;
    for (const auto& [step, command] : walk_.commands) {
      if (!command.unknown) continue;
      unknown.insert(command.key);
      const ToolKind& kind = *tool_kind(command.tool);
      const bool undoable = command.node && !kind.undo.empty() && kind.in_doubt != "fail";
      checker_.fail_if(!completed && !effects_stay_ && undoable && !command.is_abandoned,
                       "{}: {} has an unknown outcome and could have been compensated", at_,
                       command.tool);
      checker_.mark(completed ? "end.completed_with_unknown_outcome" : "end.unknown_outcome");
    }
    if (const Value list = in_doubt_by(end); list.is_array()) {
      for (const Value& key : list.items()) listed.emplace(key.as_string());
    }
    checker_.fail_if(listed != unknown,
                     "{}: it lists {} calls with an unknown outcome, {} have one", at_,
                     listed.size(), unknown.size());
  }

  // Each effect of a compensation belongs to one call that took effect, and each step that is
  // logged as undone has one.
  void match_effects() {
    std::map<std::string, std::uint64_t, std::less<>> undone;  // by the key of the undone call
    for (const KeyRecord* record : e_.touched) {
      if (is_undo(*tool_kind(record->tool)) && record->effects > 0) {
        undone[std::string(record->undoes())] += record->effects;
      }
    }
    std::set<std::string, std::less<>> steps;  // keys of commands that may be undone
    for (const auto& [step, command] : walk_.commands) {
      const std::uint64_t times = undone.contains(command.key) ? undone[command.key] : 0;
      const bool done = std::ranges::count(undone_, step) > 0;
      checker_.fail_if(done && !undone_by_hand_.contains(step) && times != 1,
                       "{} is compensated in the log; the compensation took effect {} times",
                       command.tool, times);
      checker_.fail_if(times > 1, "{} was compensated twice", command.tool);
      const bool is_allowed = done || abandoned_.contains(step) || undoing_ == step;
      checker_.fail_if(times > 0 && !is_allowed,
                       "{} was compensated, and the log does not record it", command.tool);
      if (command.key.empty()) continue;
      steps.insert(command.key);
      const KeyRecord* record = record_of(e_, command.key);
      const bool happened =
          tool_kind(command.tool)->child ? command.committed : record && record->effects == 1;
      checker_.fail_if(times > 0 && !happened, "{} was compensated and had not happened",
                       command.tool);
    }
    for (const auto& [key, times] : undone) {
      checker_.fail_if(!steps.contains(key), "a call that is not in the log was compensated");
    }
  }

  const JobEvidence& e_;
  Checker& checker_;
  CommandWalker walk_;
  std::string at_;
  std::vector<std::string> undoable_, undone_;  // steps, in order
  std::set<std::string> abandoned_, undone_by_hand_;
  std::map<std::string, std::string, std::less<>> nodes_;  // of steps
  std::vector<std::string> imported_undoable_;  // nodes of imported steps that can be undone
  std::set<std::string> earlier_unknown_;       // keys: of the origin, or of abandoned nodes
  std::string undoing_, undo_;  // the step being undone, and the step that undoes it
  bool effects_stay_ = false;   // a user decided that effects stay
};

void committed_steps_are_compensated(const JobEvidence& e, Checker& checker) {
  CompensationWalker(e, checker).run();
}

constexpr Rule kSideRules[] = {
    {"A8 a probe starts only for a settled call, and its result is applied",
     probe_results_are_applied},
    {"C1 committed steps are compensated once, newest first, and nothing else is",
     committed_steps_are_compensated},
};

}  // namespace

std::span<const Rule> side_rules() { return kSideRules; }

}  // namespace ae::sim
