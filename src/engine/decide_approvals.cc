// How a decision asks a person before a call: nothing is declared before it is approved, and an approval is good for
// exactly the call that was asked for (SPEC §10).
#include "engine/decider.h"

namespace ae::engine {

bool is_approved(const Step* step, const ToolPolicy& tool, const Ask& ask) {
  if (!tool.may_ask()) return true;
  if (!ask.arguments) return false;
  // A condition that fails has failed the step before; if it has not, a person is asked.
  if (!approval_needed(tool, *ask.arguments).value_or(true)) return true;
  if (!step || !step->approval || step->approval->state != ApprovalState::approved) return false;
  const Approval& approval = *step->approval;
  const bool same = approval.tool == ask.tool && approval.arguments_hash == ask.arguments_hash &&
                    approval.tool_version == ask.tool_version &&
                    approval.schema_digest == tool.schema_digest;
  // The time to begin is limited; the tries of what has begun belong to it.
  const bool in_time = approval.used || !approval.expires_at || ask.now < *approval.expires_at;
  return same && in_time;
}

bool Decider::approved(const Declaration& d, const Value& args, std::string_view hash) const {
  const ToolPolicy& tool = s_.plan->tools[d.tool];
  if (!tool.may_ask()) return true;
  const auto known = s_.by_id.find(d.step);
  const Step* step = known == s_.by_id.end() ? nullptr : &s_.steps[known->second];
  return is_approved(step, tool,
                     {.step = step ? known->second : kNewItem,
                      .tool = tool.name,
                      .arguments_hash = hash,
                      .arguments = &args,
                      .tool_version = offered(d.tool),
                      .now = stamp_.now});
}

void Decider::request_approval(const Declaration& d, const Value& args, std::string_view hash) {
  const ToolPolicy& tool = s_.plan->tools[d.tool];
  const auto known = s_.by_id.find(d.step);
  const Approval* earlier =
      known == s_.by_id.end() ? nullptr : s_.steps[known->second].approval.get();
  const std::string asked = std::to_string(earlier ? earlier->asked + 1 : 1);
  std::string path = d.path;
  if (path.empty() && known != s_.by_id.end()) path = s_.path_of(s_.steps[known->second]);
  if (path.empty()) path = s_.item_path(d.node, d.item);
  std::vector<Member> request{{"arguments", args},         {"arguments_hash", hash},
                              {"command_id", d.step.text}, {"schema_digest", tool.schema_digest},
                              {"tool", tool.name},         {"tool_version", offered(d.tool)}};
  std::vector<Member> wait{
      {"correlation_key", "approval/" + d.step.text + (earlier ? "#" + asked : std::string())},
      {"node_id", d.node.id},
      {"step_id", d.step.text},
      {"wait_type", to_text(WaitType::human)}};
  if (tool.approval_expires) {
    const Instant expires = within(stamp_.now + *tool.approval_expires);
    request.emplace_back("expires_at", to_text(expires));
    wait.emplace_back("expires_at", to_text(expires));
  }
  emit(EventType::decision_recorded,
       {{"decision_id",
         step_id(s_.job, s_.plan->decision, path + "#approval" + asked, "decision").text},
        {"kind", "approval"},
        {"node_id", d.node.id},
        {"payload", Value::object(std::move(request))},
        {"state", "requested"},
        {"step_id", d.step.text}});
  emit(EventType::wait_opened, std::move(wait));
}

// A person said no, or nobody said anything in time: the node fails, its tool was never called.
void Decider::finish_refused(const Step& step) {
  const Approval& approval = *step.approval;
  const std::string call = "the call of \"" + approval.tool + "\"";
  switch (approval.state) {
    case ApprovalState::rejected:
      return fail_step(step, code_name(Code::rejected),
                       call + " was rejected" + (approval.by.empty() ? "" : " by " + approval.by) +
                           (approval.note.empty() ? "" : ": " + approval.note));
    case ApprovalState::withdrawn:
      return fail_step(step, code_name(Code::rejected),
                       call + " was not made: " +
                           (step.turn == kNoTurn ? "another item of its map" : "its loop") +
                           " had failed");
    default:
      return fail_step(step, code_name(Code::wait_expired),
                       "nobody approved " + call + " before the request expired");
  }
}

// A map or a loop fails: what its other parts ask for is asked no more.
void Decider::withdraw_requests(const Step& whole) {
  for (const auto& [key, wait] : s_.waits) {
    if (!wait.approval) continue;
    const Step& step = s_.steps[wait.step];
    if (step.is_part() && step.node == whole.node) cancel_wait(key, wait);
  }
}

}  // namespace ae::engine
