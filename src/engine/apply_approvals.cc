// How events of people change the state: requests to approve a call and their answers, messages, early signals, pauses.
#include <algorithm>

#include "core/redacted.h"
#include "engine/applier.h"
#include "engine/evaluate.h"
#include "engine/take.h"

namespace ae::engine {

Status Applier::approval_requested() {
  Step* step = this->step();
  if (!step || !step->started || (step->call && step->call->open)) return bad("no call to approve");
  if (s_.ending) return bad("nothing starts in a job that ends");
  switch (step->phase) {
    case StepPhase::ready:
      if (!step->is_part() && !s_.node_of(*step).calls()) {
        return bad("this node makes no call");
      }
      break;
    case StepPhase::backoff:
    case StepPhase::redo:
    case StepPhase::settled:
      break;
    default:
      return bad("no call is to be made here");
  }
  if (step->approval && step->approval->state != ApprovalState::approved) {
    return bad("it was asked for before, and not approved");
  }
  const Value& asked = p_["payload"];
  auto approval = std::make_unique<Approval>();
  approval->id = p_.text("decision_id");
  approval->arguments = asked["arguments"];
  approval->arguments_hash = asked.text("arguments_hash");
  approval->tool = asked.text("tool");
  approval->tool_version = asked.text("tool_version");
  approval->schema_digest = asked.text("schema_digest");
  approval->expires_at = maybe_instant(asked, "expires_at");
  approval->from = step->phase;
  approval->asked = step->approval ? step->approval->asked + 1 : 1;
  if (approval->tool != s_.tool_of(*step).name) {
    return bad("another tool than the plan's");
  }
  if (step->call && (step->call->arguments_hash != approval->arguments_hash ||
                     step->call->tool != approval->tool)) {
    return bad("other arguments than those of its invocation");
  }
  step->approval = std::move(approval);
  return {};
}

Status Applier::approval_answered() {
  Step* step = this->step();
  const std::string_view said = p_.text("state");
  if (!step || step->phase != StepPhase::asking ||
      step->approval->state != ApprovalState::requested ||
      p_["payload"].text("approval_id") != step->approval->id) {
    return bad("nobody asked for this approval");
  }
  if (said != "approved" && said != "rejected") return bad("an unknown answer");
  step->approval->state = said == "approved" ? ApprovalState::approved : ApprovalState::rejected;
  step->approval->by = p_.text("by");
  step->approval->note = p_.text("reason");
  return {};
}

// The wait of a call that is to be approved.
Status Applier::request_opened(Step& step, Wait& wait) {
  if (!step.approval || step.approval->state != ApprovalState::requested ||
      step.phase != step.approval->from || wait.type != WaitType::human) {
    return bad("nobody asked for an approval");
  }
  wait.approval = true;
  if (step.item != kNoItem) s_.steps[step.node].map->asking++;
  if (step.turn != kNoTurn) s_.steps[step.node].loop->asking++;
  enter(step, StepPhase::asking);
  return {};
}

Status Applier::request_closed(Step& step, std::string_view outcome) {
  Approval& approval = *step.approval;
  const bool answered = outcome == "approved" || outcome == "rejected";
  if (answered != (approval.state != ApprovalState::requested)) {
    return bad("the decision says otherwise");
  }
  if (step.item != kNoItem) s_.steps[step.node].map->asking--;
  if (step.turn != kNoTurn) s_.steps[step.node].loop->asking--;
  if (step.is_part()) refresh(step.node);
  if (outcome == "timed_out") approval.state = ApprovalState::expired;
  if (outcome == "cancelled") approval.state = ApprovalState::withdrawn;
  const bool approved = approval.state == ApprovalState::approved;
  enter(step, approved ? approval.from : StepPhase::answered);
  return {};
}

// Did a person approve exactly the call that is declared here?
Status Applier::check_approval(Step& step) {
  const ToolPolicy& tool = s_.tool_of(step);
  const std::string_view id = p_.text("approval_id");
  if (id.empty()) {
    if (!tool.may_ask()) return {};
    const auto needed = approval_needed(tool, p_["arguments"]);
    if (is_redacted(p_["arguments"]) && !tool.approval_required) return {};
    return needed && !*needed ? Status() : bad("nobody approved this call");
  }
  Approval* approval = step.approval.get();
  if (!approval || approval->state != ApprovalState::approved || approval->id != id ||
      approval->tool != p_.text("tool_name") || approval->tool_version != p_.text("tool_version") ||
      approval->arguments_hash != p_.text("arguments_hash") ||
      approval->schema_digest != p_.text("request_schema_hash")) {
    return bad("its approval is that of another call");
  }
  approval->used = true;
  approval->arguments = Value();
  return {};
}

Status Applier::agent_message() {
  const std::string channel(p_.text("channel")), key(p_.text("correlation_key"));
  if (channel.empty() == key.empty()) return bad("a message has a channel, an early signal a key");
  const std::string id(p_.text("message_id"));
  if (!s_.message_names.insert(message_name(channel, key, id)).second) {
    return bad("it was recorded before");
  }
  s_.signals++;
  std::deque<Kept>& kept = key.empty() ? s_.mail[channel] : s_.early[key];
  kept.push_back(
      {id, std::string(p_.text("by")), std::string(p_.text("wait_type")), p_["payload"]});
  return {};
}

// The payload of an answer that was kept before: a message, or an early signal. nullopt: there is no such.
std::optional<Value> Applier::take_kept(const std::string& key, const Wait& wait) {
  const bool is_message = wait.type == WaitType::message;
  auto& all = is_message ? s_.mail : s_.early;
  auto it = all.find(is_message ? wait.channel : key);
  if (it == all.end()) return std::nullopt;
  std::deque<Kept>& kept = it->second;
  const auto found = is_message ? kept.begin()  // in order
                                : std::ranges::find(kept, p_.text("signal_id"), &Kept::id);
  if (found == kept.end() || found->id != p_.text("signal_id")) return std::nullopt;
  Value payload = std::move(found->payload);
  kept.erase(found);
  if (kept.empty()) all.erase(it);
  return payload;
}

Status Applier::pause_requested() {
  if (flag(p_, "withdrawn")) {
    if (!s_.pausing) return bad("no pause is asked for");
    s_.pausing.reset();
    return {};
  }
  if (s_.pausing) return bad("a pause is asked for already");
  if (s_.ending) return bad("the job is ending");
  s_.pausing = PauseRequest{std::string(p_.text("by")), std::string(p_.text("reason"))};
  return {};
}

}  // namespace ae::engine
