// How a fork starts: the imported results of its origin count as done.
//
// An imported node or item keeps its step_id, makes no call here, and is not undone by this job.
// Everything else is as in any new job, with its own ids.
#include "engine/state/applier.h"
#include "log/field_names.h"

namespace ae::engine {

Status Applier::apply(const ForkImported& event) {
  if (!s_.forked_from) return corrupt_event("the job is not a fork");
  if (!s_.plan) return fail(Code::plan_missing, "the log has no plan_generated");
  if (s_.status != JobStatus::queued || s_.epoch > 0) return corrupt_event("the job has begun");
  const auto entries = event.commands.read();
  if (!entries) return corrupt_event(entries.error().message);
  for (const ForkEntry& entry : *entries) AE_TRY(import_entry(entry, event.results));
  if (event.unknown.is_null()) return {};
  const auto unknown = event.unknown.read();
  if (!unknown) return corrupt_event(unknown.error().message);
  for (const UnknownImport& call : *unknown) import_unknown(call);
  return {};
}

// A call of the origin whose outcome was unknown at the fork, and that this job does not repeat.
void Applier::import_unknown(const UnknownImport& unknown) {
  UnknownCall& call = s_.earlier_unknown.emplace_back();
  call.step = unknown.step_id;
  call.node_id = unknown.node_id;
  call.tool = unknown.tool;
  call.invocation = unknown.invocation_id;
  call.key = unknown.idempotency_key;
  call.external_key = unknown.external_key;
  call.error.code = or_empty(unknown.reason);
  call.checkable_at = unknown.checkable_at;
  call.given_up = true;
  call.try_no = static_cast<std::uint32_t>(unknown.try_no);
  if (unknown.item) call.item = static_cast<std::uint32_t>(*unknown.item);
}

Status Applier::import_entry(const ForkEntry& entry, const Erasable& results) {
  const auto node = s_.plan->by_id.find(entry.node_id);
  if (node == s_.plan->by_id.end()) return corrupt_event("no such node");
  Step& step = s_.steps[node->second];
  const StepId& id = entry.step_id;
  if (entry.over == true) return import_over(step, results.value[id.text]);
  if (entry.under_way == true) return import_running_loop(step);
  const std::uint32_t known = s_.index_of(id);
  if (known != kNoStep && (entry.item || known != node->second)) {
    return corrupt_event("a step with this id exists already");
  }
  if (entry.turn) return import_of_loop(step, entry, results);
  if (!entry.item) return import_node(step, entry, results);
  if (*entry.item < 0 || *entry.item >= static_cast<std::int64_t>(kNoItem))
    return corrupt_event("no such item");
  return import_item(step, static_cast<std::uint32_t>(*entry.item), entry, results);
}

// A map that was running: its value is fixed.
Status Applier::import_over(Step& map, const Value& over) {
  if (s_.node_of(map).kind != NodeKind::map || map.phase != StepPhase::ready || map.map ||
      !over.is_array()) {
    return corrupt_event("no such map");
  }
  if (s_.node_of(map).when) map.branch = true;
  begin_map(map, over);
  return {};
}

// The state of an imported step from its entry. False: no step can end like this.
bool Applier::import_end(Step& step, const ForkEntry& entry, const Erasable& results) {
  const Value& result = results.value[entry.step_id.text];
  step.result_type = entry.result_type ? result_type_of(*entry.result_type) : ResultType::none;
  const bool failed = step.result_type == ResultType::permanent_failure ||
                      step.result_type == ResultType::compensatable_failure;
  const bool ended = failed || step.result_type == ResultType::pure ||
                     step.result_type == ResultType::side_effect_committed;
  step.phase = StepPhase::done;
  step.started = true;
  step.skipped = entry.skipped == true;
  step.committed = step.result_type == ResultType::side_effect_committed || entry.committed == true;
  step.barrier = step.committed;
  step.imported =
      std::make_unique<Imported>(Imported{.tool = or_empty(entry.tool),
                                          .arguments_hash = or_empty(entry.arguments_hash),
                                          .arguments = {},
                                          .invocation = {}});
  if (failed) {
    step.failure = failure_of(result[field::error]);
  } else {
    step.result = result;
    step.erased = results.erased && !step.skipped;
  }
  return ended;
}

Status Applier::import_item(Step& map, std::uint32_t item, const ForkEntry& entry,
                            const Erasable& results) {
  const bool under_way = map.map != nullptr;
  const bool over = map.imported != nullptr && !map.skipped;
  if (s_.node_of(map).kind != NodeKind::map || (!under_way && !over))
    return corrupt_event("no such map");
  if (under_way && (item >= map.map->results.size() || map.map->finished[item])) {
    return corrupt_event("no such item, or it exists already");
  }
  Step& step = new_item(map, item, entry.step_id);
  if (!import_end(step, entry, results)) return corrupt_event("no item ends so");
  if (step.failure && under_way && !s_.node_of(map).collect_errors) {
    return corrupt_event("its failure is the map's");
  }
  if (under_way) {
    map.map->finished[item] = true;
    map.map->results[item] = s_.result_for_dependents(step);
    map.map->erased = map.map->erased || step.erased;
    map.map->done++;
    advance_past_finished(*map.map);
  }
  step.result = Value();
  return {};
}

Status Applier::import_node(Step& step, const ForkEntry& entry, const Erasable& results) {
  const Node& node = s_.node_of(step);
  if (step.phase != StepPhase::ready || step.map || step.loop) {
    return corrupt_event("it cannot be done yet, or is");
  }
  const std::uint32_t index = node.index;
  if (!import_end(step, entry, results)) return corrupt_event("no node ends so");
  if (step.failure && !node.continue_on_error) return corrupt_event("its failure is the job's");
  if (step.skipped) {
    if (!node.when) return corrupt_event("it cannot be skipped");
    step.started = false;
    step.branch = false;
  } else if (node.when) {
    step.branch = true;
  }
  if (node.kind == NodeKind::map && step.result.is_array()) s_.map_items += step.result.size();
  s_.steps.set_id(index, entry.step_id);
  update_work_sets(index);
  s_.nodes_left--;
  open_dependents(node);
  return {};
}

}  // namespace ae::engine
