// How a fork begins: what was done in the job that it is forked from stands in it as done.
//
// A node or an item that is brought in keeps the step_id it had, makes no call here, and is none of this job's to undo.
// Everything else is as in any new job, with ids of its own.
#include <algorithm>

#include "engine/applier.h"
#include "engine/loop.h"

namespace ae::engine {

Status Applier::fork_imported() {
  if (s_.forked_from.is_null()) return bad("the job is not a fork");
  if (!s_.plan) return fail(Code::plan_missing, "the log has no plan_generated");
  if (s_.status != JobStatus::queued || s_.epoch > 0) return bad("the job has begun");
  if (!p_["commands"].is_array()) return bad("without commands");
  for (const Value& entry : p_["commands"].items()) {
    AE_TRY(import_one(entry, p_["results"][entry.text("step_id")]));
  }
  return p_.find("unknown") != nullptr ? import_unknown(p_["unknown"]) : Status();
}

// Calls of the origin whose outcome was unknown then, and that this job does not make again.
Status Applier::import_unknown(const Value& list) {
  if (!list.is_array()) return bad("without the unknown calls");
  for (const Value& one : list.items()) {
    UnknownCall& call = s_.earlier_unknown.emplace_back();
    call.step = StepId(std::string(one.text("step_id")));
    call.node_id = one.text("node_id");
    call.tool = one.text("tool");
    call.invocation = InvocationId(std::string(one.text("invocation_id")));
    call.key = IdempotencyKey(std::string(one.text("idempotency_key")));
    call.external_key = ExternalKey(std::string(one.text("external_key")));
    call.error.code = one.text("reason");
    call.checkable_at = maybe_instant(one, "checkable_at");
    call.given_up = true;
    const auto try_no = maybe_int(one, "try"), item = maybe_int(one, "item");
    call.try_no = static_cast<std::uint32_t>(try_no.value_or(0));
    if (item) call.item = static_cast<std::uint32_t>(*item);
    if (call.step.text.empty() || call.key.text.empty() || call.invocation.text.empty()) {
      return bad("an unknown call without its names");
    }
  }
  return {};
}

Status Applier::import_one(const Value& entry, const Value& result) {
  const auto node = s_.plan->by_id.find(std::string(entry.text("node_id")));
  if (node == s_.plan->by_id.end()) return bad("no such node");
  Step& step = s_.steps[node->second];
  StepId id(std::string(entry.text("step_id")));
  if (id.text.empty()) return bad("without a step_id");
  if (entry["over"] == Value(true)) return import_over(step, result);
  if (entry["under_way"] == Value(true)) return import_under_way(step);
  const std::optional<std::int64_t> item = maybe_int(entry, "item");
  if (s_.by_id.contains(id) && (item || s_.by_id.at(id) != node->second)) {
    return bad("a step with this id exists already");
  }
  if (entry.find("turn") != nullptr) return import_of_loop(step, id, entry, result);
  if (!item) return import_node(step, id, entry, result);
  if (*item < 0 || *item >= static_cast<std::int64_t>(kNoItem)) return bad("no such item");
  return import_item(step, static_cast<std::uint32_t>(*item), id, entry, result);
}

// A map that was under way: what it goes over is settled.
Status Applier::import_over(Step& map, const Value& over) {
  if (s_.node_of(map).kind != NodeKind::map || map.phase != StepPhase::ready || map.map ||
      !over.is_array()) {
    return bad("no such map");
  }
  if (s_.node_of(map).when) map.branch = true;
  begin_map(map, over);
  return {};
}

namespace {

// What is known of a step from its entry. False: no step can have ended so.
bool take_end(Step& step, const Value& entry, const Value& result, bool erased) {
  step.result_type = result_type_of(entry.text("result_type"));
  const bool failed = step.result_type == ResultType::permanent_failure ||
                      step.result_type == ResultType::compensatable_failure;
  const bool ended = failed || step.result_type == ResultType::pure ||
                     step.result_type == ResultType::side_effect_committed;
  step.phase = StepPhase::done;
  step.started = true;
  step.skipped = flag(entry, "skipped");
  step.committed =
      step.result_type == ResultType::side_effect_committed || flag(entry, "committed");
  step.barrier = step.committed;
  step.imported = std::make_unique<Imported>(
      Imported{.tool = std::string(entry.text("tool")),
               .arguments_hash = std::string(entry.text("arguments_hash")),
               .arguments = {},
               .invocation = {}});
  if (failed) {
    step.failure = failure_of(result["error"]);
  } else {
    step.result = result;
    step.erased = erased && !step.skipped;
  }
  return ended;
}

}  // namespace

Status Applier::import_item(Step& map, std::uint32_t item, const StepId& id, const Value& entry,
                            const Value& result) {
  const bool under_way = map.map != nullptr;
  const bool over = map.imported != nullptr && !map.skipped;
  if (s_.node_of(map).kind != NodeKind::map || (!under_way && !over)) return bad("no such map");
  if (under_way && (item >= map.map->results.size() || map.map->finished[item])) {
    return bad("no such item, or it exists already");
  }
  Step& step = new_item(map, item, id);
  if (!take_end(step, entry, result, erased("results"))) return bad("no item ends so");
  if (step.failure && under_way && !s_.node_of(map).collect_errors) {
    return bad("its failure is the map's");
  }
  if (under_way) {
    map.map->finished[item] = true;
    map.map->results[item] = s_.seen_result(step);
    map.map->erased = map.map->erased || step.erased;
    map.map->done++;
    pass_finished(*map.map);
  }
  step.result = Value();
  return {};
}

// A loop that was under way: what its turns were follows.
Status Applier::import_under_way(Step& loop) {
  if (!s_.node_of(loop).loop || loop.phase != StepPhase::ready || loop.loop) {
    return bad("no such loop");
  }
  if (s_.node_of(loop).when) loop.branch = true;
  loop.loop = std::make_unique<LoopProgress>();
  return {};
}

// What its model was asked and answered, and what that became.
Status Applier::import_turn(Step& loop, const StepId& id, const Value& entry, const Value& result) {
  LoopProgress& progress = *loop.loop;
  const auto turn = static_cast<std::uint32_t>(progress.turns.size());
  if (entry["turn"] != Value(std::uint64_t{turn}) || !may_ask_next(s_, loop)) {
    return bad("its turns are not those of a loop, one after the other");
  }
  const auto index = static_cast<std::uint32_t>(s_.steps.size());
  Step& step = new_of_loop(loop, turn, kNoTurn, id);
  if (!take_end(step, entry, result, erased("results")) || step.result_type != ResultType::pure ||
      step.skipped) {
    return bad("no turn ends so");
  }
  const Value& arguments = p_["results"][id.text + "/arguments"];
  step.imported->arguments = arguments;
  step.imported->invocation = InvocationId(std::string(entry.text("invocation")));
  progress.turns.push_back({.step = index});
  progress.next = 0;
  progress.conversation = arguments.text("conversation");
  progress.said = static_cast<std::uint64_t>(maybe_int(arguments, "said").value_or(0));
  model_told(progress, arguments);
  const Value* choice = entry.find("choice");
  return choice != nullptr ? choose(loop, *choice) : Status();
}

// A call of the newest turn; those that are missing are made here.
Status Applier::import_turn_call(Step& loop, const StepId& id, const Value& entry,
                                 const Value& result) {
  LoopProgress& progress = *loop.loop;
  if (progress.turns.empty() || entry["turn"] != Value(std::uint64_t{progress.turns.size() - 1})) {
    return bad("no such turn");
  }
  auto& calls = progress.turns.back().calls;
  const auto nth = static_cast<std::size_t>(maybe_int(entry, "turn_call").value_or(-1));
  if (nth >= calls.size() || calls[nth].refused || calls[nth].step != kNoStep ||
      s_.plan->tools[calls[nth].tool].name != entry.text("tool")) {
    return bad("its model requested no such call, or it exists already");
  }
  calls[nth].step = static_cast<std::uint32_t>(s_.steps.size());
  Step& step = new_of_loop(loop, static_cast<std::uint32_t>(progress.turns.size() - 1),
                           static_cast<std::uint32_t>(nth), id);
  step.tool = calls[nth].tool;
  if (flag(entry, "edited")) calls[nth].edited = p_["results"][id.text + "/edited"];
  pass_answered(progress);
  return take_end(step, entry, result, erased("results")) ? Status() : bad("no call ends so");
}

// What a loop that is over asked and did: only so that it is known of.
Status Applier::import_of_loop(Step& loop, const StepId& id, const Value& entry,
                               const Value& result) {
  if (loop.loop && loop.phase == StepPhase::ready && !s_.by_id.contains(id)) {
    return entry.find("turn_call") != nullptr ? import_turn_call(loop, id, entry, result)
                                              : import_turn(loop, id, entry, result);
  }
  const std::optional<std::int64_t> turn = maybe_int(entry, "turn"),
                                    nth = maybe_int(entry, "turn_call");
  const auto fits = [](const std::optional<std::int64_t>& n) {
    return n && *n >= 0 && *n < static_cast<std::int64_t>(kNoTurn);
  };
  if (!s_.node_of(loop).loop || !loop.imported || loop.skipped || s_.by_id.contains(id)) {
    return bad("no such loop");
  }
  if (!fits(turn) || (nth && !fits(nth))) return bad("no such turn");
  std::uint32_t tool = kNoTurn;
  if (nth) {
    const auto named = std::ranges::find(s_.plan->tools, entry.text("tool"), &ToolPolicy::name);
    if (named == s_.plan->tools.end()) return bad("a call of a tool that the plan has not");
    tool = static_cast<std::uint32_t>(named - s_.plan->tools.begin());
  }
  Step& step = new_of_loop(loop, static_cast<std::uint32_t>(*turn),
                           nth ? static_cast<std::uint32_t>(*nth) : kNoTurn, id);
  step.tool = tool;
  return take_end(step, entry, result, erased("results")) ? Status() : bad("no call ends so");
}

Status Applier::import_node(Step& step, const StepId& id, const Value& entry, const Value& result) {
  const Node& node = s_.node_of(step);
  if (step.phase != StepPhase::ready || step.map || step.loop) {
    return bad("it cannot be done yet, or is");
  }
  const std::uint32_t index = node.index;
  if (!take_end(step, entry, result, erased("results"))) return bad("no node ends so");
  if (step.failure && !node.continue_on_error) return bad("its failure is the job's");
  if (step.skipped) {
    if (!node.when) return bad("it cannot be skipped");
    step.started = false;
    step.branch = false;
  } else if (node.when) {
    step.branch = true;
  }
  if (node.kind == NodeKind::map && step.result.is_array()) s_.map_items += step.result.size();
  s_.by_id.erase(step.id);
  step.id = id;
  s_.by_id.emplace(id, index);
  refresh(index);
  s_.nodes_left--;
  open_dependents(node);
  return {};
}

}  // namespace ae::engine
