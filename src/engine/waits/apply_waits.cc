// How waits, messages and early signals change the state.
#include <algorithm>

#include "engine/heart/features.h"
#include "engine/state/applier.h"

namespace ae::engine {
namespace {

std::optional<WaitType> wait_type_of(std::string_view text) {
  for (auto type : {WaitType::webhook, WaitType::human, WaitType::timer, WaitType::signal,
                    WaitType::message, WaitType::job}) {
    if (to_text(type) == text) return type;
  }
  return std::nullopt;
}

}  // namespace

Status Applier::apply(const WaitOpened& event) {
  Step* step = this->step(event.step_id);
  if (!step) return corrupt_event("no such step");
  std::string key = event.correlation_key;
  const bool for_approval = key.starts_with("approval/");
  const bool question = is_question(*step);
  const bool child = question && s_.awaits_child(*step);
  const bool unmade = step->role == Role::undo && step->phase == StepPhase::ready;
  const bool of_call =
      (step->call || unmade) && step->phase != StepPhase::done && !step->committed && !for_approval;
  const bool of_node =
      step->phase == StepPhase::ready && step->started && s_.kind_of(*step) == NodeKind::wait;
  const bool of_thread = step->loop && may_await_message(s_, *step);
  if (!of_call && !of_node && !of_thread && !for_approval) {
    return corrupt_event("this step waits for nothing");
  }
  if (of_call && step->phase == StepPhase::in_doubt) return corrupt_event("it waits already");
  if ((of_node || of_thread) && s_.ending) {
    return corrupt_event("nothing starts in a job that ends");
  }
  auto type = wait_type_of(event.wait_type);
  if (!type) return corrupt_event("an unknown wait type");
  if (s_.waits.contains(key) || s_.closed_waits.contains(key))
    return corrupt_event("the key was used before");
  Wait wait{.step = index_of(*step),
            .type = *type,
            .due_at = event.due_at,
            .expires_at = event.expires_at,
            .resolve = of_call,
            .opened_at = created_at_,
            .reason = or_empty(event.reason),
            .channel = or_empty(event.channel),
            .opened_seq = s_.seq + 1};
  if (child != (*type == WaitType::job)) return corrupt_event("no child job is awaited");
  if (of_node && *type == WaitType::message && wait.channel.empty())
    return corrupt_event("without a channel");
  if (of_node && step->request) {
    step->request->wait = {.type = *type,
                           .continue_on_expire = true,
                           .continue_on_reject = true,
                           .accepts_data = event.answer_type.has_value()};
    if (*type == WaitType::human) {
      const Value& prompt = event.question_text.value;
      if (!event.question_text.erased && !prompt.is_null() && !prompt.is_string()) {
        return corrupt_event("its question is not a text");
      }
      if (prompt.is_string()) wait.prompt = prompt.as_string();
      wait.data = event.question_data.value;
    }
  } else if (event.answer_type) {
    return corrupt_event("only a wait of code states its answers");
  }
  const bool has_question = !event.question_text.is_null() || !event.question_data.is_null();
  if (has_question && (!of_node || !step->request || *type != WaitType::human)) {
    return corrupt_event("only a human wait of code has a question");
  }
  step->wait_key = key;
  if (for_approval) {
    AE_TRY(request_opened(*step, wait));
  } else if (child) {
    AE_TRY(child_created(*step, key, wait));
  } else if (question) {
    AE_TRY(question_opened(*step, key, wait));
  } else if (of_thread) {
    AE_TRY(thread_waits(*step, key, wait));
  } else {
    set_phase(*step, wait.resolve ? StepPhase::in_doubt : StepPhase::waiting);
  }
  if (wait.resolve) s_.had_unknown_outcome = true;
  if (std::uint32_t* const count = open_count(wait)) ++*count;
  s_.waits.emplace(std::move(key), wait);
  return {};
}

// The count of open requests that contains this wait; nullptr: no operator is asked.
std::uint32_t* Applier::open_count(const Wait& wait) {
  if (wait.type != WaitType::human || wait.resolve) return nullptr;
  if (wait.approval) return &s_.open_requests.calls;
  return wait.question ? &s_.open_requests.questions : &s_.open_requests.waits;
}

Status Applier::apply(const WaitCompleted& event) {
  std::string key = event.correlation_key;
  auto it = s_.waits.find(key);
  if (it == s_.waits.end()) return corrupt_event("no such wait is open");
  const Wait wait = it->second;
  std::string listed = s_.approval_id(wait);
  s_.waits.erase(it);
  if (std::uint32_t* const count = open_count(wait)) --*count;
  Step& step = s_.steps[wait.step];
  Value payload = event.payload.value;
  bool erased = event.payload.erased;
  const std::string signal_id = or_empty(event.signal_id);
  if (!wait.resolve) {
    const std::string& outcome = event.outcome;
    auto kept = payload.is_null() ? take_buffered(key, wait, signal_id) : std::nullopt;
    if (kept) {
      payload = kept->payload;
      erased = kept->erased;
    }
    if (!kept && wait.type == WaitType::message && outcome == "signalled") {
      return corrupt_event("no such message has come");
    }
    if (wait.approval) {
      AE_TRY(request_closed(step, outcome));
    } else if (wait.type == WaitType::job) {
      AE_TRY(child_ended(step, wait, event, payload));
    } else if (wait.question) {
      AE_TRY(question_closed(step, outcome, payload));
    } else if (step.loop) {
      AE_TRY(thread_answered(step, outcome, kept));
    } else {
      step.timed_out = outcome == "timed_out";
      step.rejected = outcome == "rejected";
      step.result = step.timed_out ? Value::object({{"timed_out", true}}) : payload;
      step.erased = erased && !step.timed_out;
      if (outcome != "cancelled" || step.request) set_phase(step, StepPhase::answered);
    }
    if (event.signal_id && !kept) {
      s_.signals++;
      if (outcome == "cancelled") {
        s_.undelivered.push_back({.correlation_key = key, .signal_id = signal_id});
      }
    }
  } else if (step.phase == StepPhase::in_doubt && step.call && !step.call->open &&
             step.call->definite) {
    set_phase(step, StepPhase::settled);  // its definite failure arrived late
  }
  if (step.loop) return {};  // its turns have the message
  s_.closed_waits.emplace(std::move(key), ClosedWait{.type = wait.type,
                                                     .outcome = event.outcome,
                                                     .payload = std::move(payload),
                                                     .signal_id = signal_id,
                                                     .approval = std::move(listed),
                                                     .erased = erased});
  return {};
}

Status Applier::apply(const AgentMessage& event) {
  const std::string &channel = event.channel, &key = or_empty(event.correlation_key);
  if (channel.empty() == key.empty())
    return corrupt_event("a message has a channel, an early signal a key");
  const std::string& id = event.message_id;
  if (!s_.message_keys.insert(message_key(channel, key, id)).second) {
    return corrupt_event("it was recorded before");
  }
  const bool ends_thread = event.control && event.control->view() == thread_control::kEnd;
  if (event.control && (channel != kThreadChannel || thread_of(s_) == nullptr)) {
    return corrupt_event("the job is not a thread");
  }
  s_.signals++;
  if (event.control && !ends_thread) return interrupt_thread();
  std::deque<BufferedMessage>& kept =
      key.empty() ? s_.pending_messages[channel] : s_.early_signals[key];
  kept.push_back({id, or_empty(event.by), or_empty(event.wait_type), event.payload.value,
                  event.payload.erased, ends_thread});
  return {};
}

// A kept message or early signal; nullopt: there is none.
std::optional<BufferedMessage> Applier::take_buffered(const std::string& key, const Wait& wait,
                                                      const std::string& signal_id) {
  const bool is_message = wait.type == WaitType::message;
  auto& all = is_message ? s_.pending_messages : s_.early_signals;
  auto it = all.find(is_message ? wait.channel : key);
  if (it == all.end()) return std::nullopt;
  std::deque<BufferedMessage>& kept = it->second;
  const auto found = is_message ? kept.begin()  // in order
                                : std::ranges::find(kept, signal_id, &BufferedMessage::id);
  if (found == kept.end() || found->id != signal_id) return std::nullopt;
  BufferedMessage taken = std::move(*found);
  kept.erase(found);
  if (kept.empty()) all.erase(it);
  return taken;
}

}  // namespace ae::engine
