// How a decision opens and finishes the waits of a plan, and delivers what arrived before them.
#include <fmt/core.h>

#include "engine/heart/decider.h"
#include "engine/heart/request.h"
#include "log/field_names.h"

namespace ae::engine {

void Decider::start_wait(const Step& step) {
  const Node& node = s_.node_of(step);
  start(step);
  std::string key = step.id.text;
  if (node.wait_key) {
    auto named = wait_key_of(s_, node, &work_);
    if (!named) return fail_step(step, named.error());
    key = s_.unique_wait_key(*named);
  }
  std::string channel;
  if (node.wait_channel) {
    auto named = channel_of(s_, node, &work_);
    if (!named) return fail_step(step, named.error());
    channel = std::move(*named);
  }
  const bool used = s_.waits.contains(key) || s_.closed_waits.contains(key) || keys_.contains(key);
  if (used || is_reserved_key(key)) {
    return fail_step(
        step, {Code::correlation_key_reused,
               fmt::format("the key \"{}\" was used before in this job, or is one of the runtime's "
                           "own (resolve/…, approval/…, input/…#n, job/…); make keys differ",
                           key)});
  }
  WaitOpened wait{.channel = none_if_empty(channel),
                  .correlation_key = key,
                  .wait_type = std::string(to_text(node.wait.type))};
  if (node.wait.type == WaitType::timer) {
    auto due = due_of(s_, node, context_.now, &work_);
    if (!due) return fail_step(step, {Code::expression_failed, due.error().message});
    wait.due_at = cap_at_deadline(*due);
  }
  if (node.wait_expires) wait.expires_at = cap_at_deadline(context_.now + *node.wait_expires);
  keys_.insert(key);
  emit_of(step, std::move(wait));
  deliver_early_answer({.node_id = node.id, .step_id = step.id}, node.wait, key, channel);
}

// Delivers a kept message or early signal in the commit that opens its wait.
void Decider::deliver_early_answer(WaitCompleted answer, const WaitRules& rules,
                                   const std::string& key, std::string_view channel) {
  const BufferedMessage* kept = nullptr;
  if (!channel.empty()) {
    const auto pending_messages = s_.pending_messages.find(std::string(channel));
    std::size_t& delivered = delivered_[std::string(channel)];
    if (pending_messages == s_.pending_messages.end() ||
        delivered >= pending_messages->second.size())
      return;
    kept = &pending_messages->second[delivered++];
  } else if (const auto early = s_.early_signals.find(key);
             early != s_.early_signals.end() && rules.type != WaitType::timer) {
    kept = first_fitting_signal(early->second, rules);
  }
  if (!kept) return;
  answer.by = none_if_empty(kept->by);
  answer.correlation_key = key;
  answer.outcome = std::string(*outcome_of_answer(&rules, kept->payload));
  answer.signal_id = kept->id;
  answer.wait_type = std::string(to_text(rules.type));
  emit(std::move(answer));
}

void Decider::finish_wait(const Step& step) {
  const WaitRules& rules = s_.wait_rules_of(step);
  if (step.request && s_.closed_waits.at(*step.wait_key).outcome == "cancelled") {
    return fail_step(step, "cancelled", "the code cancelled the wait");
  }
  if (step.timed_out && !rules.continue_on_expire) {
    return fail_step(step, code_name(Code::wait_expired),
                     "nobody answered before the wait expired");
  }
  if (step.rejected && !rules.continue_on_reject) {
    const std::string_view note = step.result.text(field::note);
    const std::string why = note.empty() ? "" : fmt::format(": {}", note);
    return fail_step(step, code_name(Code::rejected), fmt::format("the answer was no{}", why));
  }
  emit_of(step, NodeFinished{.result_of = step.id.text, .result_type = "pure", .try_no = 1});
}

}  // namespace ae::engine
