// The rules about imports of forks and about re-plans.
#include <fmt/core.h>

#include <algorithm>
#include <optional>
#include <set>

#include "json/json.h"
#include "log/field_names.h"
#include "sim/checker.h"

namespace ae::sim {
namespace {

// Work that the plan does once: a node or a map item; and the step that does or did it.
struct WorkItem {
  std::string step;
  bool done = false, effect = false, imported = false;
};

// True if the import is of an unfinished map or loop, which is not a finished step.
bool is_unfinished(const Value& entry) {
  return entry["over"] == Value(true) || entry["under_way"] == Value(true);
}

// Tracks the work items of a job, event by event.
class WorkItemWalker {
 public:
  WorkItemWalker(const JobEvidence& e, Checker& checker, bool imported)
      : e_(e), checker_(checker), imported_(imported), side_(side_commands(e.events)) {}

  void run() {
    for (const Event& event : e_.events) apply(event);
  }

 private:
  static std::string name_of(std::string_view node, const Value& item) {
    return item.is_null() ? std::string(node) : fmt::format("{}/{}", node, canonical(item));
  }
  // Of a loop or of code: each command is a separate work item.
  bool of_loop(const Event& event) const {
    const engine::Node& node = node_of(e_, event);
    return node.loop != nullptr || node.code != nullptr;
  }
  // The map item of a call, as workload.cc writes it; null = it is not for an item.
  Value item_of(const Event& event, const ToolInvocationStarted& call) const {
    const Value& args = call.arguments.value;
    if (of_loop(event)) return call.step_id.text;
    const bool model = call.tool_name.starts_with(kModelToolPrefix);
    if (!model || node_of(e_, event).kind != engine::NodeKind::map) return args["i"];
    return parse_json(args["messages"].items().back().text("content")).value_or(Value());
  }

  void apply(const Event& event) {
    if (const auto* fork = as<ForkImported>(event)) {
      for (const Value& entry : fork->commands.json().items()) apply_import(entry);
    } else if (const auto* call = as<ToolInvocationStarted>(event)) {
      if (!side_.contains(call->step_id.text)) started(event, *call);
    } else if (event.type == EventType::command_committed) {
      for (auto& [name, place] : work_items_) {
        if (place.step != step_of(event)) continue;
        place.done = true;
        place.effect = tool_kind(tools_[place.step])->effect_class != EffectClass::read;
      }
    } else if (const auto* plan = as<PlanGenerated>(event)) {
      if (!plan->carried.is_null()) replaced(event, *plan);
    }
  }

  void apply_import(const Value& entry) {
    if (is_unfinished(entry)) return;
    const ToolKind* kind = tool_kind(entry.text("tool"));
    const bool committed = entry.text(field::result_type) == "side_effect_committed" ||
                           entry["committed"] == Value(true);
    const bool of_loop = entry.find("turn") != nullptr;
    work_items_[name_of(entry.text(field::node_id), entry[of_loop ? field::step_id : "item"])] = {
        std::string(entry.text(field::step_id)), true,
        kind && committed && kind->effect_class != EffectClass::read, true};
  }

  void started(const Event& event, const ToolInvocationStarted& call) {
    const std::string& step = call.step_id.text;
    tools_[step] = call.tool_name;
    const auto work_item = work_items_.find(call.node_id);
    checker_.fail_if(of_loop(event) && work_item != work_items_.end() && work_item->second.imported,
                     "event {}: an imported loop is continued", event.seq);
    WorkItem& place = work_items_[name_of(call.node_id, item_of(event, call))];
    checker_.fail_if(place.done && place.imported == imported_, "event {}: {} is called, which {}",
                     event.seq, call.node_id, imported_ ? "was imported" : "was done before");
    if (place.step != step) place = {.step = step};
  }

  void replaced(const Event& event, const PlanGenerated& plan) {
    std::set<std::string, std::less<>> carried, dropped;
    for (const CarriedNode& entry : plan.carried.read_leniently()) carried.insert(entry.node_id);
    for (std::string& node : plan.drop.read_leniently()) dropped.insert(std::move(node));
    for (const auto& [name, place] : work_items_) {
      const std::string node = name.substr(0, name.find('/'));
      if (carried.contains(node)) {
        if (place.effect) checker_.mark("plan.effect_carried");
        continue;
      }
      checker_.fail_if(place.effect && !dropped.contains(node),
                       "event {} drops the effect of {}, which no request named", event.seq, name);
      if (place.effect) checker_.mark("plan.effect_dropped");
    }
    std::erase_if(work_items_, [&](const auto& entry) {
      return !carried.contains(entry.first.substr(0, entry.first.find('/')));
    });
  }

  const JobEvidence& e_;
  Checker& checker_;
  bool imported_;
  std::map<std::string, std::string, std::less<>> side_;
  std::map<std::string, WorkItem> work_items_;  // by node, or node/item
  std::map<std::string, std::string> tools_;    // by step
};

// ---------------------------------------------------------------- forks

void imports_are_not_done_again(const JobEvidence& e, Checker& checker) {
  if (!e.state.forked_from) return;
  WorkItemWalker(e, checker, true).run();
  std::set<std::string, std::less<>> imported;
  for (const Event& event : e.events) {
    if (const auto* fork = as<ForkImported>(event)) {
      for (const Value& entry : fork->commands.json().items()) {
        if (!is_unfinished(entry)) imported.emplace(entry.text(field::step_id));
        checker.mark("fork.imported");
        if (entry["under_way"] == Value(true)) checker.mark("fork.loop_continued");
      }
    }
    checker.fail_if(event.type == EventType::command_emitted && imported.contains(step_of(event)),
                    "event {} is a command of an imported step", event.seq);
  }
}

const RequestedFork* requested_fork_of(const JobEvidence& e) {
  const auto requested_fork = e.forks.find(e.job);
  return requested_fork == e.forks.end() ? nullptr : &requested_fork->second;
}

// Steps that the fork imported as done.
std::set<std::string, std::less<>> imported_steps(const JobEvidence& e) {
  std::set<std::string, std::less<>> steps;
  for (const Event& event : e.events) {
    const auto* fork = as<ForkImported>(event);
    if (!fork) continue;
    for (const Value& entry : fork->commands.json().items()) {
      if (!is_unfinished(entry)) steps.emplace(entry.text(field::step_id));
    }
  }
  return steps;
}

// Nodes that a re-plan of the origin has abandoned: their effects are no longer the job's.
std::set<std::string, std::less<>> dropped_nodes(const std::vector<Event>& events) {
  std::set<std::string, std::less<>> nodes;
  for (const Event& event : events) {
    const auto* plan = as<PlanGenerated>(event);
    if (!plan) continue;
    for (std::string& node : plan->drop.read_leniently()) nodes.insert(std::move(node));
  }
  return nodes;
}

// The seq of the event that declared the effective try; 0 = none had an effect.
std::uint64_t effect_declared(const CallHistory& call, const KeyRecord& record) {
  for (const Arrival& arrival : record.arrivals) {
    const auto t = call.tries.find(arrival.try_no);
    if (arrival.effect && t != call.tries.end()) return t->second.seq;
  }
  return 0;
}

void repeats_have_consent(const JobEvidence& e, Checker& checker) {
  const RequestedFork* requested_fork = requested_fork_of(e);
  if (!e.state.forked_from || !requested_fork || requested_fork->request.repeat_all) return;
  const auto origin = e.logs.find(requested_fork->request.origin);
  if (origin == e.logs.end()) return checker.fail("its origin does not exist");
  const auto imported = imported_steps(e), dropped = dropped_nodes(origin->second);
  const auto side = side_commands(origin->second);
  const std::vector<std::string>& agreed = requested_fork->request.repeat;
  for (const auto& [invocation, call] : calls_of(origin->second)) {
    const KeyRecord* record = record_of(e, call.key);
    if (side.contains(call.step) || !record || record->effect_class == EffectClass::read) continue;
    const bool named = std::ranges::any_of(
        agreed, [&](const std::string& name) { return name == call.step || name == call.key; });
    if (imported.contains(call.step) || named) continue;
    const Event& declaration = origin->second[call.tries.begin()->second.seq - 1];
    if (dropped.contains(node_of(declaration))) continue;
    // The service reported at last that nothing has happened.
    if (const CallHistory::Try& last = call.tries.rbegin()->second; last.finished && last.definite)
      continue;
    const std::uint64_t seq = record->effects > 0 ? effect_declared(call, *record) : 0;
    checker.fail_if(seq > 0 && seq <= requested_fork->origin_events,
                    "the origin's {} ({}) had happened when the fork was requested, "
                    "and no user agreed to repeat it",
                    call.tool, call.step);
  }
  if (!agreed.empty()) checker.mark("fork.consent_by_name");
}

void fork_shares_no_key(const JobEvidence& e, Checker& checker) {
  if (!e.state.forked_from) return;
  const ForkOrigin& from = *e.state.forked_from;
  const auto origin = e.logs.find(JobId(from.job_id));
  if (origin == e.logs.end()) return checker.fail("its origin does not exist");
  const auto seq = static_cast<std::size_t>(from.seq);
  const std::vector<Event>& log = origin->second;
  checker.fail_if(seq == 0 || seq > log.size() || log[seq - 1].hash != from.hash,
                  "the origin's log has another event where the fork begins");
  std::set<std::string, std::less<>> keys;
  std::map<std::string, Value, std::less<>> results;  // of the origin's steps
  for (const auto& [invocation, call] : calls_of(log)) {
    keys.insert(call.key);
    keys.insert(call.external_key);
    for (const auto& [number, t] : call.tries) {
      if (t.success) results.emplace(call.step, t.result);
    }
  }
  for (const auto& [invocation, call] : calls_of(e.events)) {
    checker.fail_if(keys.contains(call.key) || keys.contains(call.external_key),
                    "{} is called under a key of the origin", call.tool);
  }
  for (const Event& event : e.events) {
    const auto* fork = as<ForkImported>(event);
    if (!fork) continue;
    for (const auto& [step, result] : fork->results.value.members()) {
      const auto had = results.find(step);
      const bool other =
          had != results.end() && result.find(field::error) == nullptr && had->second != result;
      checker.fail_if(other, "the imported result of {} is not that of the origin", step);
    }
  }
}

void fork_matches_request(const JobEvidence& e, Checker& checker) {
  const RequestedFork* requested_fork = requested_fork_of(e);
  const auto& from = e.state.forked_from;
  checker.fail_if(!from != (requested_fork == nullptr),
                  "a fork without a request, or a request without a fork");
  if (!requested_fork || !from) return;
  checker.fail_if(from->job_id != requested_fork->request.origin.text,
                  "it is a fork of another job");
  checker.fail_if(
      requested_fork->request.at > 0 && std::cmp_not_equal(from->seq, requested_fork->request.at),
      "it begins at another event");
  checker.fail_if(requested_fork->request.input && e.state.input != *requested_fork->request.input,
                  "its input is not the requested one");
}

// ---------------------------------------------------------------- re-plans

bool made_by_model(const Event& plan) {
  return or_empty(std::get<PlanGenerated>(plan.body).planned_by).starts_with(kModelToolPrefix);
}

void replaced_only_when_idle(const JobEvidence& e, Checker& checker) {
  std::map<std::string, std::string, std::less<>> open;  // tries, and waits for resolutions
  bool first = true;
  for (const Event& event : e.events) {
    switch (event.type) {
      case EventType::tool_invocation_started: {
        const auto& call = std::get<ToolInvocationStarted>(event.body);
        open[call.step_id.text] = call.tool_name;
        break;
      }
      case EventType::tool_invocation_finished: {
        const auto& finished = std::get<ToolInvocationFinished>(event.body);
        if (!finished.late) open.erase(finished.step_id.text);
        break;
      }
      case EventType::wait_opened: {
        const auto& wait = std::get<WaitOpened>(event.body);
        const std::string& key = wait.correlation_key;
        if (key.starts_with("resolve/")) open[key] = "doubt";
        if (is_of_child(wait.wait_type)) open[key] = "child";
        break;
      }
      case EventType::wait_completed:
        open.erase(std::get<WaitCompleted>(event.body).correlation_key);
        break;
      case EventType::plan_generated:
        if (std::exchange(first, false)) break;
        for (const auto& [what, tool] : open) {
          checker.fail("event {} replaces the plan while {} ({}) is open", event.seq, what, tool);
        }
        checker.mark(made_by_model(event) ? "plan.made_by_model" : "plan.replaced");
        break;
      default:
        break;
    }
  }
}

void carried_is_not_done_again(const JobEvidence& e, Checker& checker) {
  WorkItemWalker(e, checker, false).run();
}

// The plan that the job had before this event; null: none.
Value task_graph_before(const JobEvidence& e, std::size_t end) {
  Value graph;
  for (std::size_t i = 0; i < end; ++i) {
    if (const auto* plan = as<PlanGenerated>(e.events[i])) graph = plan->task_graph;
  }
  return graph;
}

// The nodes whose results a fork imported and no plan before this event has dropped.
std::set<std::string> imported_before(const JobEvidence& e, std::size_t end) {
  std::set<std::string> nodes;
  for (std::size_t i = 0; i < end; ++i) {
    if (const auto* fork = as<ForkImported>(e.events[i])) {
      for (const Value& entry : fork->commands.json().items()) {
        const bool is_part = entry.find("item") != nullptr || entry.find("turn") != nullptr;
        if (entry.find(field::result_type) != nullptr && !is_part) {
          nodes.insert(std::string(entry.text(field::node_id)));
        }
      }
    } else if (const auto* plan = as<PlanGenerated>(e.events[i])) {
      for (const std::string& node : plan->drop.read_leniently()) nodes.erase(node);
    }
  }
  return nodes;
}

void plans_match_requests(const JobEvidence& e, Checker& checker) {
  for (std::size_t i = 0; i + 1 < e.events.size(); ++i) {
    const auto* decision = decision_of(e.events[i], "re_plan");
    if (!decision) continue;
    const auto request = e.requested.find(or_empty(decision->by));
    const auto* const requested =
        request == e.requested.end() ? nullptr : request->second.request.as<engine::PlanRequest>();
    if (requested == nullptr) {
      checker.fail("event {}: no user requested a re-plan", i + 1);
      continue;
    }
    const auto* generated = as<PlanGenerated>(e.events[i + 1]);
    checker.fail_if(!generated || generated->task_graph != requested->task_graph,
                    "event {}: the plan is not the requested one", i + 1);
    std::set<std::string> requested_drops, actual_drops;
    const bool same_plan = requested->task_graph == task_graph_before(e, i);
    const std::set<std::string> imported = imported_before(e, i);
    for (const Value& node : requested->drop.items()) {
      // An unchanged plan drops only results that the fork imported: the others run anyway.
      if (!same_plan || imported.contains(node.as_string())) {
        requested_drops.insert(node.as_string());
      }
    }
    if (generated) {
      for (std::string& node : generated->drop.read_leniently()) {
        actual_drops.insert(std::move(node));
      }
    }
    checker.fail_if(requested_drops != actual_drops,
                    "event {}: other nodes are dropped than requested", i + 1);
  }
  for (const Ack* ack : e.acks) {
    const auto* const requested = ack->request.as<engine::PlanRequest>();
    if (requested == nullptr || ack->answer["unchanged"].is_bool()) continue;
    const bool found = std::ranges::any_of(e.events, [&](const Event& event) {
      const auto* plan = as<PlanGenerated>(event);
      return plan && plan->task_graph == requested->task_graph;
    });
    checker.fail_if(!found, "{} was accepted and is not in the log: {}", ack->request.id,
                    canonical(ack->answer));
  }
}

constexpr Rule kPlanRules[] = {
    {"K1 a fork does not repeat imported steps", imports_are_not_done_again},
    {"K2 a fork repeats only calls with consent", repeats_have_consent},
    {"K3 a fork starts at an event of its origin and shares no key with it", fork_shares_no_key},
    {"K4 a fork matches its request", fork_matches_request},
    {"R1 a plan is replaced only while no call is pending or unknown", replaced_only_when_idle},
    {"R2 a carried step is never repeated, and a dropped effect was named",
     carried_is_not_done_again},
    {"R3 a plan matches its request, and an accepted plan is never lost", plans_match_requests},
};

}  // namespace

std::span<const Rule> plan_rules() { return kPlanRules; }

}  // namespace ae::sim
